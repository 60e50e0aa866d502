// Lists of casts and of maxima on the GPU: the bits of single casts on the CPU, and the maxima of the elements, in as
// many launches as one takes.
#include "support/gpu_test.h"

#include "support/amax_list_case.h"
#include "support/cast_list_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_list_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};
};

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(the_bits_of_single_casts) {
  for (const CastSpec& spec : listed_specs()) BOOST_TEST(list_difference(spec, backend, stream) == "", print(spec));
}

BOOST_AUTO_TEST_CASE(the_maxima_of_the_elements) {
  for (const AmaxSpec& spec : amax_list_specs()) {
    BOOST_TEST(amax_list_difference(spec, backend, stream) == "", print(spec));
  }
}

BOOST_AUTO_TEST_CASE(one_launch_for_all_maxima) {
  const AmaxSpec spec{.scale = kRowwise, .second_scale = kTensorwise};
  const ListedAmax listed(spec, stream);
  const auto list = backend.make_amax_list(spec, listed.tensors, stream);
  const std::int64_t before = backend.device_api().launches();
  list->run(stream);
  BOOST_TEST(backend.device_api().launches() - before == 1);
  backend.device_api().synchronize(stream);
}

BOOST_AUTO_TEST_CASE(two_launches_for_all) {
  const CastSpec spec{.transposed = true};
  std::vector<ListedCast> listed;
  std::vector<CastTensors> tensors;
  for (int i = 0; i < 40; ++i) {
    listed.push_back(listed_cast(spec, 64 + i, 256, stream));
    tensors.push_back(listed.back().tensors);
  }
  const auto list = backend.make_cast_list(spec, tensors, stream);
  const std::int64_t before = backend.device_api().launches();
  list->run(stream);
  BOOST_TEST(backend.device_api().launches() - before == 2);
  backend.device_api().synchronize(stream);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
