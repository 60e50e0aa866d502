// bench_compile: times the cold compilation of kernels on this machine, and checks whether two threads compile two
// kernels at once. It needs no GPU. Other work on the machine shows in the medians.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "compile_cost.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/count_of.h"
#include "machine.h"
#include "program.h"

namespace ingot::bench {
namespace {

struct Options : ResultOptions {
  bool list = false;
  int rounds = 7;
};

int run(const Options& options) {
  if (options.list) {
    for (const CompileCase& c : compile_cases()) fmt::print("{:<44}{}\n", c.label, c.spec);
    return 0;
  }
  Context context;
  if (context.compiler() == nullptr) {
    fmt::print("skipped: no NVRTC; `ingot info` says where it was looked for\n");
    return kSkipped;
  }
  const CompileReport report = measure_compiles(*context.compiler(), options.rounds);
  const Machine machine = machine_of(context, options.commit);
  fmt::print("Ingot {} ({}), NVRTC {}, {}, {}; for sm_90a, {}\n\n{}", machine.ingot, machine.commit, machine.nvrtc,
             machine.processor, machine.date, count_of(options.rounds, "round"), to_text(report));
  if (!options.json.empty()) {
    nlohmann::ordered_json json = header("compile", machine);
    json.update(to_json(report));
    write_json(options.json, json);
  }
  return 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times cold compiles of Ingot's kernels, one at a time and two at once.", "bench_compile"};
  ingot::bench::Options options;
  app.add_flag("--list", options.list, "Print the kernels and exit");
  app.add_option("--rounds", options.rounds, "How often to compile each kernel")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_options(app, options);
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
