// Column- and row-parallel layers, whose ranks are threads: their results next to those of one rank that has the whole
// layer (Float8Linear), bit for bit where docs/distributed.md says so, and what crosses the wire.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/dist/parallel_linear.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/dist/local_group.h"
#include "nn/parallel_case.h"
#include "support/expect_error.h"
#include "support/fake_nccl.h"
#include "support/ranks.h"

BOOST_AUTO_TEST_SUITE(test_parallel_linear)

using namespace ingot;
using namespace ingot::test;

namespace {

// What all ranks write together. Where each writes all of a result, they must agree, and one is kept.
ParallelResults on_ranks(const ParallelCase& of, const ParallelInputs& inputs) {
  ParallelResults results(of);
  std::vector<std::unique_ptr<ParallelResults>> own;
  for (int rank = 0; rank < of.ranks; ++rank) own.push_back(std::make_unique<ParallelResults>(of));
  LocalGroup group(of.ranks);
  const bool bias = of.has_bias();
  const auto thrown = test::on_threads(of.ranks, [&](int rank) {
    const auto backend = make_cpu_backend(1);
    Stream stream(*backend);
    DelayedScaling delayed(*backend);
    Comm comm(*backend, group, rank);
    const ParallelLinearOptions options{.name = "up",
                                        .config = recipe(of.recipe),
                                        .shape = {.in_features = of.in, .out_features = of.out, .bias = bias},
                                        .dtypes = {.input = of.dtype, .weight = of.weight()},
                                        .sequence_parallel = of.sequence_parallel,
                                        .delayed = &delayed};
    DelayedScaling* const used = is_delayed(of) ? &delayed : nullptr;
    ParallelResults& mine = *own[static_cast<std::size_t>(rank)];
    if (of.kind == ParallelKind::column) {
      ColumnParallelLinear layer(*backend, comm, options);
      const bool sp = of.sequence_parallel;
      run(layer,
          {.input = sp ? inputs.input.rows_of(rank, of.ranks) : inputs.input.view(),
           .weight = inputs.weight.rows_of(rank, of.ranks),
           .bias = bias ? inputs.bias.cols_of(rank, of.ranks) : Tensor{},
           .output = results.output.cols_of(rank, of.ranks)},
          {.grad_output = inputs.grad_output.cols_of(rank, of.ranks),
           .grad_input = sp ? results.grad_input.rows_of(rank, of.ranks) : mine.grad_input.view(),
           .grad_weight = results.grad_weight.rows_of(rank, of.ranks),
           .grad_bias = bias ? results.grad_bias.cols_of(rank, of.ranks) : Tensor{}},
          used, &comm, stream);
    } else {
      RowParallelLinear layer(*backend, comm, options);
      const bool sp = of.sequence_parallel;
      run(layer,
          {.input = inputs.input.cols_of(rank, of.ranks),
           .weight = inputs.weight.cols_of(rank, of.ranks),
           .output = sp ? results.output.rows_of(rank, of.ranks) : mine.output.view()},
          {.grad_output = sp ? inputs.grad_output.rows_of(rank, of.ranks) : inputs.grad_output.view(),
           .grad_input = results.grad_input.cols_of(rank, of.ranks),
           .grad_weight = results.grad_weight.cols_of(rank, of.ranks)},
          used, &comm, stream);
    }
  });
  for (const std::string& each : thrown) BOOST_TEST(each == "", of.text() << ": " << each);
  if (of.sequence_parallel) return results;
  const auto whole = [&](const ParallelHost ParallelResults::*member) {
    const ParallelHost& first = own.front().get()->*member;
    for (const auto& each : own) BOOST_TEST(((*each).*member == first), of.text() << ": the ranks differ");
    std::memcpy((results.*member).view().data, first.view().data, byte_span(first.view(), "whole"));
  };
  whole(of.kind == ParallelKind::column ? &ParallelResults::grad_input : &ParallelResults::output);
  return results;
}

void check(const ParallelHost& found, const ParallelHost& expected, double bound, const std::string& what) {
  const double error = difference(found, expected);
  BOOST_TEST((bound != 0 || found == expected), what << " has other bits, " << error << " from one rank's");
  BOOST_TEST((bound == 0 || error <= bound), what << " is " << error << " from one rank's");
}

void compare(const ParallelCase& of) {
  const ParallelInputs inputs(of);
  const ParallelResults expected = on_one(of, inputs);
  const ParallelResults found = on_ranks(of, inputs);
  const ParallelBounds bounds = bounds_of(of);
  check(found.output, expected.output, bounds.output, of.text() + ": output");
  check(found.grad_input, expected.grad_input, bounds.grad_input, of.text() + ": grad_input");
  check(found.grad_weight, expected.grad_weight, bounds.grad_weight, of.text() + ": grad_weight");
  check(found.grad_bias, expected.grad_bias, 0, of.text() + ": grad_bias");
}

}  // namespace

