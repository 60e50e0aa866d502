// Bundles and other users' stores: a pinned format, every changed byte and every truncation, what may not be trusted,
// and use from any path; what is listed, pruned, imported and exported.
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_kernel_bundle)

using namespace ingot;
using test::Item;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  fs::path write(const std::string& bytes, const char* name = "kernels.bundle") const {
    const fs::path path = directory.path() / name;
    std::ofstream(path, std::ios::binary) << bytes;
    fs::permissions(path, fs::perms(0444));
    return path;
  }
  std::string problem_of(const fs::path& path) const {
    std::string problem;
    BOOST_TEST(KernelBundle::open(path, problem) == nullptr);
    return problem;
  }
  test::TemporaryDirectory directory;
};

BundleContent::Kernel packed(const Item& item) {
  return {.key = item.key, .file = encode_kernel_file(item.key, item.source, test::kTarget, item.kernel)};
}

BundleContent content_of(const std::vector<Item>& items) {
  BundleContent content{.identity = "fake 1", .kernels = {}, .tuning = "a record\n"};
  for (const Item& item : items) content.kernels.push_back(packed(item));
  return content;
}

// The tuning records of a tier, or what is wrong with them, each with its place.
std::string lines_of(const KernelTier& tier) {
  std::string lines;
  tier.read_tuning([&](const TuningLine& line) {
    lines.append(line.place).append(": ").append(line.text).append(line.problem).append("\n");
    return true;
  });
  return lines;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(kernel_bundle, Fixture)

// The digest of the bytes that the grammar in kernel_bundle.h gives, made with Python's struct module and the xxHash
// library.
BOOST_AUTO_TEST_CASE(format_is_pinned) {
  const Source source{.name = "a kernel", .text = "text"};
  const KernelKey key = kernel_key(source, {9, 0, true}, "fake 1");
  const CompiledKernel kernel{
      .lowered_name = "_Z1kv",
      .cubin = {std::byte{0x7f}, std::byte{'E'}, std::byte{'L'}, std::byte{'F'}, std::byte{0}, std::byte{0xff}},
      .resources = {.registers = 32, .spill_bytes = -1, .stack_bytes = 258, .static_shared_bytes = 65536},
      .log = "log",
      .toolchain = "fake 1.0"};
  const std::string bytes = encode_bundle({.identity = "fake 1",
                                           .kernels = {{key, encode_kernel_file(key, source, {9, 0, true}, kernel)}},
                                           .tuning = "line\n"});
  BOOST_TEST(bytes.size() == 283U);
  BOOST_TEST(print(digest(bytes)) == "de5c27574e7ef79c5f5eb83e2a9e829f");
}

BOOST_AUTO_TEST_CASE(kernels_come_back) {
  std::vector<Item> items;
  for (int i = 0; i < 50; ++i) items.emplace_back(std::to_string(i), static_cast<std::size_t>(i * i));
  BundleContent content = content_of(items);
  content.kernels.push_back(packed(items[7]));  // a key may repeat
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle(content)), problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);
  BOOST_TEST(bundle->entries().size() == 50U);
  BOOST_TEST(bundle->identity() == "fake 1");
  BOOST_TEST(lines_of(*bundle) == "line 1: a record\n");
  for (const Item& item : items) {
    const auto found = bundle->find(item.key);
    BOOST_TEST((found && *found == item.kernel), item.source.name);
  }
  BOOST_TEST(!bundle->find(Item("another").key).has_value());
}

BOOST_AUTO_TEST_CASE(an_empty_bundle_has_nothing) {
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle({})), problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);
  BOOST_TEST(bundle->entries().empty());
  BOOST_TEST(!bundle->find(Item("a").key).has_value());
}

// The file's name and place do not count, and a job that has it open goes on when it is replaced or removed.
BOOST_AUTO_TEST_CASE(moved_linked_and_removed) {
  const Item item("a");
  const fs::path path = write(encode_bundle(content_of({item})));
  fs::create_directory(directory.path() / "elsewhere");
  const fs::path moved = directory.path() / "elsewhere" / "b";
  fs::rename(path, moved);
  const fs::path link = directory.path() / "link";
  fs::create_symlink(moved, link);
  std::string problem;
  const auto bundle = KernelBundle::open(link, problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);
  BOOST_TEST(bundle->name() == link.string());
  fs::remove(moved);
  BOOST_TEST(bundle->find(item.key).has_value());
}

