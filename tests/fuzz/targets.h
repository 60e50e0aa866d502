// The fuzzed parsers (F17 of docs/notes/checks.md): every parser of something that another program, another version or
// a stranger may have written. A target takes any bytes, and ends the test (by an exception that is no ingot::Error, or
// a crash) if the parser does not cope or if what it has read does not come back from its own text. It returns whether
// the parser has accepted the input.
//
// Formats with a checksum are fuzzed twice, by a target for the bytes as they are and by one, named sealed_..., that
// puts a right checksum to them: else nothing would reach the parser after it.
#pragma once

#include <functional>
#include <span>
#include <string_view>

namespace ingot::fuzz {

bool kernel_file(std::string_view input);
bool sealed_kernel_file(std::string_view payload);
bool bundle(std::string_view input);
bool sealed_bundle(std::string_view index);
bool recording(std::string_view input);
bool tuning_record(std::string_view input);
bool sealed_tuning_record(std::string_view object);
bool spec_line(std::string_view input);
bool pointwise(std::string_view input);
bool safetensors(std::string_view input);
bool safetensors_index(std::string_view input);
bool safetensors_header(std::string_view header);
bool delayed_scaling(std::string_view input);
bool sealed_delayed_scaling(std::string_view object);
bool warm_layers(std::string_view input);
bool model_shape(std::string_view input);
bool model_config(std::string_view input);
bool checkpoint(std::string_view input);
bool sealed_checkpoint(std::string_view header);

struct Target {
  std::string_view name;
  bool (*run)(std::string_view input);
  // The folder of its seeds below tests/fuzz/corpus; several targets may share one.
  std::string_view corpus;
};

std::span<const Target> targets();

// Ends the test where a parser breaks its promise.
void require(bool condition, const char* what);

// Calls the parser and takes an ingot::Error for an answer. False if there was one.
bool accepts(const std::function<void()>& parse);

}  // namespace ingot::fuzz
