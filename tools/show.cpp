// The command: compiles a spec and prints what came of it. Nothing is taken from the store, so the time shown is the
// compiler's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "commands.h"
#include "disassemble.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/util/write_file.h"
#include "pass_name.h"
#include "show_choice.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

struct ShownPass {
  std::string name;  // as pass_name.h has it
  Source source;
  std::string ptx;
  CompiledKernel compiled;
  double milliseconds = 0;
};

[[noreturn]] void refuse_target(const std::string& text, const std::string& why) {
  std::string supported;
  for (const Target each : kSupportedTargets) supported += (supported.empty() ? "" : ", ") + print(each);
  throw UsageError("target", fmt::format("\"{}\" is {}; expected one of {}", text, why, supported));
}

Target parse_supported_target(const std::string& text) {
  const std::optional<Target> target = parse_target(text);
  if (!target) refuse_target(text, "no architecture");
  if (*target < kSupportedTargets.front()) refuse_target(text, "older than the kernels can be compiled for");
  return *target;
}

// This machine's GPU, or one of the target asked for that is as large as an H100.
MatmulDevice choose_device(const std::string& target, const ContextOptions& options) {
  constexpr int kH100 = 132;
  std::optional<Target> asked;
  if (!target.empty()) asked = parse_supported_target(target);
  std::string no_driver;
  const std::unique_ptr<Driver> driver = Driver::open(no_driver);
  if (driver != nullptr && options.device_index < driver->device_count()) {
    const Target found = driver->device_target(options.device_index);
    if (!asked || *asked == found) {
      return {.target = found, .multiprocessors = driver->multiprocessors(options.device_index)};
    }
  }
  return {.target = asked.value_or(options.offline_target), .multiprocessors = kH100};
}

void check_target(const KernelSpec& spec, Target target) {
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  const auto* const dequant = std::get_if<DequantMatmulSpec>(&spec);
  constexpr Target kHopper{9, 0, true};
  const bool is_sm90 = std::holds_alternative<GemmPairSpec>(spec) ||
                       (gemm != nullptr && gemm->kernel == GemmKernel::sm90) ||
                       (dequant != nullptr && dequant->kernel == DequantKernel::sm90);
  if (!is_sm90 || target == kHopper) return;
  throw Error(ErrorCode::invalid_argument, print(spec),
              fmt::format("kernel sm90 runs on {0} only, but the target is {1}; use --target {0}", print(kHopper),
                          print(target)));
}

ShownPass compile(const NvrtcCompiler& compiler, const KernelSpec& spec, Pass pass, Target target) {
  ShownPass shown{.name = pass_name(pass), .source = generate(spec, pass), .ptx = {}, .compiled = {}};
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

enum class Text : std::uint8_t { source, ptx, sass };

std::string text_of(const ShownPass& pass, Text which, const ContextOptions& options) {
  switch (which) {
    case Text::source: return pass.source.text;
    case Text::ptx: return pass.ptx;
    case Text::sass: return disassemble(pass.compiled.cubin, options.cuda_root);
  }
  return {};
}

void print_text(const std::string& text) { fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n"); }

std::vector<std::string> texts_of(const std::vector<ShownPass>& passes, Text which, const ContextOptions& options) {
  std::vector<std::string> texts;
  for (const ShownPass& pass : passes) texts.push_back(text_of(pass, which, options));
  return texts;
}

// The text of one pass can be piped into a file as it is. Several are separated by a comment, which is valid in all
// three languages.
void print_texts(const std::vector<ShownPass>& passes, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < passes.size(); ++i) {
    if (passes.size() > 1) fmt::print("{}// ---- {} pass\n", i == 0 ? "" : "\n", passes[i].name);
    print_text(texts[i]);
  }
}

void print_indented(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    fmt::print("    {}\n", text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void print_summary(const ShowChoice& chosen, Target target, const NvrtcCompiler& compiler,
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

void write_cubins(const std::filesystem::path& main_file, const std::vector<ShownPass>& passes) {
  for (const ShownPass& pass : passes) {
    std::filesystem::path file = main_file;
    if (pass.name != "main") file += "." + pass.name;
    const auto& cubin = pass.compiled.cubin;
    write_file(file, {{reinterpret_cast<const char*>(cubin.data()), cubin.size()}});
  }
}

void print_json(const ShowChoice& chosen, const MatmulDevice& device, const NvrtcCompiler& compiler,
                const std::vector<ShownPass>& passes) {
  nlohmann::ordered_json json{
      {"spec", print(chosen.spec)}, {"target", print(device.target)}, {"nvrtc", compiler.version()}};
  if (!chosen.note.empty()) json["note"] = chosen.note;
  if (chosen.size) {
    json["chosen_for"] = {{"m", chosen.size->m},
                          {"n", chosen.size->n},
                          {"k", chosen.size->k},
                          {"multiprocessors", device.multiprocessors}};
  }
  for (const ShownPass& pass : passes) json["passes"].push_back(to_json(pass));
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::unique_ptr<NvrtcCompiler> open_compiler(const ContextOptions& options) {
  std::string problem;
  auto compiler = NvrtcCompiler::open(
      options.cuda_root.string(), options.templates.empty() ? embedded_templates() : read_templates(options.templates),
      problem);
  if (compiler == nullptr) throw Error(ErrorCode::not_found, "NVRTC", problem);
  return compiler;
}

}  // namespace

void show(const ShowOptions& options) {
  const KernelSpec asked = read_argument([&] { return parse(options.spec); });
  const ContextOptions environment = ContextOptions::from_environment();
  const MatmulDevice device = choose_device(options.target, environment);
  check_target(asked, device.target);
  const ShowChoice chosen = choose_shown(asked, device);

  const std::unique_ptr<NvrtcCompiler> compiler = open_compiler(environment);
  if (!compiler->compiles_for(device.target)) {
    refuse_target(print(device.target), fmt::format("no architecture that NVRTC {} knows", compiler->version()));
  }
  std::vector<ShownPass> shown;
  for (const Pass pass : passes(chosen.spec)) shown.push_back(compile(*compiler, chosen.spec, pass, device.target));

  const bool one_text = options.source || options.ptx || options.sass;
  const Text which = options.source ? Text::source : options.ptx ? Text::ptx : Text::sass;
  const auto texts = one_text ? texts_of(shown, which, environment) : std::vector<std::string>();
  if (!options.cubin.empty()) write_cubins(options.cubin, shown);
  if (options.json) {
    print_json(chosen, device, *compiler, shown);
  } else if (one_text) {
    print_texts(shown, texts);
    if (!chosen.note.empty()) fmt::print(stderr, "ingot: note: {}\n", chosen.note);
  } else {
    print_summary(chosen, device.target, *compiler, shown);
  }
}

}  // namespace ingot::tools