// Never a wrong kernel: a changed byte makes the bundle unusable or its kernel missing, or is in the tuning text, which
// has its own checksums.
BOOST_AUTO_TEST_CASE(every_changed_byte) {
  const Item item("a");
  const std::string bytes = encode_bundle(content_of({item}));
  const std::size_t tuning = bytes.find("a record\n");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    fs::remove(directory.path() / "kernels.bundle");
    std::string problem;
    const auto bundle = KernelBundle::open(write(changed), problem);
    const bool in_tuning = i >= tuning && i < tuning + 9;
    if (bundle != nullptr) {
      BOOST_TEST(bundle->find(item.key).has_value() == in_tuning, "byte " << i);
    } else {
      BOOST_TEST(!problem.empty());
      BOOST_TEST(!in_tuning);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_truncation) {
  const std::string bytes = encode_bundle(content_of({Item("a")}));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    fs::remove(directory.path() / "kernels.bundle");
    BOOST_TEST(!problem_of(write(bytes.substr(0, size))).empty(), size << " bytes");
  }
}

// An open bundle that is truncated in place loses its kernels; nothing else happens.
BOOST_AUTO_TEST_CASE(truncated_while_open) {
  const Item item("a");
  const fs::path path = write(encode_bundle(content_of({item})));
  std::string problem;
  const auto bundle = KernelBundle::open(path, problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);
  fs::permissions(path, fs::perms(0644));
  fs::resize_file(path, 60);
  BOOST_TEST(!bundle->find(item.key).has_value());
  BOOST_TEST(lines_of(*bundle).empty());
}

BOOST_AUTO_TEST_CASE(messages) {
  const std::string bytes = encode_bundle(content_of({Item("a")}));
  BOOST_TEST(problem_of(directory.path() / "nothing") == "does not exist");
  BOOST_TEST(problem_of(directory.path()) == "is not a regular file");
  BOOST_TEST(problem_of(write("", "empty")) == "is truncated: its header is not complete");
  BOOST_TEST(problem_of(write("INGOTB99" + bytes.substr(8), "other")) == "is not a bundle of this version of Ingot");
  std::string flipped = bytes;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  BOOST_TEST(problem_of(write(flipped, "flipped")) == "does not match its checksum");
  const std::string size = std::to_string(bytes.size());
  BOOST_TEST(problem_of(write(bytes + "x", "longer")) ==
             "is not as long as it was written: " + std::to_string(bytes.size() + 1) + " bytes, of " + size);
  const fs::path fifo = directory.path() / "fifo";
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  BOOST_TEST(problem_of(fifo) == "is not a regular file");
  const fs::path open_to_all = write(bytes, "open");
  fs::permissions(open_to_all, fs::perms(0666));
  BOOST_TEST(problem_of(open_to_all) == "can be written by other users (mode 0666)");
  std::string huge = bytes;
  const std::uint64_t index_bytes = (std::uint64_t{256} << 20U) + 1;
  const std::uint64_t offset = 100;
  std::memcpy(huge.data() + 8, &offset, sizeof(offset));
  std::memcpy(huge.data() + 16, &index_bytes, sizeof(index_bytes));
  const fs::path sparse = write(huge, "sparse");
  fs::permissions(sparse, fs::perms(0600));
  fs::resize_file(sparse, offset + index_bytes);
  BOOST_TEST(problem_of(sparse) == "has an index of 268435457 bytes; at most 268435456 are read");
  if (geteuid() != 0) return;
  const fs::path foreign = write(bytes, "foreign");
  BOOST_REQUIRE(chown(foreign.c_str(), 1234, 1234) == 0);
  BOOST_TEST(problem_of(foreign) == "is owned by user 1234; expected root, the current user");
}

