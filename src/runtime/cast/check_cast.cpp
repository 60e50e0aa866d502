// The checks of the tensors of casts, and of lists of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_stack.h"
#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/check_experts.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/pointwise/check_pointwise.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr PointwiseInputNames kCastInputs{"cast inputs[0]", "cast inputs[1]", "cast inputs[2]", "cast inputs[3]"};

// The parts of each of stacked matrices.
constexpr ScaledMatrix kScaledMatrix{
    .whole = "one for the whole matrix", .row = "one for each row", .in_row = "in a row", .of = ""};

// The parts of codes whose rows are gathered.
constexpr ScaledMatrix kScaledRows{.whole = "one for the whole tensor",
                                   .row = "one for each row of the index",
                                   .in_row = "in a row of the codes",
                                   .of = " of the codes"};

// The parts of transposed codes in slots.
constexpr ScaledMatrix kScaledSlots{.whole = "", .row = "", .in_row = "", .of = " of the slots"};

constexpr const char* kCastEnds = "cast ends";

// `bytes`: what is read.
Range check_row_index(const CastSpec& spec, const CastTensors& tensors, Device device, Tensor& bytes) {
  constexpr const char* kWhat = "cast row_index";
  const RowIndex& index = tensors.row_index;
  const auto refuse_index = [&](const std::string& message) {
    throw Error(ErrorCode::invalid_argument, kWhat, message);
  };
  if (!spec.gathered) {
    if (index.data == nullptr && index.rows == 0) return {kWhat, &bytes, 0};
    refuse_index(fmt::format("has {}; it must not be given (a default RowIndex instead): the spec gathers none",
                             count_of(index.rows, "row")));
  }
  const std::string fault = fault_of(index, tensors.input.rows, device);
  if (!fault.empty()) refuse_index(fault);
  bytes = bytes_of(index);
  return {kWhat, &bytes, static_cast<std::size_t>(bytes.cols)};
}

// `bytes`: what is read.
Range check_expert_ends(const CastSpec& spec, const CastTensors& tensors, std::int64_t rows, Device device,
                        Tensor& bytes) {
  const char* const what = kCastEnds;
  const ExpertEnds& ends = tensors.ends;
  const auto refuse_ends = [&](const std::string& message) { throw Error(ErrorCode::invalid_argument, what, message); };
  if (!spec.experts) {
    if (ends.data == nullptr && ends.experts == 0) return {what, &bytes, 0};
    refuse_ends("must not be given (default ExpertEnds instead): the spec has no experts");
  }
  check_ends(what, ends, device);
  if (ends.capacity) refuse_ends("have a capacity, but the rows of a cast follow each other: leave it out");
  if (device.type == DeviceType::cpu) check_expert_values(spec, tensors);
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (rows > kMostRows) {
    refuse_ends(fmt::format("are of {} rows, but ends are int32 and say where at most {} do", rows, kMostRows));
  }
  bytes = bytes_of(ends);
  return {what, &bytes, static_cast<std::size_t>(bytes.cols)};
}

Range check_result(const CastSpec& spec, const CastTensors& tensors, Device device) {
  if (!spec.result) return check_absent("cast result", tensors.result, "the spec does not ask for this output");
  return check_matrix("cast result", tensors.result, spec.in, tensors.input.rows, tensors.input.cols, device,
                      "the input's shape");
}

// The rows of the codes; of each matrix, if they are stacked. Refuses numbers of these that the input cannot have.
std::int64_t rows_of_each(const CastSpec& spec, const CastTensors& tensors) {
  const std::int64_t matrices = tensors.matrices;
  const Tensor& input = tensors.input;
  const auto refuse_number = [&](const std::string& message) {
    throw Error(ErrorCode::invalid_argument, "cast matrices", fmt::format("is {}; {}", matrices, message));
  };
  if (!spec.stacked && matrices != 1) refuse_number("the spec casts one: set stacked for more");
  if (matrices < 0) refuse_number("it must be 0 or more");
  if (matrices == 0 ? input.rows != 0 : input.rows % matrices != 0) {
    refuse_number(fmt::format("the cast input is {}, whose rows are not those of {} matrices of one size: give it {}",
                              describe(input), matrices,
                              matrices == 0 ? "none" : fmt::format("a multiple of {}", matrices)));
  }
  if (matrices > 1 && input.cols > std::numeric_limits<std::int64_t>::max() / matrices) {
    refuse_number(fmt::format("the cast input is {}: that many columns in all overflow 64 bits", describe(input)));
  }
  return spec.gathered ? tensors.row_index.rows : stacked_rows(tensors);
}

