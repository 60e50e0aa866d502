// Bundles and other users' stores: a pinned format, every changed byte and every truncation, what may not be trusted,
// and use from any path.
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
#include <vector>

#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

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
  BOOST_TEST(bundle->tuning() == "a record\n");
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
  BOOST_TEST(bundle->tuning().empty());
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
  if (geteuid() != 0) return;
  const fs::path foreign = write(bytes, "foreign");
  BOOST_REQUIRE(chown(foreign.c_str(), 1234, 1234) == 0);
  BOOST_TEST(problem_of(foreign) == "is owned by user 1234; expected root or 0, the current user");
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
  for (const std::size_t at : {0, 14, 38, 46, 70, 78, 86, 94}) {
    for (const std::uint64_t wrong : {~std::uint64_t{0}, std::uint64_t{1} << 63U, std::uint64_t{bytes.size()}}) {
      std::string changed = index;
      std::memcpy(changed.data() + at, &wrong, sizeof(wrong));
      BOOST_TEST(with_index(changed) == "has an index of the wrong shape", "byte " << at << ", " << wrong);
    }
  }
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
  BOOST_TEST(fs::exists(file), "nothing is moved in a store that is only read");
  fs::permissions(root, fs::perms(0777));
  BOOST_TEST(ReadOnlyStore::open(root, problem) == nullptr);
  BOOST_TEST(problem == "can be written by other users (mode 0777)");
  BOOST_TEST(ReadOnlyStore::open(file, problem) == nullptr);
  BOOST_TEST(problem == "is not a directory");
  BOOST_TEST(ReadOnlyStore::open(directory.path() / "nothing", problem) == nullptr);
  BOOST_TEST(problem == "cannot be opened: No such file or directory");
}

// Records that others could have written are left out, as kernels are, and nothing that is no record's file is read.
BOOST_AUTO_TEST_CASE(tuning_records_of_another_users_store) {
  const fs::path root = directory.path() / "store";
  std::string problem;
  fs::create_directory(root);
  BOOST_TEST(ReadOnlyStore::open(root, problem)->tuning() == "");
  TuningStore store(root);
  store.put(test::record(1));
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_TEST(tier->tuning() == print(test::record(1)) + "\n");
  std::ofstream(root / "tuning" / "note.txt") << "text";
  BOOST_REQUIRE(mkfifo((root / "tuning" / "fifo.json").c_str(), 0600) == 0);
  BOOST_TEST(tier->tuning() == print(test::record(1)) + "\n");
  for (const auto& entry : fs::directory_iterator(root / "tuning")) fs::permissions(entry.path(), fs::perms(0622));
  BOOST_TEST(tier->tuning() == "");
}

BOOST_AUTO_TEST_SUITE_END()
