// The table of the operators torch.ops.ingot.*: what each takes and returns, by name, and the bits of their integers.
// C++ reads arguments by these names (torch_operator.h), and Python by what PyTorch tells of the schemas made of them
// (ingot/torch/_schemas.py).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::python {

// ---- schemas -------------------------------------------------------------------------------------------------------

enum class TorchKind { tensor, optional_tensor, integer };

// An operator. Optional tensors that few calls give come after the integers, with a default of None, so that the other
// calls need not name them. Compilers functionalise a schema that writes a tensor, so such tensors are arguments of the
// overload "in_place" alone, after all others. A result that a call does not make is None.
struct TorchSchema {
  std::string_view name;
  std::string_view arguments;
  std::string_view results;
  std::string_view in_place = "";  // empty: there is no such overload

  static constexpr std::size_t count_in(std::string_view list) {
    std::size_t count = list.empty() ? 0 : 1;
    for (const char c : list) count += c == ',' ? 1 : 0;
    return count;
  }
  // "Tensor? bias=None" at this place of a list.
  static constexpr std::string_view item(std::string_view list, std::size_t at) {
    for (; at > 0; --at) list.remove_prefix(list.find(',') + 1);
    list = list.substr(0, list.find(','));
    list.remove_prefix(list.find_first_not_of(' '));
    return list;
  }
  static constexpr std::string_view name_of(std::string_view item) {
    const std::string_view name = item.substr(item.rfind(' ') + 1);
    return name.substr(0, name.find('='));
  }

  constexpr std::size_t count() const { return count_in(arguments); }
  constexpr std::size_t count_with_in_place() const { return count() + count_in(in_place); }
  constexpr std::string_view argument(std::size_t at) const {
    return at < count() ? item(arguments, at) : item(in_place, at - count());
  }
  constexpr TorchKind kind(std::size_t at) const {
    const std::string_view text = argument(at);
    if (!text.starts_with("Tensor")) return TorchKind::integer;
    return text.find('?') == std::string_view::npos ? TorchKind::tensor : TorchKind::optional_tensor;
  }
  // The place of an argument or a result; their number for a name that none has.
  constexpr std::size_t place_of_argument(std::string_view of) const {
    std::size_t at = 0;
    while (at < count_with_in_place() && name_of(argument(at)) != of) ++at;
    return at;
  }
  constexpr std::size_t place_of_result(std::string_view of) const {
    std::size_t at = 0;
    while (at < count_in(results) && name_of(item(results, at)) != of) ++at;
    return at;
  }

  // As PyTorch reads it.
  std::string text(bool with_in_place) const {
    std::string made = name_of_overload(with_in_place) + "(" + std::string(arguments);
    if (with_in_place) made += ", " + std::string(in_place);
    return made + ") -> (" + std::string(results) + ")";
  }
  std::string name_of_overload(bool with_in_place) const {
    return std::string(name) + (with_in_place ? ".in_place" : "");
  }
};

// ---- a linear layer ------------------------------------------------------------------------------------------------

// <weight>_scale_inv, here and below: the weight is FP8 codes [N, K], by rows, of the cast that the call's GEMM reads,
// and these are their scale_inv, as many as that cast has. input_scale, weight_scale: of the casts that the plan leaves
// to the caller; then amaxes are the maxima (2) of input and weight. `saved` is kept for the gradient of the weight,
// `codes`, the weight's, for that of the input. input_scale_inv, grad_output_scale_inv: likewise the tensor is FP8
// codes by rows, with one scale_inv or one for each row; an input's, of a plan that is made for them, also in backward.
inline constexpr TorchSchema kLinearForward{
    .name = "linear_forward",
    .arguments =
        "Tensor input, Tensor weight, Tensor? bias, int plan, int keep, Tensor? weight_scale_inv=None,"
        " Tensor? input_scale=None, Tensor? weight_scale=None, Tensor? input_scale_inv=None",
    .results = "Tensor output, Tensor saved, Tensor codes, Tensor amaxes"};

// amaxes: of grad_output and weight, if grad_output_scale or weight_scale is given. The gradient of the weight is added
// to main_grad.
inline constexpr TorchSchema kLinearBackward{
    .name = "linear_backward",
    .arguments =
        "Tensor grad_output, Tensor? input, Tensor? weight, Tensor? saved, Tensor? codes, int plan, int wants,"
        " Tensor? weight_scale_inv=None, Tensor? grad_output_scale=None, Tensor? weight_scale=None,"
        " Tensor? input_scale_inv=None, Tensor? grad_output_scale_inv=None",
    .results = "Tensor grad_input, Tensor grad_weight, Tensor grad_bias, Tensor amaxes",
    .in_place = "Tensor(a!)? main_grad=None"};

