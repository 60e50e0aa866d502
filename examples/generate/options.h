// The command line's options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/weights/weight_only.h"
#include "model_shape.h"

namespace generate {

struct Options {
  std::string device = "auto";    // auto, cpu, cuda
  std::string preset;             // empty: the sizes of config.json, or tiny on the CPU and llama2-7b on a GPU
  std::int64_t layers = 0;        // 0: all
  std::filesystem::path weights;  // empty: random weights
  std::filesystem::path save;     // empty: weights are not written
  std::vector<std::int32_t> prompt;
  std::int64_t prompt_length = 16;  // of a random prompt
  std::int64_t tokens = 128;
  std::int64_t batch = 1;
  int rounds = 3;
  std::uint64_t seed = 1;
  std::string only;  // bf16, quantised; empty: both
  std::string dtype = "e4m3fn";
  std::string scale = "row";
  bool mx = false;
  bool batch_invariant = false;
  bool bf16_head = false;
  std::filesystem::path out;  // the report's file; empty: no report
};

// Reads the command line. Without a value the program ends with `status`: 0 after --help, 2 if an option is wrong.
std::optional<Options> read_options(int argc, char** argv, int& status);
// Checks what can be checked before anything is loaded: options that contradict each other, and files and folders that
// are missing or that exist already. Throws ingot::Error.
void check(const Options& options);

// The model's sizes, from --preset or from the config.json next to --weights, with --layers. Throws ingot::Error.
ModelShape shape_of(const Options& options, bool on_gpu);
// How the weights are quantised.
ingot::WeightOnlyOptions weight_options(const Options& options);

}  // namespace generate
