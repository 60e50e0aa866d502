// FP8 weights in and out of files: the layouts of public checkpoints, each recipe with frozen codes against float64,
// codes that come back to the bit, and every refusal.
#include "ingot/nn/weights/float8_checkpoint.h"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ingot/nn/modules/inference_linear.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "nn/function_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_float8_checkpoint)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr std::int64_t kTokens = 9;
constexpr std::int64_t kOut = 200;
constexpr std::int64_t kIn = 300;
constexpr LinearShape kLinear{kIn, kOut, false};

std::vector<std::byte> bytes_of_values(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    const std::uint32_t bits = encode_bits(value, dtype);
    const auto* const begin = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), begin, begin + size_of(dtype));
  }
  return bytes;
}

// Random codes, without NaN.
std::vector<std::byte> random_codes(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 60);
  std::vector<std::byte> codes(static_cast<std::size_t>(count));
  for (std::byte& code : codes) code = static_cast<std::byte>(encode_reference(Dtype::e4m3fn, normal(engine)));
  return codes;
}

std::vector<float> random_scale_inv(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(0.0005F, 0.002F);
  std::vector<float> scale_inv(static_cast<std::size_t>(count));
  for (float& factor : scale_inv) factor = uniform(engine);
  return scale_inv;
}

Float8WeightState random_state(ScaleGranularity scale, std::int64_t n = kOut, std::int64_t k = kIn) {
  return {.scale = scale,
          .out_features = n,
          .in_features = k,
          .codes = random_codes(n * k, 1),
          .scale_inv = random_scale_inv(scale_count(scale, n, k), 2)};
}

// Codes and scale_inv of each element, as numbers.
Quantized decoded(const Float8WeightState& state) {
  Quantized all{zeros(state.out_features, state.in_features), zeros(state.out_features, state.in_features)};
  const auto extent = [](int of_scale, std::int64_t size) { return of_scale == 0 ? size : of_scale; };
  const std::int64_t rows = extent(state.scale.rows, state.out_features);
  const std::int64_t cols = extent(state.scale.cols, state.in_features);
  const std::int64_t in_row = (state.in_features + cols - 1) / cols;
  for (std::int64_t r = 0; r < state.out_features; ++r) {
    for (std::int64_t c = 0; c < state.in_features; ++c) {
      const std::byte code = state.codes[static_cast<std::size_t>(r * state.in_features + c)];
      all.codes.at(r, c) = decode_reference(state.dtype, std::to_integer<std::uint32_t>(code));
      all.scale_inv.at(r, c) = state.scale_inv[static_cast<std::size_t>(r / rows * in_row + c / cols)];
    }
  }
  return all;
}

Matrix values_of(const Quantized& parts) {
  Matrix values = parts.codes;
  for (std::size_t i = 0; i < values.values.size(); ++i) values.values[i] *= parts.scale_inv.values[i];
  return values;
}

