// The command `ingot plan`: what a training step of a model takes on a mesh of GPUs, by recipe.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "ingot/nn/planning/step_estimate.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"
#include "text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

struct PlanOptions {
  std::filesystem::path config;
  std::string mesh;
  std::string links;
  std::string gpu = "h200";
  std::string recipes = "all";
  std::int64_t tokens = 8192;
  std::int64_t sequence = 4096;
  std::filesystem::path json;  // empty: none
};

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;; text.remove_prefix(parts.back().size() + 1)) {
    parts.push_back(text.substr(0, text.find(',')));
    if (parts.back().size() == text.size()) return parts;
  }
}

template <class Number>
struct NamedNumber {
  std::string_view name;
  Number* value;
};

// "dp=64,tp=4". What is not named keeps its value.
template <class Number>
void read_numbers(const char* option, std::string_view text, std::initializer_list<NamedNumber<Number>> known) {
  std::set<std::string_view> seen;
  for (const std::string_view part : split(text)) {
    const std::string_view name = part.substr(0, part.find('='));
    const auto* const found =
        std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.name == name; });
    if (found == known.end() || name.size() == part.size()) {
      std::vector<std::string_view> names;
      for (const auto& each : known) names.push_back(each.name);
      throw UsageError(option, fmt::format("\"{}\" must be NAME=NUMBER with a name of {}", one_line(std::string(part)),
                                           fmt::join(names, ", ")));
    }
    if (!seen.insert(name).second) throw UsageError(option, fmt::format("\"{}\" is given twice", name));
    const char* const end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data() + name.size() + 1, end, *found->value);
    if (error != std::errc{} || stop != end) {
      throw UsageError(option, fmt::format("\"{}\" must have a {}number", one_line(std::string(part)),
                                           std::is_integral_v<Number> ? "whole " : ""));
    }
  }
}

// What the library says of a request is about the option that gave it.
template <class Read>
auto about_options(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw UsageError("--" + error.subject(), error.message());
  }
}

struct PlanRow {
  std::string recipe;
  std::string gather;  // "FP8", "16 bits"
  StepEstimate step{};
  double gain = 1;  // over bf16
};

std::vector<std::string> recipes_of(const PlanOptions& options) {
  std::vector<std::string> names;
  if (options.recipes == "all") {
    for (const Recipe& each : recipes()) names.emplace_back(each.name);
    return names;
  }
  for (const std::string_view name : split(options.recipes)) {
    about_options([&] { return recipe(name); });
    names.emplace_back(name);
  }
  return names;
}

std::vector<PlanRow> rows_of(StepRequest request, const PlanOptions& options) {
  const auto estimate = [&](const std::string& recipe, bool float8) {
    request.recipe = recipe;
    request.float8_gather = float8;
    return about_options([&] { return step_estimate(request); });
  };
  const double base = estimate("high_precision", false).step_ms();
  const bool gathers = request.mesh.shards > 1;
  std::vector<PlanRow> rows;
  for (const std::string& name : recipes_of(options)) {
    PlanRow values{.recipe = name, .gather = gathers ? "16 bits" : "-", .step = estimate(name, false)};
    PlanRow codes{.recipe = name, .gather = "FP8", .step = estimate(name, true)};
    if (codes.step.sent.weights < values.step.sent.weights) {
      rows.push_back(std::move(codes));
    } else {
      values.step.note = codes.step.note;  // why there are no codes
    }
    rows.push_back(std::move(values));
  }
  for (PlanRow& row : rows) row.gain = base / row.step.step_ms();
  return rows;
}

// Of one GPU.
double tokens_per_s(const StepRequest& request, const StepEstimate& step) {
  return static_cast<double>(request.tokens) / static_cast<double>(request.mesh.tensor) / step.step_ms() * 1e3;
}

std::string about_sequence(const StepRequest& request) {
  const std::int64_t tokens = request.tokens;
  if (tokens < request.sequence) {
    return fmt::format("a sequence of {} is longer than the step: one of {} is assumed\n", request.sequence, tokens);
  }
  if (tokens % request.sequence == 0) return {};
  return fmt::format("{} tokens are no whole sequences of {}: attention is that of {:.2f} of them\n", tokens,
                     request.sequence, static_cast<double>(tokens) / static_cast<double>(request.sequence));
}

// A line for each recipe that does not fit, or for that of its gathers which does not.
std::string what_does_not_fit(const StepRequest& request, const std::vector<PlanRow>& rows) {
  std::string text;
  for (const PlanRow& row : rows) {
    if (row.step.fits()) continue;
    const auto is_other = [&](const PlanRow& other) {
      return other.recipe == row.recipe && other.gather != row.gather;
    };
    const auto other = std::ranges::find_if(rows, is_other);
    const bool both = other != rows.end() && !other->step.fits();
    if (both && &*other < &row) continue;  // said already
    const std::string gather = other == rows.end() || both ? "" : fmt::format(", gathered in {}", row.gather);
    text += fmt::format("{}{}: does not fit in the {:.0f} GB of an {}\n", row.recipe, gather, row.step.gpu_bytes / 1e9,
                        request.gpu);
  }
  return text;
}

