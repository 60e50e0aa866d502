// KernelCache: memory, then store, then compiler; damaged entries, errors, warm-up, and many threads and processes that
// want the same kernel.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ingot/codegen/recording.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/jit/warm_up.h"
#include "support/fake_compiler.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_kernel_cache)

using namespace ingot;
using namespace std::chrono_literals;
using test::fake_kernel;
using test::FakeCompiler;
namespace fs = std::filesystem;

namespace {

constexpr Target kTarget{9, 0, true};
const Source kSource{.name = "a kernel", .text = "text"};
const Source kBroken{.name = "a broken kernel", .text = "#error on purpose"};

struct Fixture {
  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
  KernelStore store{root};
  KernelStore off{fs::path()};
};

// Counts the compiles of all processes: one byte each in a file.
class CountedCompiler final : public Compiler {
 public:
  CountedCompiler(fs::path file, std::chrono::milliseconds duration)
      : file_(std::move(file)), fake_("fake 1", duration) {}

  std::string identity() const override { return fake_.identity(); }
  std::string toolchain() const override { return fake_.toolchain(); }
  CompiledKernel compile(const Source& source, Target target) const override {
    std::ofstream(file_, std::ios::app) << 'x';
    return fake_.compile(source, target);
  }

 private:
  fs::path file_;
  FakeCompiler fake_;
};

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::io_failed, "nothing", "was thrown");
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(kernel_cache, Fixture)

