// The parts of examples/generate: the decoder against float64, its weights as files, what is refused.
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "generate_reference.h"
#include "ingot/nn/weights/safetensors.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "report.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace generate::test {
BOOST_AUTO_TEST_SUITE(test_generate_model)

namespace {

namespace fs = std::filesystem;
using ingot::ErrorCode;
using ingot::test::check_contains;
using ingot::test::error_of;
using ingot::test::TemporaryDirectory;

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = fs::path();
  return options;
}

// bf16 has 8 bits, and a token's way to its logits rounds some twenty times.
constexpr double kBf16Bound = 0.03;
// e4m3 weights have 4 bits, and every layer has its own errors.
constexpr double kFp8Bound = 0.15;

BOOST_AUTO_TEST_CASE(bf16_follows_the_reference) {
  ingot::Context context(cpu_options());
  // Queries that share keys by 1, 2, 4 and 8; heads of all sizes.
  check_generation(context, small_shape(2, 2, 16), {.batch = 2, .capacity = 12}, 4, kBf16Bound);
  check_generation(context, small_shape(4, 2, 32), {.batch = 1, .capacity = 12}, 1, kBf16Bound);
  check_generation(context, small_shape(4, 1, 64), {.batch = 3, .capacity = 9}, 9, kBf16Bound);
  check_generation(context, small_shape(8, 1, 256), {.batch = 1, .capacity = 6}, 2, kBf16Bound);
}

BOOST_AUTO_TEST_CASE(a_stretched_rotary_embedding_follows_the_reference) {
  ingot::Context context(cpu_options());
  ModelShape shape = small_shape(4, 2, 64);
  // Frequencies of all three kinds: waves of 6 to 47000 positions.
  shape.rope_scaling = {.factor = 4, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_positions = 64};
  check_generation(context, shape, {.batch = 1, .capacity = 40}, 30, kBf16Bound);
}

BOOST_AUTO_TEST_CASE(quantised_weights_follow_the_reference) {
  ingot::Context context(cpu_options());
  const ModelShape shape = small_shape(4, 2, 16);
  const ingot::WeightOnlyOptions rowwise{.dtype = ingot::Dtype::e4m3fn, .scale = ingot::kRowwise};
  const ingot::WeightOnlyOptions groups{.dtype = ingot::Dtype::e4m3fn, .scale = ingot::kRowGroups};
  check_generation(context, shape, {.weights = rowwise, .batch = 2, .capacity = 10}, 3, kFp8Bound);
  check_generation(context, shape, {.weights = groups, .bf16_head = true, .batch = 1, .capacity = 10}, 3, kFp8Bound);
}

BOOST_AUTO_TEST_CASE(weights_take_the_bytes_that_they_have_bits_for) {
  ingot::Context context(cpu_options());
  const ModelShape shape = preset("tiny").shape;
  const std::int64_t parameters = 2 * (64 * 128 + 64 * 64 + 64 * 320 + 64 * 160) + 64 * 320;
  DecoderCase bf16(context, shape, {.capacity = 4});
  BOOST_TEST(bf16.decoder().weight_bytes() == 2 * parameters);
  DecoderCase fp8(context, shape, {.weights = ingot::WeightOnlyOptions{}, .capacity = 4});
  BOOST_TEST(fp8.decoder().weight_bytes() >= parameters);
  BOOST_TEST(fp8.decoder().weight_bytes() <= parameters * 13 / 10);  // padding, and scale_inv of short rows
  DecoderCase head(context, shape, {.weights = ingot::WeightOnlyOptions{}, .bf16_head = true, .capacity = 4});
  BOOST_TEST(head.decoder().weight_bytes() > fp8.decoder().weight_bytes() + 50 * 320);
}