// The parts of a forward, for compilers.
inline constexpr TorchSchema kQuantizeInput{
    .name = "quantize_input", .arguments = "Tensor input, int plan, int keep", .results = "Tensor codes, Tensor saved"};
inline constexpr TorchSchema kQuantizeWeight{
    .name = "quantize_weight", .arguments = "Tensor weight, int plan", .results = "Tensor codes"};
// weight: what quantize_weight returned, or FP8 codes with weight_scale_inv.
inline constexpr TorchSchema kGemmOutput{
    .name = "gemm_output",
    .arguments =
        "Tensor input, Tensor codes, Tensor? saved, Tensor weight, Tensor? bias, int input_plan, int plan,"
        " Tensor? weight_scale_inv=None",
    .results = "Tensor output"};

// ---- modules of several parts --------------------------------------------------------------------------------------

// scale, starts and amax: delayed scales (torch_module_tensors.h). main_grad: a weight's gradient is added to it.
inline constexpr TorchSchema kNormLinearForward{
    .name = "norm_linear_forward",
    .arguments =
        "Tensor input, Tensor? gamma, Tensor? beta, Tensor weight, Tensor? bias, int plan, int keep,"
        " Tensor? weight_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output, Tensor saved",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kNormLinearBackward{
    .name = "norm_linear_backward",
    .arguments =
        "Tensor grad_output, Tensor? input, Tensor? gamma, Tensor? weight, Tensor? output, Tensor saved,"
        " int plan, int wants, Tensor? weight_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor grad_input, Tensor grad_gamma, Tensor grad_beta, Tensor grad_weight, Tensor grad_bias",
    .in_place = "Tensor(a!)? main_grad=None, Tensor(b!)? amax=None"};

inline constexpr TorchSchema kMlpForward{
    .name = "mlp_forward",
    .arguments =
        "Tensor input, Tensor? gamma, Tensor? beta, Tensor up_weight, Tensor? up_bias, Tensor down_weight,"
        " Tensor? down_bias, int plan, int keep, Tensor? up_weight_scale_inv=None, Tensor? down_weight_scale_inv=None,"
        " Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output, Tensor saved",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kMlpBackward{
    .name = "mlp_backward",
    .arguments =
        "Tensor grad_output, Tensor? input, Tensor? gamma, Tensor? up_weight, Tensor? down_weight,"
        " Tensor saved, int plan, int wants, Tensor? up_weight_scale_inv=None, Tensor? down_weight_scale_inv=None,"
        " Tensor? scale=None, Tensor? starts=None",
    .results =
        "Tensor grad_input, Tensor grad_gamma, Tensor grad_beta, Tensor grad_up_weight, Tensor grad_up_bias,"
        " Tensor grad_down_weight, Tensor grad_down_bias",
    .in_place = "Tensor(a!)? up_main_grad=None, Tensor(b!)? down_main_grad=None, Tensor(c!)? amax=None"};

inline constexpr TorchSchema kGatedLinearForward{
    .name = "gated_linear_forward",
    .arguments =
        "Tensor gate, Tensor up, Tensor weight, Tensor? bias, int plan, int keep, Tensor? weight_scale_inv=None,"
        " Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output, Tensor saved",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kGatedLinearBackward{
    .name = "gated_linear_backward",
    .arguments =
        "Tensor grad_output, Tensor gate, Tensor up, Tensor? weight, Tensor saved, int plan, int wants,"
        " Tensor? weight_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor grad_gate, Tensor grad_up, Tensor grad_weight, Tensor grad_bias",
    .in_place = "Tensor(a!)? main_grad=None, Tensor(b!)? amax=None"};

// Two or three layers; two have neither weight2 nor what belongs to it.
inline constexpr TorchSchema kSharedLinearForward{
    .name = "shared_linear_forward",
    .arguments =
        "Tensor input, Tensor? gamma, Tensor? beta, Tensor weight0, Tensor? bias0, Tensor weight1,"
        " Tensor? bias1, Tensor? weight2, Tensor? bias2, int plan, int keep, Tensor? weight0_scale_inv=None, Tensor? "
        "weight1_scale_inv=None,"
        " Tensor? weight2_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output0, Tensor output1, Tensor output2, Tensor saved",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kSharedLinearBackward{
    .name = "shared_linear_backward",
    .arguments =
        "Tensor grad_output0, Tensor grad_output1, Tensor? grad_output2, Tensor? input, Tensor? gamma,"
        " Tensor? weight0, Tensor? weight1, Tensor? weight2, Tensor saved, int plan, int wants, Tensor? "
        "weight0_scale_inv=None, Tensor? weight1_scale_inv=None,"
        " Tensor? weight2_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results =
        "Tensor grad_input, Tensor grad_gamma, Tensor grad_beta, Tensor grad_weight0, Tensor grad_bias0,"
        " Tensor grad_weight1, Tensor grad_bias1, Tensor grad_weight2, Tensor grad_bias2",
    .in_place =
        "Tensor(a!)? main_grad0=None, Tensor(b!)? main_grad1=None, Tensor(c!)? main_grad2=None,"
        " Tensor(d!)? amax=None"};

// ---- weights in 8, 6 and 4 bits ------------------------------------------------------------------------------------

inline constexpr TorchSchema kWeightOnlyLinear{
    .name = "weight_only_linear",
    .arguments = "Tensor input, Tensor weight, Tensor weight_scale_inv, Tensor? bias, int plan, int constant",
    .results = "Tensor output"};
// Of many experts: input (M, K) or (experts, capacity, K); ends: int32, the row of the input at which each expert's
// rows end, or how many it has. weight: uint8, one expert's after the other's, each as the plan has one; bias:
// (experts, N).
inline constexpr TorchSchema kWeightOnlyExperts{
    .name = "weight_only_experts",
    .arguments = "Tensor input, Tensor weight, Tensor weight_scale_inv, Tensor ends, Tensor? bias, int plan",
    .results = "Tensor output"};
inline constexpr TorchSchema kWeightCast{
    .name = "weight_cast", .arguments = "Tensor weight, int plan", .results = "Tensor codes, Tensor scale_inv"};
inline constexpr TorchSchema kWeightPack{
    .name = "weight_pack", .arguments = "Tensor codes, int plan", .results = "Tensor packed"};
inline constexpr TorchSchema kWeightUnpack{
    .name = "weight_unpack", .arguments = "Tensor packed, int plan", .results = "Tensor codes"};

// ---- FP8 tensors; these have no plan, so that what their arguments mean never changes under one name ---------------

inline constexpr TorchSchema kQuantize{
    .name = "quantize", .arguments = "Tensor input, Tensor scale, int format", .results = "Tensor codes, Tensor amax"};
// With a dynamic scale for each row; pow2: 1 for scales that are powers of two, else 0. scale_inv: (rows).
inline constexpr TorchSchema kQuantizeRows{.name = "quantize_rows",
                                           .arguments = "Tensor input, int format, int pow2",
                                           .results = "Tensor codes, Tensor scale_inv"};
inline constexpr TorchSchema kGemm{
    .name = "gemm",
    .arguments = "Tensor a, Tensor scale_inv_a, Tensor b, Tensor scale_inv_b, int output, int fast_accumulation",
    .results = "Tensor product"};
// weight: FP8 codes (experts, N, K). ends: int32, the row of the input (M, K) at which each expert's rows end; how many
// it has of an input (experts, capacity, K). input_scale_inv: the input is FP8 codes, and these are theirs.
inline constexpr TorchSchema kGroupedLinear{
    .name = "grouped_linear",
    .arguments =
        "Tensor input, Tensor weight, Tensor weight_scale_inv, Tensor ends, int output, Tensor? input_scale_inv=None",
    .results = "Tensor product"};

// Codes with their scale_inv, or values of 16 bits without: a (M, K) of experts' rows by b (experts, N, K), whose
// product is (M, N); or by b (N, K), where experts have columns of both: (experts, M, N), with scale_inv for each row
// of each expert, (experts * M) and (experts * N).
inline constexpr TorchSchema kGroupedGemm{
    .name = "grouped_gemm",
    .arguments =
        "Tensor a, Tensor? scale_inv_a, Tensor b, Tensor? scale_inv_b, Tensor ends, int output, int fast_accumulation",
    .results = "Tensor product"};

// weight: of experts that train, (experts, N, K) in high precision. `saved` and `codes` as of a linear layer; backward
// is given the weight where the plan casts it again, and the input of a plan with an activation. The input of a gated
// one is (M, 2 K), gate and up. weight_scale_inv: as of a linear layer, (experts, ...); backward then takes the weight
// of a plan that casts it again. main_grad: float32. scale, starts and amax: of delayed scales, each expert's.
inline constexpr TorchSchema kGroupedLinearForward{
    .name = "grouped_linear_forward",
    .arguments =
        "Tensor input, Tensor weight, Tensor ends, int plan, int keep, Tensor? weight_scale_inv=None,"
        " Tensor? bias=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output, Tensor saved, Tensor codes",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kGroupedLinearBackward{
    .name = "grouped_linear_backward",
    .arguments =
        "Tensor grad_output, Tensor? input, Tensor? weight, Tensor ends, Tensor? saved, Tensor? codes, int plan,"
        " int wants, Tensor? weight_scale_inv=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor grad_input, Tensor grad_weight, Tensor grad_bias",
    .in_place = "Tensor(a!)? main_grad=None, Tensor(b!)? amax=None"};

// The MLPs of experts. up_weight: (experts, hidden or 2 * hidden, features), down_weight: (experts, features, hidden).
// router_weights: float32, one for each row; tokens: int32, the token of each row; rows: int32, the rows of each token,
// token by token; ends: int32. hidden: the first layer's output, (rows, hidden or 2 * hidden). `saved` and `kept_*` are
// what forward and backward leave for the gradients of the input and the weights; `codes`: of both weights, or their
// maxima where backward casts them again and is given them.
inline constexpr TorchSchema kExpertsMlpForward{
    .name = "experts_mlp_forward",
    .arguments =
        "Tensor input, Tensor router_weights, Tensor up_weight, Tensor down_weight, Tensor tokens, Tensor rows,"
        " Tensor ends, int plan, int keep, Tensor? up_weight_scale_inv=None, Tensor? down_weight_scale_inv=None,"
        " Tensor? up_bias=None, Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor output, Tensor hidden, Tensor saved, Tensor codes",
    .in_place = "Tensor(a!)? amax=None"};
inline constexpr TorchSchema kExpertsMlpBackward{
    .name = "experts_mlp_backward",
    .arguments =
        "Tensor grad_output, Tensor router_weights, Tensor? down_weight, Tensor tokens, Tensor rows, Tensor ends,"
        " Tensor? hidden, Tensor? codes, int plan, int wants, Tensor? down_weight_scale_inv=None,"
        " Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor grad_router, Tensor grad_up_bias, Tensor kept_input, Tensor kept_up, Tensor kept_down",
    .in_place = "Tensor(a!)? amax=None"};
// With what backward kept, and its `wants`.
inline constexpr TorchSchema kExpertsMlpInputBackward{
    .name = "experts_mlp_input_backward",
    .arguments =
        "Tensor grad_output, Tensor? up_weight, Tensor tokens, Tensor rows, Tensor ends, Tensor? codes,"
        " Tensor kept_input, Tensor? kept_up, int plan, int wants, Tensor? up_weight_scale_inv=None,"
        " Tensor? scale=None, Tensor? starts=None",
    .results = "Tensor grad_input",
    .in_place = "Tensor(a!)? amax=None"};
// Of one of both layers, 0 or 1, likewise: one after the other, so that what the first one read is free when the second
// one's memory is asked for.
inline constexpr TorchSchema kExpertsMlpWeightBackward{
    .name = "experts_mlp_weight_backward",
    .arguments = "Tensor tokens, Tensor ends, Tensor saved, Tensor kept, int plan, int wants, int layer",
    .results = "Tensor grad_weight",
    .in_place = "Tensor(a!)? main_grad=None"};

inline constexpr TorchSchema kSyncAmaxHistory{
    .name = "sync_amax_history",
    .arguments = "Tensor(a!) amax, Tensor(b!) history, Tensor(c!) scale, Tensor formats",
    .results = ""};

inline constexpr std::array kTorchSchemas{&kLinearForward,
                                          &kLinearBackward,
                                          &kQuantizeInput,
                                          &kQuantizeWeight,
                                          &kGemmOutput,
                                          &kNormLinearForward,
                                          &kNormLinearBackward,
                                          &kMlpForward,
                                          &kMlpBackward,
                                          &kGatedLinearForward,
                                          &kGatedLinearBackward,
                                          &kSharedLinearForward,
                                          &kSharedLinearBackward,
                                          &kWeightOnlyLinear,
                                          &kWeightOnlyExperts,
                                          &kWeightCast,
                                          &kWeightPack,
                                          &kWeightUnpack,
                                          &kQuantize,
                                          &kQuantizeRows,
                                          &kGemm,
                                          &kGroupedLinear,
                                          &kGroupedGemm,
                                          &kGroupedLinearForward,
                                          &kGroupedLinearBackward,
                                          &kExpertsMlpForward,
                                          &kExpertsMlpBackward,
                                          &kExpertsMlpInputBackward,
                                          &kExpertsMlpWeightBackward,
                                          &kSyncAmaxHistory};

// ---- bits ----------------------------------------------------------------------------------------------------------

// Of a forward's `keep`: what the gradient of the input needs, and what the others need.
inline constexpr std::int64_t kKeepCodes = 1;
inline constexpr std::int64_t kKeepSaved = 2;

// Of a backward's `wants`: the gradients that are asked for. Gated layers have two inputs, of which the first is the
// gate. The gradients of gamma and beta come together. Each layer after the first has the bits of weight and bias,
// moved by kLayerBits.
inline constexpr std::int64_t kInput = 1;
inline constexpr std::int64_t kWeight = 2;
inline constexpr std::int64_t kBias = 4;
inline constexpr std::size_t kLayerBits = 2;
inline constexpr std::int64_t kGamma = std::int64_t{1} << 16;
inline constexpr std::int64_t kUp = std::int64_t{1} << 17;
// Of a compiled graph, whose operators are the same whatever gradients are asked for: the engine is asked while the
// backward runs.
inline constexpr std::int64_t kAsksEngine = std::int64_t{1} << 18;

// The router's weights, of experts.
inline constexpr std::int64_t kRouter = std::int64_t{1} << 19;

constexpr std::int64_t weight_bit(std::size_t layer) { return kWeight << (kLayerBits * layer); }
constexpr std::int64_t bias_bit(std::size_t layer) { return kBias << (kLayerBits * layer); }

// Of what a plan says of its backward: what it reads again. The input (and gamma) for the gradients of input and gamma,
// and the input for those of the weights.
inline constexpr std::int64_t kReadsInputForInput = 1;
inline constexpr std::int64_t kReadsInputForWeight = 2;
inline constexpr std::int64_t kReadsWeight = 4;
inline constexpr std::int64_t kReadsOutput = 8;

struct TorchBit {
  std::string_view name;  // in Python
  std::int64_t bit;
};
inline constexpr std::array kTorchBits{TorchBit{"KEEP_CODES", kKeepCodes},
                                       TorchBit{"KEEP_SAVED", kKeepSaved},
                                       TorchBit{"INPUT", kInput},
                                       TorchBit{"WEIGHT", kWeight},
                                       TorchBit{"BIAS", kBias},
                                       TorchBit{"LAYER_BITS", kLayerBits},
                                       TorchBit{"GAMMA", kGamma},
                                       TorchBit{"UP", kUp},
                                       TorchBit{"ASKS_ENGINE", kAsksEngine},
                                       TorchBit{"ROUTER", kRouter},
                                       TorchBit{"READS_INPUT_FOR_INPUT", kReadsInputForInput},
                                       TorchBit{"READS_INPUT_FOR_WEIGHT", kReadsInputForWeight},
                                       TorchBit{"READS_WEIGHT", kReadsWeight},
                                       TorchBit{"READS_OUTPUT", kReadsOutput}};

// ---- the table as a number -----------------------------------------------------------------------------------------

// FNV-1a, whose values are the same in every process.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3U;
  return hash;
}

// Changes with every name, type, order and bit of the table. Plans have it in their numbers, so that a graph which
// a compiler has kept of another table asks for plans that nobody has, and is compiled again.
constexpr std::uint64_t hash_of_table() {
  std::uint64_t hash = hash_of("");
  for (const TorchSchema* each : kTorchSchemas) {
    for (const std::string_view part : {each->name, each->arguments, each->in_place, each->results}) {
      hash = hash_of(part, hash_of("|", hash));
    }
  }
  for (const TorchBit& each : kTorchBits) hash = hash_of(each.name, hash) + static_cast<std::uint64_t>(each.bit);
  return hash;
}
inline constexpr std::uint64_t kTorchTableHash = hash_of_table();

}  // namespace ingot::python
