// Files that the examples read: the config.json of a model, and train_lm's checkpoints.
#include <cstring>
#include <optional>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fuzz/input_file.h"
#include "fuzz/targets.h"
#include "generate/model_shape.h"
#include "train_lm/checkpoint.h"

namespace ingot::fuzz {

bool model_config(std::string_view input) {
  const InputFile file(input);
  std::optional<generate::ModelShape> shape;
  if (!accepts([&] { shape = generate::read_config(file.path()); })) return false;
  require(shape->query_rows() > 0 && shape->qkv_rows() > 0, "sizes that no model has");
  return true;
}

bool checkpoint(std::string_view input) {
  const InputFile file(input);
  const train_lm::RunSize run{.models = 2, .steps = 3, .payload_bytes = 12};
  std::optional<train_lm::Progress> progress;
  if (!accepts([&] { progress = train_lm::read_progress(file.path(), "the run", run); })) return false;
  require(!progress->histories.empty() && progress->histories.size() <= run.models, "more models than the run has");
  for (const train_lm::History& history : progress->histories) {
    require(history.losses.size() <= 3 && history.timed_steps <= 3, "more steps than the run has");
  }
  return true;
}

bool sealed_checkpoint(std::string_view header) {
  const std::uint64_t bytes = header.size();
  const std::uint64_t checksum = XXH3_64bits(header.data(), header.size());
  std::string file = "INGOTLM3";
  file.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes)).append(header);
  return checkpoint(file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum)));
}

}  // namespace ingot::fuzz