// A valid checksum over an index of the wrong shape: here only the parser guards the memory.
BOOST_AUTO_TEST_CASE(the_index_is_checked) {
  const std::string bytes = encode_bundle(content_of({Item("a"), Item("b")}));
  std::uint64_t offset = 0;
  std::memcpy(&offset, bytes.data() + 8, sizeof(offset));
  const std::string index = bytes.substr(offset);
  const auto with_index = [&](std::string changed) {
    std::string file = bytes.substr(0, offset);
    const std::uint64_t size = changed.size();
    std::memcpy(file.data() + 16, &size, sizeof(size));
    const Digest checksum = digest(changed);
    std::memcpy(file.data() + 24, checksum.data(), checksum.size());
    fs::remove(directory.path() / "index");
    return problem_of(write(file + changed, "index"));
  };
  BOOST_TEST(with_index(index + "x") == "has an index of the wrong shape");
  BOOST_TEST(with_index("") == "has an index of the wrong shape");
  std::string swapped = index;  // entries out of order
  std::swap_ranges(swapped.begin() + 22, swapped.begin() + 54, swapped.begin() + 54);
  BOOST_TEST(with_index(swapped) == "has an index of the wrong shape");
  // The lengths and offsets, as far as the grammar has them: of the identity, the kernels, both entries, the records.
  for (const std::size_t at : {38, 70, 86}) {  // offsets within the header
    std::string changed = index;
    const std::uint64_t wrong = 39;
    std::memcpy(changed.data() + at, &wrong, sizeof(wrong));
    BOOST_TEST(with_index(changed) == "has an index of the wrong shape", "byte " << at << ", in the header");
  }
  for (const std::size_t at : {0, 14, 38, 46, 70, 78, 86, 94}) {
    for (const std::uint64_t wrong :
         {~std::uint64_t{0}, std::uint64_t{1} << 63U, std::uint64_t{bytes.size()}, std::uint64_t{bytes.size()} + 1}) {
      std::string changed = index;
      std::memcpy(changed.data() + at, &wrong, sizeof(wrong));
      BOOST_TEST(with_index(changed) == "has an index of the wrong shape", "byte " << at << ", " << wrong);
    }
  }
}

// A right checksum over an index that names a kernel, or records, of gigabytes in a sparse file.
BOOST_AUTO_TEST_CASE(a_large_sparse_bundle_takes_no_memory) {
  const std::uint64_t end = std::uint64_t{10} << 30U;
  for (const bool kernel_is_large : {true, false}) {
    const std::uint64_t whole = end - 40;
    std::string index;
    const auto integer = [&](std::uint64_t value) { index.append(reinterpret_cast<const char*>(&value), 8); };
    integer(0);  // no identity
    integer(1);
    index.append(16, 'k');
    integer(40);
    integer(kernel_is_large ? whole : 100);
    integer(40);
    integer(kernel_is_large ? 100 : whole);
    std::string header(kBundleMagic);
    const std::uint64_t index_bytes = index.size();
    header.append(reinterpret_cast<const char*>(&end), 8).append(reinterpret_cast<const char*>(&index_bytes), 8);
    const Digest checksum = digest(index);
    header.append(reinterpret_cast<const char*>(checksum.data()), checksum.size());
    const fs::path file = write(header, kernel_is_large ? "kernel" : "records");
    fs::permissions(file, fs::perms(0600));
    fs::resize_file(file, end);
    std::ofstream(file, std::ios::app | std::ios::binary) << index;
    BOOST_TEST(problem_of(file) == "has an index of the wrong shape");
  }
}

