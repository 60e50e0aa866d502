// Recordings in files: what a run notes, shared by threads and processes, and read back whatever happened to the file.
#include "ingot/runtime/jit/recorder.h"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/tuning/tuning_import.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_recorder)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

struct Fixture {
  std::string text() const {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  Recorder make() {
    return Recorder(file, [this](const std::string& line) { warnings.push_back(line); });
  }
  ContextOptions on_the_cpu() const {
    ContextOptions options = ContextOptions::from_environment();
    options.where = ContextOptions::Where::cpu;
    options.store_root = std::filesystem::path();
    options.cuda_root = "none";
    return options;
  }

  test::TemporaryDirectory directory;
  std::filesystem::path file = directory.path() / "recording";
  std::vector<std::string> warnings;
};

// One forward and backward pass.
void run_step(Context& context, const LinearConfig& config) {
  constexpr std::int64_t kTokens = 32;
  constexpr std::int64_t kIn = 64;
  constexpr std::int64_t kOut = 48;
  Backend& backend = context.backend();
  Stream stream(backend);
  const OwnedTensor input(backend, Dtype::bf16, kTokens, kIn);
  const OwnedTensor weight(backend, Dtype::bf16, kOut, kIn);
  const OwnedTensor output(backend, Dtype::bf16, kTokens, kOut);
  const OwnedTensor grad_weight(backend, Dtype::bf16, kOut, kIn);
  for (const OwnedTensor* tensor : {&input, &weight, &output}) {
    backend.device_api().fill_zero(tensor->view().data, byte_span(*tensor, "tensor"), stream);
  }
  Float8Linear linear(backend, {.in_features = kIn, .out_features = kOut}, config);
  linear.forward({.input = input, .weight = weight, .output = output}, stream);
  linear.backward({.grad_output = output, .grad_weight = grad_weight}, stream);
}

constexpr const char* kTensorwiseStep =
    "cast bf16->e4m3fn scale=tensor out=codes,transposed\n"
    "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 32 48 64\n"
    "cast bf16->e5m2 scale=tensor out=transposed\n"
    "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor 48 64 32\n";

}  // namespace

BOOST_FIXTURE_TEST_SUITE(recorder, Fixture)