const char* why_codes(const CastSpec& spec) {
  return spec.gathered ? "the rows of the index, the columns of the input" : "the input's shape";
}
const char* why_transposed(const CastSpec& spec) {
  if (in_slots(spec)) return "the columns of the input, 128 for each slot of the experts";
  if (spec.gathered) return "the columns of the input, the rows of the index";
  return spec.stacked ? "the transpose of each matrix, one after the other" : "the input's shape, transposed";
}

// The scales of all stacked matrices.
Range check_stacked_scales(const char* what, const Tensor& scales, ScaleGranularity granularity, std::int64_t matrices,
                           std::int64_t rows, std::int64_t cols, Device device) {
  const std::int64_t count = matrices * scale_count(granularity, rows, cols);
  if (scales.rows == 1 && scales.cols == count) return check_vector(what, scales, Dtype::f32, count, device, "");
  const std::string words = fmt::format("of each of {} matrices of {} x {}, {}", matrices, rows, cols,
                                        scales_in_words(granularity, kScaledMatrix));
  return check_vector(what, scales, Dtype::f32, count, device, words.c_str());
}

Range check_of_experts(const char* what, const Tensor& values, const ExpertEnds& ends, Device device) {
  return check_vector(what, values, Dtype::f32, ends.experts, device, "one for each expert");
}

}  // namespace

void check_expert_values(const CastSpec& spec, const CastTensors& tensors) {
  const std::int64_t rows = spec.gathered ? tensors.row_index.rows : tensors.input.rows;
  check_end_values(kCastEnds, tensors.ends, {.lines = rows, .line = "row", .of = "the cast"});
}

void check(const CastSpec& spec, const CastTensors& tensors, Device device) {
  validate_spec(spec);
  if (spec.list) {
    throw Error(ErrorCode::invalid_argument, print_spec(spec),
                "this is the spec of a list: make one with make_cast_list(), or leave `list` out");
  }
  check_tensors(spec, tensors, device);
}

namespace {

bool takes_known_amax(const CastSpec& spec) {
  if (spec.source == ScaleSource::given || spec.transposed_scale || spec.list || spec.gathered || spec.found_amax) {
    return false;
  }
  return spec.scale == kTensorwise || (spec.stacked && spec.scale == kColumnwise);
}

// Those of rows and of columns.
bool takes_both_known(const CastSpec& spec) {
  if (spec.source == ScaleSource::given || spec.list || spec.gathered || spec.stacked) return false;
  return spec.codes && spec.transposed && spec.scale == kRowwise && spec.transposed_scale == kColumnwise;
}

// Which known maxima must be given: of those of rows and of columns, if one is, both.
struct KnownMaxima {
  bool amax, transposed;
};
KnownMaxima known_maxima(const CastSpec& spec, const CastTensors& tensors) {
  const bool amax = tensors.known_amax.data != nullptr;
  const bool both = (amax || tensors.known_transposed_amax.data != nullptr) && takes_both_known(spec);
  return {.amax = both || (amax && takes_known_amax(spec)), .transposed = both};
}
constexpr const char* kWhyNotKnown =
    "lists, gathered rows, given scales, casts that find it and other granularities do not take it";
constexpr const char* kWhyNotKnownTransposed =
    "only casts of one matrix to codes with scales of rows, and transposed codes with scales of columns, take it";

Range check_sum(const CastSpec& spec, const CastTensors& tensors, Device device) {
  if (!spec.sum) return check_absent("cast sum", tensors.sum, "the spec does not ask for this output");
  return check_vector("cast sum", tensors.sum, *spec.sum, tensors.input.cols, device,
                      "one for each column of the input");
}

Range check_codes(const CastSpec& spec, const CastTensors& tensors, std::int64_t rows, Device device) {
  if (!spec.codes) return check_absent("cast codes", tensors.codes, "the spec does not ask for this output");
  return check_matrix("cast codes", tensors.codes, spec.out, rows, tensors.input.cols, device, why_codes(spec));
}

// `columns`: of one matrix.
Range check_transposed(const CastSpec& spec, const CastTensors& tensors, std::int64_t columns, Device device) {
  constexpr const char* kWhat = "cast transposed";
  const Tensor& transposed = tensors.transposed;
  if (!spec.transposed) return check_absent(kWhat, transposed, "the spec does not ask for this output");
  return check_matrix(kWhat, transposed, spec.out, tensors.matrices * tensors.input.cols,
                      tensors.matrices == 0 ? transposed.cols : columns, device, why_transposed(spec));
}

}  // namespace

