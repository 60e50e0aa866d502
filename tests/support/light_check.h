// BOOST_TEST(expression) and BOOST_TEST(expression, message) with less to compile, for quick builds: Boost.Test's own
// macro costs hundreds of templates and instructions wherever it stands. The tests' precompiled headers include this
// file (tests/CMakeLists.txt); builds without it keep Boost's macro, and a failure reads the same in both. A check with
// a manipulator (per_element, tolerance) is written BOOST_TEST_CHECK, which is Boost's in every build.
#pragma once

#include <boost/test/unit_test.hpp>

#include <concepts>
#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

#pragma GCC system_header  // like Boost's: a count may be compared with an int

namespace ingot::test::light_check {

// A value of any type, which is printed if a check fails.
struct Shown {
  const void* value;
  void (*print)(std::ostream& stream, const void* value);
};

template <class T>
void print_value(std::ostream& stream, const void* value) {
  boost::test_tools::tt_detail::print_log_value<T>()(stream, *static_cast<const T*>(value));
}

class Check;

// The left operand of a comparison.
template <class T>
struct Operand {
  const Check& check;
  const T& value;
  Shown computed{};  // by which operation, if it was

  Shown shown() const { return computed.print != nullptr ? computed : Shown{&value, print_value<T>}; }
};

// One check, at its place in a source. The functions that return bool report to Boost.Test, and return whether it
// holds.
class Check {
 public:
  // If evaluating the expression throws, Boost.Test names this place.
  Check(const char* file, std::size_t line, const char* expression, bool has_message = false);

  // ->* binds closer than what stands in an expression: check->*a == b is (check->*a) == b.
  template <class T>
  Operand<T> operator->*(const T& value) const {
    return {*this, value};
  }
  Operand<const char*> operator->*(const char* const& value) const;

  bool passed() const;
  bool failed() const;
  bool failed(const Shown& value, bool computed) const;
  bool failed(const Shown& left, const char* relation, const Shown& right) const;
  void failed_with(const std::string& message) const;

 private:
  bool report_values(const std::string& values, const std::string& details) const;

