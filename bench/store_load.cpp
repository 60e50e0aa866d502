#include "store_load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;

constexpr Target kStoreTarget{9, 0, true};
constexpr int kInTurn = 20;  // loads from one place before those from the next
constexpr const char* kSynthetic = "synthetic bytes";

class Folder {
 public:
  explicit Folder(const fs::path& inside) {
    std::string name = inside / "bench_runtime.XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorCode::io_failed, inside.string(),
                  fmt::format("a folder cannot be made in it: {}; name another with --folder",
                              std::system_category().message(errno)));
    }
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct StoredKernel {
  Source source;
  CompiledKernel kernel;
  KernelKey key{};
  std::string file;  // as it is stored
};

CompiledKernel random_kernel(const Source& source, std::int64_t file_bytes) {
  CompiledKernel kernel{.lowered_name = source.name, .cubin = {}, .resources = {}, .log = {}, .toolchain = kSynthetic};
  const auto rest = file_bytes - static_cast<std::int64_t>(source.text.size());
  std::mt19937 bits(1);  // NOLINT(cert-msc51-cpp): the same bytes in every run
  for (std::int64_t i = 0; i < rest; ++i) kernel.cubin.push_back(static_cast<std::byte>(bits() & 0xffU));
  return kernel;
}

StoredKernel make(const LoadCase& of, const Compiler* compiler) {
  StoredKernel made{.source = generate(parse(of.spec), of.pass), .kernel = {}, .file = {}};
  made.kernel =
      compiler != nullptr ? compiler->compile(made.source, kStoreTarget) : random_kernel(made.source, of.bytes);
  made.key = kernel_key(made.source, kStoreTarget, compiler != nullptr ? compiler->identity() : kSynthetic);
  made.file = encode_kernel_file(made.key, made.source, kStoreTarget, made.kernel);
  return made;
}

// As a program reads a file that it does not verify.
std::string plain_read(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat state {};
  if (!file || ::fstat(file.get(), &state) != 0) return {};
  std::string content(static_cast<std::size_t>(state.st_size), '\0');
  const ssize_t got = ::read(file.get(), content.data(), content.size());
  return got == state.st_size ? content : std::string();
}

// Where kernels are loaded from, and what is measured of it: a load gives its time in microseconds and, if the result
// is wrong, the fault.
struct Place {
  std::string name;
  std::optional<double> limit_us;
  std::function<double(const StoredKernel&, std::string& fault)> load;
};

// The result is compared, and given back, after the clock was read.
template <class Load, class Fault>
double timed(const Load& load, const Fault& fault_of, std::string& fault) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto loaded = load();
  const std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
  if (std::string found = fault_of(loaded); !found.empty()) fault = std::move(found);
  return taken.count();
}

// `from` has find(KernelKey).
template <class From>
Place place(const std::string& name, double limit_us, From& from) {
  return {.name = name, .limit_us = limit_us, .load = [&from](const StoredKernel& of, std::string& fault) {
            return timed([&] { return from.find(of.key); },
                         [&](const auto& loaded) { return load_fault(loaded, of.kernel); }, fault);
          }};
}

Place plain_place(const fs::path& store) {
  return {.name = "plain read", .limit_us = {}, .load = [store](const StoredKernel& of, std::string& fault) {
            const fs::path path = store / kernel_file_path(of.key);
            return timed([&] { return plain_read(path); },
                         [&](const std::string& read) { return read == of.file ? "" : "differs from what was stored"; },
                         fault);
          }};
}

// The store, the same folder as another user sees it, and a bundle, with all kernels in each.
class Places {
 public:
  Places(const fs::path& folder, std::span<const StoredKernel> kernels) : store_(folder / "store") {
    BundleContent content{.identity = "bench"};
    for (const StoredKernel& each : kernels) {
      store_.put(each.key, each.source, kStoreTarget, each.kernel);
      content.kernels.push_back({.key = each.key, .file = each.file});
    }
    const fs::path bundle = folder / "bundle";
    write_bundle(bundle, std::move(content));
    std::string problem = store_.disabled_reason();
    if (!problem.empty()) throw Error(ErrorCode::io_failed, store_.root().string(), problem);
    read_only_ = opened(ReadOnlyStore::open(store_.root(), problem), store_.root(), problem);
    bundle_ = opened(KernelBundle::open(bundle, problem), bundle, problem);
  }

