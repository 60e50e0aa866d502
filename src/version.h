// The version of these headers, and of the library that a program runs with. The two differ where a shared library was
// replaced after the program was compiled (docs/abi.md).
#pragma once

#include "ingot/api.h"

// Major, minor, patch. CMakeLists.txt and pyproject.toml read this line; nothing else sets the version.
#define INGOT_VERSION_PARTS 0, 2, 0

#define INGOT_VERSION_MAJOR INGOT_VERSION_OF(INGOT_VERSION_FIRST, INGOT_VERSION_PARTS)
#define INGOT_VERSION_MINOR INGOT_VERSION_OF(INGOT_VERSION_SECOND, INGOT_VERSION_PARTS)
#define INGOT_VERSION_PATCH INGOT_VERSION_OF(INGOT_VERSION_THIRD, INGOT_VERSION_PARTS)
// 10203 for 1.2.3, so that `#if INGOT_VERSION >= 10203` works.
#define INGOT_VERSION INGOT_VERSION_OF(INGOT_VERSION_AS_NUMBER, INGOT_VERSION_PARTS)
#define INGOT_VERSION_STRING INGOT_VERSION_OF(INGOT_VERSION_AS_TEXT, INGOT_VERSION_PARTS)

// What the lines above are made with: the preprocessor has no other way to take a list apart.
#define INGOT_VERSION_OF(macro, ...) macro(__VA_ARGS__)
#define INGOT_VERSION_FIRST(major, minor, patch) major
#define INGOT_VERSION_SECOND(major, minor, patch) minor
#define INGOT_VERSION_THIRD(major, minor, patch) patch
#define INGOT_VERSION_AS_NUMBER(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define INGOT_VERSION_AS_TEXT(major, minor, patch) #major "." #minor "." #patch

namespace ingot {

// The library's version, which a program may compare with INGOT_VERSION and INGOT_VERSION_STRING.
INGOT_API int version_number() noexcept;
INGOT_API const char* version_string() noexcept;

}  // namespace ingot