ExpectedMatrix expected_frozen_grad_input(const LinearConfig& config, const Matrix& grad_output,
                                          const Quantized& weight) {
  const Cast& cast = *config.grad_input.a;
  if (config.weight != OtherCodes::folded) {
    return expected_gemm(fake_quantized(grad_output, cast), transpose(values_of(weight)), nullptr, Dtype::bf16);
  }
  Matrix folded = grad_output;
  for (std::int64_t r = 0; r < folded.rows; ++r) {
    for (std::int64_t n = 0; n < folded.cols; ++n) {
      folded.at(r, n) = static_cast<float>(folded.at(r, n)) * static_cast<float>(weight.scale_inv.at(n, 0));
    }
  }
  return expected_gemm(fake_quantized(folded, cast), transpose(weight.codes), nullptr, Dtype::bf16);
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  TemporaryDirectory folder;

  std::string refusal(test::FunctionRef<void()> act) { return error_of(act, ErrorCode::invalid_argument); }

  // A checkpoint of the codes of random_state() with these scales.
  SafetensorsCheckpoint file(std::vector<TensorToStore> scales, const std::string& type = "F8_E4M3",
                             std::vector<std::int64_t> shape = {kOut, kIn}) {
    const std::vector<std::byte> codes = random_codes(kOut * kIn, 1);
    std::size_t bytes = type == "BF16" ? 2 : 1;
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    scales.push_back(
        {.name = "wq.weight", .type = type, .shape = std::move(shape), .bytes = std::span(codes).first(bytes)});
    write_safetensors(folder.path() / "model.safetensors", scales, {{"format", "pt"}});
    return SafetensorsCheckpoint::open(folder.path());
  }

  // A frozen weight goes forward and gives grad_input, against float64.
  void check_frozen(const LinearConfig& config, const Float8WeightState& state) {
    const LinearShape shape{state.in_features, state.out_features, false};
    Random random(5);
    const Matrix input = random.normal(kTokens, state.in_features, Dtype::bf16);
    const Matrix grad_output = random.normal(kTokens, state.out_features, Dtype::bf16);
    const Quantized weight = decoded(state);
    const DeviceMatrix x(input, Dtype::bf16, *backend, stream);
    const DeviceMatrix gy(grad_output, Dtype::bf16, *backend, stream);
    const auto y = DeviceMatrix::poisoned(kTokens, state.out_features, Dtype::bf16, *backend, stream);
    const auto gx = DeviceMatrix::poisoned(kTokens, state.in_features, Dtype::bf16, *backend, stream);

    DelayedScaling delayed(*backend);
    Float8Linear starts(*backend, shape, config, {.delayed = &delayed});  // its scales come from the same data
    const DeviceMatrix w(zeros(state.out_features, state.in_features), Dtype::bf16, *backend, stream);
    starts.forward({.input = x, .weight = w, .output = y}, stream);
    starts.backward({.grad_output = gy, .grad_input = gx}, stream);
    y.bytes(stream);

    FunctionLayer functions({.name = "wq", .config = config, .shape = shape, .grad_weight = false}, *backend, stream);
    functions.use(delayed);
    const PoisonedRegion region(functions.plan.weight_memory().bytes, *backend, stream);
    functions.codes = weight_from_state(functions.plan, *backend, state, region, stream);
    FunctionSaved kept(functions.plan, kTokens, *backend, stream);
    functions.forward({.input = x, .weight = {}, .output = y}, &kept.saved, stream);
    functions.backward({.grad_output = gy, .grad_input = gx}, {}, kept.saved, stream);
    check_within(y.read(stream),
                 expected_gemm(fake_quantized(input, *config.output.a), values_of(weight), nullptr, Dtype::bf16),
                 "output");
    check_within(gx.read(stream), expected_frozen_grad_input(config, grad_output, weight), "grad_input");
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(float8_checkpoint, Fixture)

BOOST_AUTO_TEST_CASE(taken_out_codes_load_back_to_the_bit) {
  const Matrix values = Random(3).weight(kOut, kIn, Dtype::bf16);
  const DeviceMatrix weight(values, Dtype::bf16, *backend, stream);
  for (const LinearConfig& config :
       {tensorwise(), rowwise_folded(), blockwise(), inference_config({.scale = kRowwise})}) {
    for (const ScaleName name : {ScaleName::weight_scale, ScaleName::weight_scale_inv}) {
      BOOST_TEST_CONTEXT(print(config)) {
        const LinearPlan plan = linear_plan({.name = "wq", .config = config, .shape = kLinear});
        const LinearWeightMemory memory = plan.weight_memory();
        const PoisonedRegion cast(memory.bytes, *backend, stream);
        const PoisonedRegion loaded(memory.bytes, *backend, stream);
        const Float8View codes = cast_weight(plan, *backend, {.weight = weight, .into = cast}, {.stream = stream});
        Float8WeightState state = weight_state(plan, *backend, codes, stream);
        state.input_scale_inv = 0.03F;
        const auto file = folder.path() / "out.safetensors";
        save_float8_weights(file, {{"a.", state}, {"b.", random_state(kBlocks)}}, name);
        const auto checkpoint = SafetensorsCheckpoint::open(file);
        BOOST_TEST(checkpoint.has(name == ScaleName::weight_scale ? "a.weight_scale" : "a.weight_scale_inv"));
        BOOST_TEST(checkpoint.at("a.weight").tensor->type == "F8_E4M3");
        const Float8WeightState again = load_float8_weight(checkpoint, "a.");
        BOOST_TEST((again.codes == state.codes));
        BOOST_TEST((again.scale_inv == state.scale_inv));
        BOOST_TEST((again.scale == state.scale));
        BOOST_TEST((again.input_scale_inv == state.input_scale_inv));
        weight_from_state(plan, *backend, again, loaded, stream);
        for (const TensorPlace& part : memory.parts()) {
          if (!part.used) continue;
          for (std::int64_t r = 0; r < part.rows; ++r) {
            const std::size_t row = part.offset + static_cast<std::size_t>(r * part.row_stride * size_of(part.dtype));
            const auto at = [&](const PoisonedRegion& region) {
              return static_cast<const std::byte*>(MemoryRegion(region).data) + row;
            };
            const auto count = static_cast<std::size_t>(part.cols * size_of(part.dtype));
            BOOST_REQUIRE(std::memcmp(at(cast), at(loaded), count) == 0);
          }
        }
      }
    }
  }
}

// ---- public layouts ------------------------------------------------------------------------------------------------

// As DeepSeek-V3 is stored: blocks' scale_inv in f32, called weight_scale_inv, perhaps in another file than the codes.
BOOST_AUTO_TEST_CASE(deepseeks_blocks_load) {
  const Float8WeightState state = random_state(kBlocks);
  BOOST_TEST(state.scale_inv.size() == 6U);
  const std::string prefix = "model.layers.0.self_attn.o_proj.";
  const std::vector<TensorToStore> tensors = {
      {.name = prefix + "weight", .type = "F8_E4M3", .shape = {kOut, kIn}, .bytes = state.codes},
      {.name = prefix + "weight_scale_inv",
       .type = "F32",
       .shape = {2, 3},
       .bytes = std::as_bytes(std::span(state.scale_inv))}};
  write_safetensors(folder.path() / "model-00001-of-00002.safetensors", std::span(tensors).first(1));
  write_safetensors(folder.path() / "model-00002-of-00002.safetensors", std::span(tensors).last(1));
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << R"({"weight_map":{")" << prefix << R"(weight":"model-00001-of-00002.safetensors",")" << prefix
      << R"(weight_scale_inv":"model-00002-of-00002.safetensors"}})";
  const Float8WeightState loaded = load_float8_weight(SafetensorsCheckpoint::open(folder.path()), prefix);
  BOOST_TEST((loaded.scale == kBlocks));
  BOOST_TEST((loaded.codes == state.codes));
  BOOST_TEST((loaded.scale_inv == state.scale_inv));
  BOOST_TEST(!loaded.input_scale_inv);
  check_frozen(blockwise(), loaded);
}

