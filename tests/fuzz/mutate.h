// Changes bytes as damage and forgery do. The same seed gives the same changes everywhere.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace ingot::fuzz {

class Mutator {
 public:
  // `seeds`: well-formed inputs, which are not empty as a list and outlive this.
  Mutator(std::span<const std::string> seeds, std::uint64_t seed) : seeds_(seeds), random_(seed) {}

  // One of the seeds with one to eight changes.
  std::string next();

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(random_() % limit); }
  std::string piece();
  void change(std::string& text);

  std::span<const std::string> seeds_;
  std::mt19937_64 random_;
};

}  // namespace ingot::fuzz
