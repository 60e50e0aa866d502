// What faulty disks, other users, crashes and accidents do to a kernel store. The rule in every case: never a wrong
// kernel, an exception or a hang, at most one warning, and a store that works again once the cause is gone.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/util/write_file.h"
#include "support/fault_row.h"
#include "support/function_ref.h"
#include "support/processes.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_kernel_store_faults)

using namespace ingot;
using test::file_of;
using test::Item;
using test::kTarget;
using test::put;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  KernelStore make() {
    warnings.clear();
    return KernelStore(root, [this](const std::string& text) { warnings.push_back(text); });
  }
  fs::path file() const { return file_of(root, item); }
  std::ptrdiff_t quarantined() const {
    const fs::path folder = root / "quarantine";
    return fs::exists(folder) ? std::distance(fs::directory_iterator(folder), fs::directory_iterator()) : 0;
  }

  // The entry counts as a miss, is moved aside with one warning that gives the reason, and can be written and read
  // again.
  void expect_healed(const std::string& why) {
    const std::ptrdiff_t before = quarantined();
    KernelStore store = make();
    BOOST_TEST(!store.find(item.key).has_value());
    BOOST_TEST(store.removed().quarantined == 1);
    BOOST_TEST(!fs::exists(fs::symlink_status(file())), "the bad file is still there");
    BOOST_TEST(quarantined() == std::min<std::ptrdiff_t>(before + 1, 16));
    BOOST_REQUIRE(warnings.size() == 1U);
    BOOST_TEST(warnings[0].starts_with("store file " + file().string() + " "), warnings[0]);
    BOOST_TEST(warnings[0].find(why) != std::string::npos, "\"" << warnings[0] << "\" lacks \"" << why << "\"");
    BOOST_TEST(warnings[0].ends_with("it was moved to " + (root / "quarantine").string() +
                                     ", and its kernel is compiled again"));
    put(store, item);
    BOOST_TEST((store.find(item.key) == item.kernel));
    BOOST_TEST(store.disabled_reason() == "");
    BOOST_TEST(warnings.size() == 1U);
  }

  // Nothing is stored, for this reason, and everything else continues.
  void expect_disabled(const std::string& reason) {
    KernelStore store = make();
    for (int i = 0; i < 3; ++i) {
      put(store, item);
      BOOST_TEST(!store.find(item.key).has_value());
      BOOST_TEST(store.lock(item.key, std::chrono::seconds(60)).held() == false);
    }
    BOOST_TEST(store.disabled_reason() == reason);
    BOOST_REQUIRE(warnings.size() == 1U);
    BOOST_TEST(warnings[0] == reason +
                                  ". Compiled kernels are kept in memory only; set INGOT_CACHE_DIR to a directory "
                                  "of yours with mode 0700 and free space to keep them on disk");
    BOOST_TEST(store.usage().files == 0);
  }

  void expect_working() {
    KernelStore store = make();
    put(store, item);
    BOOST_TEST((store.find(item.key) == item.kernel));
    BOOST_TEST(store.disabled_reason() == "");
    BOOST_TEST(warnings.empty());
  }

  void write(const std::string& bytes) const {
    std::ofstream stream(file(), std::ios::binary | std::ios::trunc);
    stream << bytes;
    BOOST_REQUIRE(stream.flush().good());
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
  Item item{"a"};
  std::vector<std::string> warnings;
};

// A store with one good entry.
struct Filled : Fixture {
  Filled() {
    KernelStore store = make();
    put(store, item);
    good = encode_kernel_file(item.key, item.source, kTarget, item.kernel);
  }
  std::string good;
};

// Counts failed checks, so that a child process can report them by its exit status.
int failures(std::initializer_list<bool> checks) {
  return static_cast<int>(std::count(checks.begin(), checks.end(), false));
}

}  // namespace

// ---- damaged entries -----------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(damaged_entries, Filled)