// ---- results --------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(every_recipe_gives_what_one_rank_gives) {
  for (const Recipe& each : recipes()) {
    for (const ParallelKind kind : {ParallelKind::column, ParallelKind::row}) {
      for (const bool sequence_parallel : {false, true}) {
        compare({.kind = kind, .recipe = std::string(each.name), .sequence_parallel = sequence_parallel});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(on_any_number_of_ranks) {
  for (const int ranks : {1, 3, 4}) {
    for (const char* recipe : {"tensorwise", "rowwise_folded"}) {
      for (const ParallelKind kind : {ParallelKind::column, ParallelKind::row}) {
        for (const bool sequence_parallel : {false, true}) {
          compare({.kind = kind,
                   .recipe = recipe,
                   .sequence_parallel = sequence_parallel,
                   .ranks = ranks,
                   .dtype = Dtype::bf16,
                   .tokens = 12,
                   .in = 60,
                   .out = 84});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(with_master_weights) {
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    for (const ParallelKind kind : {ParallelKind::column, ParallelKind::row}) {
      compare({.kind = kind, .recipe = recipe, .sequence_parallel = true, .dtype = Dtype::bf16, .f32_weight = true});
    }
  }
}

// Added to the sum, once; its gradient is of all ranks' tokens.
BOOST_AUTO_TEST_CASE(a_row_parallel_layer_adds_its_bias_once) {
  for (const bool sequence_parallel : {false, true}) {
    const ParallelCase of{.kind = ParallelKind::row, .sequence_parallel = sequence_parallel, .in = 8, .out = 16};
    const ParallelInputs inputs(of);
    LocalGroup group(2);
    std::vector<std::unique_ptr<ParallelResults>> with;
    std::vector<std::unique_ptr<ParallelResults>> without;
    for (int rank = 0; rank < 2; ++rank) {
      with.push_back(std::make_unique<ParallelResults>(of));
      without.push_back(std::make_unique<ParallelResults>(of));
    }
    const std::int64_t rows = sequence_parallel ? of.tokens / 2 : of.tokens;
    const auto thrown = test::on_threads(2, [&](int rank) {
      const auto backend = make_cpu_backend(1);
      Stream stream(*backend);
      Comm comm(*backend, group, rank);
      const auto at = static_cast<std::size_t>(rank);
      for (const bool bias : {false, true}) {
        ParallelResults& own = bias ? *with[at] : *without[at];
        RowParallelLinear layer(*backend, comm,
                                {.name = "down",
                                 .config = tensorwise(),
                                 .shape = {.in_features = of.in, .out_features = of.out, .bias = bias},
                                 .dtypes = {.input = of.dtype},
                                 .sequence_parallel = sequence_parallel});
        layer.forward({.input = inputs.input.cols_of(rank, 2),
                       .weight = inputs.weight.cols_of(rank, 2),
                       .bias = bias ? inputs.bias.view() : Tensor{},
                       .output = own.output.part(0, rows, 0, of.out)},
                      stream);
        const std::int64_t first = sequence_parallel ? rank * rows : 0;
        layer.backward({.grad_output = inputs.grad_output.part(first, rows, 0, of.out),
                        .grad_bias = bias ? own.grad_bias.view() : Tensor{}},
                       stream);
      }
    });
    for (const std::string& each : thrown) BOOST_TEST(each == "");
    std::vector<double> sums(static_cast<std::size_t>(of.out));
    const std::vector<float> gradient = inputs.grad_output.values();
    for (std::size_t i = 0; i < gradient.size(); ++i) sums[i % sums.size()] += static_cast<double>(gradient[i]);
    const std::vector<float> bias = inputs.bias.values();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const std::vector<float> added = with[rank]->output.values();
      const std::vector<float> plain = without[rank]->output.values();
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows * of.out); ++i) {
        BOOST_TEST(added[i] == plain[i] + bias[i % bias.size()]);
      }
      const std::vector<float> grad_bias = with[rank]->grad_bias.values();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        BOOST_TEST_CHECK(static_cast<double>(grad_bias[i]) == sums[i], boost::test_tools::tolerance(1e-4));
      }
    }
  }
}

// ---- what crosses the wire ------------------------------------------------------------------------------------------

namespace {

// Rank 0 of two on the CUDA backend, with a driver that does nothing and a NCCL that notes what it is asked for.
struct Wired {
  Wired() { communicators.only_note(0); }

  DryRun dry{gpu_named("h200")};
  Backend& backend = dry.backend();
  Stream stream{backend};
  test::FakeNccl communicators{2, dry.backend().device().index};
  Comm comm{backend, test::fake_nccl(), communicators.at(0)};
  std::vector<OwnedTensor> memory;

  static constexpr std::int64_t kTokens = 8, kIn = 64, kOut = 128;

  Tensor tensor(std::int64_t rows, std::int64_t cols) {
    memory.emplace_back(backend, Dtype::bf16, rows, cols);
    return memory.back().view();
  }
  ParallelLinearOptions options(const char* recipe_name, bool sequence_parallel, DelayedScaling* delayed = nullptr) {
    return {.name = "up",
            .config = recipe(recipe_name),
            .shape = {.in_features = kIn, .out_features = kOut},
            .sequence_parallel = sequence_parallel,
            .delayed = delayed};
  }
  // Of a step whose weight has been cast: its forward, and its backward.
  std::pair<std::string, std::string> column(const char* recipe, bool sequence_parallel, bool keeps = true) {
    ColumnParallelLinear layer(backend, comm, options(recipe, sequence_parallel));
    const std::int64_t rows = sequence_parallel ? kTokens / 2 : kTokens;
    const LinearForward forward{.input = tensor(rows, kIn),
                                .weight = tensor(kOut / 2, kIn),
                                .output = tensor(kTokens, kOut / 2),
                                .keep_for_backward = keeps};
    const LinearBackward backward{.grad_output = tensor(kTokens, kOut / 2),
                                  .grad_input = tensor(rows, kIn),
                                  .grad_weight = tensor(kOut / 2, kIn)};
    return step(layer, forward, backward);
  }
  std::pair<std::string, std::string> row(const char* recipe, bool sequence_parallel) {
    RowParallelLinear layer(backend, comm, options(recipe, sequence_parallel));
    const std::int64_t rows = sequence_parallel ? kTokens / 2 : kTokens;
    return step(layer,
                {.input = tensor(kTokens, kIn / 2), .weight = tensor(kOut, kIn / 2), .output = tensor(rows, kOut)},
                {.grad_output = tensor(rows, kOut),
                 .grad_input = tensor(kTokens, kIn / 2),
                 .grad_weight = tensor(kOut, kIn / 2)});
  }
  template <class Layer>
  std::pair<std::string, std::string> step(Layer& layer, const LinearForward& forward, const LinearBackward& backward) {
    layer.forward(forward, stream);
    communicators.calls(0);
    layer.forward(forward, stream);
    const std::string first = communicators.calls(0);
    if (forward.keep_for_backward) layer.backward(backward, stream);
    return {first, communicators.calls(0)};
  }
};

void check_wire(const std::pair<std::string, std::string>& found, const std::string& forward,
                const std::string& backward) {
  BOOST_TEST(found.first == forward);
  BOOST_TEST(found.second == backward);
}

const std::string kMax = "ncclAllReduce 1 of 3; end; ";            // a maximum of a tensor
const std::string kGrads = "ncclReduceScatter 256 of 9; end; ";    // bf16 [4, 64]
const std::string kOutputs = "ncclReduceScatter 512 of 9; end; ";  // bf16 [4, 128]

}  // namespace

BOOST_FIXTURE_TEST_CASE(codes_cross_the_wire_where_they_serve_all_that_reads_them, Wired) {
  check_wire(column("tensorwise", true), kMax + "ncclAllGather 256 of 1; end; ", kMax + kGrads);
  check_wire(column("rowwise_folded", true), "ncclAllGather 256 of 1; ncclAllGather 16 of 1; end; ", kGrads);
  for (const char* recipe : {"rowwise", "blockwise", "rowwise_with_gw_hp", "high_precision"}) {
    check_wire(column(recipe, true), "ncclAllGather 512 of 1; end; ", kGrads);
  }
  check_wire(column("rowwise", true, false), "ncclAllGather 256 of 1; ncclAllGather 16 of 1; end; ", "");
  check_wire(column("blockwise", true, false), "ncclAllGather 512 of 1; end; ", "");
  check_wire(column("tensorwise", false), "", kMax + "ncclAllReduce 512 of 9; end; ");
  check_wire(column("blockwise", false), "", "ncclAllReduce 512 of 9; end; ");

  check_wire(row("tensorwise", true), kMax + kOutputs, kMax + "ncclAllGather 512 of 1; end; ");
  for (const char* recipe : {"rowwise", "rowwise_folded", "blockwise", "rowwise_with_gw_hp", "high_precision"}) {
    check_wire(row(recipe, true), kOutputs, "ncclAllGather 1024 of 1; end; ");
  }
  check_wire(row("tensorwise", false), kMax + "ncclAllReduce 1024 of 9; end; ", "");
}

// Maxima of delayed scales are reduced once for a model, by the caller.
BOOST_FIXTURE_TEST_CASE(delayed_scales_add_no_collective_to_a_step, Wired) {
  DelayedScaling delayed(backend);
  ColumnParallelLinear layer(backend, comm, options("delayed", true, &delayed));
  const LinearForward forward{.input = tensor(4, kIn), .weight = tensor(64, kIn), .output = tensor(kTokens, 64)};
  const LinearBackward backward{
      .grad_output = tensor(kTokens, 64), .grad_input = tensor(4, kIn), .grad_weight = tensor(64, kIn)};
  layer.forward(forward, stream);
  BOOST_TEST(communicators.calls(0) == kMax + "ncclAllGather 256 of 1; end; " + kMax);  // the first scales
  layer.backward(backward, stream);
  BOOST_TEST(communicators.calls(0) == kMax + kGrads);
  layer.forward(forward, stream);
  BOOST_TEST(communicators.calls(0) == "ncclAllGather 256 of 1; end; ");
  layer.backward(backward, stream);
  BOOST_TEST(communicators.calls(0) == kGrads);
}

BOOST_FIXTURE_TEST_CASE(a_step_that_has_run_is_captured, Wired) {
  ColumnParallelLinear layer(backend, comm, options("tensorwise", true));
  const LinearForward forward{.input = tensor(4, kIn), .weight = tensor(64, kIn), .output = tensor(kTokens, 64)};
  const LinearBackward backward{
      .grad_output = tensor(kTokens, 64), .grad_input = tensor(4, kIn), .grad_weight = tensor(64, kIn)};
  const auto step = [&] {
    layer.weight_changed();
    layer.forward(forward, stream);
    layer.backward(backward, stream);
  };
  step();
  communicators.calls(0);
  Graph graph(stream, step);
  BOOST_TEST(communicators.calls(0) == kMax + "ncclAllGather 256 of 1; end; " + kMax + kMax + kGrads);
}

// ---- what is refused ------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_CASE(what_the_ranks_do_not_divide_is_refused, Wired) {
  const auto made = [&](auto make) { return error_of(make, ErrorCode::invalid_argument); };
  ParallelLinearOptions odd = options("tensorwise", true);
  odd.shape = {.in_features = 63, .out_features = 33};
  BOOST_TEST(made([&] { const ColumnParallelLinear layer(backend, comm, odd); }) ==
             "ColumnParallelLinear \"up\": has 33 out_features, which 2 ranks do not divide");
  BOOST_TEST(made([&] { const RowParallelLinear layer(backend, comm, odd); }) ==
             "RowParallelLinear \"up\": has 63 in_features, which 2 ranks do not divide");
  BOOST_TEST(made([&] { const RowParallelLinear layer(backend, comm, options("delayed", true)); }) ==
             "RowParallelLinear \"up\" delayed: is missing, but input has delayed scales: give the model's "
             "DelayedScaling");
  RowParallelLinear layer(backend, comm, options("tensorwise", true));
  BOOST_TEST(made([&] {
               layer.forward({.input = tensor(7, kIn / 2), .weight = tensor(kOut, kIn / 2), .output = tensor(4, kOut)},
                             stream);
             }) == "RowParallelLinear \"up\" input: has 7 tokens, which 2 ranks do not divide: pad the batch");
  const auto other = make_cpu_backend(1);
  check_contains(made([&] { const RowParallelLinear elsewhere(*other, comm, options("tensorwise", true)); }),
                 {"RowParallelLinear \"up\": is on cpu, but its Comm is on cuda:"});
}

BOOST_FIXTURE_TEST_CASE(tensors_that_do_not_fit_are_refused, Wired) {
  ColumnParallelLinear column_layer(backend, comm, options("tensorwise", true));
  RowParallelLinear row_layer(backend, comm, options("tensorwise", true));
  const LinearForward good{.input = tensor(4, kIn), .weight = tensor(64, kIn), .output = tensor(kTokens, 64)};
  const auto column_error = [&](const LinearForward& forward) {
    return error_of([&] { column_layer.forward(forward, stream); }, ErrorCode::invalid_argument);
  };
  LinearForward bad = good;
  bad.output = tensor(4, 64);
  check_contains(column_error(bad), {"ColumnParallelLinear \"up\" output: is bf16[4, 64]", "must be [8, 64]"});
  bad = good;
  bad.input.row_stride = kIn + 8;
  check_contains(column_error(bad),
                 {"ColumnParallelLinear \"up\" input: is bf16[4, 64]", "must be contiguous, as the ranks exchange it"});
  check_contains(error_of([&] { column_layer.backward({.grad_output = tensor(kTokens, 64)}, stream); },
                          ErrorCode::invalid_argument),
                 {"ColumnParallelLinear \"up\"", "forward"});
  column_layer.forward(good, stream);
  check_contains(
      error_of(
          [&] { column_layer.backward({.grad_output = tensor(kTokens, 64), .grad_input = tensor(8, kIn)}, stream); },
          ErrorCode::invalid_argument),
      {"ColumnParallelLinear \"up\" grad_input: is bf16[8, 64]", "must be [4, 64]"});
  check_contains(error_of(
                     [&] {
                       row_layer.forward({.input = tensor(kTokens, 32),
                                          .weight = tensor(kOut, 32),
                                          .bias = tensor(1, kOut),
                                          .output = tensor(4, kOut)},
                                         stream);
                     },
                     ErrorCode::invalid_argument),
                 {"RowParallelLinear \"up\" bias: is given, but the layer was made without a bias"});
}

BOOST_FIXTURE_TEST_CASE(a_handshake_is_told_what_matters, Wired) {
  const SharedLayer shared = ColumnParallelLinear(backend, comm, options("rowwise_folded", true)).shared();
  BOOST_TEST(shared.name == "up");
  BOOST_TEST(shared.description ==
             "ColumnParallelLinear with sequence parallelism, bf16 [128, 64], " + print(rowwise_folded()));
  ParallelLinearOptions with_bias = options("rowwise", false);
  with_bias.shape.bias = true;
  BOOST_TEST(RowParallelLinear(backend, comm, with_bias).shared().description ==
             "RowParallelLinear, bf16 [128, 64] and bias, " + print(rowwise()));
}

BOOST_AUTO_TEST_SUITE_END()
