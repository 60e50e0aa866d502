// Tuning records: one line of text there and back, damage is detected, and the key covers everything that decides a
// measurement.
#include <boost/test/unit_test.hpp>

#include <set>
#include <string>

#include "ingot/runtime/tuning/tuning_record.h"
#include "support/function_ref.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_tuning_record)

using namespace ingot;
using test::dequant_record;
using test::machine;
using test::record;

namespace {

std::string problem_of(const std::string& line) {
  std::string problem;
  BOOST_TEST(!parse_tuning_record(line, problem).has_value(), "taken for a record: " << line);
  return problem;
}

// A record's line that was changed afterwards, with a valid checksum.
std::string forged(const std::string& from, const std::string& to, const TuningRecord& original = record()) {
  std::string line = print(original);
  const auto at = line.find(from);
  BOOST_REQUIRE(at != std::string::npos);
  line.replace(at, from.size(), to);
  line.resize(line.find(",\"checksum\""));
  return line + ",\"checksum\":\"" + print(digest(line)) + "\"}";
}

}  // namespace

BOOST_AUTO_TEST_CASE(one_line_there_and_back) {
  const std::string line = print(record());
  BOOST_TEST(
      line.starts_with(
          R"({"ingot_tuning":1,"spec":"gemm e4m3fn*e5m2->bf16 nt scale=row,row fast","m":8192,"n":4096,"k":14336,)"
          R"("kernel":"gemm e4m3fn*e5m2->bf16 nt scale=row,row fast kernel=sm90:128x256:2x1:4:cooperative","us":712.25,)"),
      line);
  BOOST_TEST(line.find('\n') == std::string::npos);
  std::string problem;
  const auto read = parse_tuning_record(line, problem);
  BOOST_REQUIRE_MESSAGE(read.has_value(), problem);
  BOOST_TEST((*read == record()));

  TuningRecord cublaslt = record();
  auto chosen = std::get<GemmSpec>(cublaslt.spec);
  chosen.kernel = GemmKernel::cublaslt;
  chosen.algorithm = 5;
  cublaslt.chosen = chosen;
  cublaslt.us = cublaslt.cublaslt_us = 0.1 + 0.2;  // has no short decimal form
  cublaslt.machine.device = "a \"quoted\"\nname";
  cublaslt.machine.cublaslt = "";
  BOOST_TEST((parse_tuning_record(print(cublaslt), problem) == cublaslt));
}

BOOST_AUTO_TEST_CASE(products_with_decoded_weights_there_and_back) {
  const std::string line = print(dequant_record());
  const std::string product = "dequant_matmul bf16*e4m3fn->bf16 packed scale=1x128 bias";
  BOOST_TEST(line.starts_with("{\"ingot_tuning\":1,\"spec\":\"" + product + "\",\"m\":16,"), line);
  BOOST_TEST(line.find("\"kernel\":\"" + product + " kernel=mma:16x64x128:3:2:2\"") != std::string::npos, line);
  std::string problem;
  const auto read = parse_tuning_record(line, problem);
  BOOST_REQUIRE_MESSAGE(read.has_value(), problem);
  BOOST_TEST((*read == dequant_record()));
}

// A kernel is launched with its record's tiling.
BOOST_AUTO_TEST_CASE(decoded_weights_need_a_tiling) {
  BOOST_TEST(problem_of(forged(":16x64x128:3:2:2", "", dequant_record())) == "has a kernel without its tiling");
  BOOST_TEST(problem_of(forged("mma:16x64x128:3:2:2", "sm90", dequant_record())) == "has a kernel without its tiling");
  BOOST_TEST(problem_of(forged(" kernel=mma:16x64x128:3:2:2", "", dequant_record())) ==
             "has a kernel for another matmul");
}

BOOST_AUTO_TEST_CASE(every_changed_byte_is_found) {
  const std::string good = print(record());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 5, 7}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      std::string problem;
      BOOST_TEST(!parse_tuning_record(bad, problem).has_value(), "bit " << bit << " of byte " << i);
      BOOST_TEST(problem != "");
    }
  }
}

BOOST_AUTO_TEST_CASE(every_truncation_is_found) {
  const std::string good = print(record());
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) problem_of(good.substr(0, bytes));
  problem_of(good + " ");
  problem_of(good + good);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_said) {
  BOOST_TEST(problem_of("") == "is not a tuning record");
  BOOST_TEST(problem_of("hello") == "is not a tuning record");
  BOOST_TEST(problem_of("{\"ingot_tuning\":1,") == "is truncated");
  std::string bad = print(record());
  bad[bad.find("8192")] = '9';
  BOOST_TEST(problem_of(bad) == "does not match its checksum");
}

