#include "cache/cache_store.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "ingot/codegen/template_files.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/util/error.h"
#include "text.h"

namespace ingot::tools {

namespace fs = std::filesystem;

std::string kernel_identity_of(const ContextOptions& options) {
  return kernel_identity(options.templates.empty() ? embedded_templates() : read_templates(options.templates));
}

// The commands themselves report what the stores would warn of.
CacheStore::CacheStore()
    : options(ContextOptions::from_environment()),
      identity(kernel_identity_of(options)),
      kernels(options.store_root, [](const std::string&) {}),
      tuning(options.store_root, [](const std::string&) {}) {
  const std::string problem = kernels.directory().distrusted();
  if (problem.empty()) return;
  throw Error(kernels.root().empty() ? ErrorCode::not_found : ErrorCode::io_failed, "ingot cache",
              problem + "; set INGOT_CACHE_DIR to a directory of yours with mode 0700" + advice_about(problem));
}

void CacheStore::require() const {
  std::error_code error;
  if (fs::exists(kernels.root(), error)) return;
  throw Error(ErrorCode::not_found, kernels.root().string(),
              "there is no store; `ingot cache path` prints where it is looked for, and INGOT_CACHE_DIR names another");
}

std::unique_ptr<KernelTier> open_tier(const fs::path& path) {
  std::string problem;
  std::error_code error;
  std::unique_ptr<KernelTier> tier;
  if (fs::is_directory(path, error)) {
    tier = ReadOnlyStore::open(path, problem);
  } else {
    tier = KernelBundle::open(path, problem);
  }
  if (tier != nullptr) return tier;
  if (problem.find("chmod") != std::string::npos) {  // it says what to do itself
    throw Error(ErrorCode::io_failed, path.string(), problem);
  }
  const bool is_private = problem.ends_with(std::system_category().message(EACCES));
  const bool is_cut = problem.starts_with("is truncated") || problem.starts_with("is cut off");
  const bool is_foreign = problem.starts_with("is owned by") || problem.starts_with("can be written by");
  throw Error(problem == "does not exist" ? ErrorCode::not_found : ErrorCode::io_failed, path.string(),
              problem + (is_private   ? "; let its owner run `chmod a+rX` on it and the folders above it, or on a copy"
                         : is_foreign ? "; if you trust it, copy it to a place of yours that nobody else can write"
                         : is_cut     ? "; copy it again, or make it again (`ingot cache export` writes a bundle)"
                                      : "; give a bundle (`ingot cache export` writes one) or a store's folder"));
}

void refuse_empty_tier(const fs::path& path) {
  throw Error(ErrorCode::not_found, path.string(),
              "has neither a kernel nor a tuning record; give a bundle (`ingot cache export` writes one) or a store's "
              "folder");
}

nlohmann::ordered_json to_json(const RemovedFiles& removed) {
  return {{"removed", removed.files},
          {"bytes", removed.bytes},
          {"left", removed.left},
          {"failed", removed.failed},
          {"stopped", removed.stopped}};
}

void warn_of_left(const RemovedFiles& removed) {
  for (const std::string& text : removed.left) warn(text + "; it is not Ingot's and was left");
  for (const std::string& text : removed.failed) warn(text);
}

}  // namespace ingot::tools
