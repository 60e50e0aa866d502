// Which template instantiation computes a spec.
//
// The unit's first line gives the words of the spec that its kernel depends on, and no others: specs that differ only
// in what the kernel takes at run time (a GEMM's layouts, scales and bias) or that share a pass (the partial maxima of
// every tensorwise cast of bf16) then have one text, and so one entry in the cache and in the store.
#include "ingot/codegen/generate.h"

#include <fmt/format.h>

#include <variant>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// One instantiation: template header, kernel with its arguments, and the words for the comment.
struct Instance {
  std::string header;
  std::string kernel;
  std::string words;
};

std::string type(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

Instance amax_partials(Dtype in) {
  return {"amax.cuh", fmt::format("amax_partials<{}>", type(in)),
          print(AmaxSpec{.in = in, .scale = kTensorwise}) + " (first pass)"};
}

Instance amax_rows(Dtype in) {
  return {"amax.cuh", fmt::format("amax_rows<{}>", type(in)), print(AmaxSpec{.in = in, .scale = kRowwise})};
}

// The maxima of a rowwise cast with transposed codes are the rows'; every other first pass is the whole tensor's.
Instance first_amax(Dtype in, ScaleGranularity scale) { return scale == kRowwise ? amax_rows(in) : amax_partials(in); }

Instance instance(const AmaxSpec& spec, Pass pass) {
  if (pass == Pass::first) return amax_partials(spec.in);
  // The maximum of the partial maxima is that of a matrix of one row.
  return amax_rows(spec.scale == kTensorwise ? Dtype::f32 : spec.in);
}

Instance instance(const CastSpec& spec, Pass pass) {
  if (pass == Pass::first) return first_amax(spec.in, spec.scale);
  if (spec.scale == kRowwise && !spec.transposed) {
    return {"cast.cuh", fmt::format("cast_rows<{}, {}, {}>", type(spec.in), type(spec.out), spec.pow2), print(spec)};
  }
  return {"cast.cuh",
          fmt::format("cast_tiles<{}, {}, ingot::{}, {}, {}, {}>", type(spec.in), type(spec.out),
                      spec.scale == kRowwise ? "Rowwise" : "Tensorwise", spec.codes, spec.transposed, spec.pow2),
          print(spec)};
}

Instance instance(const GemmSpec& spec, Pass) {
  return {"gemm_simt.cuh", fmt::format("gemm_simt<{}, {}, {}>", type(spec.a), type(spec.b), type(spec.out)),
          fmt::format("gemm {}*{}->{}", name(spec.a), name(spec.b), name(spec.out))};
}

Instance instance(const ColumnSumSpec& spec, Pass pass) {
  if (pass == Pass::first) {
    return {"column_sum.cuh", fmt::format("column_sum_partials<{}>", type(spec.in)),
            fmt::format("column_sum {} (first pass)", name(spec.in))};
  }
  return {"column_sum.cuh", fmt::format("column_sum_finish<{}>", type(spec.out)),
          fmt::format("column_sum ->{}", name(spec.out))};
}

bool takes_two(const AmaxSpec& spec) { return spec.scale == kTensorwise; }
bool takes_two(const CastSpec& spec) { return spec.scale == kTensorwise || spec.transposed; }
bool takes_two(const GemmSpec&) { return false; }
bool takes_two(const ColumnSumSpec&) { return true; }

}  // namespace

bool has_first_pass(const KernelSpec& spec) {
  return std::visit([](const auto& s) { return takes_two(s); }, spec);
}

Source generate(const KernelSpec& spec, Pass pass) {
  validate(spec);
  const std::string line = print(spec);
  if (pass == Pass::first && !has_first_pass(spec)) {
    throw Error(ErrorCode::invalid_spec, line, "this kernel has no first pass: it is one launch; ask for Pass::main");
  }
  const Instance made = std::visit([pass](const auto& s) { return instance(s, pass); }, spec);
  return {.name = pass == Pass::first ? line + " (first pass)" : line,
          .text = fmt::format("// {}\n#include \"{}\"\nconstexpr auto {} = &ingot::{};\n", made.words, made.header,
                              kKernelName, made.kernel)};
}

}  // namespace ingot