  std::vector<Place> all() {
    return {place("store", kStoreLimitUs, store_), place("read-only store", kStoreLimitUs, *read_only_),
            place("bundle", kBundleLimitUs, *bundle_), plain_place(store_.root())};
  }

 private:
  template <class Tier>
  static std::unique_ptr<Tier> opened(std::unique_ptr<Tier> tier, const fs::path& path, const std::string& problem) {
    if (!tier) throw Error(ErrorCode::io_failed, path.string(), problem + "; name another folder with --folder");
    return tier;
  }

  KernelStore store_;
  std::unique_ptr<ReadOnlyStore> read_only_;
  std::unique_ptr<KernelBundle> bundle_;
};

// "nvrtc 13.0" of "nvrtc 13.0 109338064-89b2a91a5a049b08"
std::string without_fingerprint(const std::string& toolchain) {
  const std::size_t version = toolchain.find(' ');
  return toolchain.substr(0, version == std::string::npos ? version : toolchain.find(' ', version + 1));
}

}  // namespace

std::vector<LoadCase> load_cases() {
  return {{.spec = "cast bf16->e4m3fn scale=tensor out=codes,transposed", .pass = Pass::first, .bytes = 20'000},
          {.spec = "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row kernel=mma:64x64", .bytes = 60'000},
          {.spec = "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias epilogue=silu(x)*gate also=preactivation fast "
                   "kernel=sm90:128x128:1x1:6:pingpong",
           .bytes = 130'000}};
}

std::string load_fault(const std::optional<CompiledKernel>& loaded, const CompiledKernel& stored) {
  if (!loaded) return "was not found";
  return *loaded == stored ? "" : "differs from what was stored";
}

std::vector<LoadCost> measure_loads(const Compiler* compiler, const fs::path& folder, int loads) {
  const Folder own(folder);
  std::vector<StoredKernel> kernels;
  for (const LoadCase& of : load_cases()) kernels.push_back(make(of, compiler));
  Places places(own.path(), kernels);
  std::vector<LoadCost> costs;
  for (const StoredKernel& kernel : kernels) {
    std::vector<Place> all = places.all();
    std::vector<std::vector<double>> samples(all.size());
    const std::size_t first = costs.size();
    for (const Place& from : all) {
      costs.push_back({.from = from.name,
                       .kernel = kernel.source.name,
                       .made_by = kernel.kernel.toolchain,
                       .file_bytes = static_cast<std::int64_t>(kernel.file.size()),
                       .limit_us = from.limit_us});
      static_cast<void>(from.load(kernel, costs.back().fault));  // brings the file into the page cache
    }
    for (int done = 0; done < loads; done += kInTurn) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        for (int j = 0; j < kInTurn; ++j) samples[i].push_back(all[i].load(kernel, costs[first + i].fault));
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) costs[first + i].us = spread_of(std::move(samples[i]));
  }
  return costs;
}

std::string to_text(std::span<const LoadCost> costs) {
  std::string text;
  std::string kernel;
  for (const LoadCost& cost : costs) {
    if (cost.kernel != kernel) {
      text += fmt::format("{}{} bytes, {}: {}\n{:<44}{:>10}{:>10}{:>8}\n", text.empty() ? "" : "\n", cost.file_bytes,
                          without_fingerprint(cost.made_by), cost.kernel, "load, us", "median", "p99", "limit");
      kernel = cost.kernel;
    }
    if (!cost.fault.empty()) {
      text += fmt::format("{:<44}  wrong: {}\n", cost.from, cost.fault);
      continue;
    }
    text += fmt::format("{:<44}{:>10.1f}{:>10.1f}{}\n", cost.from, cost.us.median, cost.us.p99,
                        limit_columns(cost.us.median, cost.limit_us));
  }
  return text;
}

nlohmann::ordered_json to_json(std::span<const LoadCost> costs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const LoadCost& cost : costs) {
    nlohmann::ordered_json json{
        {"from", cost.from}, {"kernel", cost.kernel}, {"made_by", cost.made_by}, {"file_bytes", cost.file_bytes}};
    json["us"] = cost.fault.empty() ? to_json(cost.us) : nlohmann::ordered_json();
    json["limit_us"] = limit_json(cost.limit_us);
    if (!cost.fault.empty()) json["fault"] = cost.fault;
    all.push_back(std::move(json));
  }
  return all;
}

}  // namespace ingot::bench
