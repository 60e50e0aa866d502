// The manifest, a file in which a run notes its GEMMs for tuning: each GEMM once, shared by threads and processes, and
// damage that costs at most a line.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/jit/recording_file.h"
#include "ingot/runtime/tuning/matmul_manifest.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_matmul_manifest)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

struct Fixture {
  std::string text() const { return text_of(file); }
  MatmulManifest make() {
    return MatmulManifest(file, [this](const std::string& line) { warnings.push_back(line); });
  }

  // The manifest of a CPU context that notes its GEMMs.
  ContextOptions recording() const {
    ContextOptions options;
    options.where = ContextOptions::Where::cpu;
    options.store_root = std::filesystem::path();
    options.cuda_root = "none";
    options.gemm_manifest = file;
    return options;
  }

  test::TemporaryDirectory directory;
  std::filesystem::path file = directory.path() / "manifest";
  std::vector<std::string> warnings;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(gemm_manifest, Fixture)

BOOST_AUTO_TEST_CASE(each_gemm_once) {
  MatmulManifest manifest = make();
  for (int i = 0; i < 3; ++i) {
    manifest.note(GemmSpec{}, {1, 2, 3});
    manifest.note(GemmSpec{.kernel = GemmKernel::simt}, {1, 2, 3});
    manifest.note(GemmSpec{}, {3, 2, 1});
  }
  BOOST_TEST(text() ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 1 2 3\n"
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 3 2 1\n");
  MatmulManifest next = make();
  next.note(GemmSpec{}, {3, 2, 1});
  next.note(GemmSpec{}, {4, 4, 4});
  const std::vector<MatmulCall> calls = read_matmul_manifest(file).calls;
  BOOST_REQUIRE(calls.size() == 3U);
  BOOST_TEST((calls[2] == MatmulCall{.spec = GemmSpec{}, .size = {4, 4, 4}}));
  BOOST_TEST(warnings.empty());
}

// It is a recording of what can be tuned: the same lines, which go on in any recording.
BOOST_AUTO_TEST_CASE(a_manifest_is_a_recording) {
  const std::filesystem::path recorded = directory.path() / "recording";
  const DequantMatmulSpec tuned{};
  const DequantMatmulSpec not_tuned{.batch_invariant = true};
  {
    Recorder recorder(recorded);
    MatmulManifest manifest = make();
    for (const MatmulSize size : {MatmulSize{1, 2, 3}, MatmulSize{1, 2, 0}, MatmulSize{0, 2, 3}}) {
      recorder.note(GemmSpec{}, size);
      recorder.note(tuned, size);
      manifest.note(GemmSpec{}, size);
      manifest.note(tuned, size);
      manifest.note(not_tuned, size);
    }
  }
  BOOST_TEST(text_of(recorded) == text());
  BOOST_TEST((read_recording(file).recording == read_recording(recorded).recording));

  Recorder(recorded).note(KernelSpec(RelayoutSpec{}));
  Recorder(recorded).note(not_tuned, {1, 2, 3});
  const std::string before = text_of(recorded);
  MatmulManifest(recorded).note(tuned, {1, 2, 3});
  BOOST_TEST(text_of(recorded) == before);
  BOOST_TEST((read_matmul_manifest(recorded).calls == read_matmul_manifest(file).calls));
}

BOOST_AUTO_TEST_CASE(threads_and_processes_share_it) {
  std::vector<pid_t> writers;
  for (int w = 0; w < 4; ++w) {
    writers.push_back(test::start_process([&] {
      MatmulManifest manifest(file);
      const auto note_all = [&] {
        for (std::int64_t m = 1; m <= 50; ++m) manifest.note(GemmSpec{}, {m, 8, 8});
      };
      const std::jthread other(note_all);
      note_all();
      return 0;
    }));
  }
  for (const pid_t writer : writers) BOOST_TEST(test::wait_for(writer) == 0);
  const MatmulManifestFile shared = read_matmul_manifest(file);
  BOOST_TEST(shared.calls.size() == 50U);
  BOOST_TEST(shared.damaged == 0);
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_written_is_a_warning) {
  file = directory.path() / "no" / "manifest";
  MatmulManifest manifest = make();
  manifest.note(GemmSpec{}, {1, 2, 3});
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {file.string(), "cannot be written: No such file or directory"});
}

BOOST_AUTO_TEST_CASE(every_spec_is_read_back) {
  std::vector<GemmSpec> specs = test::epilogue_specs();
  for (const KernelSpec& spec : all_valid_specs()) {
    if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) specs.push_back(*gemm);
  }
  MatmulManifest manifest = make();
  for (const GemmSpec& spec : specs) manifest.note(spec, {1, 2, 3});
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_TEST(read.problem == "");
  BOOST_REQUIRE(read.calls.size() == specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) BOOST_TEST((read.calls[i] == MatmulCall{specs[i], {1, 2, 3}}));
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_one_warning_and_cost_no_other) {
  check_contains(error_of([&] { read_matmul_manifest(file); }, ErrorCode::not_found), {"INGOT_GEMM_MANIFEST"});
  std::ofstream(file) << "# a comment\n\ngemm bf16*bf16->bf16 nt 8 8 8\ngemm bf16*bf16->bf16 nt 8 8 x\n"
                      << "gemm bf16*bf1\ngemm f16*f16->f16 nt 8 8 8\n";
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_REQUIRE(read.calls.size() == 2U);
  BOOST_TEST((std::get<GemmSpec>(read.calls[1].spec).a == Dtype::f16));
  BOOST_TEST(read.damaged == 2);
  BOOST_TEST(read.problem.starts_with("recording " + file.string() +
                                      ": 2 damaged lines are ignored; line 4: \"x\" is no k; expected"),
             read.problem);

  MatmulManifest manifest = make();
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == read.problem);
  manifest.note(GemmSpec{.a = Dtype::f16, .b = Dtype::f16, .out = Dtype::f16}, {8, 8, 8});
  manifest.note(GemmSpec{}, {1, 2, 3});
  BOOST_TEST(read_matmul_manifest(file).calls.size() == 3U);
  BOOST_TEST(warnings.size() == 1U);
}

