#include "ingot/codegen/gemm/gemm_words.h"

#include <fmt/format.h>

#include <optional>
#include <string>

namespace ingot {
namespace {

void read_also(const SpecReader& reader, const SpecOption& option, GemmEpilogue& epilogue) {
  SpecReader::each_part(option.value, [&](std::string_view output) {
    if (output != "preactivation" && output != "amax") {
      reader.fail(
          fmt::format("\"{}\" in \"{}\" is not an output; expected preactivation or amax", output, option.word));
    }
    bool& flag = output == "amax" ? epilogue.amax : epilogue.preactivation;
    if (flag) reader.fail(fmt::format("\"{}\" asks for {} a second time", option.word, output));
    flag = true;
  });
}

GemmTiling read_tiling(const SpecReader& reader, GemmKernel kernel, std::string_view text, std::string_view word) {
  if (kernel == GemmKernel::mma) {
    return reader.parsed(parse_mma_tiling, text, word, "tiling of mma", "128x128 or 64x64");
  }
  return reader.parsed(parse_gemm_tiling, text, word, "tiling",
                       "one such as 128x256:2x1:4:cooperative or 64x128:1x1:8:pingpong (tile, cluster, stages, "
                       "schedule), or with \":streamk\" after it");
}

void read_kernel(const SpecReader& reader, const SpecOption& option, GemmSpec& spec) {
  const auto colon = option.value.find(':');
  spec.kernel = reader.parsed(parse_gemm_kernel, option.value.substr(0, colon), option.word, "kernel",
                              "automatic, cublaslt, sm90, mma or simt");
  if (colon == std::string_view::npos) return;
  const std::string_view choice = option.value.substr(colon + 1);
  if (spec.kernel == GemmKernel::cublaslt) {
    spec.algorithm = reader.number(choice, option.word, "algorithm of cuBLASLt",
                                   fmt::format("a number from 0 to {}", kCublasltAlgorithms - 1));
  } else {
    spec.tiling = read_tiling(reader, spec.kernel, choice, option.word);
  }
}

void read_staged(const SpecReader& reader, const SpecOption& option, GemmSpec& spec) {
  if (option.value != "a" && option.value != "b" && option.value != "a,b") {
    reader.fail(fmt::format("\"{}\" in \"{}\" names no operand; expected a, b or a,b", option.value, option.word));
  }
  spec.staged_a = option.value != "b";
  spec.staged_b = option.value != "a";
}

const char* take_option(const SpecReader& reader, const SpecOption& option, GemmSpec& spec) {
  const auto& [word, key, value] = option;
  if (word == "nt" || word == "nn" || word == "tt" || word == "tn") {
    spec.layout_a = word[0] == 'n' ? Layout::k_major : Layout::mn_major;
    spec.layout_b = word[1] == 't' ? Layout::k_major : Layout::mn_major;
    return "the layouts";
  }
  if (word == "bias") return spec.bias = true, "bias";
  if (word == "fast") return spec.fast_accumulation = true, "fast";
  if (key == "c") return spec.epilogue.c = reader.dtype(value, word), "c";
  if (key == "epilogue") return spec.epilogue.pointwise = parse_pointwise(value), "the expression";
  if (key == "also") return read_also(reader, option, spec.epilogue), "also";
  if (key == "kernel") return read_kernel(reader, option, spec), "kernel";
  if (key == "staged") return read_staged(reader, option, spec), "staged";
  if (key != "scale") return nullptr;
  const auto [a, b] =
      reader.halves(value, ",", "two granularities, one for each operand, such as scale=tensor,row", word);
  spec.scale_a = reader.granularity(a, word);
  spec.scale_b = reader.granularity(b, word);
  return "scale";
}

}  // namespace

void read_gemm_words(const SpecReader& reader, GemmSpec& spec, std::string_view form,
                     const SpecReader::TakeOption& more) {
  constexpr const char* kDtypes = "<a>*<b>-><out>, such as e4m3fn*e5m2->bf16";
  reader.require_words(2, kDtypes);
  const std::string& dtypes = reader.word(1);
  const auto [operands, out] = reader.halves(dtypes, "->", kDtypes);
  const auto [a, b] = reader.halves(operands, "*", kDtypes, dtypes);
  spec.a = reader.dtype(a, dtypes);
  spec.b = reader.dtype(b, dtypes);
  spec.out = reader.dtype(out, dtypes);
  const std::string all = fmt::format(
      "nt, nn, tt, tn, scale=<granularity>,<granularity>, bias, c=<dtype>, epilogue=<expression>, "
      "also=preactivation,amax, fast, kernel=<kernel>{} or staged=a,b",
      form.empty() ? "" : fmt::format(", {}", form));
  reader.each_option(2, all, [&](const SpecOption& option) {
    const char* const field = more(option);
    return field != nullptr ? field : take_option(reader, option, spec);
  });
}

void read_spec(const SpecReader& reader, GemmSpec& spec) {
  read_gemm_words(reader, spec, "", [](const SpecOption&) { return nullptr; });
}

}  // namespace ingot
