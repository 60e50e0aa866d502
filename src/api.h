// What libingot.so exports. It is built with hidden visibility: of all its names a program can only reach those that
// carry this mark, and only they are the ABI that docs/abi.md speaks of. Tests check that exactly
// the declarations of public headers that the library defines carry it (layout.exports).
#pragma once

#define INGOT_API __attribute__((visibility("default")))
