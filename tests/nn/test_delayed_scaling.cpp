// Delayed scaling on the CPU reference: bit for bit against a model in float64 and std::deque, saving and loading its
// state, and its refusals.
#include "ingot/nn/modules/delayed_scaling.h"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/recipe/delayed_scaling_state.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/digest.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/delayed_scaling_model.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_delayed_scaling)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

float& element(const Tensor& tensor, std::size_t i = 0) { return static_cast<float*>(tensor.data)[i]; }

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};

  Tensor row(std::vector<float>& values) const {
    return matrix(values.data(), Dtype::f32, 1, static_cast<std::int64_t>(values.size()), {});
  }
  void start(DelayedScaling& scaling, int slot, float amax) {
    std::vector<float> values{0.0F, -amax};
    scaling.start(slot, row(values), stream);
  }
  // Simulates a step in which a cast of the slot's data finds this amax.
  void step(DelayedScaling& scaling, int slot, float amax) {
    element(scaling.amax(slot)) = amax;
    scaling.sync_amax_history(stream);
  }
  float scale(const DelayedScaling& scaling, int slot) const { return element(scaling.scale(slot)); }
  DelayedScalingState::Slot state(const DelayedScaling& scaling, int slot) {
    return parse_delayed_scaling_state(scaling.save(stream)).slots[static_cast<std::size_t>(slot)];
  }
};

const std::string kNothing = "nothing thrown";

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

std::string message(test::FunctionRef<void()> call) { return error_of(call, ErrorCode::invalid_argument); }

