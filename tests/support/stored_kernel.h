// A kernel with everything that a store wants to know about it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

#include "ingot/runtime/jit/kernel_store.h"
#include "support/fake_compiler.h"

namespace ingot::test {

inline constexpr Target kTarget{9, 0, true};

struct Item {
  explicit Item(std::string text, std::size_t padding = 0)
      : source{.name = "item " + text, .text = std::move(text)},
        key(kernel_key(source, kTarget, FakeCompiler().identity())),
        kernel(fake_kernel(source, kTarget)) {
    kernel.cubin.resize(kernel.cubin.size() + padding);
  }

  Source source;
  KernelKey key;
  CompiledKernel kernel;
};

inline void put(KernelStore& store, const Item& item) { store.put(item.key, item.source, kTarget, item.kernel); }

inline std::filesystem::path file_of(const std::filesystem::path& root, const Item& item) {
  return root / print(item.key).substr(0, 2) / (print(item.key) + ".kernel");
}

}  // namespace ingot::test