BOOST_AUTO_TEST_CASE(a_user_who_is_not_root_reads_his_own_and_roots) {
  const Item item("a");
  fs::permissions(directory.path(), fs::perms::all);
  const std::string bytes = encode_bundle(content_of({item}));
  const fs::path of_tester = write(bytes, "of the tester");
  fs::path of_another = write(bytes, "of another");
  if (chown(of_another.c_str(), 12345, 12345) != 0) of_another.clear();  // the tester is not root
  BOOST_TEST(test::run_unprivileged([&] {
               const fs::path own = write(bytes, "own");
               std::string problem;
               const auto mine = KernelBundle::open(own, problem);
               const auto given = KernelBundle::open(of_tester, problem);
               const bool both = mine != nullptr && given != nullptr && problem.empty();
               const bool others = KernelBundle::open(of_another, problem) == nullptr;
               const std::string why = "is owned by user 12345; expected root or " + std::to_string(geteuid());
               const bool refused = of_another.empty() || (others && problem.starts_with(why));
               return refused && both && mine->find(item.key) == item.kernel && given->find(item.key) == item.kernel
                          ? 0
                          : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(another_users_store) {
  const Item item("a");
  const Item missing("b");
  const fs::path root = directory.path() / "store";
  {
    KernelStore store(root);
    test::put(store, item);
  }
  std::string problem;
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(tier != nullptr, problem);
  const auto found = tier->find(item.key);
  BOOST_TEST((found && *found == item.kernel));
  BOOST_TEST(!tier->find(missing.key).has_value());
  const fs::path file = test::file_of(root, item);
  fs::permissions(file, fs::perms(0620));
  BOOST_TEST(!tier->find(item.key).has_value(), "a file that others can write");
  fs::permissions(file, fs::perms(0600));
  fs::resize_file(file, fs::file_size(file) - 1);
  BOOST_TEST(!tier->find(item.key).has_value());
  fs::resize_file(file, std::uintmax_t{10} << 30U);  // sparse
  BOOST_TEST(!tier->find(item.key).has_value());
  BOOST_TEST(fs::exists(file), "nothing is moved in a store that is only read");
  fs::permissions(root, fs::perms(0777));
  BOOST_TEST(ReadOnlyStore::open(root, problem) == nullptr);
  BOOST_TEST(problem == "can be written by other users (mode 0777)");
  BOOST_TEST(ReadOnlyStore::open(file, problem) == nullptr);
  BOOST_TEST(problem == "is not a directory");
  BOOST_TEST(ReadOnlyStore::open(directory.path() / "nothing", problem) == nullptr);
  BOOST_TEST(problem == "cannot be opened: No such file or directory");
}

// A store that only its owner may read looks empty to others; the problem says that it is not.
BOOST_AUTO_TEST_CASE(a_private_store_of_root) {
  const Item item("a");
  const fs::path root = directory.path() / "store";
  {
    KernelStore store(root);
    test::put(store, item);
  }
  if (geteuid() != 0) return;  // others could not be told from its owner
  fs::permissions(directory.path(), fs::perms(0755));
  const fs::path file = test::file_of(root, item);
  const auto problem_of = [&](unsigned folder, unsigned kernels, unsigned kernel) {
    fs::permissions(root, fs::perms(folder));
    fs::permissions(file.parent_path(), fs::perms(kernels));
    fs::permissions(file, fs::perms(kernel));
    const fs::path answer = directory.path() / "answer";
    std::ofstream{answer};
    fs::permissions(answer, fs::perms(0666));
    BOOST_TEST(test::run_unprivileged([&] {
                 std::string problem;
                 const auto tier = ReadOnlyStore::open(root, problem);
                 std::ofstream(answer) << problem;
                 return (tier == nullptr) == problem.empty() ? 1 : 0;
               }) == 0);
    std::ifstream stream(answer);
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  const std::string remedy =
      "Permission denied; a store is private unless its owner runs `chmod -R a+rX` on it, or on a copy of it";
  BOOST_TEST(problem_of(0700, 0755, 0644) == "cannot be opened: " + remedy);
  BOOST_TEST(problem_of(0744, 0755, 0644) == "cannot be opened: " + remedy);
  BOOST_TEST(problem_of(0755, 0700, 0644) == "has folders that cannot be opened: " + remedy);
  BOOST_TEST(problem_of(0755, 0755, 0600) == "has files that cannot be read: " + remedy);
  BOOST_TEST(problem_of(0755, 0755, 0644) == "");
}

// A record damaged by a power failure is reported, as other damage is, and stays where it is.
// Files of other names are somebody else's, and a store may be removed while a job has it as a tier.
BOOST_AUTO_TEST_CASE(what_another_users_store_holds) {
  const Item item("a");
  const fs::path root = directory.path() / "store";
  KernelStore store(root);
  test::put(store, item);
  std::ofstream(test::file_of(root, item).parent_path() / "notes") << "text";
  std::ofstream(root / "zz") << "text";
  std::string problem;
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(tier != nullptr, problem);
  BOOST_REQUIRE(tier->list().size() == 1U);
  BOOST_TEST((tier->list()[0].key == item.key));
  fs::remove_all(root);
  BOOST_TEST(tier->list().empty());
  BOOST_TEST(!tier->find(item.key).has_value());
  BOOST_TEST(lines_of(*tier) == "");
}

BOOST_AUTO_TEST_CASE(empty_record_files_of_another_users_store) {
  const fs::path root = directory.path() / "store";
  TuningStore(root).put(test::record(1));
  const fs::path empty = root / "tuning" / (std::string(32, 'e') + ".json");
  const fs::path blank = root / "tuning" / (std::string(32, 'f') + ".json");
  std::ofstream{empty};
  std::ofstream{blank} << "\n";
  std::string problem;
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(tier != nullptr, problem);
  BOOST_TEST(lines_of(*tier).find(empty.string() + ": is truncated\n") != std::string::npos, lines_of(*tier));
  const TuningFile read = read_tuning_of(*tier);
  BOOST_REQUIRE(read.records.size() == 1U);
  BOOST_TEST((read.records[0] == test::record(1)));
  BOOST_TEST(read.damaged == 2);
  BOOST_TEST(fs::exists(empty));
  BOOST_TEST(fs::exists(blank));
}

// Records that others could have written are told, as other damage is, and nothing that is no record's file is read.
BOOST_AUTO_TEST_CASE(tuning_records_of_another_users_store) {
  const fs::path root = directory.path() / "store";
  std::string problem;
  fs::create_directory(root);
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_TEST(lines_of(*tier) == "");
  BOOST_TEST(tier->count_tuning() == 0);
  TuningStore store(root);
  store.put(test::record(1));
  const fs::path file = fs::directory_iterator(root / "tuning")->path();
  const std::string good = file.string() + ": " + print(test::record(1)) + "\n";
  BOOST_TEST(lines_of(*tier) == good);
  for (const char* name : {"note.txt", "notes.json"}) std::ofstream(root / "tuning" / name) << "text";
  BOOST_TEST(lines_of(*tier) == good);
  BOOST_TEST(tier->count_tuning() == 1);
  const fs::path gone = root / "tuning" / (std::string(32, 'e') + ".json");  // as one that is removed meanwhile
  fs::create_symlink("nowhere", gone);
  BOOST_TEST(lines_of(*tier) == good);
  fs::remove(gone);

  const fs::path fifo = root / "tuning" / (std::string(32, 'f') + ".json");
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  fs::permissions(file, fs::perms(0622));
  const TuningFile read = read_tuning_of(*tier);
  BOOST_TEST(read.records.empty());
  BOOST_TEST(read.damaged == 2);
  BOOST_TEST(tier->count_tuning() == 2);
  fs::remove(fifo);
  BOOST_TEST(lines_of(*tier) == file.string() + ": can be written by other users (mode 0622)\n");
  fs::permissions(file, fs::perms(0600));
  for (const auto& [bytes, wrong] :
       {std::pair(100U, "is truncated"), std::pair((1U << 20U) + 1, "has 1048577 bytes; at most 1048576 are read")}) {
    fs::resize_file(file, bytes);
    BOOST_TEST(read_tuning_of(*tier).problem == file.string() + " " + wrong);
  }
}

// Where files are made for a group (umask 0002), and where the file that is replaced was.
BOOST_AUTO_TEST_CASE(a_bundle_is_never_written_for_others_to_write) {
  const fs::path path = directory.path() / "kernels.bundle";
  const mode_t mask = umask(0002);
  std::string problem;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t bytes = write_bundle(path, content_of({Item("a")}));
    BOOST_TEST(bytes == static_cast<std::int64_t>(fs::file_size(path)));
    BOOST_TEST((KernelBundle::open(path, problem) != nullptr), problem);
    fs::permissions(path, fs::perms(0666));
  }
  umask(mask);
  write_bundle("/dev/null", content_of({Item("a")}));
  BOOST_TEST(fs::is_character_file("/dev/null"));
}

BOOST_AUTO_TEST_CASE(tiers_are_listed_and_read) {
  const std::vector<Item> items{Item("a"), Item("b"), Item("c", 5000)};
  const fs::path root = directory.path() / "store";
  {
    KernelStore store(root);
    for (const Item& item : items) test::put(store, item);
  }
  std::ofstream(root / "notes.kernel") << "notes";
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle(content_of(items))), problem);
  const auto folder = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr && folder != nullptr, problem);
  for (const KernelTier* tier :
       {static_cast<const KernelTier*>(bundle.get()), static_cast<const KernelTier*>(folder.get())}) {
    const std::vector<KernelEntry> list = tier->list();
    BOOST_REQUIRE(list.size() == 3U);
    BOOST_TEST(std::ranges::is_sorted(list, {}, &KernelEntry::key));
    for (const Item& item : items) {
      const auto entry = std::ranges::find(list, item.key, &KernelEntry::key);
      BOOST_REQUIRE((entry != list.end()));
      BOOST_TEST(entry->bytes == static_cast<std::int64_t>(fs::file_size(test::file_of(root, item))));
      BOOST_TEST(entry->used.has_value() == (tier == folder.get()));
      const auto file = tier->read(item.key, problem);
      BOOST_REQUIRE_MESSAGE(file.has_value(), problem);
      BOOST_TEST((file->kernel == item.kernel));
      BOOST_TEST((file->source == item.source));
    }
    problem.clear();
    BOOST_TEST(!tier->read(Item("another").key, problem).has_value());
    BOOST_TEST(problem == "");
  }
  const fs::path damaged = test::file_of(root, items[0]);
  fs::resize_file(damaged, 10);
  BOOST_TEST(!folder->read(items[0].key, problem).has_value());
  BOOST_TEST(problem == "is truncated: 10 bytes, of at least 48");
  fs::permissions(test::file_of(root, items[1]), fs::perms(0666));
  BOOST_TEST(!folder->read(items[1].key, problem).has_value());
  BOOST_TEST(problem == "can be written by other users (mode 0666)");
  fs::resize_file(test::file_of(root, items[2]), (std::uintmax_t{64} << 20) + 1);
  BOOST_TEST(!folder->read(items[2].key, problem).has_value());
  BOOST_TEST(problem == "has 67108865 bytes; at most 67108864 are read");
}

BOOST_AUTO_TEST_CASE(a_store_is_listed) {
  const std::string identity = test::FakeCompiler().identity();
  KernelStore store(directory.path() / "store");
  const Item own("own source");
  const Item damaged("damaged");
  const Source generated = generate(CastSpec{});
  const Source old{.name = generated.name, .text = generated.text + "// of old"};
  const KernelKey key = kernel_key(generated, {8, 9, false}, identity);
  const KernelKey old_key = kernel_key(old, test::kTarget, "fake 0");
  test::put(store, own);
  test::put(store, damaged);
  BOOST_TEST(store.put(key, generated, {8, 9, false}, test::fake_kernel(generated, {8, 9, false})));
  BOOST_TEST(store.put(old_key, old, test::kTarget, test::fake_kernel(old, test::kTarget)));
  fs::resize_file(test::file_of(store.root(), damaged), 10);

  const KernelListing listing = list_kernels(store, identity);
  BOOST_REQUIRE(listing.kernels.size() == 3U);
  const auto listed = [&](const KernelKey& of) {
    return *std::ranges::find(listing.kernels, of, [](const ListedKernel& kernel) { return kernel.entry.key; });
  };
  BOOST_TEST(listed(key).name == generated.name);
  BOOST_TEST(listed(key).operation == "cast");
  BOOST_TEST(print(listed(key).target) == "sm_89");
  BOOST_TEST(listed(key).compiler == "fake 1.0");
  BOOST_TEST(listed(key).symbol.starts_with("_Z"));
  BOOST_TEST(listed(key).current);
  BOOST_TEST(listed(own.key).name == "item own source");
  BOOST_TEST(listed(own.key).operation == "");
  BOOST_TEST(listed(own.key).current);
  BOOST_TEST(!listed(old_key).current);
  BOOST_REQUIRE(listing.damaged.size() == 1U);
  BOOST_TEST((listing.damaged[0].entry.key == damaged.key));
  BOOST_TEST(listing.damaged[0].problem == "is truncated: 10 bytes, of at least 48");
  BOOST_TEST(list_kernels(store, identity, [] { return true; }).stopped);
  BOOST_TEST(is_generated(generated));
  BOOST_TEST(!is_generated(old));
  BOOST_TEST(!is_generated(own.source));
  const Source first = generate(parse("cast bf16->e4m3fn scale=tensor out=codes"), Pass::first);
  BOOST_TEST(is_generated(first));
  BOOST_TEST(!is_generated({.name = first.name + " (finish)", .text = first.text}));
}

BOOST_AUTO_TEST_CASE(what_is_pruned_first) {
  constexpr std::time_t kNow = 1'000'000;
  KernelListing listing;
  const auto add = [&](int number, std::time_t used, Target target) {
    KernelEntry entry{.key = {static_cast<std::uint8_t>(number)}, .bytes = 100, .used = std::pair(used, 0L)};
    listing.kernels.push_back({.entry = entry, .target = target});
  };
  add(1, kNow - 50, {9, 0, true});
  add(2, kNow - 500, {9, 0, true});
  add(3, kNow - 5000, {8, 9, false});
  add(4, kNow + 999, {9, 0, true});  // a clock that jumped: used now
  listing.damaged.push_back({.entry = {.key = {5}, .bytes = 100, .used = std::pair<std::time_t, long>(kNow - 100, 0)}});
  const auto pruned = [&](const PruneRules& rules) {
    std::string keys;
    for (const KernelEntry& entry : kernels_to_prune(listing, rules, kNow)) keys += std::to_string(entry.key[0]);
    return keys;
  };
  using std::chrono::seconds;
  BOOST_TEST(pruned({.max_bytes = 500}) == "");
  BOOST_TEST(pruned({.max_bytes = 499}) == "3");
  BOOST_TEST(pruned({.max_bytes = 0}) == "32514");
  BOOST_TEST(pruned({.unused_for = seconds(100)}) == "32");
  BOOST_TEST(pruned({.unused_for = seconds(0)}) == "3251");
  BOOST_TEST(pruned({.unused_for = seconds(10'000)}) == "");
  BOOST_TEST(pruned({.unused_for = seconds(1000), .max_bytes = 300}) == "32");
  BOOST_TEST(pruned({.targets = {{9, 0, true}}}) == "214");
  BOOST_TEST(pruned({.targets = {{9, 0, true}}, .max_bytes = 200}) == "2");
  BOOST_TEST(pruned({.targets = {{8, 9, false}}, .unused_for = seconds(10'000)}) == "");
}

BOOST_AUTO_TEST_CASE(import_takes_what_the_store_would_use) {
  const Item fresh("new");
  const Item there("there");
  const Item damaged("damaged");
  Item foreign("foreign");
  foreign.kernel.toolchain = "fake 1.0 another build";
  BundleContent content = content_of({fresh, there, foreign});
  const Source of_old{.name = "old", .text = "text"};
  const KernelKey old_key = kernel_key(of_old, test::kTarget, "fake 0");
  content.kernels.push_back(
      {old_key, encode_kernel_file(old_key, of_old, test::kTarget, test::fake_kernel(of_old, test::kTarget))});
  content.kernels.push_back(packed(damaged));
  content.kernels.back().file.back() ^= 1;
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle(content)), problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);

  KernelStore store(directory.path() / "store");
  test::put(store, there);
  const ImportRules rules{.identity = "fake 1", .toolchain = "fake 1.0"};
  const ImportedKernels imported = import_kernels(*bundle, store, rules);
  BOOST_TEST(imported.added == 1);
  BOOST_TEST(imported.there == 1);
  BOOST_REQUIRE(imported.refused.size() == 3U);
  for (const Refused& refused : imported.refused) {
    BOOST_TEST(refused.count == 1);
    BOOST_TEST(refused.damaged == (refused.why == "does not match its checksum"), refused.why);
    if (refused.first == "old") {
      BOOST_TEST(refused.why == "made for another version of Ingot or its templates, which this one never finds");
    }
    if (refused.first == "item foreign") {
      BOOST_TEST(
          refused.why ==
          "compiled by another build of NVRTC (fake 1.0 another build; here fake 1.0: sizes and checksums of its "
          "libraries differ), so the store would replace them; name the file in INGOT_CACHE_TIERS to use them");
    }
  }
  BOOST_TEST((store.find(fresh.key) == fresh.kernel));
  BOOST_TEST(!store.find(foreign.key).has_value());
  BOOST_TEST(import_kernels(*bundle, store, rules).there == 2);
  // Without a compiler nothing could replace them.
  BOOST_TEST(import_kernels(*bundle, store, {.identity = "fake 1"}).added == 1);
  BOOST_TEST(store.find(foreign.key).has_value());
  BOOST_TEST(import_kernels(*bundle, store, rules, [] { return true; }).stopped);
}

// A kernel of another build is replaced, and a damaged one healed.
BOOST_AUTO_TEST_CASE(import_replaces_what_is_no_use) {
  const Item a("a");
  const Item b("b");
  KernelStore store(directory.path() / "store");
  Item foreign = a;
  foreign.kernel.toolchain = "fake 1.0 another build";
  test::put(store, foreign);
  test::put(store, b);
  fs::resize_file(test::file_of(store.root(), b), 10);
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle(content_of({a, b}))), problem);
  BOOST_REQUIRE_MESSAGE(bundle != nullptr, problem);
  BOOST_TEST(import_kernels(*bundle, store, {.identity = "fake 1", .toolchain = "fake 1.0"}).added == 2);
  BOOST_TEST((store.find(a.key) == a.kernel));
  BOOST_TEST((store.find(b.key) == b.kernel));
}

BOOST_AUTO_TEST_CASE(import_into_a_store_that_cannot_be_written) {
  std::string problem;
  const auto bundle = KernelBundle::open(write(encode_bundle(content_of({Item("a")}))), problem);
  const fs::path root = directory.path() / "store";
  std::ofstream(root) << "a file in its place";
  KernelStore store(root);
  const std::string message =
      test::error_of([&] { import_kernels(*bundle, store, {.identity = "fake 1"}); }, ErrorCode::io_failed);
  BOOST_TEST(message == root.string() + ": 0 kernels imported, then one could not be written: store directory " +
                            root.string() + " is not a directory");
}

BOOST_AUTO_TEST_CASE(export_takes_what_this_ingot_would_find) {
  const Item a("a");
  const Item b("b");
  const Item damaged("damaged");
  KernelStore store(directory.path() / "store");
  const Source of_old{.name = "old", .text = "text"};
  test::put(store, a);
  test::put(store, b);
  test::put(store, damaged);
  BOOST_TEST(store.put(kernel_key(of_old, test::kTarget, "fake 0"), of_old, test::kTarget,
                       test::fake_kernel(of_old, test::kTarget)));
  fs::resize_file(test::file_of(store.root(), damaged), 10);
  const ExportedKernels exported =
      export_kernels(store, "fake 1", [](const KernelFile& file) { return file.source.name != "item b"; });
  BOOST_REQUIRE(exported.kernels.size() == 1U);
  BOOST_TEST((exported.kernels[0].key == a.key));
  BOOST_TEST(exported.kernels[0].file == packed(a).file);
  BOOST_TEST(exported.not_wanted == 1);
  BOOST_TEST(exported.of_other_versions == 1);
  BOOST_REQUIRE(exported.damaged.size() == 1U);
  BOOST_TEST(exported.damaged[0] ==
             test::file_of(store.root(), damaged).string() + " is truncated: 10 bytes, of at least 48");
  BOOST_TEST(fs::exists(test::file_of(store.root(), damaged)), "exporting moves nothing");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
