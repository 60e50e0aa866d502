// bench_runtime: what the library itself takes before a kernel can be launched: the lookup of a kernel that is loaded,
// and the load of one that was compiled earlier. It needs no GPU. Kernels come from NVRTC; where there is none, what is
// loaded is synthetic bytes, and the report says so. Other work on the machine shows in the 99th percentiles.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "kernel_lookup.h"
#include "machine.h"
#include "program.h"
#include "store_load.h"

namespace ingot::bench {
namespace {

struct Options : ResultOptions {
  bool list = false;
  bool quick = false;
  std::string folder{};
};

void list() {
  for (const KernelPass& kernel : kernels_to_find(trained_model())) {
    fmt::print("lookup  {}{}\n", print(kernel.spec), suffix(kernel.pass));
  }
  for (const LoadCase& of : load_cases()) fmt::print("load    {}{}\n", of.spec, suffix(of.pass));
}

int run(const Options& options) {
  if (options.list) {
    list();
    return 0;
  }
  const int rounds = options.quick ? 1 : 10;
  const int loads = options.quick ? 100 : 4000;
  const Context context;
  const std::filesystem::path folder =
      options.folder.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(options.folder);
  const LookupReport lookups = measure_lookups(rounds);
  const std::vector<LoadCost> costs = measure_loads(context.compiler(), folder, loads);
  const Machine machine = machine_of(context, options.commit);
  fmt::print("Ingot {} ({}), {}, {}\n\n{}\n{}", machine.ingot, machine.commit, machine.processor, machine.date,
             to_text(lookups), to_text(costs));
  if (!options.json.empty()) {
    nlohmann::ordered_json json = header("runtime", machine);
    json["folder"] = folder.string();
    json["lookups"] = to_json(lookups);
    json["loads"] = to_json(costs);
    write_json(options.json, json);
  }
  const auto is_wrong = [](const auto& cost) { return !cost.fault.empty(); };
  return std::ranges::any_of(lookups.costs, is_wrong) || std::ranges::any_of(costs, is_wrong) ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times the lookup of a loaded kernel, and loads of compiled kernels from the disk; needs no GPU.",
               "bench_runtime"};
  ingot::bench::Options options;
  app.add_flag("--list", options.list, "Print the kernels and exit");
  app.add_flag("--quick", options.quick, "Few samples: does it run, not how fast");
  app.add_option("--folder", options.folder, "Where to make the store and the bundle (default: the temporary folder)");
  add_options(app, options);
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