// A message may quote arbitrary bytes.
BOOST_AUTO_TEST_CASE(a_file_that_is_no_manifest) {
  std::ofstream(file) << std::string(100000, '\x01') << "\n" << std::string(1000, '\xff');
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_TEST(read.calls.empty());
  BOOST_TEST(read.damaged == 2);
  BOOST_TEST(read.problem.size() < file.string().size() + 300);
  BOOST_TEST(read.problem.find('\x01') == std::string::npos);
}

// What a power failure leaves: bytes that are 0, in every place of every kind of line.
BOOST_AUTO_TEST_CASE(a_nul_costs_its_line_only) {
  const std::string good = "gemm bf16*bf16->bf16 nt 8 8 8\n";
  std::string text;
  int damaged = 0;
  for (const std::string line : {"gemm bf16*bf16->bf16 nt bias 8 8 8", "dequant_matmul f16*e2m1fn->f16 packed 1 2 3",
                                 "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row epilogue=\"silu(x)\" 8 8 8"}) {
    for (std::size_t at = 0; at < line.size(); ++at, ++damaged) {
      std::string bad = line;
      bad[at] = '\0';
      text += bad + "\n" + good;
    }
  }
  text += std::string(4096, '\0') + "\n" + good;
  std::ofstream(file, std::ios::binary) << text;
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_TEST(read.calls.size() == 1U);
  BOOST_TEST(read.damaged == damaged + 1);
  check_contains(read.problem, {"damaged lines are ignored; line 1: "});
  make();
  BOOST_TEST(warnings.size() == 1U);
}

BOOST_AUTO_TEST_CASE(lines_nested_too_deep) {
  for (const char c : {'(', '['}) {
    std::ofstream(file) << "gemm bf16*bf16->bf16 nt epilogue=\"" << std::string(200000, c) << "x\" 8 8 8\n"
                        << "gemm bf16*bf16->bf16 nt 8 8 8\n";
    const MatmulManifestFile read = read_matmul_manifest(file);
    BOOST_TEST(read.calls.size() == 1U);
    BOOST_TEST(read.damaged == 1);
  }
}

BOOST_AUTO_TEST_CASE(many_calls_are_read_at_once) {
  constexpr int kCalls = 80000;
  {
    std::ofstream stream(file);
    for (int m = 1; m <= kCalls; ++m) stream << "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row " << m << " 4096 14336\n";
  }
  const std::clock_t begin = std::clock();  // the processor's time: other programs do not count
  BOOST_TEST(read_matmul_manifest(file).calls.size() == static_cast<std::size_t>(kCalls));
  BOOST_TEST(static_cast<double>(std::clock() - begin) < 5.0 * CLOCKS_PER_SEC);  // it took 42 s once
}

// None hangs: a FIFO that nobody writes to, one that nobody reads, and one whose reader reads nothing.
BOOST_AUTO_TEST_CASE(a_fifo_is_no_manifest) {
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  check_contains(error_of([&] { read_matmul_manifest(file); }, ErrorCode::io_failed), {"is not a regular file"});
  {
    MatmulManifest unread = make();
    unread.note(GemmSpec{}, {1, 2, 3});
    BOOST_REQUIRE(warnings.size() == 1U);
    check_contains(warnings[0], {"cannot be written: nothing reads from this FIFO"});
    warnings.clear();
  }
  const FileDescriptor reader(::open(file.c_str(), O_RDONLY | O_NONBLOCK));
  MatmulManifest manifest = make();
  for (std::int64_t m = 1; m <= 2000; ++m) manifest.note(GemmSpec{}, {m, 2, 3});  // more than a pipe holds
  BOOST_REQUIRE(!warnings.empty());
  check_contains(warnings[0], {"cannot be written: Resource temporarily unavailable"});
}

