// One compiled kernel as bytes: the format of the store's files.
//
//   file      := magic "INGOTK02" key[16] payload_bytes:u64 payload checksum[16]
//   payload   := target text, source name, source text, toolchain, lowered name, log, resources, cubin
//                (each as bytes:u64, then the bytes)
//   resources := registers:i32 spill_bytes:i32 stack_bytes:i32 static_shared_bytes:i32
//   checksum  := XXH3-128 (canonical, big-endian) of everything before it
//   (integers little-endian)
//
// A file describes itself: its source and target can be read from it by hand. Any change of this format changes the
// magic, which is also part of every key. Pure functions: the disk is kernel_store.h's.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

// The key of a compiled kernel on disk and in memory: a hash of everything that decides its machine code.
using KernelKey = Digest;

// How a kernel's file begins: the version of its format.
inline constexpr std::string_view kKernelFileMagic = "INGOTK02";

// XXH3-128 over the length-prefixed fields: format version, kernel_identity(), target, source text. Nothing else
// counts: no compiler's version, paths, names or environment variables.
inline KernelKey kernel_key(const Source& source, Target target, std::string_view identity) {
  return digest_fields({kKernelFileMagic, identity, print(target), source.text});
}

// Nothing larger is written, or read into memory.
inline constexpr std::int64_t kMaxKernelFileBytes = std::int64_t{64} << 20;

// The path of a kernel's file in a store, below its root: "<2 hex digits>/<32 hex digits>.kernel".
INGOT_API std::string kernel_file_path(const KernelKey& key);
// The key, if the path is as kernel_file_path() makes it: a file of any other name is not the store's.
INGOT_API std::optional<KernelKey> kernel_of_path(std::string_view path);

INGOT_API std::string encode_kernel_file(const KernelKey& key, const Source& source, Target target,
                                         const CompiledKernel& kernel);

// The source and target of a kernel that is looked up. The key follows from them, but a file's header may not be true
// of its content, so both are compared.
struct KernelWanted {
  const Source& source;
  Target target;
};

// The kernel, if every byte is as it was written for this key; otherwise nothing, with the reason in `problem` ("is
// truncated: ..."). `wanted`: null takes any source.
INGOT_API std::optional<CompiledKernel> decode_kernel_file(std::string_view file, const KernelKey& key,
                                                           std::string& problem, const KernelWanted* wanted = nullptr);

// Everything that a file says: the kernel, and what it was made from.
struct KernelFile {
  Target target{};
  Source source{};
  CompiledKernel kernel{};
};
INGOT_API std::optional<KernelFile> read_kernel_file(std::string_view file, const KernelKey& key, std::string& problem);

// A kernel of a store or a tier: what is known of it without reading its file.
struct KernelEntry {
  KernelKey key{};
  std::int64_t bytes = 0;  // of its file
  // When it was last used: seconds and nanoseconds, noted at most once an hour. A bundle keeps no times.
  std::optional<std::pair<std::time_t, long>> used{};
  std::optional<std::time_t> made{};  // where the file system keeps that
};

}  // namespace ingot
