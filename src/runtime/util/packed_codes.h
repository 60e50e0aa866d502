// Codes of less than a byte on the host: one to a byte, as they are computed with, and packed, as they are stored.
#pragma once

#include <cstdint>
#include <span>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Of one row; a matrix is packed row by row (Tensor says where each begins). Element i of `bits` bits has the bits
// [i * bits, (i + 1) * bits) of the row, the least significant first; those of the last byte behind the last element
// become 0. Dtypes of one byte are copied. row has row_bytes(dtype, codes.size()) bytes.
//
// Throws Error{invalid_argument}: a dtype of more than a byte, a row of another size, a code of more bits than the
// dtype has.
void pack_codes(Dtype dtype, std::span<const std::uint8_t> codes, std::span<std::uint8_t> row);

// The inverse: a code to a byte, in its low bits.
void unpack_codes(Dtype dtype, std::span<const std::uint8_t> row, std::span<std::uint8_t> codes);

}  // namespace ingot
