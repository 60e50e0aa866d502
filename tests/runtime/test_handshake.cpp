// Comm::handshake(): equal models cost one exchange, and of different ones every rank says the same.
#include <boost/test/unit_test.hpp>

#include <array>
#include <string>
#include <vector>

#include "ingot/runtime/dist/comm.h"
#include "support/fake_device.h"
#include "support/fake_nccl.h"
#include "support/ranks.h"

BOOST_AUTO_TEST_SUITE(test_handshake)

using namespace ingot;
using test::on_ranks;
using test::Rank;
using test::Wire;

namespace {

constexpr std::array kWires{Wire::threads, Wire::nccl};

using Model = std::vector<SharedLayer>;

Model model(int layers) {
  Model made;
  for (int i = 0; i < layers; ++i) {
    made.push_back({"layers." + std::to_string(i) + ".wq", "bf16[4096, 1024], rowwise"});
  }
  return made;
}

// The message of every rank, which is one.
std::string message(const std::vector<Model>& models) {
  std::string common;
  for (const Wire wire : kWires) {
    const auto thrown = on_ranks(wire, static_cast<int>(models.size()), [&](Rank& rank) {
      rank.comm.handshake(models[static_cast<std::size_t>(rank.number)], rank.stream);
    });
    for (const std::string& each : thrown) BOOST_TEST(each == thrown.front());
    if (wire != kWires.front()) BOOST_TEST(thrown.front() == common);
    common = thrown.front();
  }
  return common;
}

}  // namespace

BOOST_AUTO_TEST_CASE(equal_models_agree) {
  for (const int layers : {0, 1, 40}) {
    for (std::size_t ranks = 1; ranks <= 4; ++ranks) BOOST_TEST(message({ranks, model(layers)}) == "");
  }
}

BOOST_AUTO_TEST_CASE(agreement_is_one_exchange_of_24_bytes) {
  const test::FakeNccl communicators(2);
  const auto thrown = test::on_threads(2, [&](int number) {
    const auto device = std::make_unique<test::FakeDevice>();
    Stream stream(*device);
    Comm comm(*device, test::fake_nccl(), communicators.at(number));
    comm.handshake(model(300), stream);
  });
  BOOST_TEST_CHECK(thrown == std::vector<std::string>(2), boost::test_tools::per_element());
  for (const int rank : {0, 1}) BOOST_TEST(communicators.calls(rank) == "ncclAllGather 24 of 1; end; ");
}

BOOST_AUTO_TEST_CASE(the_first_layer_that_differs_is_named_on_every_rank) {
  std::vector<Model> models(4, model(12));
  models[2][7].description = "bf16[4096, 1024], tensorwise";
  models[3][9].description = "f32[4096, 1024], rowwise";
  BOOST_TEST(message(models) ==
             "layer 7 of the model: is \"layers.7.wq\" (bf16[4096, 1024], rowwise) on rank 0 and \"layers.7.wq\" "
             "(bf16[4096, 1024], tensorwise) on rank 2; every rank must build the same layers in the same order");
}

BOOST_AUTO_TEST_CASE(names_and_order_count) {
  std::vector<Model> models(2, model(3));
  std::swap(models[1][1], models[1][2]);
  BOOST_TEST(message(models) ==
             "layer 1 of the model: is \"layers.1.wq\" (bf16[4096, 1024], rowwise) on rank 0 and \"layers.2.wq\" "
             "(bf16[4096, 1024], rowwise) on rank 1; every rank must build the same layers in the same order");
  // What is moved from one field to the next is different too.
  BOOST_TEST(message({{{"ab", "c"}}, {{"a", "bc"}}}) ==
             "layer 0 of the model: is \"ab\" (c) on rank 0 and \"a\" (bc) on rank 1; every rank must build the same "
             "layers in the same order");
}

BOOST_AUTO_TEST_CASE(a_layer_that_is_missing_is_named) {
  BOOST_TEST(message({model(3), model(3), model(2)}) ==
             "layer 2 of the model: is \"layers.2.wq\" (bf16[4096, 1024], rowwise) on rank 0 and missing on rank 2 "
             "(which has 2 layers); every rank must build the same layers in the same order");
  BOOST_TEST(message({model(0), model(1)}) ==
             "layer 0 of the model: is missing on rank 0 (which has 0 layers) and \"layers.0.wq\" (bf16[4096, 1024], "
             "rowwise) on rank 1; every rank must build the same layers in the same order");
}

BOOST_AUTO_TEST_SUITE_END()