// Returns the text with one part changed and a valid checksum.
std::string forged(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  BOOST_REQUIRE_MESSAGE(at != std::string::npos, from << " is not in " << text);
  text.replace(at, from.size(), to);
  text.resize(text.find(",\"checksum\""));
  return text + ",\"checksum\":\"" + print(digest(text)) + "\"}";
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(delayed_scaling, Fixture)

BOOST_AUTO_TEST_CASE(twenty_steps_are_those_of_the_model) {
  for (const AmaxReduction reduction : kAmaxReductions) {
    for (const int length : {1, 2, 16, 1024}) {
      BOOST_TEST_CONTEXT("length " << length << ", reduction " << static_cast<int>(reduction)) {
        DelayedScaling scaling(*backend, {.history_length = length, .reduction = reduction});
        DelayedScalingModel model(length, reduction);
        add_model_slots(scaling, model);
        scaling.allocate(stream);
        check_same(model, scaling.save(stream));
        for (int step = 0; step < 20; ++step) {
          for (int slot = 0; slot < scaling.size(); ++slot) {
            const float amax = model_amax(step, slot);
            if (step == 0 && slot % 7 != 6) {  // some are never started
              start(scaling, slot, amax);
              model.start(slot, amax);
            }
            element(scaling.amax(slot)) = model.slots[static_cast<std::size_t>(slot)].amax = amax;
          }
          scaling.sync_amax_history(stream);
          model.sync();
          check_same(model, scaling.save(stream));
        }
      }
    }
  }
}

// The first cast of a slot equals a dynamic cast; later casts follow the maxima of earlier steps.
BOOST_AUTO_TEST_CASE(casts_use_the_scales_and_record_their_maxima) {
  for (const bool pow2 : {false, true}) {
    DelayedScaling scaling(*backend, {.history_length = 2});
    const int slot = scaling.add("input", Dtype::e4m3fn, pow2);
    std::vector<std::uint8_t> codes(3);
    std::vector<std::uint8_t> dynamic_codes(3);
    float factor = 0;
    float dynamic_scale_inv = 0;
    const auto cast = [&](std::vector<float> values) {
      backend->cast({.in = Dtype::f32, .source = ScaleSource::given},
                    {.input = row(values),
                     .codes = matrix(codes.data(), Dtype::e4m3fn, 1, 3, {}),
                     .scale_inv = vector(&factor, Dtype::f32, 1, {}),
                     .scales = scaling.scale(slot),
                     .amax = scaling.amax(slot)},
                    stream);
    };
    std::vector<float> first{0.5F, -3.0F, 1.25F};
    scaling.start(slot, row(first), stream);
    cast(first);
    backend->cast({.in = Dtype::f32, .pow2 = pow2},
                  {.input = row(first),
                   .codes = matrix(dynamic_codes.data(), Dtype::e4m3fn, 1, 3, {}),
                   .scale_inv = vector(&dynamic_scale_inv, Dtype::f32, 1, {})},
                  stream);
    BOOST_TEST_CHECK(codes == dynamic_codes, boost::test_tools::per_element());
    BOOST_TEST(bits(factor) == bits(dynamic_scale_inv));
    BOOST_TEST(element(scaling.amax(slot)) == 3.0F);

    const auto scale_of = [&](double amax) { return reference_scale(Dtype::e4m3fn, pow2, amax); };
    scaling.sync_amax_history(stream);
    BOOST_TEST(scale(scaling, slot) == scale_of(3.0));
    cast({7.0F, 0.0F, 0.0F});  // saturates with the old scale
    BOOST_TEST(codes[0] == 0x7e);
    scaling.sync_amax_history(stream);
    BOOST_TEST(scale(scaling, slot) == scale_of(7.0));
    cast({1.0F, 0.0F, 0.0F});
    scaling.sync_amax_history(stream);
    BOOST_TEST(scale(scaling, slot) == scale_of(7.0));
    cast({2.0F, 0.0F, 0.0F});
    scaling.sync_amax_history(stream);
    BOOST_TEST(scale(scaling, slot) == scale_of(2.0));  // 7 has dropped out of the history
  }
}

BOOST_AUTO_TEST_CASE(nan_and_inf_show_until_they_drop_out) {
  DelayedScaling scaling(*backend, {.history_length = 3});
  const int slot = scaling.add("a", Dtype::e5m2);
  start(scaling, slot, 2.0F);
  step(scaling, slot, kNan);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(bits(scale(scaling, slot)) == 0x7fc00000U);
    step(scaling, slot, 1.0F);
  }
  BOOST_TEST(bits(scale(scaling, slot)) == 0x7fc00000U);
  step(scaling, slot, 1.0F);
  BOOST_TEST(scale(scaling, slot) == 57344.0F);
  step(scaling, slot, kInf);
  BOOST_TEST(bits(scale(scaling, slot)) == 0U);
  for (int i = 0; i < 3; ++i) step(scaling, slot, 4.0F);
  BOOST_TEST(scale(scaling, slot) == 14336.0F);

  std::vector<float> values{1.0F, kNan};
  DelayedScaling fresh(*backend);
  fresh.add("x", Dtype::e5m2);
  fresh.start(0, row(values), stream);
  BOOST_TEST(bits(scale(fresh, 0)) == 0x7fc00000U);
}

BOOST_AUTO_TEST_CASE(overflows_count_as_0_where_finite) {
  for (const float overflow : {kNan, kInf}) {
    for (const AmaxReduction reduction : kAmaxReductions) {
      DelayedScaling scaling(*backend, {.history_length = 2, .reduction = reduction, .finite = true});
      const int slot = scaling.add("a", Dtype::e5m2);
      const int starts_with_it = scaling.add("b", Dtype::e5m2);
      start(scaling, slot, 2.0F);
      start(scaling, starts_with_it, overflow);
      BOOST_TEST(scale(scaling, starts_with_it) == 1.0F);
      BOOST_TEST((state(scaling, starts_with_it).history == std::vector<std::uint32_t>{0, 0}));
      step(scaling, slot, overflow);
      BOOST_TEST(scale(scaling, slot) == 28672.0F);
      BOOST_TEST((state(scaling, slot).history == std::vector<std::uint32_t>{0, bits(2.0F)}));
      step(scaling, slot, 4.0F);
      BOOST_TEST(scale(scaling, slot) == 14336.0F);

      // A NaN that came into the history without `finite` stays in it until it drops out.
      DelayedScaling before(*backend, {.history_length = 2, .reduction = reduction});
      before.add("a", Dtype::e5m2);
      before.add("b", Dtype::e5m2);
      start(before, slot, kNan);
      scaling.load(before.save(stream), stream);
      step(scaling, slot, 4.0F);
      BOOST_TEST(bits(scale(scaling, slot)) == (reduction == AmaxReduction::max ? 0x7fc00000U : bits(14336.0F)));
      step(scaling, slot, 4.0F);
      BOOST_TEST(scale(scaling, slot) == 14336.0F);
    }
  }
}