std::string about_host(const std::vector<PlanRow>& rows) {
  const auto waits = [](const PlanRow& row) { return row.step.waits_for_host(); };
  if (std::ranges::none_of(rows, waits)) return {};
  const bool codes = std::ranges::any_of(rows, [&](const PlanRow& row) { return waits(row) && row.gather == "FP8"; });
  return fmt::format(
      "The host binds: the step waits for it. Its time is that of the machine that was measured "
      "(docs/distributed.md).\nMore tokens a GPU hide it{}.\n",
      codes ? ", and gathers in 16 bits take less of it" : "");
}

// A line where every recipe is slower than bf16: what binds, and with how many tokens one is faster.
std::string about_gains(StepRequest request, const PlanOptions& options, const std::vector<PlanRow>& rows) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;
  const auto gain_of = [](const PlanRow& row) { return row.recipe == "high_precision" ? 0 : row.gain; };
  const PlanRow& best = *std::ranges::max_element(rows, {}, gain_of);
  if (gain_of(best) == 0 || best.gain >= 1) return {};
  std::string text =
      fmt::format("None of these gains with {} tokens: what binds is {}", request.tokens, best.step.binds);
  while (request.tokens <= kMostTokens / 2) {
    request.tokens *= 2;
    const std::vector<PlanRow> more = rows_of(request, options);
    const PlanRow& first = *std::ranges::max_element(more, {}, gain_of);
    if (first.gain > 1) {
      return text + fmt::format(". {} does with --tokens {} ({:.2f})\n", first.recipe, request.tokens, first.gain);
    }
  }
  return text + "\n";
}

std::string table(const StepRequest& request, const std::vector<PlanRow>& rows) {
  const GpuMesh& mesh = request.mesh;
  const GpuLinks& links = request.links;
  std::string text = fmt::format(
      "{:.2f} billion parameters in {}; {} {} in nodes of {}: dp {}, tp {}, replicas {}\n"
      "{} tokens a step of a data-parallel rank ({}) in sequences of {}\n"
      "{} GB/s and {} us a hop within a node, {} GB/s a GPU and {} us between\n\n",
      parameters_of(request.model) / 1e9, count_of(request.model.layers, "layer"),
      mesh.shards * mesh.tensor * mesh.replicas, request.gpu, mesh.node, mesh.shards, mesh.tensor, mesh.replicas,
      request.tokens, count_of(mesh.tensor, "GPU"), request.attended(), links.node_gb_per_s, links.node_us,
      links.network_gb_per_s, links.network_us);
  text += fmt::format("{:<19}{:<8}{:>9}{:>6}{:>9}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}{:>8}{:>16}  {}\n", "recipe", "gather",
                      "ms", "gain", "GEMMs", "casts", "other", "FSDP", "TP", "host", "sent GB", "GB", "tokens/s a GPU",
                      "what binds");
  for (const auto& [recipe, gather, step, gain] : rows) {
    const std::string host = step.host_ms > 0 ? fmt::format("{:.1f}", step.host_ms) : "-";
    text += fmt::format(
        "{:<19}{:<8}{:>9.1f}{:>6.2f}{:>9.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>8}{:>9.2f}{:>8.1f}{:>16.0f}  {}\n",
        recipe, gather, step.step_ms(), gain, step.gemms_ms, step.casts_ms, step.attention_ms + step.other_ms,
        step.exposed_ms + step.slowed_ms, step.tensor_ms, host, step.sent.all() / 1e9, step.memory_bytes / 1e9,
        tokens_per_s(request, step), step.binds);
  }
  for (const PlanRow& row : rows) {
    if (!row.step.note.empty()) text += fmt::format("{}: {}\n", row.recipe, row.step.note);
  }
  return text + about_sequence(request) + what_does_not_fit(request, rows) + about_host(rows);
}

nlohmann::ordered_json to_json(const StepRequest& request, const PlanRow& row) {
  const StepEstimate& step = row.step;
  nlohmann::ordered_json json{{"recipe", row.recipe}, {"gather", row.gather}, {"step_ms", step.step_ms()}};
  json["gain"] = row.gain;
  json["tokens_per_s"] = tokens_per_s(request, step);
  json["binds"] = step.binds;
  json["ms"] = {{"gemms", step.gemms_ms},   {"casts", step.casts_ms},     {"attention", step.attention_ms},
                {"other", step.other_ms},   {"weights", step.weights_ms}, {"gradients", step.gradients_ms},
                {"tensor", step.tensor_ms}, {"hidden", step.hidden_ms},   {"exposed", step.exposed_ms},
                {"slowed", step.slowed_ms}, {"host", step.host_ms}};
  json["sent_bytes"] = {{"weights", step.sent.weights},
                        {"gradients", step.sent.gradients},
                        {"maxima", step.sent.maxima},
                        {"tensor", step.sent.tensor},
                        {"all", step.sent.all()}};
  json["memory_bytes"] = step.memory_bytes;
  json["fits"] = step.fits();
  if (!step.note.empty()) json["note"] = step.note;
  return json;
}