BOOST_AUTO_TEST_CASE(every_byte_flipped) {
  test::FaultRow row("F5, bytes flipped");
  KernelStore writer = make();
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(~bad[i]);
    write(bad);
    KernelStore reader = make();
    row.inject("byte " + std::to_string(i), [&] { return reader.find(item.key) ? "it is not found out" : ""; });
    BOOST_TEST(warnings.size() == 1U);
    BOOST_TEST(!fs::exists(file()));
    BOOST_TEST(quarantined() <= 16);
    put(writer, item);
    BOOST_TEST((writer.find(item.key) == item.kernel));
  }
  BOOST_TEST(quarantined() == 16);
  row.finish(static_cast<int>(good.size()));
}

BOOST_AUTO_TEST_CASE(every_truncation) {
  test::FaultRow row("F5, truncations");
  KernelStore writer = make();
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    write(good.substr(0, bytes));
    KernelStore reader = make();
    row.inject(std::to_string(bytes) + " bytes", [&] { return reader.find(item.key) ? "taken for a kernel" : ""; });
    BOOST_TEST(warnings.size() == 1U);
    put(writer, item);
    BOOST_TEST((writer.find(item.key) == item.kernel));
  }
  row.finish(static_cast<int>(good.size()));
}

// A power failure keeps any part of what was not flushed yet: blocks that were written and others that were not, in any
// order, below the new name (F2).
BOOST_AUTO_TEST_CASE(every_block_torn) {
  constexpr std::size_t kBlock = 512;
  const Item large("large", 12 * kBlock);
  const std::string whole = encode_kernel_file(large.key, large.source, kTarget, large.kernel);
  const std::size_t blocks = whole.size() / kBlock + 1;
  item = large;
  test::FaultRow row("F2, torn blocks");
  const auto inject = [&](const std::string& what, test::FunctionRef<bool(std::size_t)> is_lost) {
    std::string torn = whole;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t at = block * kBlock;
      if (is_lost(block))
        std::fill_n(torn.begin() + static_cast<std::ptrdiff_t>(at), std::min(kBlock, whole.size() - at), '\0');
    }
    if (torn == whole) return;
    row.inject(what, [&]() -> std::string {
      KernelStore store = make();
      put(store, large);
      write(torn);
      if (store.find(large.key)) return "a torn file is taken for a kernel";
      put(store, large);
      return store.find(large.key) == large.kernel && warnings.size() == 1 ? "" : "it is not healed";
    });
  };
  std::mt19937 random(3);
  for (std::size_t i = 0; i < blocks; ++i) {
    inject("one lost", [i](std::size_t block) { return block == i; });
    inject("the end lost", [i](std::size_t block) { return block >= i; });
    inject("the beginning lost", [i](std::size_t block) { return block <= i; });
  }
  for (int i = 0; i < 200; ++i) {
    const auto lost = random();
    inject("some lost", [lost](std::size_t block) { return (lost >> block & 1U) != 0; });
  }
  row.finish(150);
}

// Files of other versions of the format, and of another GPU, below our name (F14).
BOOST_AUTO_TEST_CASE(other_versions_and_targets) {
  test::FaultRow row("F14, other versions");
  constexpr Target kOther{10, 0, true};
  const KernelKey other = kernel_key(item.source, kOther, test::FakeCompiler().identity());
  std::vector<std::string> files{encode_kernel_file(other, item.source, kOther, item.kernel)};
  for (const char* magic : {"INGOTK01", "INGOTK03", "INGOTK99", "ingotk02", "INGOTB01"}) {
    files.push_back(magic + good.substr(8));
    std::string sealed = magic + good.substr(8, good.size() - 8 - sizeof(Digest));
    const Digest checksum = digest(sealed);
    files.push_back(sealed.append(reinterpret_cast<const char*>(checksum.data()), checksum.size()));
  }
  for (const std::string& file : files) {
    row.inject(file.substr(0, 8), [&]() -> std::string {
      write(file);
      KernelStore store = make();
      if (store.find(item.key)) return "it is taken for a kernel";
      put(store, item);
      return store.find(item.key) == item.kernel ? "" : "it is not healed";
    });
  }
  BOOST_TEST(!make().find(other).has_value());
  row.finish(11);
}

BOOST_AUTO_TEST_CASE(zero_length) {
  write("");
  expect_healed("is truncated: 0 bytes, of at least 48");
}

