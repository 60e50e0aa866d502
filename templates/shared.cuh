// A block's dynamic shared memory by its 32-bit addresses, and copies that fill it while the threads go on. On a GPU
// each function is one instruction; on the host it does what the PTX ISA says of that instruction, so that a test can
// run a kernel made of them thread by thread (tests/templates/emulator.h).
#pragma once

#include "platform.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"

namespace ingot {

// The block's dynamic shared memory, aligned to 1024 bytes.
INGOT_DEVICE u32 shared_memory() {
#if INGOT_ON_DEVICE
  return ptx::dynamic_shared();
#else
  return 0;
#endif
}

// The same as an object. (In the emulator of kernels, blocks of a cluster have no other.)
template <class T>
INGOT_DEVICE T& dynamic_shared_as() {
#if INGOT_ON_DEVICE
  return *reinterpret_cast<T*>(ptx::dynamic_shared_pointer());
#else
  return *reinterpret_cast<T*>(host_shared_memory());
#endif
}

INGOT_DEVICE U32x4 load_shared16(u32 address) {
#if INGOT_ON_DEVICE
  return ptx::ld_shared16(address);
#else
  return *reinterpret_cast<const U32x4*>(host_shared_memory() + address);
#endif
}

INGOT_DEVICE void store_shared16(u32 address, U32x4 value) {
#if INGOT_ON_DEVICE
  ptx::st_shared16(address, value);
#else
  *reinterpret_cast<U32x4*>(host_shared_memory() + address) = value;
#endif
}

// The dynamic shared memory that each block has room for if `blocks` share a multiprocessor. `block_shared`: the most
// that one block can have in all; a multiprocessor has 1 KiB more, which it takes from each block. A block's static
// part comes first, up to 1 KiB here.
INGOT_HOST_DEVICE constexpr u32 dynamic_shared_room(u32 block_shared, u32 blocks) {
  constexpr u32 kTaken = 1024;
  constexpr u32 kStatic = 1024;
  return (block_shared + kTaken) / blocks - kTaken - kStatic;
}

// Copies `size` bytes from `source` to shared memory and fills the rest of `Bytes` with zeros. The copying thread may
// read them once it has waited for the group that the next commit_copies() closes.
template <u32 Bytes>
INGOT_DEVICE void copy_async(u32 target, const void* source, u32 size) {
#if INGOT_ON_DEVICE
  ptx::cp_async<Bytes>(target, source, size);
#else
  for (u32 i = 0; i < Bytes; ++i) {
    host_shared_memory()[target + i] = i < size ? static_cast<const u8*>(source)[i] : u8{0};
  }
#endif
}
// The same of 16 bytes, through the L1: for copies of which two share a sector.
INGOT_DEVICE void copy_async_cached(u32 target, const void* source, u32 size) {
#if INGOT_ON_DEVICE
  ptx::cp_async_cached(target, source, size);
#else
  copy_async<16>(target, source, size);
#endif
}
INGOT_DEVICE void commit_copies() {
#if INGOT_ON_DEVICE
  ptx::cp_async_commit();
#endif
}
template <u32 Pending>
INGOT_DEVICE void wait_for_copies() {
#if INGOT_ON_DEVICE
  ptx::cp_async_wait<Pending>();
#endif
}

}  // namespace ingot
