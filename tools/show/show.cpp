// The command `ingot show`: compiles a spec and prints the result. Nothing is taken from the store, so the time shown
// is the compiler's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/write_file.h"
#include "show/disassemble.h"
#include "text.h"
#include "usage_error.h"

namespace ingot::tools {
namespace {

struct ShowOptions {
  std::string spec;
  std::string target;  // empty: this GPU's, or sm_90a if there is none
  bool source = false;
  bool ptx = false;
  bool sass = false;
  bool json = false;
  std::filesystem::path cubin;  // where to write the machine code; empty: nowhere
};

// ---- the kernel to show, if the spec leaves the choice to the library, which decides by the sizes and the GPU ----

struct ShowChoice {
  KernelSpec spec;                   // names its kernel and tiling where a matmul has several
  std::optional<MatmulSize> size{};  // the size that it was chosen for; none: there was nothing to choose
  std::string note{};                // about the choice, for the reader; empty: there was nothing to choose
};

constexpr MatmulSize kTrainingSize{.m = 8192, .n = 4096, .k = 4096};
constexpr MatmulSize kDecodingSize{.m = 16, .n = 4096, .k = 4096};

bool is_valid(const GemmSpec& spec) {
  try {
    validate(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// "this is what M = 16, N = 4096, K = 4096 takes on a GPU with 132 multiprocessors; other sizes take other tilings"
std::string note_of(const MatmulSize& size, const MatmulDevice& device, bool names_kernel) {
  return fmt::format(
      "this is what M = {}, N = {}, K = {} takes on a GPU with {} multiprocessors; other sizes take "
      "other {}",
      size.m, size.n, size.k, device.multiprocessors, names_kernel ? "tilings" : "kernels and tilings");
}

// Hopper has kernels that the plain target sm_90 cannot be given.
std::string hopper_note(const MatmulDevice& device) {
  return device.target == Target{9, 0, false} ? "; kernel sm90 is for target sm_90a, which a Hopper GPU is" : "";
}

constexpr const char* kTuningFirst = ", and on a GPU what tuning found comes first";

ShowChoice choose(const GemmSpec& asked, const MatmulDevice& device) {
  const bool is_automatic = asked.kernel == GemmKernel::automatic;
  const bool has_tilings = asked.kernel == GemmKernel::sm90 || asked.kernel == GemmKernel::mma;
  if (!is_automatic && (!has_tilings || asked.tiling)) return {.spec = asked};
  std::vector<GemmSpec> order = gemm_order({.spec = asked, .size = kTrainingSize}, device);
  const bool cublaslt_first = order.front().kernel == GemmKernel::cublaslt;
  std::erase_if(order, [](const GemmSpec& spec) { return spec.kernel == GemmKernel::cublaslt || !is_valid(spec); });
  if (order.empty()) return {.spec = asked};
  std::string note = note_of(kTrainingSize, device, !is_automatic);
  if (is_automatic && is_tuned(asked)) note += kTuningFirst;
  if (is_automatic) note += hopper_note(device);
  if (cublaslt_first) note += "; cuBLASLt is tried before it, but its kernels have no source to show";
  return {.spec = order.front(), .size = kTrainingSize, .note = note};
}

ShowChoice choose(const DequantMatmulSpec& asked, const MatmulDevice& device) {
  if (asked.tiling) return {.spec = asked};
  const std::vector<DequantMatmulSpec> order = dequant_order(asked, kDecodingSize, device);
  if (order.empty()) return {.spec = asked};
  const bool is_automatic = asked.kernel == DequantKernel::automatic;
  std::string note = note_of(kDecodingSize, device, !is_automatic);
  if (is_automatic && is_tuned(asked)) note += kTuningFirst;
  if (is_automatic) note += hopper_note(device);
  return {.spec = order.front(), .size = kDecodingSize, .note = note};
}

// The choice for a typical size: a training step's for a GEMM, a decoding step's for a dequant_matmul. cuBLASLt is
// passed over, as its kernels have no source.
ShowChoice choose_shown(const KernelSpec& asked, const MatmulDevice& device) {
  if (const auto* const gemm = std::get_if<GemmSpec>(&asked)) return choose(*gemm, device);
  if (const auto* const dequant = std::get_if<DequantMatmulSpec>(&asked)) return choose(*dequant, device);
  return {.spec = asked};
}

// ---- the command ---------------------------------------------------------------------------------------------------

struct ShownPass {
  std::string name;  // pass_name()
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

// Each takes a compile, so only what is printed or written is made.
struct Wanted {
  bool machine_code = false;
  bool ptx = false;
};

Wanted wanted(const ShowOptions& options) {
  const bool one_text = options.source || options.ptx || options.sass;
  return {.machine_code = !one_text || options.sass || options.json || !options.cubin.empty(),
          .ptx = options.ptx || options.json};
}

ShownPass show_pass(const NvrtcCompiler& compiler, const KernelSpec& spec, Pass pass, Target target, Wanted wanted) {
  ShownPass shown{.name = pass_name(pass), .source = generate(spec, pass), .ptx = {}, .compiled = {}};
  if (wanted.machine_code) {
    const auto begin = std::chrono::steady_clock::now();
    shown.compiled = compiler.compile(shown.source, target);
    shown.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  if (wanted.ptx) shown.ptx = compiler.ptx(shown.source, target);
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
  fmt::print("{}\n", dump(json));
}

std::unique_ptr<NvrtcCompiler> open_compiler(const ContextOptions& options) {
  std::string problem;
  auto compiler = NvrtcCompiler::open(
      options.cuda_root.string(), options.templates.empty() ? embedded_templates() : read_templates(options.templates),
      problem);
  if (compiler == nullptr) throw Error(ErrorCode::not_found, "NVRTC", problem);
  return compiler;
}

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
  for (const Pass pass : passes(chosen.spec)) {
    shown.push_back(show_pass(*compiler, chosen.spec, pass, device.target, wanted(options)));
  }

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

constexpr const char* kSpecs = R"help(
Specs:
  amax bf16 scale=tensor
  cast bf16->e4m3fn scale=row out=codes,transposed pow2
  cast bf16->e4m3fn scale=row+col out=codes,transposed
  cast bf16->e4m3fn of="silu(x) * gate + bias[col]" scale=row out=codes,result,sum:f32
  cast bf16->e4m3fn scale=tensor out=codes given
  cast bf16->e4m3fn scale=tensor out=codes,transposed list
  cast bf16->e4m3fn scale=row+col out=codes,transposed stacked
  cast bf16->e4m3fn scale=row+col out=codes,transposed gathered
  gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor bias fast
  gemm e4m3fn*e4m3fn->bf16 nt scale=row,row epilogue="silu(x) * gate" also=preactivation
  gemm e5m2*e5m2->bf16 nt scale=row,row kernel=sm90
  gemm_pair first="bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong" second="bf16*bf16->bf16 tn kernel=sm90:128x128:1x1:6:pingpong"
  grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast
  grouped_gemm e4m3fn*e4m3fn->f32 nt scale=row,row c=f32 fast along=k
  dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue="silu(x) * gate"
  dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu batch_invariant
  dequant_matmul bf16*e4m3fn->bf16 packed scale=1x128 kernel=sm90
  dequant_matmul bf16*e4m3fn->bf16 row_major scale=row kernel=mma
  dequant_matmul f16*e4m3fn->f16 packed_f16 scale=row
  dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu experts
  pack_weight e4m3fn packed_f16
  quantize_mx bf16->e2m1fn
  float_quantize bf16 e4m3
  column_sum bf16->f32
  combine bf16
  elementwise bf16 of="silu(x) * gate"
  elementwise bf16 of="grad * up" second="grad * x"
  elementwise bf16 of="gelu(x)" amax
  elementwise bf16 of="grad * weight[row]" row_sum="grad * x"
  relayout transposed
  cast_stats bf16->e4m3fn scale=1x128 transposed
  norm rms bf16->e4m3fn affine scale=row out=codes,stats
  norm_backward rms bf16 affine sums=f32
  amax_history reduce=max finite
  amax_scales e4m3fn

Examples:
  ingot show "cast bf16->e4m3fn scale=row out=codes"
      source and resources
  ingot show "gemm e5m2*e4m3fn->bf16 nt kernel=sm90" --ptx --target sm_90a
      its PTX

Exit codes:
  0    all went well
  1    an error, described in one line on stderr
  2    the command line is wrong)help";

}  // namespace

void add_show(CLI::App& app) {
  const auto options = std::make_shared<ShowOptions>();
  CLI::App* const command =
      app.add_subcommand("show", "Compile a spec and show its source, PTX and resources; needs no GPU");
  command->add_option("spec", options->spec, "The spec's line, in quotes")->type_name("SPEC")->required();
  command->add_option("--target", options->target, "Architecture, such as sm_90a (default: this GPU's, else sm_90a)")
      ->type_name(kTargetValue);
  CLI::Option* const source = command->add_flag("--source", options->source, "Print the generated source only");
  CLI::Option* const ptx = command->add_flag("--ptx", options->ptx, "Print the PTX only")->excludes(source);
  CLI::Option* const sass =
      command
          ->add_flag("--sass", options->sass, "Print the machine code as text only; needs nvdisasm of a CUDA toolkit")
          ->excludes(source)
          ->excludes(ptx);
  command->add_flag("--json", options->json, "Print all of it as JSON")
      ->excludes(source)
      ->excludes(ptx)
      ->excludes(sass);
  command
      ->add_option("--cubin", options->cubin,
                   "Write the machine code to this file (passes other than the main one to FILE.first, FILE.finish, "
                   "FILE.whole, FILE.unaligned, FILE.wide, FILE.first_wide, FILE.keeping, FILE.kept)")
      ->type_name(kFileValue);
  command->footer(kSpecs);
  command->callback([options] { show(*options); });
}

}  // namespace ingot::tools