BOOST_AUTO_TEST_CASE(each_thing_once_and_nothing_that_the_file_has) {
  {
    Recorder one = make();
    for (int i = 0; i < 2; ++i) {
      one.note(KernelSpec(RelayoutSpec{}));
      one.note(GemmSpec{.kernel = GemmKernel::simt}, {1, 2, 3});
      one.note(GemmSpec{}, {1, 2, 0});
    }
  }
  Recorder next = make();
  next.note(GemmSpec{}, {1, 2, 3});
  next.note(KernelSpec(RelayoutSpec{.transposed = true}));
  BOOST_TEST(text() ==
             "relayout copied\n"
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 1 2 3\n"
             "relayout transposed\n");
  BOOST_TEST(next.recording().kernels().size() == 1U);  // its own
  BOOST_TEST(next.recording().matmuls().size() == 1U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(matmuls_of_nothing_are_not_recorded) {
  Recorder recorder;
  for (const MatmulSize& size : {MatmulSize{0, 8, 8}, MatmulSize{8, 0, 8}, MatmulSize{8, 8, 0}}) {
    recorder.note(MatmulSpec(GemmSpec{}), size);
  }
  BOOST_TEST(recorder.recording().empty());
}

BOOST_AUTO_TEST_CASE(without_a_file_it_keeps_what_it_is_told) {
  Recorder recorder;
  recorder.note(KernelSpec(RelayoutSpec{}));
  BOOST_TEST((recorder.recording().kernels() == std::vector<KernelSpec>{RelayoutSpec{}}));
}

// A program with ever new sizes keeps the first ones, in memory and in the file, and does not lose kernels for them.
BOOST_AUTO_TEST_CASE(it_does_not_grow_for_ever) {
  const auto warn = [this](const std::string& line) { warnings.push_back(line); };
  {
    Recorder recorder(file, warn, 3);
    for (std::int64_t m = 1; m <= 3; ++m) recorder.note(GemmSpec{}, {m, 8, 8});
    for (std::int64_t m = 1; m <= 3; ++m) recorder.note(GemmSpec{}, {m, 8, 8});
    BOOST_TEST(warnings.empty());
    for (std::int64_t m = 4; m <= 9; ++m) recorder.note(GemmSpec{}, {m, 8, 8});
    recorder.note(KernelSpec(RelayoutSpec{}));
    BOOST_TEST(recorder.recording().matmuls().size() == 3U);
    BOOST_TEST(recorder.recording().kernels().size() == 1U);
  }
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {"recording " + file.string(), "at most 3 kernels and as many matmuls"});
  Recorder next(file, warn, 3);
  next.note(GemmSpec{}, {9, 8, 8});
  next.note(GemmSpec{}, {2, 8, 8});
  BOOST_TEST(next.recording().matmuls().size() == 2U);
  const RecordingFile read = read_recording(file);
  BOOST_TEST(read.recording.matmuls().size() == 3U);
  BOOST_TEST(read.recording.kernels().size() == 1U);
  BOOST_TEST(warnings.size() == 2U);

  // Nobody asked for what is kept without a file.
  Recorder alone({}, warn, 3);
  for (std::int64_t m = 1; m <= 9; ++m) alone.note(GemmSpec{}, {m, 8, 8});
  BOOST_TEST(alone.recording().matmuls().size() == 3U);
  BOOST_TEST(warnings.size() == 2U);
}

BOOST_AUTO_TEST_CASE(threads_and_processes_share_it) {
  std::vector<pid_t> writers;
  for (int w = 0; w < 4; ++w) {
    writers.push_back(test::start_process([&] {
      Recorder recorder(file);
      const auto note_all = [&] {
        for (std::int64_t m = 1; m <= 50; ++m) recorder.note(GemmSpec{}, {m, 8, 8});
        recorder.note(KernelSpec(RelayoutSpec{}));
      };
      const std::jthread other(note_all);
      note_all();
      return 0;
    }));
  }
  for (const pid_t writer : writers) BOOST_TEST(test::wait_for(writer) == 0);
  const RecordingFile shared = read_recording(file);
  BOOST_TEST(shared.recording.matmuls().size() == 50U);
  BOOST_TEST(shared.recording.kernels().size() == 1U);
  BOOST_TEST(shared.damaged == 0);
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_written_is_a_warning) {
  file = directory.path() / "no" / "recording";
  Recorder recorder = make();
  for (std::int64_t m = 1; m < 4; ++m) recorder.note(GemmSpec{}, {m, 2, 3});
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "recording " + file.string() + " cannot be written: No such file or directory");
  warnings.clear();

  file = "/dev/full";
  make().note(GemmSpec{}, {1, 2, 3});
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "recording /dev/full cannot be written: No space left on device");
}

