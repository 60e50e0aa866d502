#include "support/light_check.h"

namespace ingot::test::light_check {

namespace tools = boost::test_tools::tt_detail;
using boost::unit_test::const_string;

Check::Check(const char* file, std::size_t line, const char* expression, bool has_message)
    : file_(file), line_(line), expression_(expression), has_message_(has_message) {
  boost::unit_test::unit_test_log.set_checkpoint(file, line);
}

Operand<const char*> Check::operator->*(const char* const& value) const { return {*this, value}; }

bool Check::passed() const {
  return tools::report_assertion(true, BOOST_TEST_LAZY_MSG(expression_), file_, line_, tools::CHECK,
                                 has_message_ ? tools::CHECK_MSG : tools::CHECK_BUILT_ASSERTION, 0);
}

bool Check::failed() const { return report_values({}, {}); }

bool Check::failed(const Shown& value, bool computed) const {
  std::ostringstream values;
  value.print(values, value.value);
  if (computed) return report_values(values.str(), {});
  return report_values({}, "['" + values.str() + "' evaluates to false]");
}

bool Check::failed(const Shown& left, const char* relation, const Shown& right) const {
  std::ostringstream values;
  left.print(values, left.value);
  values << relation;
  right.print(values, right.value);
  return report_values(values.str(), {});
}

void Check::failed_with(const std::string& message) const {
  tools::report_assertion(false, BOOST_TEST_LAZY_MSG(message), file_, line_, tools::CHECK, tools::CHECK_MSG, 0);
}

bool Check::report_values(const std::string& values, const std::string& details) const {
  if (has_message_) return false;  // which failed_with() reports
  return tools::report_assertion(tools::format_assertion_result(values, details), BOOST_TEST_LAZY_MSG(expression_),
                                 file_, line_, tools::CHECK, tools::CHECK_BUILT_ASSERTION, 0);
}

Message& Message::operator<<(const char* const& value) {
  stream_ << value;
  return *this;
}

}  // namespace ingot::test::light_check
