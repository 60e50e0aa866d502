// What libingot.so exports. It is built with hidden visibility: of all its names a program can only reach those that
// carry this mark, and only they are the ABI that docs/abi.md speaks of. tests/package holds that every declaration of
// a public header whose definition lies in the library has the mark, and that nothing else is exported.
#pragma once

#define INGOT_API __attribute__((visibility("default")))