// As compressed-tensors stores Llama: scale_inv of the tensor or of rows, in f32 or in the model's dtype.
BOOST_AUTO_TEST_CASE(llamas_tensors_and_rows_load) {
  struct Layout {
    std::vector<std::int64_t> shape;
    ScaleGranularity scale;
    Dtype dtype;
  };
  for (const Layout& layout : {Layout{{}, kTensorwise, Dtype::f32}, Layout{{1}, kTensorwise, Dtype::bf16},
                               Layout{{1, 1}, kTensorwise, Dtype::f32}, Layout{{kOut}, kRowwise, Dtype::f16},
                               Layout{{kOut, 1}, kRowwise, Dtype::bf16}, Layout{{kOut, 3}, kRowGroups, Dtype::f32}}) {
    BOOST_TEST_CONTEXT(print(layout.scale) << " " << name(layout.dtype)) {
      std::vector<float> scale_inv = random_scale_inv(scale_count(layout.scale, kOut, kIn), 2);
      for (float& factor : scale_inv) {
        factor = static_cast<float>(rounded({1, 1, {factor}}, layout.dtype).at(0, 0));
      }
      const std::vector<std::byte> bytes = bytes_of_values(scale_inv, layout.dtype);
      const std::vector<std::byte> input_scale = bytes_of_values({0.0625F}, layout.dtype);
      const std::string type(safetensors_type(layout.dtype));
      const Float8WeightState state =
          load_float8_weight(file({{.name = "wq.weight_scale", .type = type, .shape = layout.shape, .bytes = bytes},
                                   {.name = "wq.input_scale", .type = type, .shape = {}, .bytes = input_scale}}),
                             "wq.");
      BOOST_TEST((state.scale == layout.scale));
      BOOST_TEST((state.scale_inv == scale_inv));
      BOOST_TEST((state.codes == random_codes(kOut * kIn, 1)));
      BOOST_TEST(state.input_scale_inv.value() == 0.0625F);
      if (layout.scale == kTensorwise) check_frozen(tensorwise(), state);
      if (layout.scale == kRowwise) check_frozen(rowwise_folded(), state);
    }
  }
}