// What the cache holds is what the tokens make it: starting over with the tokens that were chosen gives the same bits,
// and a sequence does not see the others.
BOOST_AUTO_TEST_CASE(a_sequence_depends_on_its_tokens_alone) {
  ingot::Context context(cpu_options());
  const ModelShape shape = preset("tiny").shape;
  DecoderCase three(context, shape, {.batch = 3, .capacity = 16});
  three.generator().start({{1, 2, 3}, {319, 0, 7}, {4, 4, 4}});
  three.generator().advance(16);
  const Tokens tokens = three.decoder().tokens(16);
  const auto logits = three.logits();
  three.generator().start(tokens);
  three.generator().advance(16);
  BOOST_TEST((three.logits() == logits));
  BOOST_TEST((three.decoder().tokens(16) == tokens));

  DecoderCase one(context, shape, {.capacity = 16});
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    one.generator().start({{tokens[i].begin(), tokens[i].begin() + 3}});
    one.generator().advance(16);
    BOOST_TEST((one.decoder().tokens(16)[0] == tokens[i]));
    BOOST_TEST((one.logits()[0] == logits[i]));
  }
}

BOOST_AUTO_TEST_CASE(two_models_are_compared) {
  ingot::Context context(cpu_options());
  const ModelShape shape = preset("tiny").shape;
  DecoderCase first(context, shape, {.batch = 2, .capacity = 12});
  const Tokens prompt{{1, 2, 3, 4}, {5, 6, 7, 8}};
  const Generated generated = generate_tokens(first.machine(), first.generator(), prompt, 8, 2);
  BOOST_TEST(generated.tokens.size() == 2U);
  BOOST_TEST(generated.tokens[0].size() == 12U);
  BOOST_TEST(generated.seconds.size() == 2U);
  BOOST_TEST(generated.median_seconds() > 0);

  DecoderCase same(context, shape, {.batch = 2, .capacity = 12});
  const Agreement with_same = compare(first.machine(), first.generator(), same.generator(), generated.tokens, 4);
  BOOST_TEST(with_same.tokens == 16);
  BOOST_TEST(with_same.top1 == 1);
  BOOST_TEST_CHECK(with_same.mean_cosine == 1, boost::test_tools::tolerance(1e-12));
  DecoderCase fp8(context, shape, {.weights = ingot::WeightOnlyOptions{}, .batch = 2, .capacity = 12});
  const Agreement with_fp8 = compare(first.machine(), first.generator(), fp8.generator(), generated.tokens, 4);
  BOOST_TEST(with_fp8.mean_cosine > 0.99);
  BOOST_TEST(with_fp8.lowest_cosine <= with_fp8.mean_cosine);
  BOOST_TEST(with_fp8.mean_cosine < 1);
  BOOST_TEST(with_fp8.sqnr_db > 15);
  BOOST_TEST(with_fp8.sqnr_db < 45);
}