BOOST_AUTO_TEST_CASE(garbage_appended) {
  write(good + std::string(1000, 'x'));
  expect_healed("is not as long as it was written");
}

BOOST_AUTO_TEST_CASE(all_garbage) {
  std::string garbage(5000, '\0');
  std::mt19937 random(1);
  for (char& byte : garbage) byte = static_cast<char>(random());
  write(garbage);
  expect_healed("does not start with \"INGOTK02\"");
}

BOOST_AUTO_TEST_CASE(swapped_names) {
  const Item other("b");
  KernelStore store = make();
  put(store, other);
  fs::rename(file(), directory.path() / "kept");
  fs::rename(file_of(root, other), file());
  fs::rename(directory.path() / "kept", file_of(root, other));
  BOOST_TEST(!store.find(item.key).has_value());
  BOOST_TEST(!store.find(other.key).has_value());
  BOOST_TEST(quarantined() == 2);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("holds another kernel") != std::string::npos);
  put(store, item);
  put(store, other);
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST((store.find(other.key) == other.kernel));
}

BOOST_AUTO_TEST_CASE(larger_than_any_kernel) {
  fs::resize_file(file(), std::uintmax_t{10} << 30U);  // sparse
  expect_healed("has 10737418240 bytes; at most 67108864 are read");
}

BOOST_AUTO_TEST_CASE(fifo, *boost::unit_test::timeout(60)) {
  fs::remove(file());
  BOOST_REQUIRE(mkfifo(file().c_str(), 0600) == 0);
  expect_healed("is not a regular file");
}

