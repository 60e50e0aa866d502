// Tokens one after the other, the time that they take, and how well two models agree on them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "decoder.h"
#include "machine.h"

namespace generate {

using Tokens = std::vector<std::vector<std::int32_t>>;  // of each sequence

// A decoder's step, made once and repeated.
class Generator {
 public:
  // Runs one step, on no token that matters, so that kernels are compiled and memory is there.
  Generator(Machine& machine, Decoder& decoder);

  // From the first of these tokens on.
  void start(const Tokens& tokens);
  // Enqueues so many tokens. Throws ingot::Error{invalid_argument} past the decoder's capacity.
  void advance(std::int64_t steps);
  Decoder& decoder() { return *decoder_; }

 private:
  Decoder* decoder_;
  std::optional<Step> step_;
  std::int64_t position_ = 0;
};

struct Generated {
  Tokens tokens;                // the prompt's and those behind it
  std::vector<double> seconds;  // of one token of each sequence, in each round
  double median_seconds() const;
};

// Greedily `count` tokens behind the prompt, `rounds` times. The prompt is decoded as the rest is, token by token, but
// not timed.
Generated generate_tokens(Machine& machine, Generator& generator, const Tokens& prompt, std::int64_t count, int rounds);

// Of the logits behind each token, where both models have been given the same tokens.
struct Agreement {
  std::int64_t tokens = 0;
  double top1 = 0;         // share of the tokens where the largest logit is the same one's
  double mean_cosine = 0;  // of the vectors of logits
  double lowest_cosine = 1;
  double sqnr_db = 0;  // energy of the first model's logits over that of the difference
};

// Adds up what two models say of one token after the other. A NaN on either side makes both cosines NaN, and its token
// one where they do not agree.
class AgreementSums {
 public:
  void add(std::span<const float> first, std::span<const float> second);
  Agreement result() const;

 private:
  Agreement so_far_;  // sums, in place of means
  double energy_ = 0;
  double difference_ = 0;
};

// Behind all tokens but the last and those of the prompt.
Agreement compare(Machine& machine, Generator& first, Generator& second, const Tokens& tokens, std::int64_t prompt);

}  // namespace generate