BOOST_AUTO_TEST_CASE(what_agrees) {
  const std::vector<float> x{1, 2, 3, 4};
  const std::vector<float> y{4, 3, 2, 1};
  AgreementSums sums;
  sums.add(x, x);
  sums.add(x, y);
  BOOST_TEST(sums.result().tokens == 2);
  BOOST_TEST(sums.result().top1 == 0.5);
  BOOST_TEST_CHECK(sums.result().lowest_cosine == 20.0 / 30, boost::test_tools::tolerance(1e-12));
  BOOST_TEST_CHECK(sums.result().mean_cosine == 25.0 / 30, boost::test_tools::tolerance(1e-12));
  BOOST_TEST_CHECK(sums.result().sqnr_db == 10 * std::log10(60.0 / 20), boost::test_tools::tolerance(1e-12));

  // A NaN does not go unseen among other tokens.
  const std::vector<float> nans(4, std::numeric_limits<float>::quiet_NaN());
  AgreementSums with_nan;
  with_nan.add(x, x);
  with_nan.add(nans, nans);
  with_nan.add(x, x);
  BOOST_TEST_CHECK(with_nan.result().top1 == 2.0 / 3, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(std::isnan(with_nan.result().lowest_cosine));
  BOOST_TEST(std::isnan(with_nan.result().mean_cosine));
  BOOST_TEST(std::isnan(with_nan.result().sqnr_db));
}

BOOST_AUTO_TEST_CASE(prompts_are_checked) {
  ingot::Context context(cpu_options());
  DecoderCase decoder(context, preset("tiny").shape, {.batch = 2, .capacity = 4});
  const auto refusal = [&](const Tokens& tokens) {
    return error_of([&] { decoder.generator().start(tokens); }, ErrorCode::invalid_argument);
  };
  check_contains(refusal({{1}}), {"has a batch of 1", "made for 2"});
  check_contains(refusal({{}, {}}), {"has 0 tokens", "from 1 to 4"});
  check_contains(refusal({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}), {"has 5 tokens"});
  check_contains(refusal({{1, 2}, {1}}), {"different lengths"});
  check_contains(refusal({{1}, {320}}), {"the token 320", "0 to 319"});
  check_contains(refusal({{-1}, {1}}), {"the token -1"});
  decoder.generator().start({{1}, {2}});
  decoder.generator().advance(4);
  check_contains(error_of([&] { decoder.generator().advance(1); }, ErrorCode::invalid_argument),
                 {"position 4 + 1", "the room for 4 tokens"});
}

// ---- Weights as files --------------------------------------------------------------------------------------------

// All weights of the tiny model on the host, to be written in other ways.
struct Stored {
  std::vector<NamedTensor> names = all_tensors(preset("tiny").shape);
  std::vector<std::vector<std::byte>> contents;
  std::vector<ingot::TensorToStore> tensors;

  explicit Stored(const fs::path& folder) {
    const ingot::SafetensorsFile file = ingot::SafetensorsFile::open(folder / "model.safetensors");
    for (const NamedTensor& name : names) contents.push_back(file.read(file.at(name.name)));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const ingot::StoredTensor& stored = file.at(names[i].name);
      tensors.push_back({.name = stored.name, .type = stored.type, .shape = stored.shape, .bytes = contents[i]});
    }
  }
  std::size_t at(const std::string& name) const {
    return static_cast<std::size_t>(std::ranges::find(tensors, name, &ingot::TensorToStore::name) - tensors.begin());
  }
  // In a type of more or other bits. (Every bf16 of a weight here is one of f16, too: none is tiny.)
  void convert(std::size_t i, const std::string& type) {
    std::vector<std::byte> converted;
    for (std::size_t at = 0; at < contents[i].size(); at += 2) {
      bf16 value;
      std::memcpy(&value, &contents[i][at], 2);
      const float wide = ingot::to_float(value);
      const auto half = ingot::from_float<ingot::f16>(wide);
      const auto* bytes =
          type == "F32" ? reinterpret_cast<const std::byte*>(&wide) : reinterpret_cast<const std::byte*>(&half);
      converted.insert(converted.end(), bytes, bytes + (type == "F32" ? 4 : 2));
    }
    contents[i] = converted;
    tensors[i].type = type;
    tensors[i].bytes = contents[i];
  }
  void write(const fs::path& folder) const { ingot::write_safetensors(folder / "model.safetensors", tensors); }
};

class Files {
 public:
  Files() : context_(cpu_options()), written_(context_, shape_, {.capacity = 12}) {
    save_weights(folder_.path() / "model", written_.source(), shape_, written_.machine());
  }

  fs::path folder() const { return folder_.path() / "model"; }
  Tokens tokens_of(Decoder& decoder) {
    Generator generator(written_.machine(), decoder);
    generator.start({{9, 8, 7}});
    generator.advance(12);
    return decoder.tokens(12);
  }
  Tokens written() { return tokens_of(written_.decoder()); }
  // With the weights of a path.
  Tokens read(const fs::path& path) {
    OpRunner ops(context_, written_.machine().stream(), false);
    WeightSource source(written_.machine(), ops, path);
    source.check(shape_);
    const SharedWeights shared(source, shape_);
    Decoder decoder(written_.machine(), ops, shape_, shared, source, {.capacity = 12});
    return tokens_of(decoder);
  }
  std::string refusal(ErrorCode code) {
    return error_of([&] { read(folder()); }, code);
  }

 private:
  TemporaryDirectory folder_;
  ModelShape shape_ = preset("tiny").shape;
  ingot::Context context_;
  DecoderCase written_;
};