// One factor is that of a weight of one block if its name, or the caller, says so.
BOOST_AUTO_TEST_CASE(one_scale_inv_may_be_a_blocks) {
  const std::vector<std::byte> codes(std::size_t{64} * 32), scale = bytes_of_values({0.5F}, Dtype::f32);
  const auto loaded = [&](const char* name, std::vector<std::int64_t> shape, std::int64_t rows,
                          std::optional<ScaleGranularity> of_one = std::nullopt) {
    const std::filesystem::path path = folder.path() / "one.safetensors";
    const TensorToStore tensors[] = {
        {.name = "wq.weight", .type = "F8_E4M3", .shape = {rows, 2048 / rows}, .bytes = codes},
        {.name = name, .type = "F32", .shape = std::move(shape), .bytes = scale}};
    write_safetensors(path, tensors);
    return load_float8_weight(SafetensorsCheckpoint::open(path), "wq.", of_one).scale;
  };
  BOOST_TEST((loaded("wq.weight_scale_inv", {1, 1}, 64) == kBlocks));
  BOOST_TEST((loaded("wq.weight_scale_inv", {1}, 64) == kTensorwise));
  BOOST_TEST((loaded("wq.weight_scale", {1, 1}, 64) == kTensorwise));
  BOOST_TEST((loaded("wq.weight_scale", {1, 1}, 64, kBlocks) == kBlocks));
  BOOST_TEST((loaded("wq.weight_scale_inv", {1, 1}, 64, kTensorwise) == kTensorwise));
  BOOST_TEST((loaded("wq.weight_scale_inv", {1, 1}, 1) == kTensorwise));  // sixteen blocks
  BOOST_TEST((loaded("wq.weight_scale", {1}, 1, kRowwise) == kRowwise));
  BOOST_TEST((loaded("wq.weight_scale", {1}, 64, kRowwise) == kTensorwise));
}

// ---- recipes -------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(every_recipe_multiplies_the_codes_whose_scales_it_takes) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "high_precision") continue;
    for (const ScaleGranularity scale : {kTensorwise, kRowwise, kBlocks, kRowGroups}) {
      BOOST_TEST_CONTEXT(recipe.name << " " << print(scale)) {
        const bool takes = scale == kTensorwise || (scale == kRowwise && recipe.name == "rowwise_folded") ||
                           (scale == kBlocks && recipe.name == "blockwise");
        if (takes) {
          check_frozen(recipe.config, random_state(scale));
        } else {
          const std::string message = refusal([&] { check_frozen(recipe.config, random_state(scale)); });
          check_contains(message, {"linear \"wq\" weight: has scale_inv with scale=" + print(scale)});
        }
      }
    }
  }
  check_frozen(blockwise(), random_state(kRowwise, 1, 70));  // one block's factor
}

