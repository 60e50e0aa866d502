#include "checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"

namespace train_lm {
namespace {

using ingot::Error;
using ingot::ErrorCode;

constexpr std::array<char, 8> kMagic{'I', 'N', 'G', 'O', 'T', 'L', 'M', '3'};

// JSON has no NaN: it is written as null.
std::string to_json(const Progress& progress, const std::string& scales) {
  nlohmann::json histories = nlohmann::json::array();
  for (const History& history : progress.histories) {
    histories.push_back({{"losses", history.losses},
                         {"seconds", history.seconds},
                         {"timed_steps", history.timed_steps},
                         {"validation_loss", history.validation_loss}});
  }
  return nlohmann::json{{"fingerprint", progress.fingerprint}, {"histories", histories}, {"delayed_scaling", scales}}
      .dump();
}

// A loss or a time: a number, or null for NaN.
double real(const nlohmann::json& object, const char* name) {
  return ingot::json_field(object, name).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                                   : ingot::json_number(object, name);
}

History history_from(const nlohmann::json& json, const RunSize& run) {
  History history{.losses = {},
                  .seconds = real(json, "seconds"),
                  .timed_steps = ingot::json_integer(json, "timed_steps", 0, run.steps),
                  .validation_loss = real(json, "validation_loss")};
  const nlohmann::json& losses = ingot::json_array(json, "losses");
  if (losses.size() > static_cast<std::size_t>(run.steps)) {
    throw ingot::JsonFault(fmt::format("has {} losses of {} steps", losses.size(), run.steps));
  }
  for (const nlohmann::json& loss : losses) {
    if (!loss.is_null() && !loss.is_number()) throw ingot::JsonFault("has a loss that is not a number");
    history.losses.push_back(loss.is_null() ? std::numeric_limits<float>::quiet_NaN() : loss.get<float>());
  }
  return history;
}

Progress from_json(const nlohmann::json& json, const RunSize& run) {
  Progress progress{.fingerprint = ingot::json_string(json, "fingerprint"), .histories = {}};
  const nlohmann::json& histories = ingot::json_array(json, "histories");
  if (histories.empty() || histories.size() > run.models) {
    throw ingot::JsonFault(
        fmt::format("has \"histories\" of {} models, but this run has {}", histories.size(), run.models));
  }
  for (const nlohmann::json& history : histories) {
    const bool is_done = progress.histories.size() + 1 < histories.size();
    progress.histories.push_back(history_from(history, run));
    if (is_done && progress.histories.back().losses.size() != static_cast<std::size_t>(run.steps)) {
      throw ingot::JsonFault("has too few losses of a model that is done");
    }
  }
  return progress;
}

std::size_t payload_bytes(Model& model) {
  std::size_t bytes = 0;
  for (const Parameter* parameter : model.parameters())
    bytes += 3 * sizeof(float) * static_cast<std::size_t>(parameter->count);
  return bytes;
}

// Calls work(device memory, bytes) for each piece of the payload, in order.
template <class Work>
void for_each_piece(Model& model, Work work) {
  for (Parameter* parameter : model.parameters()) {
    for (const ingot::OwnedTensor* tensor : {&parameter->values, &parameter->first_moment, &parameter->second_moment}) {
      work(tensor->view().data, sizeof(float) * static_cast<std::size_t>(parameter->count));
    }
  }
}

// The checksum of header and payload, taken in pieces: the payload can be gigabytes, so the two are never joined.
std::uint64_t checksum_of(std::string_view header, std::string_view payload) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), header.data(), header.size());
  XXH3_64bits_update(state.get(), payload.data(), payload.size());
  return XXH3_64bits_digest(state.get());
}

struct File {
  std::string all;
  std::string_view header;
  std::string_view payload;
};

Error damaged(const std::filesystem::path& path, const std::string& how) {
  return {ErrorCode::io_failed, path.string(), "is damaged (" + how + "); delete it, or train without --resume"};
}

