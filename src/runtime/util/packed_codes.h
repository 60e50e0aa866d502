// Packs and unpacks codes smaller than a byte on the host: computing uses one byte per code, storage packs them.
#pragma once

#include <cstdint>
#include <span>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Packs one row; a matrix is packed row by row (Tensor says where each row starts). Element i of `bits` bits takes bits
// [i * bits, (i + 1) * bits) of the row, least significant bit first; unused bits of the last byte become 0. Dtypes of
// one byte are copied. row has row_bytes(dtype, codes.size()) bytes.
//
// Throws Error{invalid_argument} for a dtype larger than a byte, a row of the wrong size, or a code with more bits than
// the dtype has.
INGOT_API void pack_codes(Dtype dtype, std::span<const std::uint8_t> codes, std::span<std::uint8_t> row);

// The inverse: one code per byte, in its low bits.
INGOT_API void unpack_codes(Dtype dtype, std::span<const std::uint8_t> row, std::span<std::uint8_t> codes);

}  // namespace ingot
