// fmt's functions, compiled once here. As a header-only library they would be compiled again in every source that
// formats anything, which took half of the build. cmake/dependencies.cmake puts them into our own namespace, so that a
// program may link another fmt as well.
#ifndef FMT_HEADER_ONLY
#include <fmt/format-inl.h>

namespace fmt {
inline namespace ingot_fmt {
namespace detail {

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl<wchar_t>(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref) -> char;
template auto decimal_point_impl(locale_ref) -> wchar_t;
template void buffer<char>::append(const char*, const char*);

}  // namespace detail
}  // namespace ingot_fmt
}  // namespace fmt
#endif
