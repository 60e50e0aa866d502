// How messages name the parts of an input that share a scale.
#pragma once

#include "ingot/runtime/check_scales.h"

namespace ingot {

inline constexpr ScaledMatrix kScaledInput{.whole = "one for the whole tensor",
                                           .row = "one for each row of the input",
                                           .in_row = "in a row of the input",
                                           .of = " of the input"};

}  // namespace ingot
