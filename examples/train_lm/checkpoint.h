// The state of a run on disk. A new file is written next to the old one and renamed over it when it is complete, so
// that a kill -9 leaves the old file or the new one, never half a file.
//
//   file     := magic "INGOTLM3" header_bytes:u64 header(JSON) checksum:u64 payload
//   header   := the progress, and the delayed scales of the model in training
//   payload  := for each parameter of the model in training: values, first moment, second moment (f32)
//   checksum := XXH3-64 of header and payload
//
// Format 2 had biases, which the model no longer has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model.h"

namespace train_lm {

// One model's results so far.
struct History {
  std::vector<float> losses;  // one per step
  double seconds = 0;         // of training, without the first steps
  std::int64_t timed_steps = 0;
  double validation_loss = 0;  // set when the model is done
};

struct Progress {
  std::string fingerprint;         // options.h
  std::vector<History> histories;  // of the models already trained, then of the one in training
};

// Throws ingot::Error{io_failed}; the old checkpoint then remains.
void write_checkpoint(const std::filesystem::path& file, const Progress& progress, Model& model,
                      ingot::Backend& backend, ingot::Stream& stream);

// How large a checkpoint of this run can be. A file with a right checksum may still say anything.
struct RunSize {
  std::size_t models = 0;
  std::int64_t steps = 0;
  std::uint64_t payload_bytes = 0;
};

// Reads only the header: which model was in training, and how far it was. Throws ingot::Error{not_found} if there is no
// file, ingot::Error{io_failed} if it is damaged, ingot::Error{invalid_argument} if it belongs to another run or
// an older train_lm wrote it. There is at least one history, and all but the last are of all steps.
Progress read_progress(const std::filesystem::path& file, const std::string& fingerprint, const RunSize& run);
// Reads the payload into a model of the same shape.
void read_model(const std::filesystem::path& file, Model& model, ingot::Backend& backend, ingot::Stream& stream);

}  // namespace train_lm