File open_checkpoint(const std::filesystem::path& path, std::uint64_t payload) {
  // The losses of a run take far less. The payload is known, so a file of any other size is not even read.
  constexpr std::uint64_t kMostHeader = std::uint64_t{1} << 30;
  File file{.all = ingot::read_file(path, payload + kMostHeader, "there is no checkpoint to resume from"),
            .header = {},
            .payload = {}};
  const std::string_view all = file.all;
  for (const std::string_view older : {"INGOTLM1", "INGOTLM2"}) {
    if (!all.starts_with(older)) continue;
    throw Error(ErrorCode::invalid_argument, path.string(),
                fmt::format("was written by an older train_lm (format {}; this is 3): go on with that one, or train "
                            "without --resume",
                            older.back()));
  }
  if (all.size() < 24 || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0) {
    throw damaged(path, "not a checkpoint");
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, all.data() + 8, 8);
  if (header_bytes > all.size() - 24) throw damaged(path, "cut short");
  file.header = all.substr(16, header_bytes);
  file.payload = all.substr(24 + header_bytes);
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, all.data() + 16 + header_bytes, 8);
  if (checksum_of(file.header, file.payload) != checksum) throw damaged(path, "wrong checksum");
  return file;
}

// Calls work() on the header. Anyone can write a header with a right checksum.
template <class Work>
auto with_header(const std::filesystem::path& path, std::string_view header, Work work) {
  constexpr int kDeepest = 8;
  if (const std::string fault = ingot::json_fault(header, kDeepest); !fault.empty()) {
    throw damaged(path, "its header " + fault);
  }
  try {
    return work(nlohmann::json::parse(header));
  } catch (const ingot::JsonFault& fault) {
    throw damaged(path, std::string("its header ") + fault.what());
  }
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Progress& progress, Model& model,
                      ingot::Backend& backend, ingot::Stream& stream) {
  const std::string header = to_json(progress, model.delayed_scaling().save(stream));
  std::string payload(payload_bytes(model), '\0');
  std::size_t at = 0;
  for_each_piece(model, [&](const void* memory, std::size_t bytes) {
    backend.device_api().copy_to_host(payload.data() + at, memory, bytes, stream);
    at += bytes;
  });
  backend.device_api().synchronize(stream);
  const std::uint64_t checksum = checksum_of(header, payload);
  const std::uint64_t header_bytes = header.size();
  std::string front(kMagic.data(), kMagic.size());
  front.append(reinterpret_cast<const char*>(&header_bytes), 8).append(header);
  front.append(reinterpret_cast<const char*>(&checksum), 8);

  ingot::FileWriter writer(file);
  writer.write(front);
  writer.write(payload);
  writer.sync();
  writer.publish();
}

Progress read_progress(const std::filesystem::path& file, const std::string& fingerprint, const RunSize& run) {
  const File content = open_checkpoint(file, run.payload_bytes);
  return with_header(file, content.header, [&](const nlohmann::json& json) {
    // The histories of another run may have any length; that run's name makes the better message.
    if (const std::string found = ingot::json_string(json, "fingerprint"); found != fingerprint) {
      throw Error(ErrorCode::invalid_argument, file.string(),
                  "belongs to another run:\n  it has   " + found + "\n  this is  " + fingerprint);
    }
    return from_json(json, run);
  });
}

void read_model(const std::filesystem::path& file, Model& model, ingot::Backend& backend, ingot::Stream& stream) {
  const File content = open_checkpoint(file, payload_bytes(model));
  if (content.payload.size() != payload_bytes(model)) {
    throw Error(ErrorCode::io_failed, file.string(), "holds a model of another size");
  }
  std::size_t at = 0;
  for_each_piece(model, [&](void* memory, std::size_t bytes) {
    backend.device_api().copy_from_host(memory, content.payload.data() + at, bytes, stream);
    at += bytes;
  });
  const auto scales = with_header(
      file, content.header, [](const nlohmann::json& json) { return ingot::json_string(json, "delayed_scaling"); });
  model.delayed_scaling().load(scales, stream);
  model.values_changed();
}

}  // namespace train_lm
