// For programs: output that could not be written (a full disk, a closed stdout) is an error, not a success.
#pragma once

#include "ingot/api.h"

namespace ingot {

// To be called first in main(). A program that is started with a closed stdin, stdout or stderr would give that number
// to the next file that it opens, and print into it. Afterwards printing to a closed stdout fails; to a closed stderr
// it goes nowhere.
INGOT_API void reserve_standard_streams();

// To be called last: writes out what is buffered. Throws Error{io_failed} if anything printed to stdout was lost.
INGOT_API void finish_standard_output();

}  // namespace ingot
