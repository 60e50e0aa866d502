// Delayed scaling on CUDA: 20 steps give the same bits as on the CPU and in the reference model
// (nn/delayed_scaling_model.h), launched one by one or replayed from a captured graph; and casts with delayed scales
// run inside a graph.
#include "support/gpu_test.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "nn/delayed_scaling_model.h"
#include "support/capture.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_delayed_scaling_gpu)

namespace {

// One context for the program, so that a kernel is compiled once.
Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  std::unique_ptr<Backend> cpu = make_cpu_backend(1);
  Stream cpu_stream{*cpu};
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);

  Fixture() { BOOST_REQUIRE_MESSAGE(driver != nullptr, problem); }
};

float amax_of(int step, int slot) {
  if (slot == 2 && step == 8) return std::numeric_limits<float>::quiet_NaN();
  if (slot == 3 && step == 9) return std::numeric_limits<float>::infinity();
  return model_amax(step, slot);
}

// The outputs of a step's casts.
void set_amaxes(DelayedScaling& scaling, int step, Backend& backend, Stream& stream) {
  std::vector<float> values;
  for (int slot = 0; slot < scaling.size(); ++slot) values.push_back(amax_of(step, slot));
  backend.device_api().copy_from_host(scaling.amaxes().data, values.data(), values.size() * sizeof(float), stream);
}

void start(DelayedScaling& scaling, int slot, float amax, Backend& backend, Stream& stream) {
  const std::array values{0.0F, -amax, 0.0F};
  const Buffer input(backend, sizeof(values));
  backend.device_api().copy_from_host(input.data(), values.data(), sizeof(values), stream);
  scaling.start(slot, matrix(input.data(), Dtype::f32, 1, 3, backend.device()), stream);
  backend.device_api().synchronize(stream);
}

BOOST_FIXTURE_TEST_SUITE(delayed_scaling, Fixture)

BOOST_AUTO_TEST_CASE(twenty_steps_are_those_of_the_cpu) {
  const CurrentContext current(*driver, context().device().index);
  for (const AmaxReduction reduction : kAmaxReductions) {
    for (const int length : {1, 2, 16, 1024}) {
      for (const bool captured : {false, true}) {
        BOOST_TEST_CONTEXT("length " << length << ", reduction " << static_cast<int>(reduction)
                                     << (captured ? ", captured" : "")) {
          const DelayedScalingOptions options{.history_length = length, .reduction = reduction};
          DelayedScaling ours(cuda, options);
          DelayedScaling theirs(*cpu, options);
          DelayedScalingModel model(length, reduction);
          add_model_slots(ours, model);
          add_model_slots(theirs, model);
          for (int slot = 0; slot < ours.size() - 2; ++slot) {
            start(ours, slot, amax_of(0, slot), cuda, stream);
            start(theirs, slot, amax_of(0, slot), *cpu, cpu_stream);
            model.start(slot, amax_of(0, slot));
          }
          std::unique_ptr<Graph> graph;
          if (captured) graph = std::make_unique<Graph>(stream, [&] { ours.sync_amax_history(stream); });
          const std::int64_t launches = cuda.device_api().launches();
          for (int step = 0; step < 20; ++step) {
            set_amaxes(ours, step, cuda, stream);
            set_amaxes(theirs, step, *cpu, cpu_stream);
            for (int slot = 0; slot < ours.size(); ++slot) {
              model.slots[static_cast<std::size_t>(slot)].amax = amax_of(step, slot);
            }
            if (captured) {
              graph->replay(stream);
            } else {
              ours.sync_amax_history(stream);
            }
            theirs.sync_amax_history(cpu_stream);
            model.sync();
            const std::string saved = ours.save(stream);
            BOOST_TEST(saved == theirs.save(cpu_stream), "step " << step);
            check_same(model, saved);
          }
          BOOST_TEST(cuda.device_api().launches() - launches == (captured ? 0 : 20));
        }
      }
    }
  }
}

// As many slots as a model has, all in one launch; the saved state continues on another backend.
BOOST_AUTO_TEST_CASE(many_slots) {
  const DelayedScalingOptions options{};
  DelayedScaling ours(cuda, options);
  DelayedScaling theirs(*cpu, options);
  for (int slot = 0; slot < 672; ++slot) {
    ours.add(std::to_string(slot), kFp8Dtypes[static_cast<std::size_t>(slot) % 4], slot % 5 == 0);
    theirs.add(std::to_string(slot), kFp8Dtypes[static_cast<std::size_t>(slot) % 4], slot % 5 == 0);
  }
  ours.allocate(stream);
  theirs.allocate(cpu_stream);
  for (int step = 0; step < 20; ++step) {
    set_amaxes(ours, step, cuda, stream);
    set_amaxes(theirs, step, *cpu, cpu_stream);
    ours.sync_amax_history(stream);
    theirs.sync_amax_history(cpu_stream);
  }
  BOOST_TEST(ours.save(stream) == theirs.save(cpu_stream));
  DelayedScaling restored(cuda, options);
  for (int slot = 0; slot < 672; ++slot) {
    restored.add(std::to_string(slot), kFp8Dtypes[static_cast<std::size_t>(slot) % 4], slot % 5 == 0);
  }
  restored.load(theirs.save(cpu_stream), stream);
  set_amaxes(restored, 20, cuda, stream);
  set_amaxes(theirs, 20, *cpu, cpu_stream);
  restored.sync_amax_history(stream);
  theirs.sync_amax_history(cpu_stream);
  BOOST_TEST(restored.save(stream) == theirs.save(cpu_stream));
}