BOOST_AUTO_TEST_CASE(scale_inv_of_larger_parts_serve_smaller_ones) {
  Float8WeightState state = random_state(kBlocks);
  state.scale_inv = {1, 2, 3, 4, 5, 6};
  const std::vector<float> groups = scale_inv_for(state, kRowGroups).value();
  BOOST_TEST(groups.size() == 600U);
  BOOST_TEST(groups[127 * 3 + 2] == 3);
  BOOST_TEST(groups[128 * 3] == 4);
  BOOST_TEST(groups[599] == 6);
  BOOST_TEST(!scale_inv_for(state, kRowwise));
  BOOST_TEST(!scale_inv_for(state, kTensorwise));
  state = random_state(kRowwise, 3, 200);
  state.scale_inv = {1, 2, 3};
  BOOST_TEST_CHECK(scale_inv_for(state, kRowGroups).value() == (std::vector<float>{1, 1, 2, 2, 3, 3}),
                   boost::test_tools::per_element());
  BOOST_TEST(!scale_inv_for(state, kColumnwise));
  state.scale = kTensorwise;
  state.scale_inv = {7};
  BOOST_TEST_CHECK(scale_inv_for(state, kColumnwise).value() == std::vector<float>(200, 7),
                   boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_weight_without_elements_loads) {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{0, 16}, {16, 0}, {0, 0}}) {
    const Float8WeightState state = random_state(kTensorwise, n, k);
    save_float8_weights(folder.path() / "empty.safetensors", {{"", state}});
    const Float8WeightState loaded =
        load_float8_weight(SafetensorsCheckpoint::open(folder.path() / "empty.safetensors"), "");
    for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
      const LinearPlan plan = linear_plan({.config = config, .shape = {k, n}});
      const PoisonedRegion region(plan.weight_memory().bytes, *backend, stream);
      const Float8View codes = weight_from_state(plan, *backend, loaded, region, stream);
      BOOST_TEST(weight_state(plan, *backend, codes, stream).codes.empty());
    }
  }
}

// ---- refusals ------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_file_must_have_codes_with_scale_inv) {
  const float one = 1;
  const auto scale = [&](const char* name, const char* type = "F32", std::vector<std::int64_t> shape = {1}) {
    return TensorToStore{
        .name = name, .type = type, .shape = std::move(shape), .bytes = std::as_bytes(std::span(&one, 1))};
  };
  const std::string path = (folder.path() / "model.safetensors").string();
  const auto load = [&](const SafetensorsCheckpoint& from) {
    return refusal([&] { static_cast<void>(load_float8_weight(from, "wq.")); });
  };
  BOOST_TEST(load(file({})) == path +
                                   ": the tensor \"wq.weight\" is F8_E4M3 [200, 300], but comes without scale_inv: "
                                   "neither \"wq.weight_scale\" nor \"wq.weight_scale_inv\" is there");
  BOOST_TEST(load(file({scale("wq.weight_scale"), scale("wq.weight_scale_inv")})) ==
             path +
                 ": the tensor \"wq.weight_scale\" is F32 [1], and \"wq.weight_scale_inv\" is there too: leave one "
                 "of them");
  BOOST_TEST(load(file({scale("wq.weight_scale")}, "BF16", {4, 4})) ==
             path +
                 ": the tensor \"wq.weight\" is BF16 [4, 4], but FP8 weights are F8_E4M3 or F8_E5M2: cast_weight() "
                 "takes weights in high precision");
  BOOST_TEST(load(file({scale("wq.weight_scale")}, "F8_E4M3", {4, 4, 2})) ==
             path +
                 ": the tensor \"wq.weight\" is F8_E4M3 [4, 4, 2], but must be a matrix [out_features, in_features]");
  BOOST_TEST(load(file({scale("wq.weight_scale", "I32")})) ==
             path + ": the tensor \"wq.weight_scale\" is I32 [1], but scales are F32, BF16, F16 or F8_E8M0");
  BOOST_TEST(load(file({scale("wq.weight_scale", "F8_E8M0", {2, 2})})) ==
             path +
                 ": the tensor \"wq.weight_scale\" is F8_E8M0 [2, 2], but the weight [200, 300] has one factor, "
                 "[200, 1] for rows, [2, 3] for 128 x 128 blocks or [200, 3] for groups of a row");
  BOOST_TEST(load(file({scale("wq.weight_scale"), scale("wq.input_scale", "F8_E8M0", {4})})) ==
             path + ": the tensor \"wq.input_scale\" is F8_E8M0 [4], but a static activation scale is one number");
  BOOST_TEST(error_of([&] { static_cast<void>(load_float8_weight(file({}), "wk.")); }, ErrorCode::not_found) ==
             folder.path().string() +
                 ": has no weight \"wk.\", which would be a tensor \"wk.weight\": give the prefix "
                 "of the tensor's name, with its last dot");
}

