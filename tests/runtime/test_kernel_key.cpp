// KernelKey: a pinned hash, and that every field counts and nothing else does.
#include <boost/test/unit_test.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <set>

#include "ingot/runtime/jit/kernel_key.h"

using namespace ingot;

namespace {

const Source kSource{.name = "a kernel", .text = "text"};
constexpr Target kTarget{9, 0, true};
constexpr const char* kIdentity = "fake 1";

}  // namespace

// Computed over the fields that the header lists with Python's struct module and the xxHash library.
BOOST_AUTO_TEST_CASE(pinned) {
  BOOST_TEST(print(kernel_key(kSource, kTarget, kIdentity)) == "1f2545fa708cf55c5936b17b7f17531c");
}

BOOST_AUTO_TEST_CASE(every_field_counts) {
  std::set<KernelKey> keys{kernel_key(kSource, kTarget, kIdentity)};
  std::size_t perturbed = 1;
  const auto expect_new = [&](const KernelKey& key, const std::string& what) {
    keys.insert(key);
    BOOST_TEST(keys.size() == ++perturbed, what << " leaves the key as it was");
  };
  for (const Target target : {Target{9, 0, false}, Target{9, 1, true}, Target{8, 0, true}, Target{10, 0, true}}) {
    expect_new(kernel_key(kSource, target, kIdentity), print(target));
  }
  for (const char* text : {"", "tex", "text ", "Text", "text\n", "xtet"}) {
    expect_new(kernel_key({.name = kSource.name, .text = text}, kTarget, kIdentity), text);
  }
  expect_new(kernel_key({.name = kSource.name, .text = std::string("text\0", 5)}, kTarget, kIdentity), "a NUL");
  for (const char* identity : {"", "fake", "fake 2", "fake 1 "}) {
    expect_new(kernel_key(kSource, kTarget, identity), identity);
  }
}

// The same bytes in sequence, divided differently.
BOOST_AUTO_TEST_CASE(fields_do_not_run_together) {
  const KernelKey a = kernel_key({.name = "", .text = "bc"}, kTarget, "a");
  const KernelKey b = kernel_key({.name = "", .text = "c"}, kTarget, "ab");
  BOOST_TEST((a != b));
}

BOOST_AUTO_TEST_CASE(nothing_else_counts) {
  const KernelKey before = kernel_key(kSource, kTarget, kIdentity);
  BOOST_TEST((kernel_key({.name = "another name", .text = kSource.text}, kTarget, kIdentity) == before));
  BOOST_REQUIRE(chdir("/") == 0);
  for (const char* variable : {"HOME", "PATH", "INGOT_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_PATH", "LC_ALL"}) {
    setenv(variable, "/elsewhere", 1);
  }
  BOOST_TEST((kernel_key(kSource, kTarget, kIdentity) == before));
}

BOOST_AUTO_TEST_CASE(printed_form) {
  KernelKey key{};
  BOOST_TEST(print(key) == std::string(32, '0'));
  key = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xff, 0, 0, 0, 0, 0, 0, 0x10};
  BOOST_TEST(print(key) == "0123456789abcdefff00000000000010");
}