BOOST_AUTO_TEST_CASE(weights_that_are_written_and_read_give_the_same_tokens) {
  Files files;
  const Tokens tokens = files.written();
  BOOST_TEST((read_config(files.folder() / "config.json") == preset("tiny").shape));
  BOOST_TEST((files.read(files.folder()) == tokens));
  BOOST_TEST((files.read(files.folder() / "model.safetensors") == tokens));

  // Some in f32: the same values.
  Stored stored(files.folder());
  for (std::size_t i = 0; i < stored.tensors.size(); i += 2) stored.convert(i, "F32");
  stored.write(files.folder());
  BOOST_TEST((files.read(files.folder()) == tokens));

  // In two files.
  const auto middle = stored.tensors.begin() + 7;
  ingot::write_safetensors(files.folder() / "1.safetensors", std::vector(stored.tensors.begin(), middle));
  ingot::write_safetensors(files.folder() / "2.safetensors", std::vector(middle, stored.tensors.end()));
  fs::remove(files.folder() / "model.safetensors");
  std::string map;
  for (std::size_t i = 0; i < stored.tensors.size(); ++i) {
    map += (i == 0 ? "\"" : ",\"") + stored.tensors[i].name + "\":\"" + (i < 7 ? "1" : "2") + ".safetensors\"";
  }
  std::ofstream(files.folder() / "model.safetensors.index.json") << "{\"weight_map\":{" << map << "}}";
  BOOST_TEST((files.read(files.folder()) == tokens));
}

BOOST_AUTO_TEST_CASE(a_head_may_be_the_embedding) {
  Files files;
  Stored stored(files.folder());
  stored.contents[stored.at("lm_head.weight")] = stored.contents[stored.at("model.embed_tokens.weight")];
  stored.tensors[stored.at("lm_head.weight")].bytes = stored.contents[stored.at("lm_head.weight")];
  stored.write(files.folder());
  const Tokens tokens = files.read(files.folder());
  stored.tensors.erase(stored.tensors.begin() + static_cast<std::ptrdiff_t>(stored.at("lm_head.weight")));
  stored.write(files.folder());
  BOOST_TEST((files.read(files.folder()) == tokens));
}

BOOST_AUTO_TEST_CASE(f16_is_read) {
  Files files;
  Stored stored(files.folder());
  const std::size_t at = stored.at("model.norm.weight");  // around 1, where f16 has more bits
  stored.convert(at, "F16");
  const Tokens tokens = files.written();
  stored.write(files.folder());
  BOOST_TEST((files.read(files.folder()) == tokens));
}

