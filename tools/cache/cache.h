// `ingot cache` and its commands, for those who look after a kernel store. Each prints to stdout and returns the exit
// code: 0, 1 if something is damaged or failed, 2 for wrong usage, 130 if it was stopped. They throw ingot::Error.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ingot::tools {

struct CacheListOptions {
  std::filesystem::path tier{};  // a bundle or another store; empty: the store
  bool json = false;
};

struct CacheStatOptions {
  std::filesystem::path tier{};  // as above
  bool json = false;
};

struct CacheVerifyOptions {
  std::filesystem::path tier{};  // only this bundle or other store; empty: the store, and the environment's tiers
  bool recompile = false;
  int jobs = 0;  // worker processes; 0: one per core
  bool json = false;
};

struct CachePruneOptions {
  std::string max_size{};    // "500M"
  std::string older_than{};  // "30d"
  std::vector<std::string> targets{};
  bool dry_run = false;
  bool json = false;
};

struct CacheClearOptions {
  bool tuning = false;
  bool yes = false;
  bool json = false;
};

struct CacheImportOptions {
  std::filesystem::path from{};
  bool json = false;
};

struct CacheExportOptions {
  std::filesystem::path to{};
  std::vector<std::string> targets{};
  std::vector<std::filesystem::path> recordings{};
  bool json = false;
};

struct CacheOptions {
  CacheListOptions list{};
  CacheStatOptions stat{};
  CacheVerifyOptions verify{};
  CachePruneOptions prune{};
  CacheClearOptions clear{};
  CacheImportOptions taking{};  // "import" is a keyword of C++ in some places
  CacheExportOptions bundle{};
};

int cache_path();
int cache_list(const CacheListOptions& options);
int cache_stat(const CacheStatOptions& options);
int cache_verify(const CacheVerifyOptions& options);
int cache_prune(const CachePruneOptions& options);
int cache_clear(const CacheClearOptions& options);
int cache_import(const CacheImportOptions& options);
int cache_export(const CacheExportOptions& options);

}  // namespace ingot::tools
