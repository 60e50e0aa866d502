// A function of one element, fused into the kernel that reads or writes that element: `silu(x) * gate + bias[col]`.
//
//   x            the element of the kernel's main input
//   gate         any other name: the element of a further matrix of the same shape
//   bias[col]    a vector with one value for each column, of the matrices' dtype
//   f[col:f32]   the same in f32, such as the scale_inv of another tensor
//   mean[row]    one value for each row, in f32
//   1 0.5 1e-3   constants, which are f32
//   + - * / ^    of the usual precedence; -x^2 is -(x^2); the exponent is an integer from 0 to 64
//   exp(x) ...   primitive functions, and built-in ones, which are expressions of those: docs/pointwise.md lists them
//
// An expression is a value: copies share one immutable body, and comparing and hashing neither allocate nor format. It
// is kept simplified by the rules of real numbers (x * 0 is 0, --x is x, constants are folded), as a list of operations
// that computes nothing twice. CPU and GPU run that same list, with the same fused multiply-adds
// (pointwise_lowering.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/api.h"

namespace ingot {

inline constexpr std::size_t kMaxPointwiseInputs = 4;   // besides x
inline constexpr std::size_t kMaxPointwiseNodes = 512;  // operations and leaves, as written out
inline constexpr std::size_t kMaxPointwiseDepth = 64;   // operations between the result and the deepest leaf
inline constexpr std::uint32_t kMaxPointwiseExponent = 64;
inline constexpr std::size_t kMaxPointwiseName = 64;  // characters of an input's name

struct PointwiseInput {
  enum class Kind : std::uint8_t { matrix, column, row, column_f32 };
  std::string name;
  Kind kind = Kind::matrix;
  bool operator==(const PointwiseInput&) const = default;
};

enum class PointwiseOp : std::uint8_t {
  constant,
  x,
  input,  // leaves
  negate,
  exp,
  expm1,
  log,
  log1p,
  tanh,
  sigmoid,
  erf,
  sqrt,
  rsqrt,
  abs,
  sign,
  step,  // of a
  add,
  subtract,
  multiply,
  divide,
  maximum,
  minimum,  // of a and b
};

// Which versions of exp, tanh and so on to take from templates/pointwise/math.cuh. The reproducible ones give the same
// bits on CPU and GPU, and are accurate enough for results that are rounded to 16 bits or fewer, or to f32. The fast
// ones use the GPU's own.
enum class PointwisePrecision : std::uint8_t { reproducible16, reproducible32, fast };

// Number of operands: 0, 1 or 2.
constexpr int arity(PointwiseOp op) { return op < PointwiseOp::negate ? 0 : op < PointwiseOp::add ? 1 : 2; }

// One step of an expression; operands are earlier steps.
struct PointwiseStep {
  PointwiseOp op = PointwiseOp::constant;
  std::uint16_t a = 0;  // for a leaf `input`: index into inputs()
  std::uint16_t b = 0;
  float value = 0;  // for a constant: finite, and never -0
  bool operator==(const PointwiseStep&) const = default;
};

class INGOT_API Pointwise {
 public:
  Pointwise() = default;  // no expression: the element as it is

  bool empty() const { return body_ == nullptr; }
  explicit operator bool() const { return !empty(); }

  // The inputs besides x, in the order in which print() shows them.
  std::span<const PointwiseInput> inputs() const;
  bool uses_x() const;
  // In the order of their computation, each different step once; the last one is the result.
  std::span<const PointwiseStep> steps() const;

  std::size_t hash() const;
  friend bool operator==(const Pointwise& a, const Pointwise& b) { return a.body_ == b.body_ || same_body(a, b); }

 private:
  friend class PointwiseGraph;
  // What copies share; it never changes.
  struct Body {
    std::vector<PointwiseStep> steps;
    std::vector<PointwiseInput> inputs;
    bool uses_x = false;
    std::size_t hash = 0;
  };
  explicit Pointwise(std::shared_ptr<const Body> body) : body_(std::move(body)) {}
  static Pointwise from(Body body);
  static bool same_body(const Pointwise& a, const Pointwise& b);

  std::shared_ptr<const Body> body_;
};

// Throws Error{invalid_spec}: what is wrong and what was expected, then the text, with a caret under the error.
INGOT_API Pointwise parse_pointwise(std::string_view text);
// The one canonical form; parse_pointwise(print(e)) == e. Empty where there is no expression.
INGOT_API std::string print(const Pointwise& expression);
// The same without spaces: one word of a spec's line.
INGOT_API std::string print_word(const Pointwise& expression);
INGOT_API std::ostream& operator<<(std::ostream& stream, const Pointwise& expression);

// The partial derivative by "x" or by one of the inputs. At a kink it is one-sided: at 0 that of max(x, 0) is 0 and
// that of min(x, 0) is 1 (so that they add up to that of x); that of abs(x) is 0. Throws Error{invalid_spec} where `by`
// is no input, or the result is over the limits.
INGOT_API Pointwise derivative(const Pointwise& expression, std::string_view by);
// grad * derivative(expression, by): the gradient that flows back through the expression, where the matrix `grad` flows
// into it.
INGOT_API Pointwise backward(const Pointwise& expression, std::string_view by, std::string_view grad = "grad");

// Evaluates in float64; `inputs` has a value for each of inputs(). No expression gives x. Throws
// Error{invalid_argument} where the number of inputs differs.
INGOT_API double evaluate(const Pointwise& expression, double x, std::span<const double> inputs = {});

// A built-in function and the expression that it is short for: name "swiglu", parameters "x, gate", text
// "silu(x) * gate".
struct PointwiseFunction {
  std::string_view name;
  std::string_view parameters;
  std::string_view text;
};
INGOT_API std::span<const PointwiseFunction> built_in_functions();

}  // namespace ingot
