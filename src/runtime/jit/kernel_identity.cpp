#include "ingot/runtime/jit/kernel_identity.h"

#include <fmt/format.h>

#include "ingot/runtime/util/digest.h"
#include "ingot/version.h"

namespace ingot {
namespace {

Digest digest_of(const TemplateFiles& templates) {
  std::string fields;
  for (const auto& [name, text] : templates) {
    for (const std::string* field : {&name, &text}) {
      fields += fmt::format("{}:", field->size());
      fields += *field;
    }
  }
  return digest(fields);
}

// "nvrtc 13" of "nvrtc 13.0 ..."
std::string_view with_major(std::string_view toolchain) { return toolchain.substr(0, toolchain.find('.')); }

}  // namespace

std::string kernel_identity(const TemplateFiles& templates) {
  std::string identity =
      fmt::format("ingot {}; templates {}; options", INGOT_VERSION_STRING, print(digest_of(templates)));
  for (const std::string_view option : kCompileOptions) identity += fmt::format(" {}", option);
  for (const std::string_view option : kNewerCompileOptions) identity += fmt::format(" {}", option);
  return identity;
}

bool trusts(Trust trust, std::string_view made_by, std::string_view ours) {
  if (ours.empty()) return true;
  return trust == Trust::same_build ? made_by == ours : with_major(made_by) == with_major(ours);
}

}  // namespace ingot