BOOST_AUTO_TEST_CASE(slots_without_data_keep_their_scale) {
  DelayedScaling scaling(*backend, {.history_length = 2});
  const int used = scaling.add("used", Dtype::e4m3fn);
  const int unused = scaling.add("unused", Dtype::e4m3fn, true);
  start(scaling, used, 2.0F);
  BOOST_TEST(scaling.has_scale(used));
  BOOST_TEST(!scaling.has_scale(unused));
  for (int i = 0; i < 4; ++i) {
    scaling.sync_amax_history(stream);
    BOOST_TEST(scale(scaling, used) == 224.0F);  // also once the history has only zeros
    BOOST_TEST(scale(scaling, unused) == 1.0F);
  }
  BOOST_TEST((state(scaling, used).history == std::vector<std::uint32_t>{0, 0}));
  BOOST_TEST((state(scaling, unused).history == std::vector<std::uint32_t>{0, 0}));
  BOOST_TEST(!scaling.has_scale(unused));
  // A step that leaves the layer out is one of its steps.
  start(scaling, unused, 3.0F);
  scaling.sync_amax_history(stream);
  BOOST_TEST((state(scaling, unused).history == std::vector<std::uint32_t>{0, bits(3.0F)}));
  BOOST_TEST(scale(scaling, unused) == 128.0F);

  // A history of zeros changes nothing either.
  DelayedScaling zeros(*backend);
  zeros.add("grad", Dtype::e5m2);
  start(zeros, 0, 0.0F);
  BOOST_TEST(zeros.has_scale(0));
  BOOST_TEST(scale(zeros, 0) == 1.0F);
}

// A slot of which nothing was seen to make a scale of is started again in the next step, each by itself; which slots
// those are is read ever more rarely, and in no step that starts none.
BOOST_AUTO_TEST_CASE(slots_start_when_there_is_something_to_start_with) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  DelayedScaling scaling(counting, {.history_length = 2, .finite = true});
  for (const char* const name : {"used", "zeros", "overflow"}) scaling.add(name, Dtype::e4m3fn);
  const auto start_with = [&](int slot, float amax) {
    std::vector<float> values{0.0F, amax};
    scaling.start(slot, row(values), on);
  };
  start_with(0, 2.0F);
  start_with(1, 0.0F);
  start_with(2, kInf);
  for (int slot = 0; slot < 3; ++slot) BOOST_TEST(!scaling.needs_start(slot));  // in the step that has started it
  scaling.sync_amax_history(on);
  BOOST_TEST(!scaling.needs_start(0));
  BOOST_TEST((scaling.needs_start(1) && scaling.needs_start(2)));
  DelayedScaling loaded(*backend, {.history_length = 2, .finite = true});
  for (const char* const name : {"overflow", "zeros", "used"}) loaded.add(name, Dtype::e4m3fn);
  loaded.load(scaling.save(on), stream);
  BOOST_TEST((loaded.needs_start(0) && loaded.needs_start(1) && !loaded.needs_start(2)));

  start_with(2, 1e-3F);
  BOOST_TEST(scale(scaling, 2) == reference_scale(Dtype::e4m3fn, false, 1e-3F));
  scaling.sync_amax_history(on);
  BOOST_TEST(!scaling.needs_start(2));
  BOOST_TEST(message([&] { start_with(2, 1.0F); }).find("has its first scale already") != std::string::npos);
  int reads = 0;
  for (int step = 2; step <= 100; ++step) {
    start_with(1, 0.0F);
    const int before = counting.copies_to_host;
    scaling.sync_amax_history(on);
    reads += counting.copies_to_host - before;
    BOOST_TEST(scaling.needs_start(1));
  }
  BOOST_TEST(reads == 4);  // 2, 3, 16, 64
  start_with(1, 4.0F);
  scaling.sync_amax_history(on);
  BOOST_TEST(scale(scaling, 1) == 112.0F);
  const int before = counting.copies_to_host;
  for (int step = 0; step < 40; ++step) scaling.sync_amax_history(on);
  BOOST_TEST(counting.copies_to_host == before);
}

