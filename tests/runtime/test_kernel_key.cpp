// KernelKey: a pinned hash, and that every field counts and nothing else does.
#include <boost/test/unit_test.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <set>
#include <string>
#include <string_view>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_identity.h"

BOOST_AUTO_TEST_SUITE(test_kernel_key)

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

// Each field as a run has it, one byte of it changed at a time.
BOOST_AUTO_TEST_CASE(every_byte_counts) {
  const std::string identity = kernel_identity(embedded_templates());
  const Source source = generate(CastSpec{.scale = kRowwise}, Pass::main);
  std::set<KernelKey> keys{kernel_key(source, kTarget, identity)};
  std::size_t perturbed = 1;
  for (std::size_t i = 0; i < identity.size(); ++i) {
    std::string changed = identity;
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    keys.insert(kernel_key(source, kTarget, changed));
    BOOST_TEST(keys.size() == ++perturbed, "byte " << i << " of the identity");
  }
  for (std::size_t i = 0; i < source.text.size(); ++i) {
    Source changed = source;
    changed.text[i] = static_cast<char>(changed.text[i] ^ (1 << i % 8));
    keys.insert(kernel_key(changed, kTarget, identity));
    BOOST_TEST(keys.size() == ++perturbed, "byte " << i << " of the source");
  }
  for (const Target target : kSupportedTargets) {
    if (target == kTarget) continue;
    keys.insert(kernel_key(source, target, identity));
    BOOST_TEST(keys.size() == ++perturbed, print(target));
  }
}

// Bytes of every template that Ingot has, anywhere in it, and its name.
BOOST_AUTO_TEST_CASE(every_template_counts) {
  const TemplateFiles templates = embedded_templates();
  std::set<std::string> identities{kernel_identity(templates)};
  std::size_t perturbed = 1;
  const auto expect_new = [&](const TemplateFiles& changed, const std::string& what) {
    identities.insert(kernel_identity(changed));
    BOOST_TEST(identities.size() == ++perturbed, what << " leaves the identity as it was");
  };
  constexpr std::size_t kPlaces = 16;
  for (const auto& [name, text] : templates) {
    BOOST_REQUIRE(text.size() >= kPlaces);
    TemplateFiles changed = templates;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      const std::size_t at = i * (text.size() - 1) / (kPlaces - 1);  // the first and the last byte among them
      char& byte = changed[name][at];
      byte = static_cast<char>(byte ^ (1 << i % 8));
      expect_new(changed, name + ", byte " + std::to_string(at));
      byte = text[at];
    }
    changed[name] += '\n';
    expect_new(changed, name + ", a byte more");
    changed[name] = text.substr(0, text.size() - 1);
    expect_new(changed, name + ", a byte less");
    changed.erase(name);
    expect_new(changed, "without " + name);
    changed[name + "x"] = text;
    expect_new(changed, name + " by another name");
  }
}

BOOST_AUTO_TEST_CASE(every_option_counts) {
  const std::string identity = kernel_identity({});
  std::string options = "; options";
  for (const std::string_view option : kCompileOptions) options.append(" ").append(option);
  for (const std::string_view option : kNewerCompileOptions) options.append(" ").append(option);
  BOOST_TEST(identity.ends_with(options), identity);
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

BOOST_AUTO_TEST_SUITE_END()
