// KernelStore: storing and finding kernels, the directory's layout and file modes, its size limit, abandoned files, and
// many threads.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "support/files_in.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_kernel_store)

using namespace ingot;
using test::files_in;
using test::Item;
using test::kTarget;
using test::put;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  KernelStore make(std::int64_t max_bytes = KernelStore::kDefaultMaxBytes) {
    return KernelStore(
        root, [this](const std::string& text) { warnings.push_back(text); }, max_bytes);
  }
  fs::path file(const Item& item) const { return test::file_of(root, item); }
  void set_age(const Item& item, std::chrono::seconds age) const {
    fs::last_write_time(file(item), fs::file_time_type::clock::now() - age);
  }
  std::chrono::seconds age(const Item& item) const {
    return std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() -
                                                            fs::last_write_time(file(item)));
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "not" / "there" / "yet";
  std::vector<std::string> warnings;
};

mode_t mode(const fs::path& path) {
  struct stat state {};
  BOOST_REQUIRE(lstat(path.c_str(), &state) == 0);
  return state.st_mode & 07777U;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(kernel_store, Fixture)

BOOST_AUTO_TEST_CASE(round_trip) {
  KernelStore store = make();
  const Item a("a");
  const Item b("b", 1 << 20);
  BOOST_TEST(!store.find(a.key).has_value());
  BOOST_TEST(!fs::exists(root), "a miss made the directory");
  put(store, a);
  put(store, b);
  BOOST_TEST((store.find(a.key) == a.kernel));
  BOOST_TEST((store.find(b.key) == b.kernel));
  BOOST_TEST(!store.find(Item("c").key).has_value());
  KernelStore another = make();
  BOOST_TEST((another.find(a.key) == a.kernel));
  BOOST_TEST(another.disabled_reason() == "");
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(layout_and_modes) {
  const mode_t old_mask = umask(0);
  KernelStore store = make();
  const Item item("a");
  put(store, item);
  BOOST_TEST(store.lock(item.key).held());
  umask(old_mask);
  for (const fs::path& folder : {root, root.parent_path(), root / "tmp", file(item).parent_path()}) {
    BOOST_TEST(mode(folder) == 0700U, folder << " has mode " << std::oct << mode(folder));
  }
  BOOST_TEST(mode(file(item)) == 0600U);
  BOOST_TEST(mode(root / "lock") == 0600U);
  BOOST_TEST(files_in(root / "tmp").empty());
  BOOST_TEST(bytes_of(file(item)) == encode_kernel_file(item.key, item.source, kTarget, item.kernel));
}

BOOST_AUTO_TEST_CASE(second_put_of_a_key) {
  KernelStore store = make();
  const Item item("a");
  put(store, item);
  put(store, item);
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST(store.usage().files == 1);
  BOOST_TEST(files_in(root / "tmp").empty());
}

BOOST_AUTO_TEST_CASE(usage) {
  KernelStore store = make();
  BOOST_TEST(store.usage().files == 0);
  BOOST_TEST(store.usage().bytes == 0);
  std::int64_t bytes = 0;
  for (int i = 0; i < 20; ++i) {
    const Item item(std::to_string(i), 100);
    put(store, item);
    bytes += static_cast<std::int64_t>(fs::file_size(file(item)));
  }
  std::ofstream(root / "ab.txt") << "not a kernel";
  BOOST_TEST(store.usage().files == 20);
  BOOST_TEST(store.usage().bytes == bytes);
}

BOOST_AUTO_TEST_CASE(oldest_go_first) {
  constexpr std::size_t kBytes = 1000;
  std::vector<Item> items;
  for (int i = 0; i < 40; ++i) items.emplace_back("item " + std::to_string(i), kBytes);
  {
    KernelStore store = make();
    for (const Item& item : items) put(store, item);
  }
  const auto file_bytes = static_cast<std::int64_t>(fs::file_size(file(items[39])));
  for (int i = 0; i < 40; ++i) set_age(items[static_cast<std::size_t>(i)], std::chrono::hours(100 - i));
  KernelStore store = make(20 * file_bytes);
  BOOST_TEST(store.find(items[0].key).has_value());  // used now, so the most recent of all
  const Item last("one more", kBytes);
  put(store, last);
  BOOST_TEST(store.usage().bytes <= 18 * file_bytes);
  BOOST_TEST(store.usage().files >= 16);
  BOOST_TEST(store.find(last.key).has_value());
  BOOST_TEST(store.find(items[0].key).has_value(), "a kernel that was just used is gone");
  BOOST_TEST(store.find(items[39].key).has_value());
  BOOST_TEST(store.removed().evicted == 41 - store.usage().files);
  BOOST_TEST(store.removed().quarantined == 0);
  for (std::size_t i = 1; i < 20; ++i)
    BOOST_TEST(!store.find(items[i].key).has_value(), "item " << i << " is still there");
  BOOST_TEST(warnings.empty());
}

// However many kernels are stored, the store never exceeds its size by more than one kernel.
BOOST_AUTO_TEST_CASE(size_is_kept) {
  constexpr std::int64_t kMaxBytes = 50'000;
  KernelStore store = make(kMaxBytes);
  for (int i = 0; i < 200; ++i) {
    const Item item(std::to_string(i), 900);
    put(store, item);
    BOOST_TEST((store.find(item.key) == item.kernel));
    BOOST_TEST(store.usage().bytes <= kMaxBytes);
  }
  BOOST_TEST(store.usage().files > 30);
}

BOOST_AUTO_TEST_CASE(size_of_nothing) {
  for (const std::int64_t max_bytes : {0, 1}) {
    KernelStore store = make(max_bytes);
    const Item item("a");
    put(store, item);
    BOOST_TEST(!store.find(item.key).has_value());
    BOOST_TEST(store.usage().bytes == 0);
  }
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(hit_is_dated_at_most_hourly) {
  KernelStore store = make();
  const Item item("a");
  put(store, item);
  set_age(item, std::chrono::minutes(50));
  BOOST_TEST(store.find(item.key).has_value());
  BOOST_TEST((age(item) >= std::chrono::minutes(49)), "a hit within the hour wrote the date");
  for (const auto old : {std::chrono::minutes(70), std::chrono::minutes(60 * 24 * 365), std::chrono::minutes(-600)}) {
    set_age(item, old);
    BOOST_TEST(store.find(item.key).has_value());
    BOOST_TEST((age(item) >= std::chrono::minutes(-1) && age(item) < std::chrono::minutes(2)), old.count()
                                                                                                   << " minutes");
  }
}

BOOST_AUTO_TEST_CASE(abandoned_files_go) {
  KernelStore first = make();
  put(first, Item("a"));
  std::ofstream(root / "tmp" / "old") << "half a kernel";
  std::ofstream(root / "tmp" / "new") << "half a kernel";
  fs::last_write_time(root / "tmp" / "old", fs::file_time_type::clock::now() - std::chrono::hours(2));
  KernelStore second = make();
  put(second, Item("b"));
  BOOST_TEST(!fs::exists(root / "tmp" / "old"));
  BOOST_TEST(fs::exists(root / "tmp" / "new"), "another process may be writing it");
}

BOOST_AUTO_TEST_CASE(what_is_no_kernel_is_not_counted) {
  KernelStore store = make();
  put(store, Item("a"));
  fs::create_directory(root / "ab");
  fs::create_directory(root / "ab" / "folder.kernel");
  std::ofstream(root / "ab" / "notes") << "mine";
  BOOST_TEST(store.usage().files == 1);
  BOOST_TEST(store.list().size() == 1U);
}

// Nothing so large is read back, so nothing so large is written.
BOOST_AUTO_TEST_CASE(too_large_to_be_kept) {
  KernelStore store = make();
  const Item huge("huge", std::size_t{64} << 20U);
  put(store, huge);
  BOOST_TEST(store.usage().files == 0);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("cannot be written: File too large") != std::string::npos, warnings[0]);
}

BOOST_AUTO_TEST_CASE(deleted_while_in_use) {
  KernelStore store = make();
  const Item item("a");
  put(store, item);
  fs::remove_all(root);
  BOOST_TEST(!store.find(item.key).has_value());
  put(store, item);
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(relative_root_is_fixed_at_the_start) {
  const int before = open(".", O_RDONLY | O_DIRECTORY);
  BOOST_REQUIRE(chdir(directory.path().c_str()) == 0);
  KernelStore store("here");
  BOOST_REQUIRE(chdir("/") == 0);
  put(store, Item("a"));
  BOOST_TEST(store.root() == directory.path() / "here");
  BOOST_TEST(store.usage().files == 1);
  BOOST_TEST(fs::exists(directory.path() / "here"));
  BOOST_REQUIRE(fchdir(before) == 0);
  close(before);
}

BOOST_AUTO_TEST_CASE(link_to_the_root) {
  fs::create_directories(directory.path() / "scratch");
  fs::permissions(directory.path() / "scratch", fs::perms::owner_all);
  root = directory.path() / "link";
  fs::create_directory_symlink("scratch", root);
  KernelStore store = make();
  put(store, Item("a"));
  BOOST_TEST(store.find(Item("a").key).has_value());
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(default_root) {
  const auto root_with = [](const char* chosen, const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("INGOT_CACHE_DIR", chosen);
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    return default_store_root().string();
  };
  BOOST_TEST(root_with("/a", "/b", "/c") == "/a");
  BOOST_TEST(root_with(nullptr, "/b", "/c") == "/b/ingot");
  BOOST_TEST(root_with("", "/b", "/c") == "/b/ingot");
  BOOST_TEST(root_with(nullptr, nullptr, "/c") == "/c/.cache/ingot");
  BOOST_TEST(root_with(nullptr, "relative", "/c") == "/c/.cache/ingot");
  BOOST_TEST(root_with(nullptr, nullptr, "relative") == "");
  BOOST_TEST(
      no_store_root() ==
      "there is no store directory: INGOT_CACHE_DIR is unset, and of the others only absolute paths count, but HOME is "
      "\"relative\"");
  BOOST_TEST(root_with("", "mine", "yours") == "");
  BOOST_TEST(no_store_root().ends_with("count, but XDG_CACHE_HOME is \"mine\" and HOME is \"yours\""));
  BOOST_TEST(root_with(nullptr, "", "") == "");
  BOOST_TEST(root_with(nullptr, nullptr, nullptr) == "");
}

BOOST_AUTO_TEST_CASE(no_home_is_one_warning) {
  for (const char* name : {"INGOT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  KernelStore store(std::nullopt, [this](const std::string& text) { warnings.push_back(text); });
  const Item item("a");
  for (int i = 0; i < 3; ++i) {
    put(store, item);
    BOOST_TEST(!store.find(item.key).has_value());
  }
  BOOST_TEST(!store.lock(item.key).held());
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(
      warnings[0].starts_with("there is no store directory: INGOT_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset"));
  BOOST_TEST(store.disabled_reason() ==
             "there is no store directory: INGOT_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset");
}

BOOST_AUTO_TEST_CASE(empty_root_is_silent) {
  root.clear();
  KernelStore store = make();
  put(store, Item("a"));
  BOOST_TEST(!store.find(Item("a").key).has_value());
  BOOST_TEST(!store.lock(Item("a").key).held());
  BOOST_TEST(store.usage().files == 0);
  BOOST_TEST(store.root().empty());
  BOOST_TEST(store.disabled_reason() == "the store is switched off: its directory is the empty path");
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(many_threads) {
  KernelStore store = make(30'000);  // so that kernels are removed while others are read
  std::vector<Item> items;
  for (int i = 0; i < 60; ++i) items.emplace_back(std::to_string(i), 800);
  std::atomic<int> wrong{0};
  std::atomic<int> hits{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (unsigned i = 0; i < 400; ++i) {
          const Item& item = items[(i * (2 * t + 1)) % items.size()];
          if (const auto kernel = store.find(item.key)) {
            ++hits;
            if (*kernel != item.kernel) ++wrong;
          } else {
            put(store, item);
          }
        }
      });
    }
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(hits > 0);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(looking_changes_nothing) {
  KernelStore store = make();
  BOOST_TEST(store.list().empty());
  BOOST_TEST(store.directory().distrusted() == "");
  BOOST_TEST(!fs::exists(root), "looking made the directory");
  const Item item("a");
  const Item damaged("b");
  put(store, item);
  put(store, damaged);
  std::ofstream(file(damaged), std::ios::app) << "x";
  for (const Item* each : {&item, &damaged}) set_age(*each, std::chrono::hours(30));

  const std::vector<KernelEntry> list = store.list();
  BOOST_REQUIRE(list.size() == 2U);
  BOOST_TEST((list[0].key < list[1].key));
  const KernelEntry& entry = list[list[0].key == item.key ? 0 : 1];
  BOOST_TEST(entry.bytes == static_cast<std::int64_t>(fs::file_size(file(item))));
  const std::time_t now = std::time(nullptr);
  BOOST_REQUIRE(entry.used.has_value());
  BOOST_TEST(std::abs(now - 30 * 3600 - entry.used->first) < 60);
  if (entry.made) BOOST_TEST(std::abs(now - *entry.made) < 60);

  std::string problem;
  const auto read = store.read(item.key, problem);
  BOOST_REQUIRE_MESSAGE(read.has_value(), problem);
  BOOST_TEST((read->kernel == item.kernel));
  BOOST_TEST((read->source == item.source));
  BOOST_TEST(!store.read(damaged.key, problem).has_value());
  BOOST_TEST(problem.starts_with("is not as long as it was written"), problem);
  BOOST_TEST(!store.read(Item("c").key, problem).has_value());
  BOOST_TEST(problem == "");
  BOOST_TEST(fs::exists(file(damaged)));
  BOOST_TEST(!fs::exists(root / "quarantine"));
  BOOST_TEST((age(item) > std::chrono::hours(29)), "reading an entry counted as its use");
  BOOST_TEST(warnings.empty());

  BOOST_TEST(store.check(item.key).problem == "");
  BOOST_TEST((age(item) > std::chrono::hours(29)));
  const StoreDirectory::Check check = store.check(damaged.key);
  BOOST_TEST(check.there);
  BOOST_TEST(check.moved);
  BOOST_TEST(check.problem.starts_with("is not as long as it was written"), check.problem);
  BOOST_TEST(!fs::exists(file(damaged)));
  BOOST_TEST(!store.check(damaged.key).there);
  BOOST_TEST(store.set_aside(item.key, "is not what the compiler makes"));
  BOOST_TEST(!store.set_aside(item.key, "is not what the compiler makes"));
  BOOST_TEST(store.directory().quarantined().size() == 2U);
  BOOST_TEST(store.list().empty());
}

// What another process uses or replaces between the look and the removal stays.
BOOST_AUTO_TEST_CASE(removal_is_of_what_was_listed) {
  KernelStore store = make();
  const Item unused("a");
  const Item used("b");
  const Item gone("c");
  for (const Item* each : {&unused, &used, &gone}) {
    put(store, *each);
    set_age(*each, std::chrono::hours(30));
  }
  const std::vector<KernelEntry> list = store.list();
  BOOST_TEST(store.find(used.key).has_value());
  fs::remove(file(gone));
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file(unused)));
  const RemovedFiles removed = store.remove(list);
  BOOST_TEST(removed.files == 1);
  BOOST_TEST(removed.bytes == bytes);
  BOOST_TEST(removed.left.empty());
  BOOST_TEST(removed.failed.empty());
  BOOST_TEST(!fs::exists(file(unused)));
  BOOST_TEST(fs::exists(file(used)));
  const RemovedFiles stopped = store.remove(store.list(), [] { return true; });
  BOOST_TEST(stopped.stopped);
  BOOST_TEST(stopped.files == 0);
}

BOOST_AUTO_TEST_CASE(clearing_takes_only_what_is_ours) {
  KernelStore store = make();
  const Item item("a");
  const Item in_the_way("b");
  const Item damaged("c");
  put(store, item);
  put(store, damaged);
  BOOST_TEST(store.lock(item.key).held());
  BOOST_TEST(store.set_aside(damaged.key, "is damaged"));
  fs::create_directories(file(in_the_way).parent_path());
  BOOST_REQUIRE(mkfifo(file(in_the_way).c_str(), 0600) == 0);
  const std::string ours = "4711-0123456789abcdef";
  const std::vector<fs::path> others{root / "notes.txt",
                                     file(item).parent_path() / "notes.kernel",
                                     file(item).parent_path() / "notes.txt",
                                     root / "tmp" / "notes",
                                     root / "tmp" / (ours.substr(0, 20) + "0"),  // being written
                                     root / "tuning" / "record.json",
                                     root / "quarantine" / "notes.txt"};
  fs::create_directories(root / "tuning");
  fs::create_directories(root / "tmp");
  for (const fs::path& other : others) std::ofstream(other) << "notes";
  std::ofstream(root / "tmp" / ours) << "half a kernel";
  for (const char* const old : {"notes", ours.c_str()}) {
    fs::last_write_time(root / "tmp" / old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  const RemovedFiles removed = store.clear();
  BOOST_TEST(removed.files == 3);  // the kernel, the damaged one, the abandoned file
  BOOST_REQUIRE(removed.left.size() == 1U);
  BOOST_TEST(removed.left[0] == file(in_the_way).string() + " is not a regular file");
  BOOST_TEST(removed.failed.empty());
  for (const fs::path& other : others) BOOST_TEST(fs::exists(other), other);
  BOOST_TEST(fs::exists(root / "lock"));
  BOOST_TEST(!fs::exists(root / "tmp" / ours));
  put(store, item);
  BOOST_TEST((store.find(item.key) == item.kernel));
  if (geteuid() != 0) return;
  BOOST_REQUIRE(chown(file(item).c_str(), 1234, 1234) == 0);
  const RemovedFiles foreign = store.clear();
  BOOST_TEST(foreign.files == 0);
  BOOST_TEST(foreign.left.size() == 2U);
  BOOST_TEST(fs::exists(file(item)));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
