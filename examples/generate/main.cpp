// Decodes tokens with a model of Llama's kind, once with its weights in bf16 and once in fewer bits, and shows how fast
// each is and how well they agree.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

#include "generation.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/standard_output.h"
#include "options.h"
#include "report.h"

namespace generate {
namespace {

ingot::ContextOptions context_options(const Options& options) {
  ingot::ContextOptions result = ingot::ContextOptions::from_environment();
  using Where = ingot::ContextOptions::Where;
  if (options.device != "auto") result.where = options.device == "cpu" ? Where::cpu : Where::cuda;
  return result;
}

Tokens prompts(const Options& options, const ModelShape& shape) {
  Tokens tokens(static_cast<std::size_t>(options.batch), options.prompt);
  check_tokens("--prompt", options.prompt, shape.vocabulary);
  if (!options.prompt.empty()) return tokens;
  std::uint64_t seed = examples::hash_of(options.seed);
  for (auto& sequence : tokens) {
    for (std::int64_t i = 0; i < options.prompt_length; ++i) {
      sequence.push_back(
          static_cast<std::int32_t>(examples::hash_of(++seed) % static_cast<std::uint64_t>(shape.vocabulary)));
    }
  }
  return tokens;
}

// A decoder and what drives it.
struct Model {
  Model(Machine& machine, OpRunner& ops, const ModelShape& shape, const SharedWeights& shared, WeightSource& source,
        const DecoderOptions& options)
      : decoder(machine, ops, shape, shared, source, options), generator(machine, decoder) {}
  Decoder decoder;
  Generator generator;
};

std::string label(const ingot::WeightOnlyOptions& options) {
  return fmt::format("{} {}", name(options.dtype), options.mx ? "mx" : print(options.scale));
}

// Says where it runs, and the model's size, before the weights are made.
void print_start(const ingot::ContextInfo& info, const ModelShape& shape, std::int64_t batch) {
  double weights = 0;
  for (const NamedTensor& each : all_tensors(shape)) weights += 2.0 * static_cast<double>(each.rows * each.cols);
  fmt::print("Decoding on {}{}; layers: {}, width: {}, {:.3g} GB of weights in bf16; sequences: {}\n", info.device_name,
             info.reason.empty() ? "" : fmt::format(" ({})", info.reason), shape.layers, shape.hidden, weights * 1e-9,
             batch);
  std::fflush(stdout);
}

// Kernels that one step of each sequence launches.
std::int64_t launches_of_step(Machine& machine, const OpRunner& ops, Decoder& decoder, const Tokens& prompt) {
  const auto launches = [&] { return machine.device_api().launches() + ops.launches(); };
  const std::int64_t before = launches();
  decoder.start(prompt);
  decoder.enqueue();
  return launches() - before;
}

// Decodes with the weights in bf16 and in fewer bits, as far as the options ask for both.
Report decode(Machine& machine, OpRunner& ops, const ModelShape& shape, WeightSource& source, const Tokens& prompt,
              const Options& options) {
  const auto given = static_cast<std::int64_t>(prompt.front().size());
  const SharedWeights shared(source, shape);
  DecoderOptions decoder_options{
      .bf16_head = options.bf16_head, .batch = options.batch, .capacity = given + options.tokens};
  Report report{.device = machine.context().info().device_name,
                .shape = shape,
                .batch = options.batch,
                .prompt = given,
                .tokens = options.tokens,
                .runs = {}};
  std::vector<std::unique_ptr<Model>> models;
  Tokens tokens;
  for (const bool quantised : {false, true}) {
    if (options.only == (quantised ? "bf16" : "quantised")) continue;
    if (quantised) decoder_options.weights = weight_options(options);
    models.push_back(std::make_unique<Model>(machine, ops, shape, shared, source, decoder_options));
    Model& model = *models.back();
    const std::int64_t launches = launches_of_step(machine, ops, model.decoder, prompt);
    const Generated generated = generate_tokens(machine, model.generator, prompt, options.tokens, options.rounds);
    if (tokens.empty()) tokens = generated.tokens;
    report.runs.push_back({.name = quantised ? label(weight_options(options)) : "bf16",
                           .weight_bytes = model.decoder.weight_bytes(),
                           .seconds = generated.median_seconds(),
                           .launches = launches});
    fmt::print("{}: {}\n", report.runs.back().name, fmt::join(generated.tokens.front(), " "));
  }
  if (models.size() == 2) {
    report.agreement = compare(machine, models[0]->generator, models[1]->generator, tokens, given);
  }
  return report;
}

// Without a GPU, the operations' kernels are compiled all the same: into the store, or from there into a bundle, for a
// machine that has one.
void compile_ops(ingot::Context& context) {
  if (context.compiler() == nullptr || context.device().type == ingot::DeviceType::cuda) return;
  for (const std::string_view op : all_op_names()) context.cache().compiled(source_of(op), context.cache().target());
}

int run(int argc, char** argv) {
  int status = 0;
  const std::optional<Options> given = read_options(argc, argv, status);
  if (!given) return status;
  const Options& options = *given;
  check(options);
  ingot::Context context(context_options(options));
  const ModelShape shape = shape_of(options, context.device().type == ingot::DeviceType::cuda);
  const Tokens prompt = prompts(options, shape);
  compile_ops(context);

  Machine machine(context);
  OpRunner ops(context, machine.stream(), machine.overlaps_kernels());
  WeightSource source =
      options.weights.empty() ? WeightSource(machine, ops, options.seed) : WeightSource(machine, ops, options.weights);
  source.check(shape);
  print_start(context.info(), shape, options.batch);
  if (!options.save.empty()) save_weights(options.save, source, shape, machine);
  const Report report = decode(machine, ops, shape, source, prompt, options);
  fmt::print("{}", table(report));
  if (!options.out.empty()) write_report(options.out, report);
  return 0;
}

}  // namespace
}  // namespace generate

int main(int argc, char** argv) {
  ingot::reserve_standard_streams();
  try {
    const int status = generate::run(argc, argv);
    ingot::finish_standard_output();
    return status;
  } catch (const ingot::Error& error) {
    std::fputs(fmt::format("generate: error: {}\n{}", error.what(), error.log()).c_str(), stderr);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("generate: error: {}\n", error.what()).c_str(), stderr);
  }
  return 1;
}
