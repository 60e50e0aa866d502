// The store that the environment names, as `ingot cache` opens it: without a GPU, a compiler or tiers.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/tuning/tuning_store.h"

namespace ingot::tools {

struct CacheStore {
  // Throws Error{not_found, io_failed} if there is no store, or one that must not be used. A folder that does not exist
  // is an empty store, and is not made.
  CacheStore();
  // Throws Error{not_found} where there is no store: a command that changes one would change nothing.
  void require() const;

  ContextOptions options;
  std::string identity;  // kernel_identity() of this Ingot
  KernelStore kernels;
  TuningStore tuning;
};

// kernel_identity() of this Ingot, with the templates that the environment may name.
std::string kernel_identity_of(const ContextOptions& options);

// A bundle, or another store. Throws Error{io_failed} with the remedy if it cannot be used.
std::unique_ptr<KernelTier> open_tier(const std::filesystem::path& path);
// The error of a tier that has neither a kernel nor a record, such as a folder that is no store.
[[noreturn]] void refuse_empty_tier(const std::filesystem::path& path);

nlohmann::ordered_json to_json(const RemovedFiles& removed);
// On stderr: what was left and why.
void warn_of_left(const RemovedFiles& removed);

}  // namespace ingot::tools
