// Opens libraries with dlopen(), and knows the folders in which CUDA's toolkits and Python's wheels install them.
//
// Libraries stay mapped until the process ends (RTLD_NODELETE): CUDA's start threads and register exit handlers, which
// would crash at exit if their code were gone.
#include "ingot/runtime/util/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "ingot/runtime/util/environment.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

// The folders in `folder` whose names start with `prefix`, newest version first. Empty if it cannot be read.
std::vector<fs::path> folders_in(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path());
  }
  std::ranges::sort(found, std::greater{});
  return found;
}

// Nobody but root and the current user can have put anything there.
bool is_trusted(const fs::path& folder) {
  struct stat state {};
  return ::stat(folder.c_str(), &state) == 0 && distrust(state, TrustedOwner::root_too).empty();
}

// Are this folder and those above it, up to `prefix`?
bool is_trusted_within(const fs::path& prefix, fs::path folder) {
  while (folder != prefix) {
    if (!is_trusted(folder)) return false;
    folder = folder.parent_path();
  }
  return is_trusted(prefix);
}

enum class Folders : std::uint8_t { all, trusted };

// NVIDIA's wheels install libraries in site-packages/nvidia/<cu13, or a folder per library>/lib.
std::vector<fs::path> wheel_folders(const fs::path& prefix, Folders which = Folders::all) {
  std::vector<fs::path> folders;
  for (const fs::path& python : folders_in(prefix / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& wheel : folders_in(python / packages / "nvidia", "")) {
        fs::path folder = wheel / "lib";
        if (which == Folders::all || is_trusted_within(prefix, folder)) folders.push_back(std::move(folder));
      }
    }
  }
  return folders;
}

// The file that this code is a part of: a program, libingot.so or the Python module. Empty if it is unknown, and in a
// setuid program, whose file its caller may have linked to elsewhere.
fs::path own_file() {
  if (::getauxval(AT_SECURE) != 0) return {};
  static constexpr char kHere = 0;
  Dl_info found{};
  void* map = nullptr;
  if (::dladdr1(&kHere, &found, &map, RTLD_DL_LINKMAP) == 0) return {};
  const char* name = static_cast<const link_map*>(map)->l_name;
  if (name[0] != '\0') return name;
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program;
}

// The Python environment that Ingot is installed in: <prefix>/bin/ingot, or
// <prefix>/lib/python3.11/site-packages/ingot/_core.so. Empty if it has no wheels in folders that
// others cannot write.
std::string own_environment() {
  const fs::path file = own_file();
  fs::path prefix = file.parent_path().parent_path();
  for (fs::path folder = file; folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder.filename().string().starts_with("python3") && folder.parent_path().filename() == "lib") {
      prefix = folder.parent_path().parent_path();
    }
  }
  return wheel_folders(prefix, Folders::trusted).empty() ? "" : prefix.string();
}

// One of the paths searched for a library: its name in messages and its folders. `loader`: the dynamic loader's own
// path.
struct SearchPath {
  std::string text;
  std::vector<fs::path> folders;
  bool loader = false;
};

SearchPath toolkit(const std::string& variable, const fs::path& root) {
  return {variable.empty() ? root.string() : fmt::format("{} ({})", root.string(), variable),
          {root / "lib64", root / "lib", root}};
}

std::vector<SearchPath> search_paths(const std::string& explicit_root) {
  std::vector<SearchPath> list;
  if (!explicit_root.empty()) list.push_back(toolkit("INGOT_CUDA_ROOT", explicit_root));
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
    if (const auto root = environment(variable)) list.push_back(toolkit(variable, *root));
  }
  list.push_back({"the loader's path", {}, true});
  list.push_back(toolkit("", "/usr/local/cuda"));
  const std::string home = environment("HOME").value_or("");
  const std::vector<std::string> named{environment("VIRTUAL_ENV").value_or(""), home.empty() ? "" : home + "/.local",
                                       "/usr/local", "/usr"};
  std::vector<std::string> prefixes = named;
  prefixes.insert(prefixes.begin() + 1, own_environment());
  std::set<std::string> seen{""};
  std::erase_if(prefixes, [&seen](const std::string& prefix) { return !seen.insert(prefix).second; });
  SearchPath wheels{fmt::format("the nvidia wheels of Python in {}", fmt::join(prefixes, ", ")), {}};
  for (const std::string& prefix : prefixes) {
    const bool is_named = std::ranges::find(named, prefix) != named.end();
    const std::vector<fs::path> folders = wheel_folders(prefix, is_named ? Folders::all : Folders::trusted);
    wheels.folders.insert(wheels.folders.end(), folders.begin(), folders.end());
  }
  list.push_back(std::move(wheels));
  if (const std::string_view root = INGOT_BUILD_CUDA_ROOT; !root.empty()) {
    list.push_back(toolkit("the CUDA that Ingot was built with", root));
  }
  return list;
}

}  // namespace

