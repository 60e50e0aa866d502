// Two contexts on one GPU in one process, as a C++ program and a Python module that it embeds make them: the same bits,
// each with its own kernels and plans, and one is destroyed while the other works.
#include "support/gpu_test.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/error.h"
#include "nn/linear_case.h"
#include "support/temporary_directory.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_contexts_gpu)

namespace {

constexpr CaseShape kShape{128, 256, 384};

// A layer with its tensors on one context.
struct Layer {
  explicit Layer(Context& context)
      : backend(context.backend()),
        tensors(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, backend, stream),
        linear(backend, {kShape.in_features, kShape.out_features, true}, rowwise()) {}

  std::vector<std::uint8_t> step() {
    tensors.poison_results(stream);
    linear.weight_changed();
    linear.forward(tensors.forward(true), stream);
    linear.backward(tensors.backward(true), stream);
    return tensors.result_bytes(stream);
  }

  Backend& backend;
  Stream stream{backend};
  LinearCase tensors;
  Float8Linear linear;
};

ContextOptions options_in(const TemporaryDirectory& folder) {
  ContextOptions options = cuda_options();
  options.store_root = folder.path() / "store";
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(small)

BOOST_AUTO_TEST_CASE(two_contexts_give_the_same_bits_and_share_the_store_alone) {
  const TemporaryDirectory folder;
  Context first(options_in(folder));
  Layer of_first(first);
  const std::vector<std::uint8_t> expected = of_first.step();
  const std::int64_t compiled = first.stats().kernels.compiled;
  const std::int64_t launches = first.stats().launches;
  BOOST_TEST(compiled > 0);
  {
    Context second(options_in(folder));
    BOOST_TEST(second.stats().launches == 0);
    Layer of_second(second);
    BOOST_TEST((of_second.step() == expected));
    BOOST_TEST(second.stats().kernels.compiled == 0);
    BOOST_TEST(second.stats().kernels.loaded == compiled);
    BOOST_TEST(first.stats().launches == launches);

    // One after the other, and at once on two threads.
    for (int turn = 0; turn < 5; ++turn) {
      BOOST_TEST((of_first.step() == expected));
      BOOST_TEST((of_second.step() == expected));
    }
    bool same = true;
    std::thread beside([&] {
      for (int i = 0; i < 20; ++i) same = of_second.step() == expected && same;
    });
    for (int i = 0; i < 20; ++i) BOOST_TEST((of_first.step() == expected));
    beside.join();
    BOOST_TEST(same);
  }
  BOOST_TEST((of_first.step() == expected));
}

BOOST_AUTO_TEST_CASE(a_stream_of_another_context_is_refused) {
  const TemporaryDirectory folder;
  Context first(options_in(folder));
  Context second(options_in(folder));
  Layer layer(first);
  Stream of_second(second.backend());
  BOOST_CHECK_EXCEPTION(layer.linear.forward(layer.tensors.forward(true), of_second), Error, [](const Error& error) {
    return std::string(error.what()).find("belongs to another backend than the layer") != std::string::npos;
  });
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
