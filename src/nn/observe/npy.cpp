#include "ingot/nn/observe/npy.h"

#include <fmt/format.h>

#include <string>

#include "ingot/runtime/util/write_file.h"

namespace ingot {

void write_npy(const std::filesystem::path& file, Dtype dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> elements) {
  constexpr std::size_t kPrefix = 10;  // magic number, version, header length
  constexpr std::size_t kAlignment = 64;
  const char* const type = dtype == Dtype::f32 ? "<f4" : size_of(dtype) == 1 ? "|u1" : "<u2";
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", type, rows, cols);
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text.push_back('\n');
  const std::string prefix = {'\x93',
                              'N',
                              'U',
                              'M',
                              'P',
                              'Y',
                              1,
                              0,
                              static_cast<char>(text.size() & 0xffU),
                              static_cast<char>(text.size() >> 8U)};
  write_file(file, {prefix, text, {reinterpret_cast<const char*>(elements.data()), elements.size()}});
}

}  // namespace ingot