// A graph of a whole step, the cast and the update: each replay casts with what earlier replays recorded.
BOOST_AUTO_TEST_CASE(a_captured_step_goes_on_by_itself) {
  const CurrentContext current(*driver, context().device().index);
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kCols = 256;
  const DelayedScalingOptions options{.history_length = 3};
  const CastSpec spec{.in = Dtype::f32, .transposed = true, .source = ScaleSource::given};

  struct Side {
    Backend& backend;
    Stream& stream;
    DelayedScaling scaling;
    Buffer input;
    Buffer codes;
    Buffer transposed;
    Buffer factor;

    Side(Backend& where, Stream& on, const DelayedScalingOptions& how)
        : backend(where),
          stream(on),
          scaling(where, how),
          input(where, kRows * kCols * sizeof(float)),
          codes(where, kRows * kCols),
          transposed(where, kRows * kCols),
          factor(where, sizeof(float)) {
      scaling.add("input", Dtype::e4m3fn);
    }
    Tensor x() const { return matrix(input.data(), Dtype::f32, kRows, kCols, backend.device()); }
    void write(int step) {
      std::vector<float> values;
      for (int i = 0; i < kRows * kCols; ++i) values.push_back(std::min(1e4F, model_amax(step, i)));
      backend.device_api().copy_from_host(input.data(), values.data(), values.size() * sizeof(float), stream);
    }
    void step(const CastSpec& cast) {
      backend.cast(cast,
                   {.input = x(),
                    .codes = matrix(codes.data(), Dtype::e4m3fn, kRows, kCols, backend.device()),
                    .transposed = matrix(transposed.data(), Dtype::e4m3fn, kCols, kRows, backend.device()),
                    .scale_inv = vector(factor.data(), Dtype::f32, 1, backend.device()),
                    .scales = scaling.scale(0),
                    .amax = scaling.amax(0)},
                   stream);
      scaling.sync_amax_history(stream);
    }
    std::vector<std::uint8_t> fetch() {
      std::vector<std::uint8_t> bytes(2 * kRows * kCols + sizeof(float));
      backend.device_api().copy_to_host(bytes.data(), codes.data(), kRows * kCols, stream);
      backend.device_api().copy_to_host(bytes.data() + kRows * kCols, transposed.data(), kRows * kCols, stream);
      backend.device_api().copy_to_host(bytes.data() + 2 * kRows * kCols, factor.data(), sizeof(float), stream);
      return bytes;
    }
  };
  Side ours(cuda, stream, options);
  Side theirs(*cpu, cpu_stream, options);
  for (Side* const side : {&ours, &theirs}) {
    side->write(0);
    side->scaling.start(0, side->x(), side->stream);
    side->step(spec);
  }
  Graph graph(stream, [&] { ours.step(spec); });
  for (int step = 1; step < 8; ++step) {
    ours.write(step);
    graph.replay(stream);
    theirs.write(step);
    theirs.step(spec);
    BOOST_TEST((ours.fetch() == theirs.fetch()), "step " << step);
    BOOST_TEST(ours.scaling.save(stream) == theirs.scaling.save(cpu_stream), "step " << step);
  }
}

BOOST_AUTO_TEST_CASE(a_capture_of_the_first_step_is_refused) {
  const CurrentContext current(*driver, context().device().index);
  DelayedScaling scaling(cuda);
  scaling.add("input", Dtype::e4m3fn);
  const Buffer input(cuda, sizeof(float));
  const Tensor x = matrix(input.data(), Dtype::f32, 1, 1, cuda.device());
  cuda.device_api().fill_zero(input.data(), sizeof(float), stream);
  cuda.device_api().synchronize(stream);
  {
    const Capture capture(*driver, stream);
    check_contains(error_of([&] { scaling.start(0, x, stream); }, ErrorCode::invalid_argument),
                   {"input", "capturing", "run the step once before capturing it"});
    check_contains(error_of([&] { scaling.allocate(stream); }, ErrorCode::invalid_argument),
                   {"capturing", "run the step once before capturing it"});
  }
  scaling.start(0, x, stream);
  BOOST_TEST(scaling.has_scale(0));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
