#include "generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ingot/runtime/util/error.h"

namespace generate {
namespace {

using Clock = std::chrono::steady_clock;

struct Sums {
  double first = 0, second = 0, product = 0, difference = 0;
};

Sums sums_of(std::span<const float> a, std::span<const float> b) {
  Sums sums;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i];
    const double y = b[i];
    sums.first += x * x;
    sums.second += y * y;
    sums.product += x * y;
    sums.difference += (x - y) * (x - y);
  }
  return sums;
}

std::vector<float> logits_of(Machine& machine, Generator& generator) {
  const ingot::Tensor& logits = generator.decoder().logits();
  std::vector<float> values(static_cast<std::size_t>(logits.rows * logits.cols));
  machine.device_api().copy_to_host(values.data(), logits.data, values.size() * sizeof(float), machine.stream());
  machine.device_api().synchronize(machine.stream());
  return values;
}

}  // namespace

Generator::Generator(Machine& machine, Decoder& decoder) : decoder_(&decoder) {
  const auto sequences = static_cast<std::size_t>(decoder.logits().rows);
  decoder.start(Tokens(sequences, {0}));
  decoder.enqueue();
  step_.emplace(machine, [&decoder] { decoder.enqueue(); });
}

void Generator::start(const Tokens& tokens) {
  decoder_->start(tokens);
  position_ = 0;
}

void Generator::advance(std::int64_t steps) {
  if (steps > decoder_->capacity() - position_) {
    throw ingot::Error(
        ingot::ErrorCode::invalid_argument, "generate",
        fmt::format("position {} + {} exceeds the room for {} tokens", position_, steps, decoder_->capacity()));
  }
  position_ += steps;
  for (std::int64_t i = 0; i < steps; ++i) step_->run();
}

double Generated::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

Generated generate_tokens(Machine& machine, Generator& generator, const Tokens& prompt, std::int64_t count,
                          int rounds) {
  const auto given = static_cast<std::int64_t>(prompt.front().size());
  Generated result;
  for (int round = 0; round < rounds; ++round) {
    generator.start(prompt);
    // The step on the prompt's last token chooses the first generated token.
    generator.advance(given);
    machine.device_api().synchronize(machine.stream());
    const Clock::time_point begin = Clock::now();
    generator.advance(count - 1);
    machine.device_api().synchronize(machine.stream());
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    result.seconds.push_back(seconds / static_cast<double>(std::max<std::int64_t>(1, count - 1)));
  }
  result.tokens = generator.decoder().tokens(given + count);
  return result;
}

void AgreementSums::add(std::span<const float> first, std::span<const float> second) {
  const Sums sums = sums_of(first, second);
  const double cosine = sums.product / std::sqrt(sums.first * sums.second);
  energy_ += sums.first;
  difference_ += sums.difference;
  so_far_.mean_cosine += cosine;
  if (std::isnan(cosine) || cosine < so_far_.lowest_cosine) so_far_.lowest_cosine = cosine;
  const auto largest = [](std::span<const float> x) { return std::ranges::max_element(x) - x.begin(); };
  if (!std::isnan(sums.difference) && largest(first) == largest(second)) so_far_.top1 += 1;
  ++so_far_.tokens;
}

Agreement AgreementSums::result() const {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, so_far_.tokens));
  Agreement agreement = so_far_;
  agreement.top1 /= count;
  agreement.mean_cosine /= count;
  agreement.sqnr_db = 10 * std::log10(energy_ / difference_);
  return agreement;
}

Agreement compare(Machine& machine, Generator& first, Generator& second, const Tokens& tokens, std::int64_t prompt) {
  first.start(tokens);
  second.start(tokens);
  AgreementSums sums;
  const auto length = static_cast<std::int64_t>(tokens.front().size());
  const auto width = static_cast<std::size_t>(first.decoder().logits().cols);
  for (std::int64_t position = 0; position + 1 < length; ++position) {
    first.advance(1);
    second.advance(1);
    if (position + 1 < prompt) continue;
    const std::vector<float> a = logits_of(machine, first);
    const std::vector<float> b = logits_of(machine, second);
    for (std::size_t at = 0; at < a.size(); at += width) {
      sums.add(std::span(&a[at], width), std::span(&b[at], width));
    }
  }
  return sums.result();
}

}  // namespace generate
