// StoreDirectory: what is listed as temporary or moved aside, and how removals end. What fails in a store of kernels or
// of records is in test_kernel_store_faults.cpp and test_store_system_calls.cpp.
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ingot/runtime/util/store_directory.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_store_directory)

using namespace ingot;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  StoreDirectory make() const { return {root, 1000, {}, {.lost = "and is lost", .unusable = "nothing is kept"}}; }
  void write(const std::string& name) const {
    fs::create_directories((root / name).parent_path());
    fs::permissions(root, fs::perms::owner_all);
    std::ofstream(root / name) << "text";
  }
  std::vector<StoredFile> all(const StoreDirectory& store) const {
    return store.entries([](const std::string&) { return true; });
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
};

const std::string kDigits = "0123456789abcdef";

}  // namespace

BOOST_FIXTURE_TEST_SUITE(store_directory, Fixture)

// Files of other names are somebody else's, wherever they are.
BOOST_AUTO_TEST_CASE(only_what_has_a_name_of_ours_is_ours) {
  const StoreDirectory store = make();
  const std::string ours = "123-" + kDigits;
  for (const std::string& name :
       {ours, "-" + kDigits, kDigits, "123-" + kDigits + "0", "x23-" + kDigits, "123-" + kDigits.substr(1) + "g"}) {
    write("tmp/" + name);
    write("quarantine/name." + name);
  }
  fs::create_directory(root / "tmp" / ("456-" + kDigits));
  BOOST_REQUIRE(store.temporaries().size() == 1U);
  BOOST_TEST(store.temporaries()[0].name == "tmp/" + ours);
  BOOST_REQUIRE(store.quarantined().size() == 1U);
  BOOST_TEST(store.quarantined()[0].name == "quarantine/name." + ours);
}

BOOST_AUTO_TEST_CASE(a_store_that_is_not_there_has_nothing) {
  StoreDirectory store = make();
  BOOST_TEST(!store.set_aside("a", "b", "because"));
  BOOST_TEST(!store.made("a/b").has_value());
  BOOST_TEST(store.remove("a/b"));
  BOOST_TEST(store.temporaries().empty());
  BOOST_TEST(!fs::exists(root), "looking makes nothing");
}

BOOST_AUTO_TEST_CASE(removal_ends_when_asked) {
  const StoreDirectory store = make();
  for (const char* name : {"a/1", "a/2", "a/3"}) write(name);
  int asked = 0;
  const RemovedFiles removed = store.remove_all(all(store), [&] { return ++asked > 2; });
  BOOST_TEST(removed.stopped);
  BOOST_TEST(removed.files == 2);
  BOOST_TEST(removed.bytes == 8);
  BOOST_TEST(all(store).size() == 1U);
}

// What another process has removed is neither removed nor a failure: the file, its folder, or the store.
BOOST_AUTO_TEST_CASE(what_is_gone_is_not_told) {
  const StoreDirectory store = make();
  for (const char* what : {"a/1", "a", ""}) {
    write("a/1");
    const std::vector<StoredFile> listed = all(store);
    BOOST_REQUIRE(listed.size() == 1U);
    fs::remove_all(root / what);
    const RemovedFiles removed = store.remove_all(listed);
    BOOST_TEST(removed.files == 0, what);
    BOOST_TEST(removed.left.empty(), what);
    BOOST_TEST(removed.failed.empty(), what);
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_removed_is_told) {
  const StoreDirectory store = make();
  write("a/1");
  const std::vector<StoredFile> listed = all(store);
  const std::string file = (root / "a/1").string();
  const std::string long_name(300, 'x');
  const RemovedFiles too_long = store.remove_all({{.name = "a/" + long_name}});
  BOOST_TEST_CHECK(
      too_long.failed == std::vector<std::string>{(root / "a" / long_name).string() + " File name too long"},
      boost::test_tools::per_element());
  fs::permissions(root, fs::perms::all);
  const RemovedFiles distrusted = store.remove_all(listed);
  BOOST_REQUIRE(distrusted.failed.size() == 1U);
  BOOST_TEST(distrusted.failed[0].starts_with(file + " "), distrusted.failed[0]);
  BOOST_TEST(distrusted.failed[0].find("can be written by other users") != std::string::npos, distrusted.failed[0]);
  BOOST_TEST(fs::exists(file));
}

// A user whom permissions bind, in a folder that must not be changed.
BOOST_AUTO_TEST_CASE(a_folder_that_is_only_read) {
  fs::permissions(directory.path(), fs::perms::all);
  BOOST_TEST(test::run_unprivileged([&] {
               const StoreDirectory store = make();
               write("a/1");
               fs::permissions(root / "a", fs::perms::owner_read | fs::perms::owner_exec);
               const RemovedFiles removed = store.remove_all(all(store));
               fs::permissions(root / "a", fs::perms::owner_all);
               const std::string expected = (root / "a/1").string() + " cannot be removed: Permission denied";
               return removed.files == 0 && removed.failed == std::vector<std::string>{expected} ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
