# The target ingot_fmt: fmt's headers, with its functions compiled once in src/runtime/util/fmt_definitions.cpp and in
# our own namespace. With an fmt whose functions that file does not define, it is the header-only library.
set(_definitions "FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace ingot_fmt {" "FMT_END_NAMESPACE=}}")
get_target_property(_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
if(NOT DEFINED INGOT_COMPILED_FMT)
  file(WRITE ${CMAKE_BINARY_DIR}/fmt_config.h "#define FMT_BEGIN_NAMESPACE namespace fmt { inline namespace ingot_fmt {\n#define FMT_END_NAMESPACE }}\n")
  try_compile(INGOT_COMPILED_FMT ${CMAKE_BINARY_DIR}/fmt_check
              SOURCES ${CMAKE_CURRENT_LIST_DIR}/use_fmt.cpp ${CMAKE_CURRENT_LIST_DIR}/../src/runtime/util/fmt_definitions.cpp
              COMPILE_DEFINITIONS -include ${CMAKE_BINARY_DIR}/fmt_config.h
              CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${_include}"
              CXX_STANDARD 20)
  set(INGOT_COMPILED_FMT ${INGOT_COMPILED_FMT} CACHE BOOL "Are fmt's functions compiled once?" FORCE)
  mark_as_advanced(INGOT_COMPILED_FMT)
endif()
add_library(ingot_fmt INTERFACE)
target_include_directories(ingot_fmt SYSTEM INTERFACE ${_include})
if(INGOT_COMPILED_FMT)
  target_compile_definitions(ingot_fmt INTERFACE ${_definitions})
else()
  target_compile_definitions(ingot_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()
message(STATUS "fmt ${fmt_VERSION}: compiled once: ${INGOT_COMPILED_FMT}")
