#define BOOST_TEST_MODULE gemm_manifest
#include <boost/test/included/unit_test.hpp>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "ingot/nn/float8_linear.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/gemm_manifest.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

struct Fixture {
  std::string text() const {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  GemmManifest make() {
    return GemmManifest(file, [this](const std::string& line) { warnings.push_back(line); });
  }

  test::TemporaryDirectory directory;
  std::filesystem::path file = directory.path() / "manifest";
  std::vector<std::string> warnings;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(gemm_manifest, Fixture)

BOOST_AUTO_TEST_CASE(each_gemm_once) {
  GemmManifest manifest = make();
  for (int i = 0; i < 3; ++i) {
    manifest.note({}, {1, 2, 3});
    manifest.note({.kernel = GemmKernel::simt}, {1, 2, 3});
    manifest.note({}, {3, 2, 1});
  }
  BOOST_TEST(text() ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 1 2 3\n"
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 3 2 1\n");
  GemmManifest next = make();
  next.note({}, {3, 2, 1});
  next.note({}, {4, 4, 4});
  const std::vector<GemmCall> calls = read_gemm_manifest(file);
  BOOST_REQUIRE(calls.size() == 3U);
  BOOST_TEST((calls[2] == GemmCall{.spec = {}, .size = {4, 4, 4}}));
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(threads_and_processes_share_it) {
  std::vector<pid_t> writers;
  for (int w = 0; w < 4; ++w) {
    writers.push_back(test::start_process([&] {
      GemmManifest manifest(file);
      const auto note_all = [&] {
        for (std::int64_t m = 1; m <= 50; ++m) manifest.note({}, {m, 8, 8});
      };
      const std::jthread other(note_all);
      note_all();
      return 0;
    }));
  }
  for (const pid_t writer : writers) BOOST_TEST(test::wait_for(writer) == 0);
  BOOST_TEST(read_gemm_manifest(file).size() == 50U);
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_written_is_a_warning) {
  file = directory.path() / "no" / "manifest";
  GemmManifest manifest = make();
  manifest.note({}, {1, 2, 3});
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {file.string(), "cannot be written: No such file or directory"});
}

BOOST_AUTO_TEST_CASE(what_is_wrong_in_it_is_told_with_its_line) {
  check_contains(error_of([&] { read_gemm_manifest(file); }, ErrorCode::not_found), {"INGOT_GEMM_MANIFEST"});
  std::ofstream(file) << "# a comment\n\ngemm bf16*bf16->bf16 nt 8 8 8\ngemm bf16*bf16->bf16 nt 8 8 x\n";
  check_contains(error_of([&] { read_gemm_manifest(file); }, ErrorCode::invalid_spec),
                 {file.string() + ":4: ", "\"x\" is no k"});
}

// A layer's three GEMMs, as a context that was told to notes them.
BOOST_AUTO_TEST_CASE(a_training_step_is_recorded) {
  constexpr std::int64_t kTokens = 32;
  constexpr std::int64_t kIn = 64;
  constexpr std::int64_t kOut = 48;
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  options.cuda_root = "none";
  options.gemm_manifest = file;
  Context context(options);
  Backend& backend = context.backend();
  Stream stream(backend);
  OwnedTensor input(backend, Dtype::bf16, kTokens, kIn);
  OwnedTensor weight(backend, Dtype::bf16, kOut, kIn);
  OwnedTensor output(backend, Dtype::bf16, kTokens, kOut);
  OwnedTensor grad_input(backend, Dtype::bf16, kTokens, kIn);
  OwnedTensor grad_weight(backend, Dtype::bf16, kOut, kIn);
  for (const OwnedTensor* tensor : {&input, &weight, &output}) {
    backend.fill_zero(tensor->view().data, byte_span(*tensor, "tensor"), stream);
  }
  Float8Linear linear(backend, {.in_features = kIn, .out_features = kOut}, tensorwise());
  for (int step = 0; step < 2; ++step) {
    linear.forward({.input = input, .weight = weight, .output = output}, stream);
    linear.backward({.grad_output = output, .grad_input = grad_input, .grad_weight = grad_weight}, stream);
  }
  BOOST_TEST(text() ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 32 48 64\n"
             "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor 32 64 48\n"
             "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor 48 64 32\n");
}

BOOST_AUTO_TEST_SUITE_END()
