// Error: the text of its message, its log, and the names of its codes.
#include "ingot/runtime/util/error.h"

#include <boost/test/unit_test.hpp>
#include <string>

BOOST_AUTO_TEST_SUITE(test_error)

using namespace ingot;

BOOST_AUTO_TEST_CASE(says_what_it_speaks_of_first) {
  const Error error(ErrorCode::compile_failed, "cast bf16->e4m3fn scale=tensor", "it did not compile", "line 3: oops");
  BOOST_TEST(std::string(error.what()) == "cast bf16->e4m3fn scale=tensor: it did not compile");
  BOOST_TEST(error.subject() == "cast bf16->e4m3fn scale=tensor");
  BOOST_TEST(error.message() == "it did not compile");
  BOOST_TEST(error.log() == "line 3: oops");
  BOOST_TEST((error.code() == ErrorCode::compile_failed));
}

BOOST_AUTO_TEST_CASE(is_a_runtime_error_without_a_log_by_default) {
  try {
    throw Error(ErrorCode::io_failed, "weights.bin", "cannot be read");
  } catch (const std::runtime_error& error) {
    BOOST_TEST(std::string(error.what()) == "weights.bin: cannot be read");
  }
  BOOST_TEST(Error(ErrorCode::io_failed, "a", "b").log().empty());
}

// A line of a damaged file may be the subject.
BOOST_AUTO_TEST_CASE(a_nul_does_not_cut_the_message) {
  const std::string subject("gemm\0 8 8", 9);
  const Error error(ErrorCode::invalid_spec, subject, "is wrong");
  BOOST_TEST(std::string(error.what()) == "gemm? 8 8: is wrong");
  BOOST_TEST(error.subject() == subject);
  BOOST_TEST(error.message() == "is wrong");
}

BOOST_AUTO_TEST_CASE(gives_its_message_without_its_subject) {
  BOOST_TEST(Error(ErrorCode::io_failed, "", "is wrong").message() == "is wrong");
  BOOST_TEST(Error(ErrorCode::io_failed, "a: b", "c: d").message() == "c: d");
  BOOST_TEST(Error(ErrorCode::io_failed, "a", std::string("b\0c", 3)).message() == "b?c");
}

// A name or a file from anywhere may be quoted in it.
BOOST_AUTO_TEST_CASE(no_control_character_reaches_a_terminal) {
  const Error error(ErrorCode::io_failed, "a\x1b[2J\x7f", "is\r\x07 \xc2\x9bm \xc3\xa4\n\tb");
  BOOST_TEST(std::string(error.what()) == "a?[2J?: is?? ?\?m \xc3\xa4\n\tb");
  BOOST_TEST(error.message() == "is?? ?\?m \xc3\xa4\n\tb");
}

BOOST_AUTO_TEST_CASE(an_endless_text_is_cut) {
  const Error error(ErrorCode::invalid_spec, std::string(1'000'000, 's'), std::string(1'000'000, 'm'));
  BOOST_TEST(std::string(error.what()) == std::string(4096, 's') + "...: " + std::string(16384, 'm') + "...");
  BOOST_TEST(error.message() == std::string(16384, 'm') + "...");
}

BOOST_AUTO_TEST_CASE(codes_have_names) {
  BOOST_TEST(name(ErrorCode::invalid_spec) == "invalid_spec");
  BOOST_TEST(name(ErrorCode::invalid_argument) == "invalid_argument");
  BOOST_TEST(name(ErrorCode::not_found) == "not_found");
  BOOST_TEST(name(ErrorCode::compile_failed) == "compile_failed");
  BOOST_TEST(name(ErrorCode::cuda_failed) == "cuda_failed");
  BOOST_TEST(name(ErrorCode::out_of_memory) == "out_of_memory");
  BOOST_TEST(name(ErrorCode::io_failed) == "io_failed");
  BOOST_TEST(name(static_cast<ErrorCode>(99)) == "unknown error");
}

BOOST_AUTO_TEST_SUITE_END()