nlohmann::ordered_json to_json(const StepRequest& request, const std::vector<PlanRow>& rows) {
  const ModelShape& model = request.model;
  nlohmann::ordered_json json{{"parameters", parameters_of(model)}, {"layers", model.layers}, {"gpu", request.gpu}};
  json["mesh"] = {{"dp", request.mesh.shards},
                  {"tp", request.mesh.tensor},
                  {"replicas", request.mesh.replicas},
                  {"node", request.mesh.node}};
  json["links"] = {{"nvlink", request.links.node_gb_per_s},
                   {"nvlink_us", request.links.node_us},
                   {"network", request.links.network_gb_per_s},
                   {"network_us", request.links.network_us}};
  json["tokens"] = request.tokens;
  json["sequence"] = request.attended();
  for (const PlanRow& row : rows) json["plans"].push_back(to_json(request, row));
  return json;
}

void print_plan(const PlanOptions& options) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
  StepRequest request{.gpu = options.gpu, .tokens = options.tokens, .sequence = options.sequence};
  const std::string text = read_file(options.config, kMostBytes, "--config takes the config.json of a model");
  request.model = read_argument([&] { return read_model_shape(text, options.config.string()); });
  read_numbers<std::int64_t>("--mesh", options.mesh,
                             {{"dp", &request.mesh.shards},
                              {"tp", &request.mesh.tensor},
                              {"replicas", &request.mesh.replicas},
                              {"node", &request.mesh.node}});
  if (!options.links.empty()) {
    read_numbers<double>("--links", options.links,
                         {{"nvlink", &request.links.node_gb_per_s},
                          {"nvlink_us", &request.links.node_us},
                          {"network", &request.links.network_gb_per_s},
                          {"network_us", &request.links.network_us}});
  }
  const std::vector<PlanRow> rows = rows_of(request, options);
  if (!options.json.empty()) write_file(options.json, {dump(to_json(request, rows)), "\n"});
  fmt::print("{}{}", table(request, rows), about_gains(request, options, rows));
}

constexpr const char* kPlanNotes = R"(
Times are estimates from what layers take on one GPU; docs/distributed.md compares them with what was measured.
FSDP: collectives that nothing hides, and what hidden ones slow. TP: those of tensor parallelism. host: what FSDP2 from
Python keeps the host, beside all others; a step takes no less; "-" is no estimate. docs/cli.md explains each column.

Examples:
  ingot plan --config config.json --mesh dp=64,tp=4
      FSDP2 over 64 parts, each of 4 GPUs that divide every layer
  ingot plan --config config.json --mesh dp=8,replicas=4,node=8 --recipe tensorwise,rowwise --links network=20
      HSDP, with slower adapters

Exit codes:
  0    all went well
  1    an error, described in one line on stderr
  2    the command line is wrong, or the config)";

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* const command =
      app.add_subcommand("plan", "Estimate a training step on many GPUs, by recipe, and what binds; needs no GPU");
  command->add_option("--config", options->config, "The config.json of a transformers model without experts")
      ->type_name(kFileValue)
      ->required();
  command
      ->add_option(
          "--mesh", options->mesh,
          "GPUs: dp divide parameters (FSDP2), tp divide each layer, replicas copy (HSDP); node is the GPUs of "
          "one (default: 1, 1, 1, 8)")
      ->type_name("dp=N,tp=N,replicas=N,node=N")
      ->required();
  command->add_option("--gpu", options->gpu, "h200 or h100 (default: h200)")->type_name("GPU");
  command->add_option("--recipe", options->recipes, "With commas: of " + recipe_names() + " (default: all)")
      ->type_name(kRecipeValue);
  command
      ->add_option("--tokens", options->tokens,
                   "Tokens in a step of a data-parallel rank, which is tp GPUs (default: 8192)")
      ->type_name("COUNT");
  command
      ->add_option("--sequence", options->sequence,
                   "Of these, tokens that attend to each other (default: 4096, or all)")
      ->type_name("COUNT");
  command
      ->add_option("--links", options->links,
                   "GB/s and us a hop within a node, and of each GPU's adapter (default: 350, 3, 45, 10)")
      ->type_name("nvlink=X,nvlink_us=X,network=X,network_us=X");
  command->add_option("--json", options->json, "Write all figures to this file, too")->type_name(kFileValue);
  command->footer(kPlanNotes);
  command->callback([options] { print_plan(*options); });
}

}  // namespace ingot::tools