// The next entry starts a new line, so that only the torn line is lost.
BOOST_AUTO_TEST_CASE(after_a_torn_line) {
  std::ofstream(file) << "gemm bf16*bf16->bf16 nt 8 8 8\ngemm bf16*bf16->bf16 n";
  MatmulManifest manifest = make();
  manifest.note(GemmSpec{}, {1, 2, 3});
  manifest.note(GemmSpec{}, {3, 2, 1});
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_REQUIRE(read.calls.size() == 3U);
  BOOST_TEST((read.calls[1] == MatmulCall{.spec = GemmSpec{}, .size = {1, 2, 3}}));
  BOOST_TEST(read.damaged == 1);
  check_contains(read.problem, {"line 2: "});
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment) {
  std::size_t before = 0;
  for (int round = 0; round < 10; ++round) {
    const pid_t writer = test::start_process([&] {
      MatmulManifest manifest(file);
      for (std::int64_t m = 1;; ++m) manifest.note(GemmSpec{}, {m, round + 1, 8});
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(500 + round * 700));
    kill(writer, SIGKILL);
    BOOST_TEST(test::wait_for(writer) == -SIGKILL);
    const MatmulManifestFile read = std::filesystem::exists(file) ? read_matmul_manifest(file) : MatmulManifestFile{};
    // (Linux ends the write of a killed process at a page's edge.)
    BOOST_TEST(read.damaged <= round + 1, read.problem);
    BOOST_TEST(read.calls.size() >= before);
    before = read.calls.size();
  }
  BOOST_TEST(before > 0U);
}

// The disk has room for a part of a line only: the write reports how much it wrote, and no error. The next one is
// beyond the limit on file sizes, whose signal would end the program.
BOOST_AUTO_TEST_CASE(a_full_disk_is_a_warning) {
  file = "/dev/full";
  MatmulManifest none = make();
  none.note(GemmSpec{}, {1, 2, 3});
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "recording /dev/full cannot be written: No space left on device");
  warnings.clear();

  file = directory.path() / "manifest";
  const int status = test::run_in_process([&] {
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    MatmulManifest full = make();
    for (std::int64_t m = 1; m <= 3; ++m) full.note(GemmSpec{}, {m, 2, 3});  // 54 bytes each
    if (warnings.size() != 1U) return 2;
    return warnings[0].find("cannot be written: only 46 of a line's 54 bytes fit") == std::string::npos ? 3 : 0;
  });
  BOOST_TEST(status == 0);
  const MatmulManifestFile read = read_matmul_manifest(file);
  BOOST_TEST(read.calls.size() == 1U);
  BOOST_TEST(read.damaged == 1);
}

// Also on the CPU, where programs are tried before they run on a GPU. Operations that cannot be tuned are not noted.
BOOST_AUTO_TEST_CASE(products_of_weights_alone_are_recorded) {
  Context context(recording());
  Backend& backend = context.backend();
  Stream stream(backend);
  OwnedTensor weight(backend, Dtype::bf16, 48, 64);
  OwnedTensor x(backend, Dtype::bf16, 3, 64);
  OwnedTensor y(backend, Dtype::bf16, 3, 48);
  for (const OwnedTensor* tensor : {&weight, &x}) {
    backend.fill_zero(tensor->view().data, byte_span(*tensor, "tensor"), stream);
  }
  for (const bool batch_invariant : {false, true}) {
    const auto linear = WeightOnlyLinear::quantize(
        backend, weight, {.dtype = Dtype::e2m1fn, .mx = true, .batch_invariant = batch_invariant}, stream);
    for (int call = 0; call < 2; ++call) linear.forward(x, y, stream);
    const Tensor no_rows = matrix(nullptr, Dtype::bf16, 0, 64, backend.device());
    linear.forward(no_rows, matrix(nullptr, Dtype::bf16, 0, 48, backend.device()), stream);
  }
  BOOST_TEST(text() == "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu 3 48 64\n");
}

// The three GEMMs of a layer, as a context notes them on request.
BOOST_AUTO_TEST_CASE(a_training_step_is_recorded) {
  constexpr std::int64_t kTokens = 32;
  constexpr std::int64_t kIn = 64;
  constexpr std::int64_t kOut = 48;
  Context context(recording());
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

BOOST_AUTO_TEST_SUITE_END()