void check_tensors(const CastSpec& spec, const CastTensors& tensors, Device device) {
  const Tensor& input = tensors.input;
  const Range input_range = check_values("cast input", input, spec.in, spec.pointwise, device);
  const std::int64_t matrices = tensors.matrices;
  Tensor index_bytes;
  const Range index_range = check_row_index(spec, tensors, device, index_bytes);
  const std::int64_t rows = rows_of_each(spec, tensors);
  const std::int64_t all_rows = spec.gathered ? rows : input.rows;
  Tensor ends_bytes;
  const Range ends_range = check_expert_ends(spec, tensors, all_rows, device, ends_bytes);
  const std::int64_t columns = in_slots(spec) ? 128 * expert_slots(all_rows, tensors.ends.experts) : rows;
  const ScaledMatrix& parts = spec.gathered ? kScaledRows : kScaledInput;
  // A contiguous vector with one element for each extent of `scale`, if the spec asks for it.
  const auto check_extents = [&](const char* what, const Tensor& values, bool asked, ScaleGranularity scale,
                                 const char* why_not) {
    if (!asked) return check_absent(what, values, why_not);
    if (spec.stacked) return check_stacked_scales(what, values, scale, matrices, rows, input.cols, device);
    if (has_expert_scales(spec)) return check_of_experts(what, values, tensors.ends, device);
    const bool of_slots = spec.experts && scale == kColumnGroups;
    return check_scales(what, values, Dtype::f32, scale, of_slots ? columns : all_rows, input.cols, device,
                        of_slots ? kScaledSlots : parts);
  };
  // Likewise scale_inv, which may also be ordered by group.
  const auto check_scale_inv_of = [&](const char* what, const Tensor& values, bool asked, ScaleGranularity scale,
                                      const char* why_not) {
    if (!asked || scale != kRowGroups || spec.stacked) return check_extents(what, values, asked, scale, why_not);
    return check_scale_inv(what, values, scale, all_rows, input.cols, device, parts, "group of columns");
  };
  const bool given = spec.source == ScaleSource::given;
  const bool own = spec.transposed_scale.has_value();
  const ScaleGranularity own_scale = spec.transposed_scale.value_or(spec.scale);
  constexpr const char* kDynamic = "the scales of this spec are dynamic";
  constexpr const char* kShared = "the transposed codes of this spec have the scales of the codes";
  const char* const why_not_own = given ? kShared : kDynamic;
  const KnownMaxima known = known_maxima(spec, tensors);
  Range inputs[7 + kMaxPointwiseInputs] = {
      input_range,
      index_range,
      ends_range,
      check_extents("cast scales", tensors.scales, given, spec.scale, kDynamic),
      check_extents("cast transposed_scales", tensors.transposed_scales, given && own, own_scale, why_not_own),
      check_extents("cast known_amax", tensors.known_amax, known.amax, spec.scale, kWhyNotKnown),
      check_extents("cast known_transposed_amax", tensors.known_transposed_amax, known.transposed, own_scale,
                    kWhyNotKnownTransposed)};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kCastInputs, shape_of_input(input), device,
                         std::span(inputs).subspan<7>());
  const Range outputs[] = {
      check_codes(spec, tensors, all_rows, device),
      check_transposed(spec, tensors, columns, device),
      check_scale_inv_of("cast scale_inv", tensors.scale_inv, true, spec.scale, ""),
      check_scale_inv_of("cast transposed_scale_inv", tensors.transposed_scale_inv, own, own_scale, kShared),
      check_extents("cast amax", tensors.amax, given, spec.scale, kDynamic),
      check_extents("cast transposed_amax", tensors.transposed_amax, given && own, own_scale, why_not_own),
      check_extents("cast found_amax", tensors.found_amax, spec.found_amax.has_value(),
                    spec.found_amax.value_or(spec.scale), "the spec does not ask for this output"),
      check_result(spec, tensors, device),
      check_sum(spec, tensors, device)};
  check_overlaps(inputs, outputs);
}