BOOST_AUTO_TEST_CASE(socket_file) {
  fs::remove(file());
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory.path() / "s";
  BOOST_REQUIRE(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  BOOST_REQUIRE(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  fs::rename(path, file());
  expect_healed("cannot be opened: No such device or address");
  close(server);
}

BOOST_AUTO_TEST_CASE(device_file) {
  fs::remove(file());
  if (mknod(file().c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0) {  // as /dev/zero, which has no end
    BOOST_TEST_MESSAGE("skipped: only root can make devices");
    return;
  }
  expect_healed("is not a regular file");
}

BOOST_AUTO_TEST_CASE(directory_with_content) {
  fs::remove(file());
  fs::create_directories(file() / "deeper");
  expect_healed("is not a regular file");
}

BOOST_AUTO_TEST_CASE(directory_in_the_way_of_a_put) {
  fs::remove(file());
  fs::create_directories(file() / "deeper");
  KernelStore store = make();
  put(store, item);
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST(quarantined() == 1);
}

// Not even if it points to one of our good entries.
BOOST_AUTO_TEST_CASE(link) {
  fs::rename(file(), directory.path() / "kept");
  fs::create_symlink(directory.path() / "kept", file());
  expect_healed("cannot be opened: Too many levels of symbolic links");
  BOOST_TEST(fs::exists(directory.path() / "kept"));
}

BOOST_AUTO_TEST_CASE(dangling_link) {
  fs::remove(file());
  fs::create_symlink("nowhere", file());
  expect_healed("cannot be opened: Too many levels of symbolic links");
}

BOOST_AUTO_TEST_CASE(writable_by_others) {
  for (const auto& [mode, text] : {std::pair(0620U, "0620"), std::pair(0602U, "0602"), std::pair(0666U, "0666")}) {
    BOOST_REQUIRE(chmod(file().c_str(), mode) == 0);
    expect_healed(std::string("can be written by other users (mode ") + text + ")");
  }
}

BOOST_AUTO_TEST_CASE(owned_by_another_user) {
  if (chown(file().c_str(), 4321, static_cast<gid_t>(-1)) != 0) {
    BOOST_TEST_MESSAGE("skipped: only root can give files away");
    return;
  }
  expect_healed("is owned by user 4321; expected root, the current user");
}

BOOST_AUTO_TEST_CASE(file_in_place_of_a_folder) {
  for (const fs::path& folder : {file().parent_path(), root / "tmp"}) {
    fs::remove_all(folder);
    std::ofstream(folder) << "a file";
    KernelStore store = make();
    put(store, item);
    BOOST_TEST((store.find(item.key) == item.kernel), folder << " was not replaced");
    BOOST_TEST(warnings.size() == 1U);
    BOOST_TEST(store.disabled_reason() == "");
  }
}

BOOST_AUTO_TEST_CASE(link_in_place_of_a_folder) {
  fs::rename(file().parent_path(), directory.path() / "kept");
  fs::create_directory_symlink(directory.path() / "kept", file().parent_path());
  KernelStore store = make();
  BOOST_TEST(!store.find(item.key).has_value());
  put(store, item);
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST(fs::exists(directory.path() / "kept" / file().filename()));
}

BOOST_AUTO_TEST_CASE(at_most_sixteen_are_kept) {
  KernelStore store = make();
  for (int i = 0; i < 40; ++i) {
    put(store, item);
    write("bad " + std::to_string(i));
    BOOST_TEST(!store.find(item.key).has_value());
  }
  BOOST_TEST(quarantined() == 16);
  BOOST_TEST(warnings.size() == 1U);
}

// Out of file descriptors: a miss, but not a reason to discard good files.
BOOST_AUTO_TEST_CASE(no_descriptors) {
  BOOST_TEST(test::run_in_process([&] {
               KernelStore store = make();
               rlimit limit{};
               if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return test::kThrew;
               limit.rlim_cur = 64;
               if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return test::kThrew;
               std::vector<int> taken;
               for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY))
                 taken.push_back(fd);
               int wrong = 0;
               for (std::size_t free = 0; free < 3; ++free) {  // fail at the first open, the second, the third
                 if (store.find(item.key)) ++wrong;
                 close(taken.back());
                 taken.pop_back();
               }
               for (const int fd : taken) close(fd);
               return wrong + failures({store.find(item.key) == item.kernel, quarantined() == 0, warnings.size() == 1});
             }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// ---- directories that cannot be used --------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(unusable_directories, Fixture)

BOOST_AUTO_TEST_CASE(file_in_its_place) {
  std::ofstream(root) << "a file";
  expect_disabled("store directory " + root.string() + " is not a directory");
  BOOST_TEST(fs::file_size(root) == 6U);
}

BOOST_AUTO_TEST_CASE(file_among_its_parents) {
  std::ofstream(directory.path() / "file") << "a file";
  root = directory.path() / "file" / "store";
  expect_disabled("store directory " + root.string() + " is not a directory");
  root = directory.path() / "file" / "a" / "store";
  expect_disabled("store directory " + root.string() + " is not a directory");
}

BOOST_AUTO_TEST_CASE(owned_by_another_user) {
  const uid_t self = geteuid();
  if (self == 0) {
    fs::create_directory(root);
    BOOST_REQUIRE(chown(root.c_str(), 4321, static_cast<gid_t>(-1)) == 0);
    expect_disabled("store directory " + root.string() + " is owned by user 4321; expected root, the current user");
    BOOST_TEST(fs::is_empty(root));
  } else {
    root = "/usr";
    expect_disabled("store directory /usr is owned by user 0; expected " + std::to_string(self) + ", the current user");
  }
}

// Even if it has a good entry: whoever can write the directory could have put it there.
BOOST_AUTO_TEST_CASE(writable_by_others) {
  expect_working();
  for (const auto& [mode, text] : {std::pair{0770U, "0770"}, {0702U, "0702"}, {01777U, "1777"}}) {
    BOOST_REQUIRE(chmod(root.c_str(), mode) == 0);
    KernelStore store = make();
    const std::string reason =
        "store directory " + root.string() + " can be written by other users (mode " + text + "); expected 0700";
    BOOST_TEST(!store.find(item.key).has_value());
    put(store, Item("b"));
    BOOST_TEST(store.disabled_reason() == reason);
    BOOST_REQUIRE(warnings.size() == 1U);
    BOOST_TEST(warnings[0].starts_with(reason + ". "));
  }
  BOOST_REQUIRE(chmod(root.c_str(), 0755) == 0);  // others may read
  expect_working();
}

BOOST_AUTO_TEST_CASE(read_only) {
  fs::permissions(directory.path(), fs::perms::all);
  const Item missing("b");
  BOOST_TEST(test::run_unprivileged([&] {
               KernelStore writer = make();
               put(writer, item);
               for (const fs::path& folder : {root, root / "tmp", file().parent_path()}) chmod(folder.c_str(), 0500);
               KernelStore store = make();
               const std::string reason = "store directory " + root.string() + " cannot be written: Permission denied";
               put(store, missing);
               put(store, missing);
               const bool quiet = warnings.size() == 1 && warnings[0].starts_with(reason + ". ");
               const bool readable = store.find(item.key) == item.kernel;
               const bool said = store.disabled_reason() == reason;
               store.lock(missing.key, std::chrono::seconds(60));
               for (const fs::path& folder : {root, root / "tmp", file().parent_path()}) chmod(folder.c_str(), 0700);
               put(store, missing);
               return failures({quiet, readable, said, !fs::exists(root / "lock"),
                                store.find(missing.key) == missing.kernel, store.disabled_reason().empty(),
                                warnings.size() == 1});
             }) == 0);
}

BOOST_AUTO_TEST_CASE(parent_is_read_only) {
  fs::permissions(directory.path(), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  if (geteuid() != 0) fs::permissions(directory.path(), fs::perms::owner_read | fs::perms::owner_exec);
  root = directory.path() / "a" / "store";
  BOOST_TEST(test::run_unprivileged([&] {
               KernelStore store = make();
               const std::string reason = "store directory " + root.string() + " cannot be made: Permission denied";
               put(store, item);
               return failures({!store.find(item.key), store.disabled_reason() == reason, warnings.size() == 1,
                                warnings.at(0).starts_with(reason + ". ")});
             }) == 0);
  fs::permissions(directory.path(), fs::perms::owner_all);
}

// Files are limited to 4 KiB, so that the write fails in the middle. The signal that says so would end the program.
BOOST_AUTO_TEST_CASE(write_fails_half_way) {
  const Item large("large", 1 << 20);
  BOOST_TEST(test::run_in_process([&] {
               const rlimit small{4096, RLIM_INFINITY};
               const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
               if (setrlimit(RLIMIT_FSIZE, &small) != 0) return test::kThrew;
               KernelStore store = make();
               const std::string reason = "store directory " + root.string() + " cannot be written: File too large";
               put(store, large);
               put(store, large);
               const bool failed = !store.find(large.key) && store.disabled_reason() == reason && warnings.size() == 1;
               const bool clean = fs::is_empty(root / "tmp") && !fs::exists(file_of(root, large));
               put(store, item);
               const bool small_works = store.find(item.key) == item.kernel && store.disabled_reason().empty();
               if (setrlimit(RLIMIT_FSIZE, &none) != 0) return test::kThrew;
               put(store, large);
               return failures({failed, clean, small_works, store.find(large.key) == large.kernel});
             }) == 0);
}

// The signal of a write that is too large is the library's; others of that number are the program's.
BOOST_AUTO_TEST_CASE(the_programs_own_handler_of_sigxfsz) {
  const Item large("large", 1 << 20);
  BOOST_TEST(test::run_in_process([&] {
               static volatile sig_atomic_t handled = 0;
               signal(SIGXFSZ, [](int) { handled = handled + 1; });
               const rlimit small{4096, RLIM_INFINITY};
               if (setrlimit(RLIMIT_FSIZE, &small) != 0) return test::kThrew;
               KernelStore store = make();
               put(store, large);
               const bool quiet = handled == 0 && warnings.size() == 1;
               std::string message;
               try {
                 write_file(directory.path() / "file", {std::string(10000, 'x')});
               } catch (const Error& error) {
                 message = error.what();
               }
               const bool file_fails = message.ends_with("cannot be written: File too large") && handled == 0;
               raise(SIGXFSZ);
               const bool own = handled == 1;
               // Blocked and waiting before the write: still waiting after it.
               sigset_t set;
               sigemptyset(&set);
               sigaddset(&set, SIGXFSZ);
               pthread_sigmask(SIG_BLOCK, &set, nullptr);
               raise(SIGXFSZ);
               put(store, large);
               const bool still_blocked = handled == 1;
               pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
               return failures({quiet, file_fails, own, still_blocked, handled == 2});
             }) == 0);
}

// Runs in a separate mount namespace, so that nothing stays mounted in any case.
BOOST_AUTO_TEST_CASE(full_disk_and_read_only_file_system) {
  constexpr int kNoMount = 77;
  const Item large("large", 1 << 20);
  fs::create_directory(root);
  const int status = test::run_in_process([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", root.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) {
      return kNoMount;
    }
    KernelStore store = make();
    put(store, item);
    const bool fits = store.find(item.key) == item.kernel && store.disabled_reason().empty();
    put(store, large);
    put(store, large);
    const std::string full = "store directory " + root.string() + " cannot be written: No space left on device";
    const bool said_full = store.disabled_reason() == full && warnings.size() == 1 && warnings[0].starts_with(full);
    const bool clean = fs::is_empty(root / "tmp") && !store.find(large.key) && store.find(item.key) == item.kernel;
    if (mount(nullptr, root.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, "size=64k,mode=0700") != 0) return kNoMount;
    KernelStore read_only = make();
    const std::string refused = "store directory " + root.string() + " cannot be written: Read-only file system";
    const bool readable = read_only.find(item.key) == item.kernel && warnings.empty();
    put(read_only, item);
    const bool said_refused = read_only.disabled_reason() == refused && warnings.size() == 1;
    return failures({fits, said_full, clean, readable, said_refused, !read_only.lock(item.key).held()});
  });
  if (status == kNoMount) {
    BOOST_TEST_MESSAGE("skipped: this process may not mount a file system");
    return;
  }
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// ---- killed while writing -------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_CASE(kill_during_puts, Fixture) {
  constexpr int kRounds = 80;
  constexpr int kMostRounds = 2000;  // if no kill has hit a write by then
  std::vector<Item> items;
  for (int i = 0; i < 12; ++i) items.emplace_back(std::to_string(i), 300'000);
  std::mt19937 random(2);
  const auto abandoned = [&] {
    return fs::exists(root / "tmp") ? std::distance(fs::directory_iterator(root / "tmp"), fs::directory_iterator()) : 0;
  };
  for (int round = 0; round < kRounds || (abandoned() == 0 && round < kMostRounds); ++round) {
    const pid_t child = test::start_process([&] {
      KernelStore store(root);
      for (std::size_t i = static_cast<std::size_t>(round);; ++i) put(store, items[i % items.size()]);
      return 0;
    });
    usleep(static_cast<useconds_t>(random() % 8000));
    kill(child, SIGKILL);
    BOOST_REQUIRE(test::wait_for(child) == -SIGKILL);
  }
  KernelStore store = make();
  int visible = 0;
  for (const Item& each : items) {
    if (!fs::exists(file_of(root, each))) continue;
    ++visible;
    BOOST_TEST((store.find(each.key) == each.kernel), "a bad entry is visible");
  }
  BOOST_TEST_MESSAGE(visible << " entries published, " << abandoned() << " writes cut short");
  BOOST_TEST(visible > 0);
  BOOST_TEST(abandoned() > 0, "no kill hit a write");
  BOOST_TEST(warnings.empty());
}

// Four writers and readers of the same keys: every read is complete.
BOOST_FIXTURE_TEST_CASE(processes_at_once, Fixture) {
  std::vector<Item> items;
  for (int i = 0; i < 8; ++i) items.emplace_back(std::to_string(i), 50'000);
  std::vector<pid_t> children;
  for (unsigned process = 0; process < 4; ++process) {
    children.push_back(test::start_process([&, process] {
      KernelStore store = make();
      int wrong = 0;
      for (unsigned i = 0; i < 300; ++i) {
        const Item& each = items[(i * (2 * process + 1)) % items.size()];
        put(store, each);
        if (store.find(each.key) != each.kernel) ++wrong;
      }
      return std::min(wrong, 90) + (warnings.empty() ? 0 : 1);
    }));
  }
  for (const pid_t child : children) BOOST_TEST(test::wait_for(child) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
