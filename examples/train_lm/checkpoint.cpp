#include "checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ingot/runtime/error.h"

namespace train_lm {
namespace {

using ingot::Error;
using ingot::ErrorCode;

constexpr std::array<char, 8> kMagic{'I', 'N', 'G', 'O', 'T', 'L', 'M', '2'};

// JSON has no NaN: it is written as null.
template <class Number>
Number number_from(const nlohmann::json& json) {
  return json.is_null() ? std::numeric_limits<Number>::quiet_NaN() : json.get<Number>();
}

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

Progress from_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  Progress progress{.fingerprint = json.at("fingerprint"), .histories = {}};
  for (const nlohmann::json& history : json.at("histories")) {
    std::vector<float> losses;
    for (const nlohmann::json& loss : history.at("losses")) losses.push_back(number_from<float>(loss));
    progress.histories.push_back({.losses = std::move(losses),
                                  .seconds = history.at("seconds"),
                                  .timed_steps = history.at("timed_steps"),
                                  .validation_loss = number_from<double>(history.at("validation_loss"))});
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
std::uint64_t checksum_of(const std::string& header, const std::string& payload) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), header.data(), header.size());
  XXH3_64bits_update(state.get(), payload.data(), payload.size());
  return XXH3_64bits_digest(state.get());
}

struct File {
  std::string header;
  std::string payload;
};

File read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error(ErrorCode::not_found, path.string(), "there is no checkpoint to resume from");
  const std::string all{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const auto damaged = [&](const char* how) {
    return Error(ErrorCode::io_failed, path.string(),
                 std::string("is damaged (") + how + "); delete it, or train without --resume");
  };
  if (all.size() < 24 || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0) throw damaged("not a checkpoint");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, all.data() + 8, 8);
  if (header_bytes > all.size() - 24) throw damaged("cut short");
  File file{.header = all.substr(16, header_bytes), .payload = all.substr(24 + header_bytes)};
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, all.data() + 16 + header_bytes, 8);
  if (checksum_of(file.header, file.payload) != checksum) throw damaged("wrong checksum");
  return file;
}

void write_all(int descriptor, const std::string& bytes, const std::filesystem::path& path) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw Error(ErrorCode::io_failed, path.string(), std::string("cannot be written: ") + strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Progress& progress, Model& model,
                      ingot::Backend& backend, ingot::Stream& stream) {
  const std::string header = to_json(progress, model.delayed_scaling().save(stream));
  std::string payload(payload_bytes(model), '\0');
  std::size_t at = 0;
  for_each_piece(model, [&](const void* memory, std::size_t bytes) {
    backend.copy_to_host(payload.data() + at, memory, bytes, stream);
    at += bytes;
  });
  backend.synchronize(stream);
  const std::uint64_t checksum = checksum_of(header, payload);
  const std::uint64_t header_bytes = header.size();
  std::string front(kMagic.data(), kMagic.size());
  front.append(reinterpret_cast<const char*>(&header_bytes), 8).append(header);
  front.append(reinterpret_cast<const char*>(&checksum), 8);

  const std::filesystem::path temporary = file.string() + ".tmp";
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw Error(ErrorCode::io_failed, temporary.string(), std::string("cannot be written: ") + strerror(errno));
  }
  try {
    write_all(descriptor, front, temporary);
    write_all(descriptor, payload, temporary);
    if (fsync(descriptor) != 0) throw Error(ErrorCode::io_failed, temporary.string(), "cannot be flushed to the disk");
  } catch (...) {
    close(descriptor);
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  close(descriptor);
  std::filesystem::rename(temporary, file);
}

Progress read_progress(const std::filesystem::path& file, const std::string& fingerprint) {
  Progress progress = from_json(read_file(file).header);
  if (progress.fingerprint != fingerprint) {
    throw Error(ErrorCode::invalid_argument, file.string(),
                "belongs to another run:\n  it has   " + progress.fingerprint + "\n  this is  " + fingerprint);
  }
  return progress;
}

void read_model(const std::filesystem::path& file, Model& model, ingot::Backend& backend, ingot::Stream& stream) {
  const File content = read_file(file);
  if (content.payload.size() != payload_bytes(model)) {
    throw Error(ErrorCode::io_failed, file.string(), "holds a model of another size");
  }
  std::size_t at = 0;
  for_each_piece(model, [&](void* memory, std::size_t bytes) {
    backend.copy_from_host(memory, content.payload.data() + at, bytes, stream);
    at += bytes;
  });
  model.delayed_scaling().load(nlohmann::json::parse(content.header).at("delayed_scaling").get<std::string>(), stream);
  model.values_changed();
}

}  // namespace train_lm