Library::~Library() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Library::Library(Library&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), path_(std::exchange(other.path_, {})) {}

Library& Library::operator=(Library&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(path_, other.path_);
  return *this;
}

Library Library::of(void* handle, const std::string& name) {
  Library library;
  library.handle_ = handle;
  const link_map* map = nullptr;
  const bool known = ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  library.path_ = known ? map->l_name : name;
  return library;
}

Library Library::loaded(const std::string& name) {
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  return handle == nullptr ? Library() : of(handle, name);
}

Library Library::open(const std::string& name_or_path, std::string& problem) {
  void* const handle = ::dlopen(name_or_path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle != nullptr) return of(handle, name_or_path);
  const char* error = ::dlerror();
  problem = error == nullptr ? name_or_path + ": cannot be opened" : error;
  return {};
}

Library Library::open_cuda(const std::vector<std::string>& names, const std::string& explicit_root,
                           std::string& problem) {
  const std::string wanted = fmt::format("{}", fmt::join(names, " or "));
  if (explicit_root == kNowhere) {
    problem =
        fmt::format("{} was not looked for: INGOT_CUDA_ROOT is \"none\", which says to use no CUDA library", wanted);
    return {};
  }
  std::vector<std::string> searched_texts;
  std::string broken;  // files that are there but do not load
  for (const SearchPath& searched : search_paths(explicit_root)) {
    searched_texts.push_back(searched.text);
    for (const std::string& name : names) {
      std::string error;
      if (searched.loader) {
        if (Library library = open(name, error)) return library;
      }
      for (const fs::path& folder : searched.folders) {
        const fs::path file = folder / name;
        std::error_code ignored;
        if (!fs::exists(file, ignored)) continue;
        if (Library library = open(file.string(), error)) return library;
        broken += fmt::format("; {} is there, but does not load: {}", file.string(), error);
      }
    }
  }
  problem = fmt::format(
      "{} was not found in {}{}; set INGOT_CUDA_ROOT to a CUDA toolkit, or to the folder of an nvidia "
      "wheel of Python that holds lib/{}",
      wanted, fmt::join(searched_texts, "; "), broken, names.empty() ? "" : names.front());
  return {};
}

Library Library::open_cuda(const std::string& stem, int driver_version, const std::string& explicit_root,
                           std::string& problem) {
  constexpr int kMajor = 1000;
  const bool is_older = driver_version != 0 && driver_version < 13 * kMajor;
  const std::string newest = stem + ".13";
  std::vector<std::string> names{stem + ".12"};
  if (!is_older) names.insert(names.begin(), newest);
  Library found = open_cuda(names, explicit_root, problem);
  if (found || !is_older || explicit_root == kNowhere) return found;
  std::string ignored;
  if (const Library too_new = open_cuda({newest}, explicit_root, ignored)) {
    problem += fmt::format(
        "; {} is there, but needs a driver of CUDA 13, and this one is of CUDA {}.{}: update the "
        "driver, or install {}",
        too_new.path(), driver_version / kMajor, driver_version % kMajor / 10, names.front());
  }
  return found;
}

std::string find_cuda_program(const std::string& name, const std::string& explicit_root, std::string& problem) {
  std::vector<fs::path> folders;
  std::vector<std::string> texts;
  for (const SearchPath& searched : search_paths(explicit_root == Library::kNowhere ? "" : explicit_root)) {
    if (searched.loader) continue;
    texts.push_back(searched.text);
    for (const fs::path& libraries : searched.folders) folders.push_back(libraries.parent_path() / "bin");
  }
  const std::string path = environment("PATH").value_or("");
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (folder.starts_with('/')) folders.emplace_back(folder);
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
  }
  for (const fs::path& folder : folders) {
    if (::access((folder / name).c_str(), X_OK) == 0) return (folder / name).string();
  }
  problem = fmt::format(
      "was not found in {}; PATH; set INGOT_CUDA_ROOT to a CUDA toolkit, or install NVIDIA's Python wheel "
      "nvidia-cuda-{}",
      fmt::join(texts, "; "), name);
  return {};
}

void* Library::symbol(const char* name) const { return handle_ == nullptr ? nullptr : ::dlsym(handle_, name); }

}  // namespace ingot
