// Generates tokens one after the other, measures the time they take, and compares how well two models agree on them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "decoder.h"
#include "machine.h"

namespace generate {

using Tokens = std::vector<std::vector<std::int32_t>>;  // one list per sequence

// Repeats a decoder's step, which is captured once.
class Generator {
 public:
  // Runs one step on an arbitrary token, so that kernels are compiled and memory is allocated.
  Generator(Machine& machine, Decoder& decoder);

  // Starts again, at the first of these tokens.
  void start(const Tokens& tokens);
  // Enqueues this many steps. Throws ingot::Error{invalid_argument} past the decoder's capacity.
  void advance(std::int64_t steps);
  Decoder& decoder() { return *decoder_; }

 private:
  Decoder* decoder_;
  std::optional<Step> step_;
  std::int64_t position_ = 0;
};

struct Generated {
  Tokens tokens;                // the prompt's and those generated
  std::vector<double> seconds;  // the time of one step, in each round
  double median_seconds() const;
};

// Generates `count` tokens after the prompt, greedily, `rounds` times. The prompt is decoded token by token, too, but
// is not timed.
Generated generate_tokens(Machine& machine, Generator& generator, const Tokens& prompt, std::int64_t count, int rounds);

// How well the logits of two models agree, given the same tokens.
struct Agreement {
  std::int64_t tokens = 0;
  double top1 = 0;         // share of the tokens at which both models have the same largest logit
  double mean_cosine = 0;  // between the two vectors of logits
  double lowest_cosine = 1;
  double sqnr_db = 0;  // energy of the first model's logits over that of the difference
};

// Compares the logits of two models token by token. A NaN on either side makes both cosines NaN, and the models
// disagree at that token.
class AgreementSums {
 public:
  void add(std::span<const float> first, std::span<const float> second);
  Agreement result() const;

 private:
  Agreement so_far_;  // sums instead of means
  double energy_ = 0;
  double difference_ = 0;
};

// Decodes the same tokens with both models, and compares the logits that predict the tokens after the first `prompt`.
Agreement compare(Machine& machine, Generator& first, Generator& second, const Tokens& tokens, std::int64_t prompt);

}  // namespace generate
