// A digest of what a GPU executes: the instructions and constants of a cubin, but not the names in it. If the kernels
// of two builds have the same digests, they run the same code (scripts/compare_kernels.sh compares them).
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/util/digest.h"

namespace ingot::test {

namespace machine_code {

template <class T>
T read(std::span<const std::byte> file, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) > file.size()) return value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

}  // namespace machine_code

// 32 hex digits; empty if the file has no section of instructions. Sections count in the file's order: .text.* holds
// the instructions, .nv.constant* the constants and the layout of the parameters, .nv.shared* the static shared memory.
// .nv.constant4 does not count: it has addresses of globals, and an unused static member of a template changes it.
inline std::string machine_code_digest(std::span<const std::byte> cubin) {
  const auto header = machine_code::read<Elf64_Ehdr>(cubin, 0);
  const auto section = [&](std::size_t i) {
    return machine_code::read<Elf64_Shdr>(cubin, header.e_shoff + i * header.e_shentsize);
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  std::string executed;
  bool has_instructions = false;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    const std::string_view name(reinterpret_cast<const char*>(cubin.data()) + names.sh_offset + s.sh_name);
    for (const std::string_view kind : {".text.", ".nv.constant", ".nv.shared"}) {
      if (!name.starts_with(kind) || name.starts_with(".nv.constant4")) continue;
      executed += std::string(kind) + " " + std::to_string(s.sh_size) + "\n";
      if (s.sh_type == SHT_NOBITS) continue;
      executed.append(reinterpret_cast<const char*>(cubin.data()) + s.sh_offset, s.sh_size);
      has_instructions = has_instructions || kind == ".text.";
    }
  }
  return has_instructions ? print(digest(executed)) : std::string();
}

}  // namespace ingot::test
