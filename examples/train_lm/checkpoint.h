// The state of a run on disk. Written beside the old one and renamed over it when it is complete: after a kill -9 there
// is the old file or the new one, never half of one.
//
//   file     := magic "INGOTLM2" header_bytes:u64 header(JSON) checksum:u64 payload
//   header   := the progress, and the delayed scales of the model in training
//   payload  := for each parameter of the model in training: values, first moment, second moment (f32)
//   checksum := XXH3-64 of header and payload
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model.h"

namespace train_lm {

// What a run has found out about one model so far.
struct History {
  std::vector<float> losses;  // one per step
  double seconds = 0;         // of training, the first steps left out
  std::int64_t timed_steps = 0;
  double validation_loss = 0;  // set when the model is done
};

struct Progress {
  std::string fingerprint;         // options.h
  std::vector<History> histories;  // of the models before the one in training, and of that one
};

// Throws ingot::Error{io_failed}; the old checkpoint then still stands.
void write_checkpoint(const std::filesystem::path& file, const Progress& progress, Model& model,
                      ingot::Backend& backend, ingot::Stream& stream);

// Only the header: which model was in training, and how far. Throws ingot::Error{not_found} where there is no file,
// ingot::Error{io_failed} for a damaged one, ingot::Error{invalid_argument} for one of another run.
Progress read_progress(const std::filesystem::path& file, const std::string& fingerprint);
// Then the payload, into a model of the same shape.
void read_model(const std::filesystem::path& file, Model& model, ingot::Backend& backend, ingot::Stream& stream);

}  // namespace train_lm