  const char* file_;
  std::size_t line_;
  const char* expression_;
  bool has_message_;
};

template <class T>
concept CharPointer = std::same_as<T, const char*> || std::same_as<T, char*>;

inline std::string_view text(const char* value) { return value == nullptr ? std::string_view() : value; }

// Boost.Test does not print two collections that differ.
template <class T>
concept Collection = requires(const T& values) {
  values.begin();
  values.end();
}
&&!std::convertible_to<const T&, std::string_view>;

// A check that has been reported.
struct Result {
  bool holds;
};

template <class Left, class Right>
Result result(bool holds, const Operand<Left>& left, const char* inverse, const Right& right) {
  if (holds) return {left.check.passed()};
  if constexpr (Collection<Left> && Collection<Right>) {
    return {left.check.failed()};
  } else {
    return {left.check.failed(left.shown(), inverse, {&right, print_value<Right>})};
  }
}

template <class T>
Result result(const Operand<T>& only) {
  if (static_cast<bool>(only.value)) return {only.check.passed()};
  if constexpr (std::same_as<T, bool>) {
    return {only.check.failed()};
  } else {
    return {only.check.failed(only.shown(), only.computed.print != nullptr)};
  }
}

inline Result result(Result reported) { return reported; }

// As Boost.Test, compares what char pointers point to. A literal is one, whatever its length.
#define INGOT_RELATION(relation, inverse, name)                                                   \
  template <class Left, class Right>                                                              \
  Result name(const Operand<Left>& left, const Right& right) {                                    \
    if constexpr (CharPointer<Left> && CharPointer<Right>) {                                      \
      return result(text(left.value) relation text(right), left, " " #inverse " ", right);        \
    } else {                                                                                      \
      return result(static_cast<bool>(left.value relation right), left, " " #inverse " ", right); \
    }                                                                                             \
  }                                                                                               \
  template <class Left, class Right>                                                              \
  Result operator relation(const Operand<Left>& left, const Right& right) {                       \
    return name(left, right);                                                                     \
  }                                                                                               \
  template <class Left>                                                                           \
  Result operator relation(const Operand<Left>& left, const char* const& right) {                 \
    return name(left, right);                                                                     \
  }
INGOT_RELATION(==, !=, equal)
INGOT_RELATION(!=, ==, unequal)
INGOT_RELATION(<, >=, less)
INGOT_RELATION(<=, >, at_most)
INGOT_RELATION(>, <=, greater)
INGOT_RELATION(>=, <, at_least)
#undef INGOT_RELATION

// a + b as left operand; a and b are what is printed.
template <class T, class Right>
struct Computed {
  Shown left;
  const char* operation;
  const Right& right;
  T value;

  static void print(std::ostream& stream, const void* value) {
    const auto& computed = *static_cast<const Computed*>(value);
    computed.left.print(stream, computed.left.value);
    stream << computed.operation;
    print_value<Right>(stream, &computed.right);
  }
};

template <class T, class Right>
struct ComputedOperand : private Computed<T, Right>, Operand<T> {
  ComputedOperand(const Check& check, const Computed<T, Right>& computed)
      : Computed<T, Right>(computed),
        Operand<T>{
            check, Computed<T, Right>::value, {static_cast<Computed<T, Right>*>(this), Computed<T, Right>::print}} {}
  ComputedOperand(const ComputedOperand&) = delete;
};

#define INGOT_OPERATION(operation)                                                                               \
  template <class Left, class Right>                                                                             \
  auto operator operation(const Operand<Left>& left, const Right& right) {                                       \
    using Value = decltype(left.value operation right);                                                          \
    return ComputedOperand<Value, Right>(left.check,                                                             \
                                         {left.shown(), " " #operation " ", right, left.value operation right}); \
  }
INGOT_OPERATION(+)
INGOT_OPERATION(-)
INGOT_OPERATION(*)
INGOT_OPERATION(/)
INGOT_OPERATION(%)
#undef INGOT_OPERATION

// What a failing check says instead of its values.
class Message {
 public:
  template <class T>
  Message& operator<<(const T& value) {
    stream_ << value;
    return *this;
  }
  Message& operator<<(const char* const& value);
  // Boost prints nothing for these, and they change a comparison: write BOOST_TEST_CHECK.
  Message& operator<<(boost::test_tools::per_element) = delete;
  Message& operator<<(boost::test_tools::lexicographic) = delete;
  Message& operator<<(boost::test_tools::bitwise) = delete;
  template <class T>
  Message& operator<<(const boost::test_tools::tt_detail::tolerance_manip<T>&) = delete;
  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
};

}  // namespace ingot::test::light_check

#define INGOT_LIGHT_CHECK(level, P)                                                                                    \
  do {                                                                                                                 \
    ::ingot::test::light_check::result(::ingot::test::light_check::Check(__FILE__, __LINE__, BOOST_STRINGIZE(P))->*P); \
  } while (false)

#define INGOT_LIGHT_CHECK_WITH_MESSAGE(level, P, ...)                                                  \
  do {                                                                                                 \
    const ::ingot::test::light_check::Check ingot_check(__FILE__, __LINE__, BOOST_STRINGIZE(P), true); \
    if (!::ingot::test::light_check::result(ingot_check->*P).holds) {                                  \
      ingot_check.failed_with((::ingot::test::light_check::Message() << __VA_ARGS__).text());          \
    }                                                                                                  \
  } while (false)

#undef BOOST_TEST
#define BOOST_TEST(...) \
  BOOST_TEST_INVOKE_IF_N_ARGS(2, INGOT_LIGHT_CHECK, INGOT_LIGHT_CHECK_WITH_MESSAGE, CHECK, __VA_ARGS__)
