// The command line's options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace train_lm {

struct ModelShape {
  std::int64_t context = 0;    // bytes of text that predict the next one
  std::int64_t embedding = 0;  // dimensions of a byte's embedding
  std::int64_t hidden = 0;     // of each block
  std::int64_t blocks = 0;

  std::int64_t width() const { return context * embedding; }
  std::int64_t parameters() const;
};

// How the weights of FP8 layers become codes.
enum class WeightCodes : std::uint8_t {
  each,      // each layer casts its own, of bf16, in the forward after the optimizer's step
  together,  // one CastList of all, after the optimizer's step
  masters,   // likewise of the f32 values: there is no bf16 weight
};

struct Options {
  std::filesystem::path text;  // empty: the King James Bible, by the program `bible`
  std::filesystem::path out = "train_lm_out";
  std::string device = "auto";        // auto, cpu, cuda
  std::string size;                   // small, large; empty: small on the CPU, large on a GPU
  std::string only;                   // bf16, fp8; empty: both
  std::string recipe = "tensorwise";  // the FP8 model's
  ModelShape shape{};
  std::int64_t batch = 0;  // rows, each predicting one byte
  std::int64_t steps = 0;
  double learning_rate = 0;
  std::int64_t warmup_steps = -1;
  double final_rate = 0.01;  // the learning rate at the end, as a share of the peak
  double weight_decay = 0.1;
  double clip = 1.0;  // the most that the norm of all gradients may be; 0: any
  WeightCodes weight_codes = WeightCodes::together;
  int ranks = 0;                   // that divide each batch; 0: training without ranks
  std::int64_t micro_batches = 1;  // in which a step's gradients are accumulated; of all ranks together
  std::string graph = "auto";      // auto, on, off: steps from a CUDA graph
  std::uint64_t seed = 1;
  std::int64_t checkpoint_every = -1;  // steps; 0: never
  bool resume = false;

  std::int64_t micro_batch() const { return batch / micro_batches; }
};

// Reads the command line. Without a value the program ends with `status`: 0 after --help, 2 if an option is wrong.
std::optional<Options> read_options(int argc, char** argv, int& status);
// Fills in the defaults, which depend on the device. Throws ingot::Error for values that make no sense.
void complete(Options& options, bool on_gpu);

// The numbers that summary.json has of a run, besides the seed.
std::vector<std::pair<std::string, double>> settings(const Options& options);

// Everything that decides a run's numbers, as one line. A checkpoint belongs to exactly one fingerprint.
std::string fingerprint(const Options& options, std::uint64_t text_digest, bool on_gpu);

}  // namespace train_lm