// 1 is a scale like any other where a maximum has made it, as those between 224 and 448 do with powers of two.
BOOST_AUTO_TEST_CASE(a_scale_of_1_is_started_once) {
  DelayedScaling scaling(*backend, {.history_length = 3});
  scaling.add("pow2", Dtype::e4m3fn, true);
  scaling.add("exact", Dtype::e4m3fn);
  for (const int slot : {0, 1}) start(scaling, slot, slot == 0 ? 300.0F : 448.0F);
  for (int step = 0; step < 3; ++step) {
    for (const int slot : {0, 1}) {
      BOOST_TEST(scale(scaling, slot) == 1.0F);
      BOOST_TEST(!scaling.needs_start(slot));
      element(scaling.amax(slot)) = 300.0F;
    }
    scaling.sync_amax_history(stream);
  }
  DelayedScaling loaded(*backend, {.history_length = 3});
  for (const char* const name : {"exact", "pow2"}) loaded.add(name, Dtype::e4m3fn, name[0] == 'p');
  loaded.load(scaling.save(stream), stream);
  BOOST_TEST((!loaded.needs_start(0) && !loaded.needs_start(1)));
}

// Data-parallel: after an all-reduce of the maxima, all ranks have the same scales, whatever their own data were.
BOOST_AUTO_TEST_CASE(ranks_that_reduce_their_maxima_agree) {
  constexpr int kRanks = 3;
  std::vector<std::unique_ptr<DelayedScaling>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<DelayedScaling>(*backend, DelayedScalingOptions{.history_length = 3}));
    for (int slot = 0; slot < 4; ++slot) ranks.back()->add(std::to_string(slot), Dtype::e4m3fn);
  }
  for (int step = 0; step < 10; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int slot = 0; slot < 4; ++slot) {
        const float amax = model_amax(10 * step + rank, slot);
        if (step == 0) start(*ranks[static_cast<std::size_t>(rank)], slot, amax);
        element(ranks[static_cast<std::size_t>(rank)]->amax(slot)) = amax;
      }
    }
    for (std::size_t slot = 0; slot < 4; ++slot) {
      float largest = 0;
      for (const auto& rank : ranks) largest = std::max(largest, element(rank->amaxes(), slot));
      for (const auto& rank : ranks) element(rank->amaxes(), slot) = largest;
    }
    for (const auto& rank : ranks) rank->sync_amax_history(stream);
    for (int slot = 0; slot < 4; ++slot) {
      for (const auto& rank : ranks) BOOST_TEST(scale(*rank, slot) == scale(*ranks[0], slot));
    }
  }
}

BOOST_AUTO_TEST_CASE(one_call_updates_all_and_memory_is_made_once) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  DelayedScaling scaling(counting, {.reduction = AmaxReduction::most_recent});
  scaling.sync_amax_history(on);  // there is nothing yet
  scaling.allocate(on);
  BOOST_TEST(counting.calls.empty());
  for (int slot = 0; slot < 672; ++slot) scaling.add(std::to_string(slot), Dtype::e4m3fn);
  BOOST_TEST(counting.allocations == 0);
  scaling.allocate(on);
  BOOST_TEST(counting.allocations == 1);
  const void* const amaxes = scaling.amaxes().data;
  BOOST_TEST(scaling.amaxes().cols == 672);
  BOOST_TEST(scaling.amax(671).data == static_cast<const float*>(amaxes) + 671);
  for (int i = 0; i < 3; ++i) scaling.sync_amax_history(on);
  BOOST_TEST_CHECK(counting.calls == std::vector<std::string>(3, "amax_history reduce=most_recent"),
                   boost::test_tools::per_element());
  scaling.load(scaling.save(on), on);
  scaling.allocate(on);
  BOOST_TEST(counting.allocations == 1);
  BOOST_TEST(scaling.amaxes().data == amaxes);
}

