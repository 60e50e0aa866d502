// Compiles in front of the reader: nothing is taken from the store, so the time shown is the compiler's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "commands.h"
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"

namespace ingot::tools {
namespace {

struct ShownPass {
  std::string name;  // "first", "main", "finish"
  Source source;
  std::string ptx;
  CompiledKernel compiled;
  double milliseconds = 0;
};

Target choose_target(const std::string& text, const ContextOptions& options) {
  if (!text.empty()) {
    const std::optional<Target> target = parse_target(text);
    if (target && *target >= kSupportedTargets.front()) return *target;
    std::string supported;
    for (const Target each : kSupportedTargets) supported += (supported.empty() ? "" : ", ") + print(each);
    throw Error(ErrorCode::invalid_argument, "target",
                fmt::format("\"{}\" is {}; expected one of {}", text,
                            target ? "older than the kernels can be compiled for" : "no architecture", supported));
  }
  std::string no_driver;
  const std::unique_ptr<Driver> driver = Driver::open(no_driver);
  const bool has_device = driver != nullptr && options.device_index < driver->device_count();
  return has_device ? driver->device_target(options.device_index) : options.offline_target;
}

void check_target(const KernelSpec& spec, Target target) {
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  const auto* const dequant = std::get_if<DequantMatmulSpec>(&spec);
  constexpr Target kHopper{9, 0, true};
  const bool is_sm90 = (gemm != nullptr && gemm->kernel == GemmKernel::sm90) ||
                       (dequant != nullptr && dequant->kernel == DequantKernel::sm90);
  if (!is_sm90 || target == kHopper) return;
  throw Error(ErrorCode::invalid_argument, print(spec),
              fmt::format("kernel sm90 runs on {0} only, but the target is {1}; use --target {0}", print(kHopper),
                          print(target)));
}

// Of what is shown for a dequant_matmul that leaves the choice to its sizes: those of a decoding step, on an H100.
constexpr MatmulSize kShownSize{.m = 16, .n = 4096, .k = 4096};
constexpr int kShownMultiprocessors = 132;

struct Shown {
  KernelSpec spec;
  std::string note;  // what the reader should know about which kernel this is; empty where there is one only
};

std::string note(const KernelSpec& spec) {
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  if (gemm == nullptr || gemm->kernel != GemmKernel::automatic) return {};
  GemmSpec sm90 = *gemm;
  sm90.kernel = GemmKernel::sm90;
  bool has_sm90 = true;
  try {
    validate(sm90);
  } catch (const Error&) {
    has_sm90 = false;
  }
  if (has_sm90) {
    return "this is the kernel of last resort; on a GPU what tuning found comes first, then cuBLASLt or, on Hopper, "
           "kernel "
           "sm90, then kernel mma: add kernel=sm90 or kernel=mma to the spec to see those";
  }
  return "this is the kernel of last resort; on a GPU what tuning found comes first, then cuBLASLt";
}

// A dequant_matmul without a kernel or a tiling becomes the one that a call would take.
Shown choose(const KernelSpec& asked, Target target) {
  const auto* const dequant = std::get_if<DequantMatmulSpec>(&asked);
  if (dequant == nullptr || dequant->tiling) return {.spec = asked, .note = note(asked)};
  const std::vector<DequantMatmulSpec> order =
      dequant_order(*dequant, kShownSize, {.target = target, .multiprocessors = kShownMultiprocessors});
  if (order.empty()) return {.spec = asked, .note = {}};
  const bool is_automatic = dequant->kernel == DequantKernel::automatic;
  const bool is_tuned = is_automatic && !dequant->batch_invariant;
  return {
      .spec = order.front(),
      .note = fmt::format("this is what is taken for M = {}, N = {}, K = {}; other sizes take other {}{}{}",
                          kShownSize.m, kShownSize.n, kShownSize.k, is_automatic ? "kernels and tilings" : "tilings",
                          is_tuned ? ", and on a GPU what tuning found comes first" : "",
                          is_automatic && target == Target{9, 0, false}
                              ? "; kernel sm90 is for target sm_90a, which a Hopper GPU is"
                              : "")};
}

ShownPass compile(const NvrtcCompiler& compiler, const KernelSpec& spec, Pass pass, Target target) {
  ShownPass shown{.name = pass == Pass::first    ? "first"
                          : pass == Pass::main   ? "main"
                          : pass == Pass::finish ? "finish"
                                                 : "whole",
                  .source = generate(spec, pass),
                  .ptx = {},
                  .compiled = {}};
  const auto begin = std::chrono::steady_clock::now();
  shown.compiled = compiler.compile(shown.source, target);
  shown.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  shown.ptx = compiler.ptx(shown.source, target);
  return shown;
}

nlohmann::ordered_json to_json(const ShownPass& pass) {
  const KernelResources& resources = pass.compiled.resources;
  return {{"pass", pass.name},
          {"kernel", pass.compiled.lowered_name},
          {"registers", resources.registers},
          {"spill_bytes", resources.spill_bytes},
          {"stack_bytes", resources.stack_bytes},
          {"static_shared_bytes", resources.static_shared_bytes},
          {"cubin_bytes", pass.compiled.cubin.size()},
          {"compile_ms", pass.milliseconds},
          {"source", pass.source.text},
          {"ptx", pass.ptx},
          {"log", pass.compiled.log}};
}

void print_text(const std::string& text) { fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n"); }

// One pass's text alone may be piped into a file as it is; two are told apart by a comment, which both languages read.
void print_texts(const std::vector<ShownPass>& passes, bool ptx) {
  for (const ShownPass& pass : passes) {
    if (passes.size() > 1) fmt::print("{}// ---- {} pass\n", &pass == &passes.front() ? "" : "\n", pass.name);
    print_text(ptx ? pass.ptx : pass.source.text);
  }
}

void print_indented(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    fmt::print("    {}\n", text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void print_summary(const Shown& chosen, Target target, const NvrtcCompiler& compiler,
                   const std::vector<ShownPass>& passes) {
  fmt::print("{}\n{}, NVRTC {}\n", print(chosen.spec), print(target), compiler.version());
  if (!chosen.note.empty()) fmt::print("note: {}\n", chosen.note);
  for (const ShownPass& pass : passes) {
    const KernelResources& resources = pass.compiled.resources;
    fmt::print("\n  {} pass\n", pass.name);
    print_indented(pass.source.text);
    fmt::print("\n");
    fmt::print("    registers  {:<10}  spills         {}\n", resources.registers, print_bytes(resources.spill_bytes));
    fmt::print("    stack      {:<10}  static shared  {}\n", print_bytes(resources.stack_bytes),
               print_bytes(resources.static_shared_bytes));
    fmt::print("    cubin      {:<10}  compiled in    {:.0f} ms\n",
               print_bytes(static_cast<double>(pass.compiled.cubin.size())), pass.milliseconds);
    if (!pass.compiled.log.empty()) {
      fmt::print("\n    compiler's log\n");
      print_indented(pass.compiled.log);
    }
  }
}

void write_cubin(const std::filesystem::path& file, const CompiledKernel& compiled) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(compiled.cubin.data()),
               static_cast<std::streamsize>(compiled.cubin.size()));
  stream.close();
  if (!stream) {
    throw Error(ErrorCode::io_failed, file.string(), "cannot be written; check that its folder exists and has room");
  }
}

}  // namespace

void show(const ShowOptions& options) {
  const KernelSpec asked = parse(options.spec);
  const ContextOptions environment = ContextOptions::from_environment();
  const Target target = choose_target(options.target, environment);
  check_target(asked, target);
  const Shown chosen = choose(asked, target);
  const KernelSpec& spec = chosen.spec;

  std::string problem;
  const std::unique_ptr<NvrtcCompiler> compiler = NvrtcCompiler::open(
      environment.cuda_root.string(),
      environment.templates.empty() ? embedded_templates() : read_templates(environment.templates), problem);
  if (compiler == nullptr) throw Error(ErrorCode::not_found, "NVRTC", problem);

  std::vector<ShownPass> shown;
  for (const Pass pass : passes(spec)) shown.push_back(compile(*compiler, spec, pass, target));

  if (!options.cubin.empty()) {
    for (const ShownPass& pass : shown) {
      std::filesystem::path file = options.cubin;
      if (pass.name != "main") file += "." + pass.name;
      write_cubin(file, pass.compiled);
    }
  }

  if (options.json) {
    nlohmann::ordered_json json{{"spec", print(spec)}, {"target", print(target)}, {"nvrtc", compiler->version()}};
    if (!chosen.note.empty()) json["note"] = chosen.note;
    for (const ShownPass& pass : shown) json["passes"].push_back(to_json(pass));
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (options.source || options.ptx) {
    print_texts(shown, options.ptx);
    if (!chosen.note.empty()) fmt::print(stderr, "ingot: note: {}\n", chosen.note);
  } else {
    print_summary(chosen, target, *compiler, shown);
  }
}

}  // namespace ingot::tools