BOOST_AUTO_TEST_CASE(weights_that_do_not_fit_are_refused) {
  Files files;
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  {
    Stored stored(files.folder());
    stored.tensors[stored.at(name)].shape = {64, 32};
    stored.write(files.folder());
    check_contains(files.refusal(ErrorCode::invalid_argument),
                   {"model.safetensors", name, "has the shape [64, 32]", "need [32, 64]"});
    stored.tensors[stored.at(name)] = {.name = name,
                                       .type = "F8_E4M3",
                                       .shape = {32, 64},
                                       .bytes = std::span(stored.contents[stored.at(name)]).first(32 * 64)};
    stored.write(files.folder());
    check_contains(files.refusal(ErrorCode::invalid_argument), {name, "has the dtype F8_E4M3", "BF16, F16 and F32"});
    stored.tensors.erase(stored.tensors.begin() + static_cast<std::ptrdiff_t>(stored.at(name)));
    stored.write(files.folder());
    check_contains(files.refusal(ErrorCode::not_found), {"has no tensor \"" + name + "\""});
  }
  fs::resize_file(files.folder() / "model.safetensors", 5000);
  check_contains(files.refusal(ErrorCode::io_failed), {"model.safetensors", "cut short"});
  fs::remove(files.folder() / "model.safetensors");
  check_contains(files.refusal(ErrorCode::not_found), {"neither model.safetensors nor model.safetensors.index.json"});
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// What a GPU would run compiles. Without NVRTC there is nothing to see.
BOOST_AUTO_TEST_CASE(all_operations_compile) {
  ingot::Context context(cpu_options());
  if (context.compiler() == nullptr) return;
  for (const std::string_view op : all_op_names()) {
    BOOST_TEST_CONTEXT(op) {
      const auto compiled = context.cache().compiled(source_of(op), context.cache().target());
      BOOST_TEST(!compiled->cubin.empty());
      BOOST_TEST(compiled->resources.spill_bytes == 0);
    }
  }
}

// ---- Sizes -------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(configs_are_read_or_refused) {
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "config.json";
  const auto write = [&](const std::string& text) { std::ofstream(file, std::ios::trunc) << text; };
  const std::string sizes =
      R"("num_hidden_layers":3,"hidden_size":64,"intermediate_size":96,"num_attention_heads":4,"vocab_size":100)";
  write("{" + sizes + "}");
  const ModelShape shape = read_config(file);
  BOOST_TEST((shape == ModelShape{.layers = 3,
                                  .hidden = 64,
                                  .intermediate = 96,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .head_dims = 16,
                                  .vocabulary = 100}));
  write("{" + sizes +
        R"(,"num_key_value_heads":1,"head_dim":128,"rms_norm_eps":1e-6,"rope_theta":5e5,"model_type":"llama",)"
        R"("rope_scaling":null})");
  BOOST_TEST(read_config(file).kv_heads == 1);
  BOOST_TEST(read_config(file).head_dims == 128);
  BOOST_TEST(read_config(file).norm_eps == 1e-6);
  BOOST_TEST(read_config(file).rope_theta == 5e5);
  // null is as if it was not there.
  write("{" + sizes +
        R"(,"num_key_value_heads":null,"head_dim":null,"rms_norm_eps":null,"rope_theta":null,"model_type":null,)"
        R"("rope_scaling":null,"rope_parameters":null,"hidden_act":null})");
  BOOST_TEST((read_config(file) == shape));
  for (const char* const field : {R"("rope_parameters":{"rope_theta":5e5,"rope_type":"default"})",
                                  R"("rope_parameters":{"rope_theta":5e5,"rope_type":null})",
                                  R"("rope_theta":5e5,"rope_parameters":{"rope_theta":null,"rope_type":"default"})",
                                  R"("rope_theta":5e5,"rope_scaling":{"rope_type":"default"})"}) {
    write("{" + sizes + "," + field + "}");
    BOOST_TEST(read_config(file).rope_theta == 5e5, field);
    BOOST_TEST(!read_config(file).rope_scaling.has_value(), field);
  }
  write("{" + sizes +
        R"(,"rope_parameters":{"rope_theta":5e5,"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
        R"("high_freq_factor":4.0,"original_max_position_embeddings":8192}})");
  BOOST_TEST(read_config(file).rope_theta == 5e5);
  BOOST_TEST((read_config(file).rope_scaling == RopeScaling{}));

  const auto refusal = [&](const std::string& text, ErrorCode code) {
    write(text);
    return error_of([&] { read_config(file); }, code);
  };
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string("{}"), "{" + sizes + R"(,"head_dim":"x"})"}) {
    check_contains(refusal(text, ErrorCode::io_failed), {file.string(), "is no config.json"});
  }
  for (const std::string huge : {"1e22", "9223372036854775808", "64.5", "\"64\""}) {
    check_contains(refusal("{" + sizes + ",\"head_dim\":" + huge + "}", ErrorCode::io_failed),
                   {file.string(), "has \"head_dim\": ", "which is not a whole number"});
  }
  check_contains(refusal("{" + sizes + R"(,"rms_norm_eps":"x"})", ErrorCode::io_failed),
                 {"has \"rms_norm_eps\": \"x\""});
  check_contains(refusal("{" + sizes + R"(,"rope_scaling":[]})", ErrorCode::io_failed),
                 {"something other than an object"});
  check_contains(refusal("{}", ErrorCode::io_failed), {"lacks \"num_hidden_layers\""});
  // Printing, comparing or copying these would overflow the stack.
  for (const char* const name : {"model_type", "rope_scaling", "other"}) {
    const std::string deep = std::string(100000, '[') + std::string(100000, ']');
    check_contains(refusal("{" + sizes + ",\"" + name + "\":" + deep + "}", ErrorCode::io_failed),
                   {"is nested deeper than 64 levels"});
  }
  for (const std::string& field : {std::string(R"("model_type":"gpt2")"), std::string(R"("hidden_act":"gelu")"),
                                   std::string(R"("attention_bias":true)"), std::string(R"("mlp_bias":true)"),
                                   std::string(R"("rope_scaling":{"rope_type":"yarn"})"),
                                   std::string(R"("rope_parameters":{"rope_type":"yarn"})")}) {
    check_contains(refusal("{" + sizes + "," + field + "}", ErrorCode::invalid_argument),
                   {field.substr(0, field.find(':')), "does not compute"});
  }
  const auto of = [&](const std::string& field) {
    return refusal("{" + sizes + "," + field + "}", ErrorCode::invalid_argument);
  };
  check_contains(of(R"("head_dim":24)"), {"a head has 24 dimensions"});
  check_contains(of(R"("head_dim":512)"), {"a head has 512 dimensions"});
  check_contains(of(R"("num_key_value_heads":3)"), {"4 heads of queries to 3"});
  check_contains(of(R"("num_key_value_heads":0)"), {"number of heads of keys and values is 0"});
  check_contains(of(R"("rms_norm_eps":0)"), {"eps is 0"});
  check_contains(of(R"("rope_theta":0.5)"), {"rope_theta is 0.5"});

  const auto scaling = [&](const std::string& factor) {
    return R"("rope_scaling":{"rope_type":"llama3","factor":)" + factor +
           R"(,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192})";
  };
  check_contains(of(scaling("0.5")), {"rope_scaling must have a factor from 1 on"});
  check_contains(refusal("{" + sizes + R"(,"rope_scaling":{"type":"llama3"}})", ErrorCode::io_failed),
                 {"is no config.json"});
  write("{" + sizes + "," + scaling("32") + "}");
  const ModelShape stretched = read_config(file);
  BOOST_REQUIRE(stretched.rope_scaling.has_value());
  BOOST_TEST(stretched.rope_scaling->factor == 32);
  BOOST_TEST(stretched.rope_scaling->original_positions == 8192);
  write_config(file, stretched);
  BOOST_TEST((read_config(file) == stretched));
  fs::remove(file);
  check_contains(error_of([&] { read_config(file); }, ErrorCode::not_found),
                 {"there is no such file; a model's sizes stand there"});
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  check_contains(error_of([&] { read_config(file); }, ErrorCode::io_failed), {"is not a regular file"});
  check_contains(error_of([&] { read_config("/dev/zero"); }, ErrorCode::io_failed), {"is not a regular file"});
  check_contains(error_of([&] { write_config(folder.path() / "no" / "file", shape); }, ErrorCode::io_failed),
                 {"cannot be written"});

  const auto check_of = [](const auto& change) {
    ModelShape changed = preset("tiny").shape;
    change(changed);
    return error_of([&] { check(changed, "sizes"); }, ErrorCode::invalid_argument);
  };
  check_contains(check_of([](ModelShape& s) { s.layers = 0; }), {"number of layers is 0"});
  check_contains(check_of([](ModelShape& s) { s.hidden = 1 << 21; }), {"hidden size is 2097152", "1048576"});
  check_contains(check_of([](ModelShape& s) { s.hidden = 60; }), {"must be multiples of 8"});
  check_contains(check_of([](ModelShape& s) { s.intermediate = 0; }), {"intermediate size is 0"});
  check_contains(check_of([](ModelShape& s) { s.heads = 32; }), {"32 heads of queries to 2"});
  check_contains(check_of([](ModelShape& s) { s.vocabulary = 1 << 25; }), {"vocabulary"});
  for (const Preset& each : presets()) check(each.shape, "preset");
  check_contains(error_of([] { preset("huge"); }, ErrorCode::invalid_argument), {"\"huge\" is not known", "llama2-7b"});
}

BOOST_AUTO_TEST_CASE(a_report_says_what_was_measured) {
  const TemporaryDirectory folder;
  const Report report{.device = "a GPU",
                      .shape = preset("llama2-7b").shape,
                      .batch = 2,
                      .prompt = 4,
                      .tokens = 8,
                      .runs = {{.name = "bf16", .weight_bytes = 4'000'000'000, .seconds = 0.004, .launches = 9},
                               {.name = "e4m3fn row", .weight_bytes = 2'000'000'000, .seconds = 0.002, .launches = 9}},
                      .agreement = Agreement{.tokens = 16, .top1 = 0.75, .mean_cosine = 0.999, .sqnr_db = 30.5}};
  check_contains(table(report), {"500.0", "1000.0", "2.00x", "75.0 %", "0.999000", "30.5 dB"});
  write_report(folder.path() / "report.json", report);
  std::ifstream stream(folder.path() / "report.json");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  check_contains(text, {"\"tokens_per_second\": 1000.0", "\"gigabytes_per_second\": 1000.0", "\"top1\": 0.75"});
  check_contains(error_of([&] { write_report(folder.path() / "no" / "file", report); }, ErrorCode::io_failed),
                 {"cannot be written"});
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace generate::test