BOOST_AUTO_TEST_CASE(a_right_checksum_does_not_make_it_right) {
  BOOST_TEST(problem_of(forged("\"ingot_tuning\":1", "\"ingot_tuning\":2")) == "is of another version of the format");
  BOOST_TEST(problem_of(forged("\"m\":8192", "\"m\":-1")) ==
             R"(has "m": -1, which is not a whole number from 1 to 9223372036854775807)");
  BOOST_TEST(problem_of(forged("\"m\":8192,", "")) == "lacks \"m\"");
  BOOST_TEST(
      problem_of(forged("\"m\":8192", "\"m\":\"8192\"")).starts_with(R"(has "m": "8192", which is not a whole)"));
  for (const char* const huge : {"1e22", "9223372036854775808", "8192.0"}) {
    BOOST_TEST(problem_of(forged("\"m\":8192", std::string("\"m\":") + huge)).find("which is not a whole number") !=
               std::string::npos);
  }
  BOOST_TEST(problem_of(forged("\"multiprocessors\":132", "\"multiprocessors\":4294967297"))
                 .starts_with(R"(has "multiprocessors": 4294967297, which is not a whole number from 0 to )"));
  BOOST_TEST(problem_of(forged("\"m\":8192", "\"m\":" + std::string(100000, '[') + std::string(100000, ']')))
                 .starts_with(R"(has "m": an array, which is not a whole number)"));
  BOOST_TEST(problem_of(forged("\"us\":712.25", "\"us\":0")) == "has an invalid time");
  BOOST_TEST(problem_of(forged("\"us\":712.25", "\"us\":-3")) == "has an invalid time");
  for (const char* const no_number : {"1e999", "NaN", "-Infinity"}) {
    BOOST_TEST(problem_of(forged("\"us\":712.25", std::string("\"us\":") + no_number)) == "is not JSON");
  }
  BOOST_TEST(problem_of(forged("fast kernel=sm90:128x256:2x1:4:cooperative",
                               "kernel=sm90:128x128:2x1:4:cooperative")) == "has a kernel for another matmul");
  BOOST_TEST(problem_of(forged(" kernel=sm90:128x256:2x1:4:cooperative", "")) == "has a kernel for another matmul");
  BOOST_TEST(problem_of(forged("row fast\",\"m\"", "row fast kernel=simt\",\"m\"")) ==
             "has a spec that names a kernel");
  BOOST_TEST(problem_of(forged("128x256:2x1", "999x256:2x1")).starts_with("has a spec that cannot be read (gemm "));
  BOOST_TEST(problem_of(forged("\"gemm e4m3fn*e5m2->bf16 nt scale=row,row fast\"", "\"amax bf16 scale=tensor\""))
                 .find("is no GEMM") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(another_machine_is_named) {
  BOOST_TEST(difference(machine(), machine()) == "");
  BOOST_TEST(difference(machine("NVIDIA H100"), machine()) == "device NVIDIA H100, and this is NVIDIA H200");
  TuningMachine other = machine();
  other.driver = "12.8";
  BOOST_TEST(difference(other, machine()) == "CUDA driver 12.8, and this is 13.0");
  other = machine();
  other.cublaslt = "";
  BOOST_TEST(difference(other, machine()) == "cuBLASLt none, and this is 13.1.0");
  other = machine();
  other.compiler += "x";
  BOOST_TEST(difference(other, machine()) == "another version of Ingot, its templates or NVRTC");
}

BOOST_AUTO_TEST_CASE(the_key_covers_all_that_decides) {
  const TuningRecord r = record();
  std::set<Digest> keys{tuning_key(r.machine, r.spec, r.size)};
  const auto add = [&](test::FunctionRef<void(TuningRecord&)> change) {
    TuningRecord changed = r;
    change(changed);
    keys.insert(tuning_key(changed.machine, changed.spec, changed.size));
  };
  add([](TuningRecord& t) { t.size.m = 1; });
  add([](TuningRecord& t) { t.size.n = 1; });
  add([](TuningRecord& t) { t.size.k = 1; });
  add([](TuningRecord& t) { std::get<GemmSpec>(t.spec).bias = true; });
  add([](TuningRecord& t) { t.machine.device = "x"; });
  add([](TuningRecord& t) { t.machine.target = "x"; });
  add([](TuningRecord& t) { t.machine.multiprocessors = 1; });
  add([](TuningRecord& t) { t.machine.driver = "x"; });
  add([](TuningRecord& t) { t.machine.compiler = "x"; });
  add([](TuningRecord& t) { t.machine.cublaslt = "x"; });
  BOOST_TEST(keys.size() == 11U);
  add([](TuningRecord& t) { t.us = 1; });
  add([](TuningRecord& t) { t.date = "x"; });
  BOOST_TEST(keys.size() == 11U);
}

BOOST_AUTO_TEST_SUITE_END()