// A limit on file sizes is a full disk: a part of the first line fits, and the write after it sends a signal that would
// end the program.
BOOST_AUTO_TEST_CASE(a_limit_on_file_sizes_is_a_warning) {
  BOOST_TEST(test::run_in_process([&] {
               const rlimit limit{.rlim_cur = 10, .rlim_max = 10};
               if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
               Recorder recorder = make();
               for (std::int64_t m = 1; m < 4; ++m) recorder.note(GemmSpec{}, {m, 2, 3});
               if (warnings.size() != 1U || recorder.recording().matmuls().size() != 3U) return 2;
               return warnings[0].find(" cannot be written: only 10 of a line's ") == std::string::npos ? 3 : 0;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_one_warning_and_the_next_line_stands_alone) {
  std::ofstream(file) << "relayout copied\nrelayout sideways\nrelayout tran";
  Recorder recorder = make();
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "recording " + file.string() +
                                ": 2 damaged lines are ignored; line 2: \"sideways\" must be copied or transposed");
  recorder.note(KernelSpec(RelayoutSpec{.transposed = true}));
  BOOST_TEST(text() == "relayout copied\nrelayout sideways\nrelayout tran\nrelayout transposed\n");
}

// What an operator may name by mistake, or a power failure leaves.
BOOST_AUTO_TEST_CASE(files_that_are_no_recordings) {
  check_contains(error_of([&] { read_recording(file); }, ErrorCode::not_found),
                 {file.string() + ": there is no such file; a run with INGOT_RECORD"});
  check_contains(error_of([&] { read_recording(directory.path()); }, ErrorCode::io_failed),
                 {"is a folder; name a file"});
  check_contains(error_of([&] { read_recording("/dev/zero"); }, ErrorCode::io_failed), {"is not a regular file"});
  const std::filesystem::path fifo = directory.path() / "fifo";
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  check_contains(error_of([&] { read_recording(fifo); }, ErrorCode::io_failed), {"is not a regular file"});
  std::ofstream(file) << "relayout copied\n";
  std::filesystem::resize_file(file, (std::uintmax_t{64} << 20U) + 1);
  check_contains(error_of([&] { read_recording(file); }, ErrorCode::io_failed),
                 {"has 67108865 bytes; at most 67108864 are read"});
  std::filesystem::resize_file(file, 4096);
  BOOST_TEST(read_usable_recording(file).recording.kernels().size() == 1U);
  const RecordingFile torn = read_recording(file);
  BOOST_TEST(torn.recording.kernels().size() == 1U);
  BOOST_TEST(torn.problem == "recording " + file.string() + ": 1 damaged line is ignored; line 2: has a NUL byte");
  std::ofstream(file) << "train_lm Targets\nnonsense\n";
  BOOST_TEST(read_recording(file).damaged == 2);
  check_contains(error_of([&] { read_usable_recording(file); }, ErrorCode::invalid_argument),
                 {file.string() + ": is no recording: none of its lines (2) can be read; line 1: \"train_lm"});
  std::ofstream(file) << "# nothing was asked for\n";
  BOOST_TEST(read_usable_recording(file).recording.empty());
}

// A message may quote arbitrary bytes.
BOOST_AUTO_TEST_CASE(a_file_of_other_bytes) {
  std::ofstream(file) << std::string(100000, '\x01') << "\n" << std::string(1000, '\xff');
  const RecordingFile read = read_recording(file);
  BOOST_TEST(read.recording.empty());
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
  const RecordingFile read = read_recording(file);
  BOOST_TEST(read.recording.matmuls().size() == 1U);
  BOOST_TEST(read.damaged == damaged + 1);
  check_contains(read.problem, {"damaged lines are ignored; line 1: "});
  make();
  BOOST_TEST(warnings.size() == 1U);
}

BOOST_AUTO_TEST_CASE(lines_nested_too_deep) {
  for (const char c : {'(', '['}) {
    std::ofstream(file) << "gemm bf16*bf16->bf16 nt epilogue=\"" << std::string(200000, c) << "x\" 8 8 8\n"
                        << "gemm bf16*bf16->bf16 nt 8 8 8\n";
    const RecordingFile read = read_recording(file);
    BOOST_TEST(read.recording.matmuls().size() == 1U);
    BOOST_TEST(read.damaged == 1);
  }
}

// Neither hangs: a FIFO that nobody reads, and one whose reader reads nothing.
BOOST_AUTO_TEST_CASE(a_fifo_that_takes_nothing_is_a_warning) {
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  {
    Recorder unread = make();
    unread.note(GemmSpec{}, {1, 2, 3});
    BOOST_REQUIRE(warnings.size() == 1U);
    check_contains(warnings[0], {"cannot be written: nothing reads from this FIFO"});
    warnings.clear();
  }
  const FileDescriptor reader(::open(file.c_str(), O_RDONLY | O_NONBLOCK));
  Recorder recorder = make();
  for (std::int64_t m = 1; m <= 2000; ++m) recorder.note(GemmSpec{}, {m, 2, 3});  // more than a pipe holds
  BOOST_REQUIRE(!warnings.empty());
  check_contains(warnings[0], {"cannot be written: Resource temporarily unavailable"});
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment) {
  std::size_t before = 0;
  for (int round = 0; round < 10; ++round) {
    const pid_t writer = test::start_process([&] {
      Recorder recorder(file);
      for (std::int64_t m = 1;; ++m) recorder.note(GemmSpec{}, {m, round + 1, 8});
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(500 + round * 700));
    kill(writer, SIGKILL);
    BOOST_TEST(test::wait_for(writer) == -SIGKILL);
    const RecordingFile read = std::filesystem::exists(file) ? read_recording(file) : RecordingFile{};
    // (Linux ends the write of a killed process at a page's edge.)
    BOOST_TEST(read.damaged <= round + 1, read.problem);
    BOOST_TEST(read.recording.matmuls().size() >= before);
    before = read.recording.matmuls().size();
  }
  BOOST_TEST(before > 0U);
}

// Also on the CPU, where programs are tried before they run on a GPU.
BOOST_AUTO_TEST_CASE(a_context_records_a_training_step) {
  ContextOptions options = on_the_cpu();
  options.record = file;
  Context context(options);
  BOOST_TEST(context.recording().empty());
  for (int step = 0; step < 2; ++step) run_step(context, tensorwise());
  BOOST_TEST(text() == kTensorwiseStep);
  BOOST_TEST((context.recording() == read_recording(file).recording));
}

BOOST_AUTO_TEST_CASE(batch_invariant_matmuls_are_recorded) {
  Context context(on_the_cpu());
  Backend& backend = context.backend();
  Stream stream(backend);
  const OwnedTensor weight(backend, Dtype::bf16, 48, 64);
  const OwnedTensor x(backend, Dtype::bf16, 3, 64);
  const OwnedTensor y(backend, Dtype::bf16, 3, 48);
  for (const OwnedTensor* tensor : {&weight, &x}) {
    backend.device_api().fill_zero(tensor->view().data, byte_span(*tensor, "tensor"), stream);
  }
  WeightOnlyLinear::quantize(backend, weight, {.batch_invariant = true}, stream).forward(x, y, stream);
  BOOST_REQUIRE(context.recording().matmuls().size() == 1U);
  BOOST_TEST(print(context.recording().matmuls()[0]) ==
             "dequant_matmul bf16*e4m3fn->bf16 packed scale=row batch_invariant 3 48 64");
}

// Two programs, one after the other, as a user runs them.
BOOST_AUTO_TEST_CASE(INGOT_RECORD_names_the_file_of_two_processes) {
  const auto run = [&](const LinearConfig& config) {
    return test::run_in_process([&] {
      setenv("INGOT_RECORD", file.c_str(), 1);
      Context context(on_the_cpu());
      run_step(context, config);
      return 0;
    });
  };
  BOOST_TEST(run(tensorwise()) == 0);
  BOOST_TEST(text() == kTensorwiseStep);
  BOOST_TEST(run(tensorwise()) == 0);
  BOOST_TEST(text() == kTensorwiseStep);
  BOOST_TEST(run(high_precision()) == 0);
  BOOST_TEST(text() == std::string(kTensorwiseStep) +
                           "gemm bf16*bf16->bf16 nt 32 48 64\n"
                           "gemm bf16*bf16->bf16 tn 48 64 32\n");
}

BOOST_AUTO_TEST_CASE(tuning_records_of_gpus_of_that_size) {
  const MatmulDevice h200 = matmul_device(gpu_named("h200"));
  std::vector<TuningRecord> records{test::record(), test::dequant_record(), test::record(16)};
  records[2].machine.multiprocessors = 78;
  const std::vector<TunedMatmul> tuned = tuned_matmuls(records, h200);
  BOOST_REQUIRE(tuned.size() == 2U);
  BOOST_TEST((tuned[0].call == MatmulCall{.spec = records[0].spec, .size = records[0].size}));
  BOOST_TEST((tuned[0].chosen == records[0].chosen));
  BOOST_TEST(tuned_matmuls(records, matmul_device(gpu_named("h20"))).size() == 1U);
  BOOST_TEST(tuned_matmuls(records, matmul_device(gpu_named("b200"))).empty());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
