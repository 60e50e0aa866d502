// Reading NVRTC's log: registers and spills, warnings, the first error, and numbered source lines around diagnostics.
#include "ingot/runtime/jit/compile_log.h"

#include <boost/test/unit_test.hpp>

BOOST_AUTO_TEST_SUITE(test_compile_log)

using namespace ingot;

namespace {

// As NVRTC 13.0 prints it: two kernels and a function that is called.
constexpr const char* kReport = R"(cast.cuh(2): warning #177-D: variable "unused" was declared but never referenced
    int unused;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas warning : Registers are spilled to local memory in function '_Z1kPf', 12 bytes spill stores, 8 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function '_Z5otherPf' for 'sm_90a'
ptxas info    : Function properties for _Z5otherPf
ptxas         .     64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 64 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kPf
ptxas         .     32 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 32 bytes cumulative stack size, 128 bytes smem
ptxas info    : Function properties for _Z6helperPf
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
)";

}  // namespace

BOOST_AUTO_TEST_CASE(resources_are_those_of_the_kernel_and_spills_those_of_the_unit) {
  const KernelResources resources = read_resources(kReport, "_Z1kPf");
  BOOST_TEST(resources.registers == 40);
  BOOST_TEST(resources.stack_bytes == 32);
  BOOST_TEST(resources.static_shared_bytes == 128);
  BOOST_TEST(resources.spill_bytes == 28);
  BOOST_TEST((read_resources("", "_Z1kPf") == KernelResources{}));
}

BOOST_AUTO_TEST_CASE(only_warnings_stay) {
  BOOST_TEST(
      warnings_of(kReport) ==
      "cast.cuh(2): warning #177-D: variable \"unused\" was declared but never referenced\n"
      "    int unused;\n"
      "        ^\n"
      "ptxas warning : Registers are spilled to local memory in function '_Z1kPf', 12 bytes spill stores, 8 bytes "
      "spill loads\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n");
  BOOST_TEST(warnings_of("ptxas info    : Used 40 registers\n\n") == "");
}

BOOST_AUTO_TEST_CASE(the_first_error_is_one_line) {
  BOOST_TEST(first_error("a.cuh(1): warning: meh\na.cuh(3): error: identifier \"x\" is undefined\n  x\n  ^\n") ==
             "identifier \"x\" is undefined");
  BOOST_TEST(first_error("ptxas application ptx input, line 25; error   : Not a name\nptxas fatal   : aborted\n") ==
             "Not a name");
  BOOST_TEST(first_error("something else\nmore\n") == "something else");
  BOOST_TEST(first_error("") == "no message");
}

BOOST_AUTO_TEST_CASE(source_lines_are_numbered_around_each_diagnostic) {
  const TemplateFiles templates{{"a.cuh", "a1\na2\na3\na4\na5\na6\na7\na8\na9\na10\na11\na12\n"}};
  const std::string log =
      "a.cuh(2): warning: w\n/ingot/x.cu(1): error: e\na.cuh(11): error: f\nelsewhere.h(1): error: g\n(3): nonsense\n";
  BOOST_TEST(with_numbered_source(log, "/ingot/x.cu", "one\n", templates) == log +
                                                                                 "\na.cuh:\n"
                                                                                 "      1 | a1\n"
                                                                                 ">     2 | a2\n"
                                                                                 "      3 | a3\n"
                                                                                 "      4 | a4\n"
                                                                                 "      5 | a5\n"
                                                                                 "        ...\n"
                                                                                 "      8 | a8\n"
                                                                                 "      9 | a9\n"
                                                                                 "     10 | a10\n"
                                                                                 ">    11 | a11\n"
                                                                                 "     12 | a12\n"
                                                                                 "\n/ingot/x.cu:\n"
                                                                                 ">     1 | one\n");
}

BOOST_AUTO_TEST_CASE(a_line_that_the_file_does_not_have_shows_its_end) {
  const std::string log = "/ingot/x.cu(9): error: at the end\n";
  BOOST_TEST(with_numbered_source(log, "/ingot/x.cu", "one\ntwo\n", {}) == log + "\n/ingot/x.cu:\n");
  const std::string near = "/ingot/x.cu(3): error: at the end\n";
  BOOST_TEST(with_numbered_source(near, "/ingot/x.cu", "one\ntwo\n", {}) ==
             near + "\n/ingot/x.cu:\n      1 | one\n      2 | two\n");
}

BOOST_AUTO_TEST_SUITE_END()
