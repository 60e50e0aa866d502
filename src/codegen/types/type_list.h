// A list of types, to write something once for all of them.
#pragma once

#include <type_traits>
#include <variant>

namespace ingot {

template <class... Types>
struct TypeList {};

namespace detail {
template <class List>
struct VariantOf;
template <class... Types>
struct VariantOf<TypeList<Types...>> {
  using type = std::variant<Types...>;
};
}  // namespace detail

template <class List>
using VariantOf = typename detail::VariantOf<List>::type;

template <class Type, class... Types>
constexpr bool contains(TypeList<Types...>) {
  return (std::is_same_v<Type, Types> || ...);
}

// Calls function.template operator()<Type>() for each type, in their order.
template <class Function, class... Types>
void for_each_type(TypeList<Types...>, Function&& function) {
  (function.template operator()<Types>(), ...);
}

}  // namespace ingot
