// Each compiler first compiles an empty kernel: NVRTC's first compile is the one that replaces the program's signal
// handlers (signals.h), it shows which of the newer options this NVRTC knows, and its PTX has the exact version,
// which the API does not give.
#include "ingot/runtime/jit/nvrtc_compiler.h"

#include <fmt/format.h>
#include <nvrtc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ingot/codegen/source_files.h"
#include "ingot/runtime/jit/compile_log.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"
#include "ingot/runtime/util/signals.h"

namespace ingot {
namespace {

#define INGOT_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                \
  X(nvrtcGetNumSupportedArchs)   \
  X(nvrtcGetSupportedArchs)      \
  X(nvrtcGetErrorString)         \
  X(nvrtcCreateProgram)          \
  X(nvrtcDestroyProgram)         \
  X(nvrtcAddNameExpression)      \
  X(nvrtcCompileProgram)         \
  X(nvrtcGetProgramLogSize)      \
  X(nvrtcGetProgramLog)          \
  X(nvrtcGetLoweredName)         \
  X(nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN)               \
  X(nvrtcGetPTXSize)             \
  X(nvrtcGetPTX)

struct Api {
#define INGOT_MEMBER(function) decltype(&::function) function = nullptr;
  INGOT_NVRTC_FUNCTIONS(INGOT_MEMBER)
#undef INGOT_MEMBER
};

// The first function that the library lacks, or null.
const char* resolve(const Library& library, Api& api) {
#define INGOT_RESOLVE(function)                                                       \
  api.function = reinterpret_cast<decltype(api.function)>(library.symbol(#function)); \
  if (api.function == nullptr) return #function;
  INGOT_NVRTC_FUNCTIONS(INGOT_RESOLVE)
#undef INGOT_RESOLVE
  return nullptr;
}

constexpr const char* kPrimer = "__global__ void prime() {}\n";

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

// Distinguishes two builds of a library without reading 100 MB: by its size, and a hash of its first and last 256 KiB
// (ELF header with the build's id; section table).
std::string fingerprint(const std::string& path) {
  constexpr std::streamoff kPart = 256 << 10;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (!file || size <= 0) return "unreadable";
  const std::streamoff part = std::min(size, kPart);
  std::vector<char> bytes(static_cast<std::size_t>(2 * part));
  file.seekg(0).read(bytes.data(), part);
  file.seekg(size - part).read(bytes.data() + part, part);
  return fmt::format("{}-{}", size, hex(XXH3_64bits(bytes.data(), bytes.size())));
}

[[noreturn]] void refuse(const ForeignFile& foreign, const Source& source, const std::string& unit,
                         const TemplateFiles& templates) {
  const std::string where = foreign.line == 0      ? "it has"
                            : foreign.file.empty() ? fmt::format("line {} has", foreign.line)
                                                   : fmt::format("line {} of {} has", foreign.line, foreign.file);
  const std::string reason = fmt::format(
      "{} {}, but a kernel may include only Ingot's templates, by their path there "
      "(\"cast/cast_tiles.cuh\"): a file that the kernel's key does not cover could change without the "
      "kernel being compiled again; copy its text into the source",
      where, foreign.words);
  const std::string log =
      fmt::format("{}({}): error: {}\n", foreign.file.empty() ? unit : foreign.file, std::max(foreign.line, 1), reason);
  throw Error(ErrorCode::compile_failed, source.name, reason, with_numbered_source(log, unit, source.text, templates));
}

class Program {
 public:
  Program(const Api& api, const std::string& text, const std::string& name, const TemplateFiles& templates)
      : api_(&api) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const auto& [file, content] : templates) {
      names.push_back(file.c_str());
      texts.push_back(content.c_str());
    }
    const nvrtcResult result = api.nvrtcCreateProgram(&program_, text.c_str(), name.c_str(),
                                                      static_cast<int>(names.size()), texts.data(), names.data());
    if (result != NVRTC_SUCCESS) fail("nvrtcCreateProgram", result);
  }
  ~Program() {
    if (program_ != nullptr) static_cast<void>(api_->nvrtcDestroyProgram(&program_));
  }
  Program(Program&& other) noexcept : api_(other.api_), program_(std::exchange(other.program_, nullptr)) {}
  Program& operator=(Program&&) = delete;

  void name_kernel(const std::string& expression) {
    if (const nvrtcResult result = api_->nvrtcAddNameExpression(program_, expression.c_str());
        result != NVRTC_SUCCESS) {
      fail("nvrtcAddNameExpression", result);
    }
  }

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return api_->nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  // NVRTC reports success without a name where the text is cut off by a zero byte, or has a kernel's name that is not
  // UTF-8.
  std::string lowered_name(const std::string& expression, const Source& source) const {
    const char* name = nullptr;
    if (const nvrtcResult result = api_->nvrtcGetLoweredName(program_, expression.c_str(), &name);
        result != NVRTC_SUCCESS) {
      fail("nvrtcGetLoweredName", result);
    }
    if (name == nullptr) {
      throw Error(
          ErrorCode::compile_failed, source.name,
          fmt::format("NVRTC compiled it, but names no kernel for {}; the source must be UTF-8 text without zero "
                      "bytes that defines `constexpr auto {} = &some_kernel;`",
                      expression, expression));
    }
    return name;
  }

  std::string log() const { return text(api_->nvrtcGetProgramLogSize, api_->nvrtcGetProgramLog, "nvrtcGetProgramLog"); }
  std::string ptx() const { return text(api_->nvrtcGetPTXSize, api_->nvrtcGetPTX, "nvrtcGetPTX"); }
  std::vector<std::byte> cubin() const {
    const std::string bytes = raw(api_->nvrtcGetCUBINSize, api_->nvrtcGetCUBIN, "nvrtcGetCUBIN");
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    return {begin, begin + bytes.size()};
  }

 private:
  [[noreturn]] void fail(const char* call, nvrtcResult result) const {
    const ErrorCode code = result == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::compile_failed;
    throw Error(code, call, fmt::format("NVRTC gave {}", api_->nvrtcGetErrorString(result)));
  }

  template <class GetSize, class Get>
  std::string raw(GetSize get_size, Get get, const char* call) const {
    std::size_t size = 0;
    nvrtcResult result = get_size(program_, &size);
    std::string content(size, '\0');
    if (result == NVRTC_SUCCESS && size > 0) result = get(program_, content.data());
    if (result != NVRTC_SUCCESS) fail(call, result);
    return content;
  }

  // NVRTC's texts end with a zero that counts.
  template <class GetSize, class Get>
  std::string text(GetSize get_size, Get get, const char* call) const {
    std::string content = raw(get_size, get, call);
    while (!content.empty() && content.back() == '\0') content.pop_back();
    return content;
  }

  const Api* api_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

struct __attribute__((visibility("hidden"))) NvrtcCompiler::State {
  Library library;
  Library builtins;
  Api api;
  TemplateFiles templates;
  int major = 0;
  int minor = 0;
  std::string identity;
  std::string toolchain;

  std::once_flag primed;
  // Set by prime().
  std::vector<std::string> newer_options;  // of kNewerCompileOptions, those that this NVRTC knows
  std::string version;                     // "13.0.88"
  std::string problem;                     // why nothing compiles, or empty
  std::optional<ForeignFiles> foreign;

  void prime();
  Program compile(const Source& source, Target target, std::string& log, const std::string& expression);
};

void NvrtcCompiler::State::prime() {
  foreign.emplace(templates);
  const HostSignals guarded;
  std::vector<std::string> known(std::begin(kNewerCompileOptions), std::end(kNewerCompileOptions));
  while (true) {
    std::vector<std::string> options = known;
    for (std::string& option : options) option += option.ends_with('=') ? "0" : "";
    Program program(api, kPrimer, "/ingot/prime.cu", {});
    const nvrtcResult result = program.compile(options);
    const std::string log = program.log();
    if (result == NVRTC_SUCCESS) {
      newer_options = known;
      const std::string ptx = program.ptx();
      constexpr std::string_view kMark = ", V";
      const std::size_t mark = ptx.find(kMark);
      const std::size_t begin = mark + kMark.size();
      version = mark == std::string::npos ? fmt::format("{}.{}", major, minor)
                                          : ptx.substr(begin, ptx.find_first_not_of("0123456789.", begin) - begin);
      return;
    }
    const std::size_t refused = std::erase_if(known, [&](const std::string& option) {
      return log.find(option.substr(0, option.find('='))) != std::string::npos;
    });
    if (result != NVRTC_ERROR_INVALID_OPTION || refused == 0) {
      problem = fmt::format("NVRTC {}.{} ({}) cannot compile an empty kernel: {}; {}", major, minor, library.path(),
                            api.nvrtcGetErrorString(result), warnings_of(log));
      return;
    }
  }
}

Program NvrtcCompiler::State::compile(const Source& source, Target target, std::string& log,
                                      const std::string& expression) {
  std::call_once(primed, [this] { prime(); });
  if (!problem.empty()) throw Error(ErrorCode::compile_failed, source.name, problem);

  const std::string seed = hex(XXH3_64bits(source.text.data(), source.text.size()));
  const std::string unit = "/ingot/" + seed + ".cu";
  if (const auto file = foreign->first(source.text)) refuse(*file, source, unit, templates);
  std::vector<std::string> options(std::begin(kCompileOptions), std::end(kCompileOptions));
  options.push_back("--gpu-architecture=" + print(target));
  for (const std::string& option : newer_options) options.push_back(option.ends_with('=') ? option + seed : option);

  Program program(api, source.text, unit, templates);
  program.name_kernel(expression);
  const nvrtcResult result = program.compile(options);
  log = program.log();
  if (result == NVRTC_SUCCESS) return program;
  // A failure that is not the source's fault may succeed another time, so it must not be remembered as compile_failed.
  if (result == NVRTC_ERROR_OUT_OF_MEMORY) {
    throw Error(ErrorCode::out_of_memory, source.name, "NVRTC ran out of memory: compile fewer kernels at a time");
  }

  std::string reason = log.empty() ? api.nvrtcGetErrorString(result) : first_error(log);
  if (log.find("__nv_name_map") != std::string::npos) {
    reason += fmt::format(" (a source must define `constexpr auto {} = &some_kernel;`)", expression);
  }
  throw Error(
      ErrorCode::compile_failed, source.name,
      fmt::format("NVRTC {}.{} did not compile it for {}: {}; the error's log() has all messages and the source", major,
                  minor, print(target), reason),
      with_numbered_source(log, unit, source.text, templates));
}

NvrtcCompiler::NvrtcCompiler() : state_(std::make_unique<State>()) {}
NvrtcCompiler::~NvrtcCompiler() = default;

std::unique_ptr<NvrtcCompiler> NvrtcCompiler::open(const std::string& cuda_root, TemplateFiles templates,
                                                   std::string& problem, int driver_version) {
  std::unique_ptr<NvrtcCompiler> compiler(new NvrtcCompiler);
  State& state = *compiler->state_;
  state.library = Library::open_cuda("libnvrtc.so", driver_version, cuda_root, problem);
  if (!state.library) return nullptr;
  if (const char* missing = resolve(state.library, state.api)) {
    problem = fmt::format("{} is not an NVRTC that Ingot can use: it lacks {}", state.library.path(), missing);
    return nullptr;
  }
  if (state.api.nvrtcVersion(&state.major, &state.minor) != NVRTC_SUCCESS) {
    problem = fmt::format("{} does not report its version", state.library.path());
    return nullptr;
  }
  // NVRTC opens this library by its bare name, which the loader finds only on its path or if it is open already.
  const std::filesystem::path beside = std::filesystem::path(state.library.path()).parent_path() /
                                       fmt::format("libnvrtc-builtins.so.{}.{}", state.major, state.minor);
  std::string error;
  state.builtins = Library::open(beside.string(), error);
  if (!state.builtins) state.builtins = Library::open(beside.filename().string(), error);
  if (!state.builtins) {
    problem = fmt::format("{} cannot use its builtins library: {}", state.library.path(), error);
    return nullptr;
  }
  state.templates = std::move(templates);
  state.identity = kernel_identity(state.templates);
  state.toolchain = fmt::format("nvrtc {}.{} {} {}", state.major, state.minor, fingerprint(state.library.path()),
                                fingerprint(state.builtins.path()));
  return compiler;
}

std::string NvrtcCompiler::identity() const { return state_->identity; }

std::string NvrtcCompiler::toolchain() const { return state_->toolchain; }

CompiledKernel NvrtcCompiler::compile(const Source& source, Target target) const {
  const std::string expression(kKernelName);
  std::string log;
  const Program program = state_->compile(source, target, log, expression);
  CompiledKernel kernel;
  kernel.lowered_name = program.lowered_name(expression, source);
  kernel.cubin = program.cubin();
  kernel.resources = read_resources(log, kernel.lowered_name);
  kernel.log = warnings_of(log);
  kernel.toolchain = state_->toolchain;
  return kernel;
}

std::string NvrtcCompiler::ptx(const Source& source, Target target) const {
  std::string log;
  return state_->compile(source, target, log, std::string(kKernelName)).ptx();
}

bool NvrtcCompiler::compiles_for(Target target) const {
  int count = 0;
  if (state_->api.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count <= 0) return true;  // let it try
  std::vector<int> all(static_cast<std::size_t>(count));
  if (state_->api.nvrtcGetSupportedArchs(all.data()) != NVRTC_SUCCESS) return true;
  return std::ranges::find(all, target.major * 10 + target.minor) != all.end();
}

std::string NvrtcCompiler::version() const {
  std::call_once(state_->primed, [this] { state_->prime(); });
  return state_->version.empty() ? fmt::format("{}.{}", state_->major, state_->minor) : state_->version;
}

const std::string& NvrtcCompiler::path() const { return state_->library.path(); }

}  // namespace ingot