BOOST_AUTO_TEST_CASE(a_state_goes_on_where_it_was_saved) {
  for (const AmaxReduction reduction : kAmaxReductions) {
    const DelayedScalingOptions options{.history_length = 5, .reduction = reduction};
    DelayedScaling saved(*backend, options);
    DelayedScalingModel model(5, reduction);
    add_model_slots(saved, model);
    const auto some_steps = [&](DelayedScaling& scaling, int begin, int end) {
      for (int step = begin; step < end; ++step) {
        for (int slot = 0; slot < scaling.size() - 1; ++slot) {  // the last one is not started
          if (!scaling.has_scale(slot)) start(scaling, slot, model_amax(step, slot));
          element(scaling.amax(slot)) = slot == 2 && step == 8   ? kNan
                                        : slot == 3 && step == 9 ? kInf
                                                                 : model_amax(step, slot);
        }
        if (step + 1 != end) scaling.sync_amax_history(stream);  // the state is saved in the middle of a step
      }
    };
    some_steps(saved, 0, 10);
    const std::string text = saved.save(stream);
    BOOST_TEST(text.find('\n') == std::string::npos);

    DelayedScaling loaded(*backend, options);
    add_model_slots(loaded, model);
    loaded.load(text, stream);
    BOOST_TEST(loaded.save(stream) == text);
    for (int slot = 0; slot < saved.size(); ++slot) BOOST_TEST(loaded.has_scale(slot) == saved.has_scale(slot));
    for (DelayedScaling* const each : {&saved, &loaded}) {
      each->sync_amax_history(stream);
      some_steps(*each, 10, 20);
    }
    BOOST_TEST(loaded.save(stream) == saved.save(stream));

    // Slots are matched by name.
    DelayedScaling turned(*backend, options);
    const DelayedScalingState state = parse_delayed_scaling_state(text);
    for (auto slot = state.slots.rbegin(); slot != state.slots.rend(); ++slot) {
      turned.add(slot->name, slot->dtype, slot->pow2);
    }
    turned.load(text, stream);
    const int last = turned.size() - 1;
    for (int slot = 0; slot <= last; ++slot) {
      const DelayedScalingState::Slot& expected = state.slots[static_cast<std::size_t>(last - slot)];
      const DelayedScalingState::Slot found = this->state(turned, slot);
      BOOST_TEST(found.name == expected.name);
      BOOST_TEST(bits(scale(turned, slot)) == expected.scale);
      BOOST_TEST(found.amax == expected.amax);
      BOOST_TEST((found.history == expected.history));
      BOOST_TEST(turned.has_scale(slot) == expected.has_scale);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_state_from_before_the_first_step) {
  DelayedScaling scaling(*backend);
  scaling.add("a \"quoted\"\nname", Dtype::e5m2fnuz, true);
  const std::string text = scaling.save(stream);
  DelayedScaling other(*backend);
  other.add("a \"quoted\"\nname", Dtype::e5m2fnuz, true);
  other.load(text, stream);
  BOOST_TEST(!other.has_scale(0));
  BOOST_TEST(other.save(stream) == text);
  start(other, 0, 2.0F);
  BOOST_TEST(scale(other, 0) == 16384.0F);

  DelayedScaling none(*backend);
  DelayedScaling nothing(*backend);
  nothing.load(none.save(stream), stream);
  BOOST_TEST(nothing.amaxes().cols == 0);
  nothing.sync_amax_history(stream);
}

BOOST_AUTO_TEST_CASE(a_state_of_another_model_is_refused) {
  DelayedScaling scaling(*backend, {.history_length = 2});
  scaling.add("a", Dtype::e4m3fn);
  scaling.add("b", Dtype::e5m2, true);
  start(scaling, 0, 2.0F);
  const std::string text = scaling.save(stream);
  struct Wanted {
    const char* name;
    Dtype dtype;
    bool pow2;
  };
  const auto refusal = [&](const std::vector<Wanted>& slots, int length) {
    DelayedScaling other(*backend, {.history_length = length});
    for (const Wanted& slot : slots) other.add(slot.name, slot.dtype, slot.pow2);
    const std::string before = other.save(stream);
    std::string found = message([&] { other.load(text, stream); });
    BOOST_TEST((other.save(stream) == before) == (found != kNothing));
    return found;
  };
  const Wanted a{"a", Dtype::e4m3fn, false};
  const Wanted b{"b", Dtype::e5m2, true};
  const std::string subject = "delayed scaling state: ";
  BOOST_TEST(refusal({b, a}, 2) == kNothing);
  BOOST_TEST(refusal({a, b}, 3) == subject + "has histories of 2 steps, but this object's have 3");
  BOOST_TEST(refusal({a, b, {"c", Dtype::e5m2, false}}, 2) == subject + "lacks slot \"c\", which this object has");
  BOOST_TEST(refusal({a}, 2) == subject + "has a slot \"b\", which this object lacks; add the slots that were saved");
  BOOST_TEST(refusal({a, {"b", Dtype::e4m3fn, true}}, 2) ==
             subject + "has slot \"b\" for e5m2, but here it is for e4m3fn");
  BOOST_TEST(refusal({a, {"b", Dtype::e5m2, false}}, 2) ==
             subject + "has slot \"b\" with pow2, but here it is without");
  BOOST_TEST(refusal({{"a", Dtype::e4m3fn, true}, b}, 2) ==
             subject + "has slot \"a\" without pow2, but here it is with");
}

BOOST_AUTO_TEST_CASE(damaged_states_are_refused) {
  DelayedScaling scaling(*backend, {.history_length = 2});
  scaling.add("a", Dtype::e4m3fn);
  start(scaling, 0, 2.0F);
  const std::string text = scaling.save(stream);
  const auto refusal = [&](const std::string& damaged) { return message([&] { scaling.load(damaged, stream); }); };
  const std::string subject = "delayed scaling state: ";
  const std::string advice = "; load what save() gave, unchanged";
  BOOST_TEST(refusal("") == subject + "is not a state of delayed scaling" + advice);
  BOOST_TEST(refusal("{\"ingot_tuning\":1}") == subject + "is not a state of delayed scaling" + advice);
  BOOST_TEST(refusal(text.substr(0, text.size() / 2)) == subject + "is truncated" + advice);
  BOOST_TEST(refusal(text + "\n") == subject + "is truncated" + advice);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    check_contains(refusal(damaged), {subject, advice});
    check_contains(refusal(text.substr(0, i)), {subject, advice});
  }

  // Invalid content with a valid checksum.
  const auto forgery = [&](const std::string& from, const std::string& to) { return refusal(forged(text, from, to)); };
  BOOST_TEST(forgery("_scaling\":1", "_scaling\":2") == subject + "is of another version of the format" + advice);
  const std::string kind = subject + "lacks a field, or has one of the wrong kind" + advice;
  BOOST_TEST(forgery("\"amax\"", "\"amix\"") == kind);
  BOOST_TEST(forgery("\"name\":\"a\"", "\"name\":1") == kind);
  BOOST_TEST(forgery("\"has_scale\":true", "\"has_scale\":true,") == kind);
  BOOST_TEST(forgery("\"history_length\":2", "\"history_length\":1e22") ==
             subject + "has \"history_length\": 1e+22, which is not a whole number from 0 to 2147483647" + advice);
  BOOST_TEST(forgery("\"history_length\":2,", "") == subject + "lacks \"history_length\"" + advice);
  const std::string no_bits = subject + "has a value that is not the bits of an f32" + advice;
  BOOST_TEST(forgery("\"amax\":0", "\"amax\":-1") == no_bits);
  BOOST_TEST(forgery("\"amax\":0", "\"amax\":0.5") == no_bits);
  BOOST_TEST(forgery("\"amax\":0", "\"amax\":4294967296") == no_bits);
  BOOST_TEST(forgery("e4m3fn", "e4m3") == subject + "has a slot of an unknown dtype" + advice);
  BOOST_TEST(forgery(",0]", "]") == subject + "has a history whose length is not history_length" + advice);
  for (const std::string count : {"-2", "4294967298"}) {
    BOOST_TEST(forgery("\"history_length\":2", "\"history_length\":" + count) ==
               subject + "has \"history_length\": " + count + ", which is not a whole number from 0 to 2147483647" +
                   advice);
  }
  BOOST_TEST(message([] { print(DelayedScalingState{.history_length = 1, .slots = {{.name = "\xff"}}}); }) ==
             subject + "has a slot whose name is not UTF-8; name slots in UTF-8");
  const auto begin = text.find("{\"name\"");
  const std::string slot = text.substr(begin, text.find("]}", begin) + 2 - begin);
  BOOST_TEST(forgery(slot, slot + "," + slot) == subject + "has two slots of one name, \"a\"" + advice);
  BOOST_TEST(scaling.save(stream) == text);
}

// Scales of one layer's experts follow each other; a call that began elsewhere would take another layer's.
BOOST_AUTO_TEST_CASE(scales_of_other_slots_than_a_layers_experts_are_refused) {
  DelayedScaling scaling(*backend);
  BOOST_TEST(message([&] { scaling.add_experts("none", Dtype::e4m3fn, 0); }) ==
             "delayed scaling slots \"none\": are of 0 experts, but a layer must have at least 1");
  const int alone = scaling.add("alone", Dtype::e4m3fn);
  const int input = scaling.add_experts("moe.input", Dtype::e4m3fn, 3);
  const int gradient = scaling.add_experts("moe.grad_output", Dtype::e5m2, 3);
  std::vector<float> memory(3 * kStartingScaleBytes / sizeof(float));
  const MemoryRegion into{memory.data(), memory.size() * sizeof(float)};
  const auto refusal = [&](int first, int experts) {
    return message([&] { scaling.scale_of_experts(first, experts, into, stream); });
  };
  const std::string advice = "; give the index that add_experts() returned for a layer's, and their number";
  const std::string not_first = "is not the first of a layer's experts" + advice;
  BOOST_TEST(refusal(alone, 1) == "delayed scaling slot \"alone\": " + not_first);
  BOOST_TEST(refusal(input + 1, 2) == "delayed scaling slot \"moe.input.1\": " + not_first);
  BOOST_TEST(refusal(input, 6) == "delayed scaling slot \"moe.input.0\": is the first of 3 experts, not of 6" + advice);
  BOOST_TEST(refusal(input, 2) == "delayed scaling slot \"moe.input.0\": is the first of 3 experts, not of 2" + advice);
  BOOST_TEST(refusal(gradient, 0) ==
             "delayed scaling slot \"moe.grad_output.0\": is the first of 3 experts, not of 0" + advice);
  BOOST_TEST(refusal(7, 1) == "delayed scaling: there is no slot 7: 7 were added, numbered from 0");
  BOOST_TEST(refusal(-1, 3) == "delayed scaling: there is no slot -1: 7 were added, numbered from 0");
  BOOST_TEST(!scaling.is_allocated());
  BOOST_TEST(scaling.scale_of_experts(gradient, 3, into, stream).amax.cols == 3);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_is_refused) {
  BOOST_TEST(message([&] { DelayedScaling(*backend, {.history_length = 0}); }) ==
             "delayed scaling: history_length is 0, but must be at least 1");
  BOOST_TEST(error_of([&] { DelayedScaling(*backend, {.reduction = static_cast<AmaxReduction>(5)}); },
                      ErrorCode::invalid_spec) ==
             "amax_history reduce=unknown: reduction is 5, which is not valid; it must be max or most_recent");

  DelayedScaling scaling(*backend);
  BOOST_TEST(scaling.add("a", Dtype::e4m3fn) == 0);
  BOOST_TEST(message([&] { scaling.add("a", Dtype::e5m2); }) ==
             "delayed scaling slot \"a\": already exists; each slot needs its own name");
  BOOST_TEST(message([&] { scaling.add("", Dtype::e5m2); }) ==
             "delayed scaling slot \"\": has no name, but its state is saved by it");
  BOOST_TEST(message([&] { scaling.add("\xff", Dtype::e5m2); }) ==
             "delayed scaling: the name of a slot must be UTF-8, as its state is saved by it");
  BOOST_TEST(message([&] { scaling.add("b", Dtype::bf16); }) ==
             "delayed scaling slot \"b\": is of bf16, but must be of one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz");
  BOOST_TEST(scaling.size() == 1);
  const std::string none = "delayed scaling: there is no slot 1: 1 were added, numbered from 0";
  BOOST_TEST(message([&] { scaling.scale(1); }) == none);
  BOOST_TEST(message([&] { scaling.amax(1); }) == none);
  BOOST_TEST(message([&] { static_cast<void>(scaling.has_scale(1)); }) == none);
  BOOST_TEST(message([&] { scaling.start(1, {}, stream); }) == none);
  BOOST_TEST(message([&] { scaling.scale(-1); }) ==
             "delayed scaling: there is no slot -1: 1 were added, numbered from 0");
  const std::string no_memory = "delayed scaling: has no memory yet: the first start(), load() or allocate() makes it";
  BOOST_TEST(message([&] { scaling.scale(0); }) == no_memory);
  BOOST_TEST(message([&] { scaling.amax(0); }) == no_memory);
  BOOST_TEST(message([&] { scaling.amaxes(); }) == no_memory);

  std::uint8_t codes = 0;
  BOOST_TEST(
      error_of([&] { scaling.start(0, matrix(&codes, Dtype::e4m3fn, 1, 1, {}), stream); }, ErrorCode::invalid_spec) ==
      "amax e4m3fn scale=tensor: in is e4m3fn, but must be one of f32, bf16, f16");
  BOOST_TEST(!scaling.has_scale(0));
  start(scaling, 0, 1.0F);
  BOOST_TEST(message([&] { start(scaling, 0, 1.0F); }) ==
             "delayed scaling slot \"a\": has its first scale already; start() is for slots without (has_scale())");
  BOOST_TEST(message([&] { scaling.add("c", Dtype::e5m2); }) ==
             "delayed scaling slot \"c\": is added after the first use of the memory, which cannot move any more; add "
             "all slots before");

  const std::unique_ptr<Backend> another = make_cpu_backend(1);
  Stream theirs(*another);
  check_contains(message([&] { scaling.sync_amax_history(theirs); }), {"stream"});
  check_contains(message([&] { scaling.load(scaling.save(stream), theirs); }), {"stream"});
  check_contains(message([&] { scaling.save(theirs); }), {"stream"});
  DelayedScaling fresh(*backend);
  fresh.add("a", Dtype::e4m3fn);
  check_contains(message([&] { fresh.allocate(theirs); }), {"stream"});
  std::vector<float> values{1.0F};
  check_contains(message([&] { fresh.start(0, row(values), theirs); }), {"stream"});
}

BOOST_AUTO_TEST_CASE(nothing_is_made_or_started_during_a_capture) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  DelayedScaling scaling(counting);
  scaling.add("a", Dtype::e4m3fn);
  const std::string text = scaling.save(on);
  counting.is_capturing = true;
  const std::string made =
      "delayed scaling: its memory is made and written from the host, which cannot be done while the stream is "
      "capturing a graph; run the step once before capturing it";
  BOOST_TEST(message([&] { scaling.allocate(on); }) == made);
  BOOST_TEST(message([&] { scaling.load(text, on); }) == made);
  const std::string started =
      "delayed scaling slot \"a\": is started while the stream is capturing a graph, whose replays would start it "
      "anew; run the step once before capturing it";
  BOOST_TEST(message([&] { scaling.start(0, {}, on); }) == started);
  BOOST_TEST(counting.allocations == 0);
  BOOST_TEST(!scaling.has_scale(0));
  counting.is_capturing = false;
  scaling.allocate(on);
  counting.is_capturing = true;
  scaling.allocate(on);
  scaling.sync_amax_history(on);
  BOOST_TEST(message([&] { scaling.start(0, {}, on); }) == started);
  BOOST_TEST(message([&] { scaling.load(text, on); }) == made);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