namespace {

struct Listed {
  const char* what;
  const char* of;  // "cast"
  std::size_t index;
  bool output;
  Tensor tensor;

  std::string text() const { return fmt::format("{} of {} {}", what, of, index); }
};

void append(const CastTensors& tensors, std::size_t index, std::vector<Listed>& all) {
  const auto add = [&](const char* what, const Tensor& tensor, bool output) {
    if (tensor.data != nullptr && !tensor.empty()) all.push_back({what, "cast", index, output, tensor});
  };
  add("input", tensors.input, false);
  add("scales", tensors.scales, false);
  add("transposed_scales", tensors.transposed_scales, false);
  for (const Tensor& input : tensors.inputs) add("inputs", input, false);
  add("codes", tensors.codes, true);
  add("transposed", tensors.transposed, true);
  add("scale_inv", tensors.scale_inv, true);
  add("transposed_scale_inv", tensors.transposed_scale_inv, true);
  add("amax", tensors.amax, true);
  add("transposed_amax", tensors.transposed_amax, true);
  add("result", tensors.result, true);
}

void append(const AmaxTensors& tensors, std::size_t index, std::vector<Listed>& all) {
  const auto add = [&](const char* what, const Tensor& tensor, bool output) {
    if (tensor.data != nullptr && !tensor.empty()) all.push_back({what, "amax", index, output, tensor});
  };
  add("input", tensors.input, false);
  add("amax", tensors.amax, true);
  add("second_amax", tensors.second_amax, true);
}

// Of what begins before, in the order of addresses: the end that is furthest, and that of the other matrices.
class FurthestEnds {
 public:
  void add(std::uintptr_t end, std::size_t index) {
    if (index == first_.index) {
      first_.end = std::max(first_.end, end);
    } else if (end > first_.end) {
      second_ = std::exchange(first_, {end, index});
    } else {
      second_.end = std::max(second_.end, end);
    }
  }
  std::uintptr_t of_others(std::size_t index) const { return index == first_.index ? second_.end : first_.end; }

 private:
  struct End {
    std::uintptr_t end = 0;
    std::size_t index = std::numeric_limits<std::size_t>::max();
  };
  End first_{}, second_{};
};

// Does an output overlap anything of another matrix? Lists may have thousands of matrices, of experts for one: they are
// looked at in the order of their addresses, each once.
bool any_overlap(const std::vector<Listed>& all) {
  struct Span {
    std::uintptr_t begin, end;
    const Listed* of;
  };
  std::vector<Span> spans;
  for (const Listed& each : all) {
    const auto begin = reinterpret_cast<std::uintptr_t>(each.tensor.data);
    spans.push_back({begin, begin + byte_span(each.tensor, each.what), &each});
  }
  std::ranges::sort(spans, std::less<>(), &Span::begin);
  FurthestEnds outputs, inputs;
  for (const auto& [begin, end, of] : spans) {
    if (outputs.of_others(of->index) > begin) return true;
    if (of->output && inputs.of_others(of->index) > begin) return true;
    (of->output ? outputs : inputs).add(end, of->index);
  }
  return false;
}

void refuse_overlaps(const std::vector<Listed>& all) {
  if (!any_overlap(all)) return;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (all[a].index == all[b].index || (!all[a].output && !all[b].output)) continue;
      if (!overlap(all[a].tensor, all[b].tensor)) continue;
      const auto& [output, other] = all[a].output ? std::pair{all[a], all[b]} : std::pair{all[b], all[a]};
      throw Error(ErrorCode::invalid_argument, output.text(),
                  fmt::format("is {}; its memory overlaps that of the {}, which is {}; an output needs its own memory",
                              describe(output.tensor), other.text(), describe(other.tensor)));
    }
  }
}

template <class Spec, class Tensors>
void check_all(Spec spec, std::span<const Tensors> tensors, Device device) {
  spec.list = true;
  validate_spec(spec);
  std::vector<Listed> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    try {
      check_tensors(spec, tensors[i], device);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} {} of {} of a list", Spec::kWord, i, tensors.size()), error.what());
    }
    append(tensors[i], i, all);
  }
  refuse_overlaps(all);
}

}  // namespace

void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device) {
  check_all(spec, tensors, device);
}
void check_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors, Device device) {
  check_all(spec, tensors, device);
}

}  // namespace ingot