BOOST_AUTO_TEST_CASE(a_state_must_fit_itself_and_the_plan) {
  const LinearPlan plan = linear_plan({.name = "wq", .config = tensorwise(), .shape = kLinear});
  const PoisonedRegion region(plan.weight_memory().bytes, *backend, stream);
  const auto with = [&](test::FunctionRef<void(Float8WeightState&)> change) {
    Float8WeightState state = random_state(kTensorwise);
    change(state);
    return refusal([&] { weight_from_state(plan, *backend, state, region, stream); });
  };
  const std::string subject = "linear \"wq\" weight: ";
  BOOST_TEST(with([](Float8WeightState& state) { state.scale_inv.clear(); }) ==
             subject + "has 0 scale_inv, but [200, 300] with scale=tensor has 1: codes come with their scale_inv");
  BOOST_TEST(with([](Float8WeightState& state) { state.codes.pop_back(); }) ==
             subject + "has 59999 bytes of codes, but [200, 300] has 60000");
  BOOST_TEST(with([](Float8WeightState& state) { state.scale = kColumnwise; }) ==
             subject + "has scale=col, but it must be tensor, row, 128x128 or 1x128");
  BOOST_TEST(with([](Float8WeightState& state) { state.dtype = Dtype::bf16; }) ==
             subject + "has codes of bf16, but FP8 weights are e4m3fn or e5m2");
  BOOST_TEST(with([](Float8WeightState& state) { state.dtype = Dtype::e5m2; }) ==
             subject +
                 "has codes of e5m2, but the config casts the weight to e4m3fn: give the config's casts of the "
                 "weight the checkpoint's format");
  BOOST_TEST(with([](Float8WeightState& state) { std::swap(state.in_features, state.out_features); }) ==
             subject + "is [300, 200], but must be [200, 300] = [out_features, in_features]");
  check_contains(with([](Float8WeightState& state) { state.in_features = -1; }), {subject});
  BOOST_TEST(with([](Float8WeightState& state) { state = random_state(kBlocks); }) ==
             subject +
                 "has scale_inv with scale=128x128, but the output GEMM takes scale=tensor of the weight: choose a "
                 "recipe that casts the weight with the checkpoint's scales");
  const LinearPlan rows = linear_plan({.name = "wq", .config = rowwise(), .shape = kLinear});
  const PoisonedRegion other(rows.weight_memory().bytes, *backend, stream);
  BOOST_TEST(refusal([&] { weight_from_state(rows, *backend, random_state(kRowwise), other, stream); }) ==
             subject +
                 "has scale_inv with scale=row, but the grad_input GEMM takes scale=col of the weight: "
                 "rowwise_folded() multiplies with scale_inv of rows in both directions, and inference_config() "
                 "needs no grad_input");
  const LinearPlan high = linear_plan({.name = "wq", .shape = kLinear});
  BOOST_TEST(refusal([&] { weight_from_state(high, *backend, random_state(kRowwise), other, stream); }) ==
             subject + "is given in FP8, but the config has no FP8 codes of it: choose a recipe that casts the weight");
  BOOST_TEST(refusal([&] { static_cast<void>(weight_state(high, *backend, {}, stream)); }) ==
             subject +
                 "has no FP8 codes for the output GEMM, which is in high precision: there is nothing to take out");
  check_contains(refusal([&] { static_cast<void>(weight_state(plan, *backend, {}, stream)); }),
                 {"linear \"wq\" codes.codes: is missing"});
  check_contains(refusal([&] { weight_from_state(plan, *backend, random_state(kTensorwise), {}, stream); }),
                 {"linear \"wq\" into: is missing"});
  Float8WeightState bad = random_state(kTensorwise);
  bad.scale_inv.clear();
  BOOST_TEST(
      refusal([&] {
        save_float8_weights(folder.path() / "bad", {{"wq.", bad}});
      }) ==
      "Float8WeightState \"wq.\": has 0 scale_inv, but [200, 300] with scale=tensor has 1: codes come with their "
      "scale_inv");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