BOOST_AUTO_TEST_CASE(memory_then_store_then_compiler) {
  const FakeCompiler compiler;
  {
    KernelCache cache(&compiler, store, kTarget, nullptr);
    for (int i = 0; i < 3; ++i) BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
    BOOST_TEST(cache.stats().compiled == 1);
    BOOST_TEST(cache.stats().loaded == 0);
  }
  KernelCache cache(&compiler, store, kTarget, nullptr);
  for (int i = 0; i < 3; ++i) BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(cache.stats().compiled == 0);
  BOOST_TEST(cache.stats().loaded == 1);
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(targets_and_compilers_do_not_mix) {
  const FakeCompiler compiler;
  const FakeCompiler newer("fake 2");
  KernelCache cache(&compiler, store, kTarget, nullptr);
  for (const Target target : kSupportedTargets) {
    BOOST_TEST((*cache.compiled(kSource, target) == fake_kernel(kSource, target)));
  }
  BOOST_TEST(compiler.compiles == static_cast<int>(kSupportedTargets.size()));
  KernelCache another(&newer, store, kTarget, nullptr);
  another.compiled(kSource, kTarget);
  BOOST_TEST(newer.compiles == 1);
}

// The same text under two names is one kernel.
BOOST_AUTO_TEST_CASE(names_do_not_count) {
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto first = cache.compiled(kSource, kTarget);
  BOOST_TEST((cache.compiled({.name = "another", .text = kSource.text}, kTarget) == first));
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(without_a_store_memory_remembers) {
  const FakeCompiler compiler;
  KernelCache cache(&compiler, off, kTarget, nullptr);
  const auto first = cache.compiled(kSource, kTarget);
  BOOST_TEST((cache.compiled(kSource, kTarget) == first));
  BOOST_TEST((*first == fake_kernel(kSource, kTarget)));
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(corrupt_entry_is_compiled_again) {
  const FakeCompiler compiler;
  KernelCache(&compiler, store, kTarget, nullptr).compiled(kSource, kTarget);
  const std::string hex = print(kernel_key(kSource, kTarget, compiler.identity()));
  const fs::path file = root / hex.substr(0, 2) / (hex + ".kernel");
  fs::resize_file(file, fs::file_size(file) - 1);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(compiler.compiles == 2);
  BOOST_TEST(store.find(kernel_key(kSource, kTarget, compiler.identity())).has_value());
}

// The header of a file names the kernel, and its checksum is right, but what it holds was made from another source or
// for another target.
BOOST_AUTO_TEST_CASE(a_file_that_holds_another_kernel_is_not_used) {
  const FakeCompiler compiler;
  const KernelKey key = kernel_key(kSource, kTarget, compiler.identity());
  const Source other{.name = kSource.name, .text = kSource.text + " "};
  const Target elsewhere = target_for(8, 0);
  const auto compiled_again = [&](const Source& source, Target target) {
    KernelStore made(directory.path() / "damaged");
    made.put(key, source, target, fake_kernel(source, target));
    KernelCache cache(&compiler, made, kTarget, nullptr);
    const bool right = *cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget);
    return right && cache.stats().compiled == 1 && made.removed().quarantined == 1;
  };
  BOOST_TEST(compiled_again(other, kTarget));
  BOOST_TEST(compiled_again(kSource, elsewhere));

  const fs::path folder = directory.path() / "tier";
  KernelStore(folder).put(key, other, kTarget, fake_kernel(other, kTarget));
  std::string problem;
  const auto tier = ReadOnlyStore::open(folder, problem);
  BOOST_REQUIRE_MESSAGE(tier, problem);
  KernelCache cache({.compiler = &compiler, .identity = compiler.identity(), .tiers = {tier.get()}}, off, kTarget,
                    nullptr);
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(cache.stats().compiled == 1);
  const KernelWanted wanted{kSource, kTarget};
  BOOST_TEST(!decode_kernel_file(encode_kernel_file(key, other, kTarget, {}), key, problem, &wanted).has_value());
  BOOST_TEST(problem == "holds a kernel of another source or target than its key says");
}

// A store's place is no part of a kernel's key. Runs in a separate mount namespace, so that nothing stays mounted.
BOOST_AUTO_TEST_CASE(a_store_serves_wherever_it_is) {
  const FakeCompiler compiler;
  KernelCache(&compiler, store, kTarget, nullptr).compiled(kSource, kTarget);
  const auto hits = [&](const fs::path& place) {
    KernelStore there{place};
    KernelCache cache(&compiler, there, kTarget, nullptr);
    const bool right = *cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget);
    return right && cache.stats().loaded == 1 && cache.stats().compiled == 0;
  };
  const fs::path moved = directory.path() / "moved" / "to here";
  fs::create_directory(moved.parent_path());
  fs::rename(root, moved);
  BOOST_TEST(hits(moved));
  const fs::path copied = directory.path() / "copied";
  fs::copy(moved, copied, fs::copy_options::recursive);
  fs::permissions(copied, fs::perms::owner_all);
  BOOST_TEST(hits(copied));
  const fs::path mounted = directory.path() / "mounted";
  fs::create_directory(mounted);
  constexpr int kNoMount = 77;
  const int status = test::run_in_process([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(moved.c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      return kNoMount;
    }
    if (!hits(mounted)) return 1;
    // And read-only, as in a container.
    if (mount(nullptr, mounted.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) return kNoMount;
    return hits(mounted) ? 0 : 2;
  });
  if (status == kNoMount) {
    BOOST_TEST_MESSAGE("bind mounts are skipped: this process may not mount");
  } else {
    BOOST_TEST(status == 0);
  }
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(without_compiler_or_gpu) {
  KernelCache no_compiler(nullptr, store, kTarget, nullptr);
  const Error missing = error_of([&] { no_compiler.compiled(kSource, kTarget); });
  BOOST_TEST((missing.code() == ErrorCode::not_found));
  BOOST_TEST(missing.what() ==
             std::string("a kernel: this kernel for sm_90a is neither in the store nor in a bundle or store of "
                         "INGOT_CACHE_TIERS, and it cannot "
                         "be compiled without NVRTC; `ingot info` says where it was looked for and "
                         "how to get it"));
  const FakeCompiler compiler;
  KernelCache no_gpu(&compiler, store, kTarget, nullptr);
  const Error unloadable = error_of([&] { no_gpu.get(CastSpec{.scale = kRowwise}); });
  BOOST_TEST((unloadable.code() == ErrorCode::not_found));
  BOOST_TEST(unloadable.what() == print(KernelSpec(CastSpec{.scale = kRowwise})) +
                                      ": this kernel cannot be loaded without a CUDA driver and a GPU; `ingot info` "
                                      "says what is missing");
  BOOST_TEST(compiler.compiles == 0);
  BOOST_TEST(no_gpu.find(CastSpec{.scale = kRowwise}) == nullptr);
  BOOST_TEST((error_of([&] { no_gpu.get(CastSpec{.in = Dtype::e5m2}); }).code() == ErrorCode::invalid_spec));
}

// A machine without NVRTC runs what another machine compiled, whichever NVRTC that had.
BOOST_AUTO_TEST_CASE(without_a_compiler_the_store_serves) {
  const FakeCompiler compiler;
  KernelCache(&compiler, store, kTarget, nullptr).compiled(kSource, kTarget);
  KernelCache cache({.compiler = nullptr, .identity = compiler.identity()}, store, kTarget, nullptr);
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(cache.stats().loaded == 1);
  KernelCache other({.compiler = nullptr, .identity = "fake 2"}, store, kTarget, nullptr);
  BOOST_TEST((error_of([&] { other.compiled(kSource, kTarget); }).code() == ErrorCode::not_found));
}

// The private store trusts only this build of the compiler, and replaces what another one made.
BOOST_AUTO_TEST_CASE(another_build_of_the_compiler_compiles_again) {
  const FakeCompiler old;
  const FakeCompiler updated("fake 1", {}, "fake 1.0 another build");
  KernelCache(&old, store, kTarget, nullptr).compiled(kSource, kTarget);
  KernelCache cache(&updated, store, kTarget, nullptr);
  BOOST_TEST(cache.compiled(kSource, kTarget)->toolchain == "fake 1.0 another build");
  BOOST_TEST(updated.compiles == 1);
  KernelCache again(&updated, store, kTarget, nullptr);
  again.compiled(kSource, kTarget);
  BOOST_TEST(updated.compiles == 1);
  BOOST_TEST(store.usage().files == 1);
}

// A tier in memory, which counts its questions.
class FakeTier final : public KernelTier {
 public:
  FakeTier(KernelKey key, CompiledKernel kernel) : key_(key), kernel_(std::move(kernel)) {}
  std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* /*wanted*/) const override {
    ++questions;
    if (key != key_) return std::nullopt;
    return kernel_;
  }
  std::vector<KernelEntry> list() const override { return {{.key = key_}}; }
  std::optional<KernelFile> read(const KernelKey& key, std::string&) const override {
    if (key != key_) return std::nullopt;
    return KernelFile{.kernel = kernel_};
  }
  void read_tuning(const TakeTuningLine&) const override {}
  std::int64_t count_tuning() const override { return 0; }
  const std::string& name() const override { return name_; }
  mutable std::atomic<int> questions{0};

 private:
  KernelKey key_;
  CompiledKernel kernel_;
  std::string name_ = "tier";
};

BOOST_AUTO_TEST_CASE(tiers_are_asked_in_order_after_the_store) {
  const FakeCompiler compiler("fake 1", {}, "fake 1.7");
  const KernelKey key = kernel_key(kSource, kTarget, "fake 1");
  CompiledKernel foreign = fake_kernel(kSource, kTarget);
  foreign.toolchain = "fake 2.0";
  const FakeTier other_major(key, foreign);
  const FakeTier same_major(key, fake_kernel(kSource, kTarget));
  const FakeTier last(key, fake_kernel(kSource, kTarget));
  KernelCache cache({.compiler = &compiler, .identity = "fake 1", .tiers = {&other_major, &same_major, &last}}, store,
                    kTarget, nullptr);
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(cache.stats().from_tiers == 1);
  BOOST_TEST((cache.stats().by_tier == std::vector<std::int64_t>{0, 1, 0}));
  BOOST_TEST(other_major.questions == 1);
  BOOST_TEST(same_major.questions == 1);
  BOOST_TEST(last.questions == 0);
  BOOST_TEST(compiler.compiles == 0);
  BOOST_TEST(store.usage().files == 0, "what a tier has is not copied");
  BOOST_TEST(cache.is_ready(kSource, kTarget));
  // A kernel of another major version serves where nothing else does.
  KernelCache without({.compiler = nullptr, .identity = "fake 1", .tiers = {&other_major}}, store, kTarget, nullptr);
  BOOST_TEST(without.compiled(kSource, kTarget)->toolchain == "fake 2.0");
}

BOOST_AUTO_TEST_CASE(strict_never_compiles) {
  const FakeCompiler compiler;
  const KernelOrigins origins{.compiler = &compiler, .identity = "fake 1", .mode = CacheMode::strict};
  const Error missing = error_of([&] { KernelCache(origins, store, kTarget, nullptr).compiled(kSource, kTarget); });
  BOOST_TEST((missing.code() == ErrorCode::not_found));
  const std::string strict =
      ": this kernel for sm_90a is neither in the store nor in a bundle or store of INGOT_CACHE_TIERS, and the mode "
      "strict forbids compiling it; ";
  BOOST_TEST(missing.what() ==
             "a kernel" + strict +
                 "it is the program's own, which no recording has: run the program once with INGOT_CACHE_MODE=auto, "
                 "write that store to a bundle with `ingot cache export`, and name the bundle, or the store, in "
                 "INGOT_CACHE_TIERS");
  // Of a spec's kernel, the line is one that a recording has, whatever the pass.
  const std::string line = "cast bf16->e4m3fn scale=tensor out=codes,transposed list";
  for (const Pass pass : {Pass::first, Pass::main}) {
    const Source generated = generate(parse(line), pass);
    const Error error = error_of([&] { KernelCache(origins, store, kTarget, nullptr).compiled(generated, kTarget); });
    BOOST_TEST(error.what() ==
               generated.name + strict + "`ingot warm` makes it from a recording with this line: " + line);
    const ParsedRecording parsed = parse_recording(line);
    BOOST_TEST(parsed.damaged == 0);
    BOOST_TEST((parsed.recording.kernels() == std::vector{parse(line)}));
  }
  BOOST_TEST(compiler.compiles == 0);
  KernelCache(&compiler, store, kTarget, nullptr).compiled(kSource, kTarget);
  KernelCache cache(origins, store, kTarget, nullptr);
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(what_can_be_had) {
  const FakeCompiler compiler;
  const KernelSpec spec = parse("relayout copied");
  const auto can_get = [&](const Compiler* with, CacheMode mode) {
    const KernelOrigins origins{.compiler = with, .identity = "fake 1", .mode = mode};
    return KernelCache(origins, store, kTarget, nullptr).can_get(spec);
  };
  for (const CacheMode mode : {CacheMode::automatic, CacheMode::memory, CacheMode::verify}) {
    BOOST_TEST(can_get(&compiler, mode));
    BOOST_TEST(!can_get(nullptr, mode));
  }
  BOOST_TEST(!can_get(&compiler, CacheMode::strict));
  BOOST_TEST(compiler.compiles == 0);
  KernelCache(&compiler, store, kTarget, nullptr).compiled(generate(spec), kTarget);
  BOOST_TEST(can_get(&compiler, CacheMode::strict));
  BOOST_TEST(can_get(nullptr, CacheMode::automatic));
  BOOST_TEST(!can_get(nullptr, CacheMode::memory));
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(memory_leaves_the_disk_alone) {
  const FakeCompiler compiler;
  KernelCache(&compiler, store, kTarget, nullptr).compiled(kSource, kTarget);
  const FakeTier tier(kernel_key(kSource, kTarget, "fake 1"), fake_kernel(kSource, kTarget));
  KernelCache cache({.compiler = &compiler, .identity = "fake 1", .tiers = {&tier}, .mode = CacheMode::memory}, store,
                    kTarget, nullptr);
  cache.compiled(kSource, kTarget);
  cache.compiled({.name = "another", .text = "other text"}, kTarget);
  BOOST_TEST(compiler.compiles == 3);
  BOOST_TEST(tier.questions == 0);
  BOOST_TEST(store.usage().files == 1);
}

// A store with a kernel that its compiler would not make: verify reports it, uses what it compiled, and mends the
// store.
BOOST_AUTO_TEST_CASE(verify_compares) {
  const FakeCompiler compiler;
  const KernelKey key = kernel_key(kSource, kTarget, "fake 1");
  CompiledKernel wrong = fake_kernel(kSource, kTarget);
  wrong.cubin.back() ^= std::byte{1};
  store.put(key, kSource, kTarget, wrong);
  const KernelOrigins origins{.compiler = &compiler, .identity = "fake 1", .mode = CacheMode::verify};
  for (const int differing : {1, 0}) {
    KernelCache cache(origins, store, kTarget, nullptr);
    BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
    BOOST_TEST(cache.stats().differing == differing);
  }
  BOOST_TEST(compiler.compiles == 2);
}

BOOST_AUTO_TEST_CASE(a_log_gets_each_kernel_once) {
  const FakeCompiler compiler("fake 1", 20ms);
  std::vector<KernelEvent> events;
  KernelOrigins origins{
      .compiler = &compiler, .identity = "fake 1", .log = [&](const KernelEvent& event) { events.push_back(event); }};
  KernelCache first(origins, store, kTarget, nullptr);
  for (int i = 0; i < 3; ++i) first.compiled(kSource, kTarget);
  KernelCache(origins, store, kTarget, nullptr).compiled(kSource, kTarget);
  const FakeTier tier(kernel_key(kSource, kTarget, "fake 1"), fake_kernel(kSource, kTarget));
  origins.tiers = {&tier};
  KernelCache(origins, off, kTarget, nullptr).compiled(kSource, kTarget);
  BOOST_REQUIRE(events.size() == 3U);
  BOOST_TEST((events[0].kind == KernelEvent::Kind::compiled));
  BOOST_TEST((events[0].time >= 20ms));
  BOOST_TEST((events[0].key == kernel_key(kSource, kTarget, "fake 1")));
  BOOST_TEST((events[1].kind == KernelEvent::Kind::from_store));
  BOOST_TEST((events[2].kind == KernelEvent::Kind::from_tier));
  BOOST_TEST(events[2].tier == "tier");
  events[0].time = 412345us;
  events[2].time = 130us;
  BOOST_TEST(print(events[0]) == "compiled in 412.3 ms for sm_90a: a kernel");
  BOOST_TEST(print(events[2]) == "read from tier in 0.1 ms for sm_90a: a kernel");

  CompiledKernel wrong = fake_kernel(kSource, kTarget);
  wrong.cubin.back() ^= std::byte{1};
  store.put(kernel_key(kSource, kTarget, "fake 1"), kSource, kTarget, wrong);
  events.clear();
  origins.mode = CacheMode::verify;
  KernelCache(origins, store, kTarget, nullptr).compiled(kSource, kTarget);
  BOOST_REQUIRE(events.size() == 3U);  // found, compiled, compared
  BOOST_TEST((events[2].kind == KernelEvent::Kind::differing));
}

// Only the compiler that made a kernel can be expected to make it again.
BOOST_AUTO_TEST_CASE(verify_without_the_compiler_that_made_it) {
  const FakeCompiler other("fake 1", {}, "fake 1.7");
  CompiledKernel renamed = fake_kernel(kSource, kTarget);
  renamed.lowered_name = "another";
  const FakeTier tier(kernel_key(kSource, kTarget, "fake 1"), renamed);
  KernelOrigins origins{.compiler = nullptr, .identity = "fake 1", .tiers = {&tier}, .mode = CacheMode::verify};
  KernelCache without(origins, store, kTarget, nullptr);
  BOOST_TEST(without.compiled(kSource, kTarget)->lowered_name == "another");
  origins.compiler = &other;
  KernelCache another(origins, store, kTarget, nullptr);
  BOOST_TEST(another.compiled(kSource, kTarget)->lowered_name == "another");
  BOOST_TEST(other.compiles == 0);
  const FakeCompiler same;
  origins.compiler = &same;
  KernelCache checked(origins, store, kTarget, nullptr);
  BOOST_TEST((*checked.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST(checked.stats().differing == 1);
}

BOOST_AUTO_TEST_CASE(tiers_that_lack_it_and_no_compiler) {
  const FakeTier tier(kernel_key(kSource, kTarget, "another"), fake_kernel(kSource, kTarget));
  KernelCache cache({.compiler = nullptr, .identity = "fake 1", .tiers = {&tier}}, store, kTarget, nullptr);
  BOOST_TEST((error_of([&] { cache.compiled(kSource, kTarget); }).code() == ErrorCode::not_found));
  BOOST_TEST(!cache.is_ready(kSource, kTarget));
  KernelCache memory({.compiler = nullptr, .identity = "fake 1", .mode = CacheMode::memory}, store, kTarget, nullptr);
  BOOST_TEST((error_of([&] { memory.compiled(kSource, kTarget); }).code() == ErrorCode::not_found));
}

BOOST_AUTO_TEST_CASE(sixty_four_threads_one_compile) {
  const FakeCompiler compiler("fake 1", 100ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::vector<std::shared_ptr<const CompiledKernel>> results(64);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = cache.compiled(kSource, kTarget); });
  }
  BOOST_TEST(compiler.compiles == 1);
  BOOST_TEST(cache.stats().compiled == 1);
  for (const auto& result : results) BOOST_TEST((*result == fake_kernel(kSource, kTarget)));
}

BOOST_AUTO_TEST_CASE(sixty_four_threads_sixty_four_kernels) {
  const FakeCompiler compiler("fake 1", 5ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 64; ++i) {
      threads.emplace_back([&, i] {
        const Source source{.name = "kernel", .text = std::to_string(i)};
        if (*cache.compiled(source, kTarget) != fake_kernel(source, kTarget)) ++wrong;
      });
    }
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(compiler.compiles == 64);
  BOOST_TEST(store.usage().files == 64);
}

BOOST_AUTO_TEST_CASE(all_waiters_get_the_same_error) {
  const FakeCompiler compiler("fake 1", 50ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::vector<std::string> messages(64);
  {
    std::vector<std::jthread> threads;
    for (auto& message : messages) {
      threads.emplace_back([&] {
        const Error error = error_of([&] { cache.compiled(kBroken, kTarget); });
        message = std::string(error.what()) + " | " + error.log();
      });
    }
  }
  for (const std::string& message : messages) {
    BOOST_TEST(message == "a broken kernel: does not compile | #error on purpose");
  }
  BOOST_TEST((error_of([&] { cache.compiled(kBroken, kTarget); }).code() == ErrorCode::compile_failed));
  BOOST_TEST(compiler.compiles == 1, "a refused source was compiled again");
  BOOST_TEST(cache.stats().compiled == 0);
  BOOST_TEST(store.usage().files == 0);
  // Another cache asks the compiler again.
  KernelCache fresh(&compiler, store, kTarget, nullptr);
  error_of([&] { fresh.compiled(kBroken, kTarget); });
  BOOST_TEST(compiler.compiles == 2);
}

BOOST_AUTO_TEST_CASE(warm) {
  const std::vector<KernelSpec> specs{AmaxSpec{}, CastSpec{}, CastSpec{.scale = kRowwise},
                                      GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16}, ColumnSumSpec{}};
  std::set<std::string> texts;
  for (const KernelSpec& spec : specs) {
    for (const Pass pass : passes(spec)) texts.insert(generate(spec, pass).text);
  }
  const FakeCompiler compiler;
  for (const int threads : {1, 4, 100, 0}) {
    fs::remove_all(root);
    compiler.compiles = 0;
    KernelCache cache(&compiler, store, kTarget, nullptr);
    ingot::warm(cache, specs, Target{8, 9, false}, threads);
    BOOST_TEST(compiler.compiles == static_cast<int>(texts.size()));
    KernelCache second(&compiler, store, kTarget, nullptr);
    ingot::warm(second, specs, Target{8, 9, false}, threads);
    BOOST_TEST(compiler.compiles == static_cast<int>(texts.size()));
    BOOST_TEST(second.stats().loaded == static_cast<std::int64_t>(texts.size()));
  }
  KernelCache none(&compiler, store, kTarget, nullptr);
  ingot::warm(none, {}, kTarget, 4);
}

BOOST_AUTO_TEST_CASE(warm_goes_on_after_an_error) {
  const std::vector<KernelSpec> specs{CastSpec{.scale = kRowGroups}, CastSpec{.in = Dtype::e5m2},
                                      AmaxSpec{.scale = kRowwise}, AmaxSpec{.in = Dtype::e4m3fn}, ColumnSumSpec{}};
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  for (const int threads : {1, 3}) {
    const Error error = error_of([&] { ingot::warm(cache, specs, kTarget, threads); });
    BOOST_TEST((error.code() == ErrorCode::invalid_spec));
    BOOST_TEST(error.subject() == print(specs[1]));
  }
  BOOST_TEST(compiler.compiles == 4);  // a cast, an amax, both passes of the column sum
}

// The first in the list, whichever was compiled first: the longest are, and threads overtake each other.
BOOST_AUTO_TEST_CASE(warm_throws_the_first_error_of_the_list) {
  const std::vector<KernelSpec> broken{AmaxSpec{.in = Dtype::e4m3fn}, CastSpec{.in = Dtype::e5m2},
                                       GemmSpec{.out = Dtype::e8m0fnu}};
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::vector<int> order{0, 1, 2};
  do {
    std::vector<KernelSpec> specs{ColumnSumSpec{}};
    for (const int i : order) specs.push_back(broken[static_cast<std::size_t>(i)]);
    for (const int threads : {1, 4}) {
      BOOST_TEST(error_of([&] { ingot::warm(cache, specs, kTarget, threads); }).subject() == print(specs[1]));
    }
  } while (std::ranges::next_permutation(order).found);
}

BOOST_AUTO_TEST_CASE(warm_is_parallel) {
  std::vector<KernelSpec> specs;
  for (const Dtype out : kFp8Dtypes) specs.push_back(CastSpec{.out = out, .scale = kRowGroups});
  const FakeCompiler compiler("fake 1", 1000ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto start = std::chrono::steady_clock::now();
  ingot::warm(cache, specs, kTarget, 4);
  const auto took = std::chrono::steady_clock::now() - start;
  BOOST_TEST(compiler.compiles == 4);
  BOOST_TEST((took < 3500ms), "four compiles of 1 s took " << took / 1ms << " ms on four threads");
}

// ---- in the background ---------------------------------------------------------------------------------------------

const KernelSpec kShort = AmaxSpec{};
const KernelSpec kMiddle = CastSpec{.scale = kRowwise};
const KernelSpec kLong = DequantMatmulSpec{};

// Notes the order in which it is asked. kLong takes five times as long as the others.
class OrderedCompiler final : public Compiler {
 public:
  explicit OrderedCompiler(std::chrono::milliseconds duration)
      : fake_("fake 1", duration), slow_("fake 1", 5 * duration) {}
  std::string identity() const override { return fake_.identity(); }
  std::string toolchain() const override { return fake_.toolchain(); }
  CompiledKernel compile(const Source& source, Target target) const override {
    {
      const std::lock_guard lock(mutex_);
      names_.push_back(source.name);
    }
    return (source.name == print(kLong) ? slow_ : fake_).compile(source, target);
  }
  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }

 private:
  FakeCompiler fake_;
  FakeCompiler slow_;
  mutable std::mutex mutex_;
  mutable std::vector<std::string> names_;
};

BOOST_AUTO_TEST_CASE(warm_up_begins_with_the_longest) {
  const OrderedCompiler compiler(0ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  WarmUp warm_up(cache, {{kShort}, {kMiddle}, {kLong}}, {.threads = 1});
  warm_up.wait();
  BOOST_TEST_CHECK(compiler.names() == (std::vector<std::string>{print(kLong), print(kMiddle), print(kShort)}),
                   boost::test_tools::per_element());
  cache.compiled(generate(kMiddle), kTarget);
  BOOST_TEST(compiler.names().size() == 3U);
}

BOOST_AUTO_TEST_CASE(launches_come_before_the_rest_of_a_warm_up) {
  const OrderedCompiler compiler(400ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto start = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited{};
  {
    WarmUp warm_up(cache, {{kShort}, {kMiddle}, {kLong}}, {.threads = 1});
    cache.compiled(generate(kShort), kTarget);  // by this thread, not as the last of three
    waited = std::chrono::steady_clock::now() - start;
  }
  BOOST_TEST((waited < 1900ms), waited / 1ms);  // kLong alone takes 2 s
  // Its end waits for what had begun, and begins nothing new.
  BOOST_TEST(compiler.names().size() == 2U);
  BOOST_TEST(std::ranges::count(compiler.names(), print(kMiddle)) == 0);
}

BOOST_AUTO_TEST_CASE(a_stopped_warm_up_begins_nothing_while_another_is_waited_for) {
  const OrderedCompiler compiler(400ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto start = std::chrono::steady_clock::now();
  const auto has_begun = [&](const KernelSpec& spec) { return std::ranges::count(compiler.names(), print(spec)) == 1; };
  WarmUp first(cache, {{kLong}}, {.threads = 1});
  WarmUp second(cache, {{kMiddle}, {kShort}}, {.threads = 1});
  while ((!has_begun(kLong) || !has_begun(kMiddle)) && std::chrono::steady_clock::now() - start < 20s) {
    std::this_thread::sleep_for(1ms);
  }
  BOOST_TEST(!first.has_ended());
  first.stop();
  second.stop();
  first.wait();
  second.wait();
  BOOST_TEST(second.has_ended());
  BOOST_TEST(compiler.names().size() == 2U);
  BOOST_TEST(!has_begun(kShort));
}

BOOST_AUTO_TEST_CASE(what_fails_in_a_warm_up_is_the_launchs_error) {
  KernelCache cache({.compiler = nullptr, .identity = "fake 1"}, store, kTarget, nullptr);
  WarmUp(cache, {{kShort}, {kMiddle}}).wait();
  BOOST_TEST((error_of([&] { cache.compiled(generate(kShort), kTarget); }).code() == ErrorCode::not_found));
  WarmUp(cache, std::vector<KernelPass>{}).wait();
}

// The program goes on before it is known which kernels there are.
BOOST_AUTO_TEST_CASE(a_warm_up_makes_its_list_on_its_own_thread) {
  const OrderedCompiler compiler(0ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::promise<void> made;
  std::atomic<int> lists{0};
  std::thread::id by;
  WarmUp warm_up(cache,
                 [&](const auto&) {
                   ++lists;
                   by = std::this_thread::get_id();
                   made.get_future().wait_for(5s);
                   return std::vector<KernelPass>{{kShort}, {kLong}};
                 },
                 {.target = Target{8, 9, false}, .threads = 3});
  BOOST_TEST(compiler.names().empty());
  made.set_value();
  warm_up.wait();
  BOOST_TEST((by != std::this_thread::get_id()));
  BOOST_TEST(lists == 1);
  BOOST_TEST(compiler.names().size() == 2U);
  BOOST_TEST(cache.is_ready(generate(kLong), Target{8, 9, false}));
}

BOOST_AUTO_TEST_CASE(the_end_of_a_warm_up_ends_its_list) {
  const OrderedCompiler compiler(0ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::promise<void> begun;
  bool stopped = false;
  {
    const WarmUp warm_up(cache, [&](const std::function<bool()>& stop) {
      begun.set_value();
      const auto start = std::chrono::steady_clock::now();
      while (!stop() && std::chrono::steady_clock::now() - start < 20s) std::this_thread::sleep_for(1ms);
      stopped = stop();
      return std::vector<KernelPass>{{kShort}};
    });
    begun.get_future().wait();
  }
  BOOST_TEST(stopped);
  BOOST_TEST(compiler.names().empty());
}

BOOST_AUTO_TEST_CASE(a_warm_up_whose_list_fails) {
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto list = [](const auto&) -> std::vector<KernelPass> { throw Error(ErrorCode::io_failed, "list", "failed"); };
  std::vector<std::string> warnings;
  {
    WarmUp warm_up(cache, list, {.threads = 2, .warn = [&](const std::string& why) { warnings.push_back(why); }});
    warm_up.wait();
    BOOST_TEST(warm_up.has_ended());
  }
  BOOST_TEST_CHECK(warnings == std::vector<std::string>{"list: failed"}, boost::test_tools::per_element());
  for (const int threads : {0, 2}) {
    BOOST_TEST(error_of([&] { WarmUp(cache, list, {.threads = threads}).finish(); }).what() ==
               std::string("list: failed"));
  }
  BOOST_TEST(compiler.compiles == 0);
}

BOOST_AUTO_TEST_CASE(a_forked_child_ends_while_its_parent_makes_a_list) {
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  std::promise<void> begun;
  std::promise<void> forked;
  auto warm_up = std::make_unique<WarmUp>(cache, [&](const auto&) {
    begun.set_value();
    forked.get_future().wait();
    return std::vector<KernelPass>{{kShort}};
  });
  begun.get_future().wait();
  BOOST_TEST(test::run_in_process([&] {
               warm_up->wait();
               warm_up->finish();
               warm_up.reset();
               return 0;
             }) == 0);
  forked.set_value();
  warm_up->wait();
  BOOST_TEST(compiler.compiles == 1);
}

BOOST_AUTO_TEST_CASE(a_forked_child_ends_without_its_parents_threads) {
  const FakeCompiler compiler("fake 1", 500ms);
  KernelCache cache(&compiler, store, kTarget, nullptr);
  auto warm_up = std::make_unique<WarmUp>(cache, std::vector<KernelPass>{{kShort}, {kMiddle}, {kLong}},
                                          WarmUpOptions{.threads = 2});
  BOOST_TEST(test::run_in_process([&] {
               warm_up->wait();
               warm_up.reset();
               return 0;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(eight_processes_one_compile) {
  const fs::path count = directory.path() / "count";
  int go[2];
  BOOST_REQUIRE(pipe(go) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(test::start_process([&] {
      close(go[1]);
      char byte = 0;
      if (read(go[0], &byte, 1) != 0) return 1;  // waits until the parent closes its end
      const CountedCompiler compiler(count, 300ms);
      KernelStore own(root);
      KernelCache cache(&compiler, own, kTarget, nullptr);
      return *cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget) ? 0 : 2;
    }));
  }
  close(go[0]);
  close(go[1]);
  for (const pid_t child : children) BOOST_TEST(test::wait_for(child) == 0);
  BOOST_TEST(fs::file_size(count) == 1U, fs::file_size(count) << " processes compiled");
}

// The operating system releases the lock of a process that dies while compiling.
BOOST_AUTO_TEST_CASE(killed_while_compiling) {
  const fs::path count = directory.path() / "count";
  const pid_t child = test::start_process([&] {
    const CountedCompiler compiler(count, 1h);
    KernelStore own(root);
    KernelCache(&compiler, own, kTarget, nullptr).compiled(kSource, kTarget);
    return 0;
  });
  while (!fs::exists(count)) std::this_thread::sleep_for(1ms);
  std::jthread killer([child] {
    std::this_thread::sleep_for(100ms);
    kill(child, SIGKILL);
  });
  const FakeCompiler compiler;
  KernelCache cache(&compiler, store, kTarget, nullptr);
  const auto start = std::chrono::steady_clock::now();
  BOOST_TEST((*cache.compiled(kSource, kTarget) == fake_kernel(kSource, kTarget)));
  BOOST_TEST((std::chrono::steady_clock::now() - start < 30s), "the dead process's lock was waited for");
  BOOST_TEST(test::wait_for(child) == -SIGKILL);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
