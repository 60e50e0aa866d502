# INGOT_SANITIZE=address,undefined or thread: on every target of this build, since a sanitizer has to see all of a program.
if(INGOT_SANITIZE)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=${INGOT_SANITIZE})
  check_cxx_source_compiles("int main() {}" INGOT_CAN_SANITIZE_${INGOT_SANITIZE})
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT INGOT_CAN_SANITIZE_${INGOT_SANITIZE})
    message(FATAL_ERROR "INGOT_SANITIZE is ${INGOT_SANITIZE}, which ${CMAKE_CXX_COMPILER} cannot build with; expected "
                        "\"address,undefined\" or \"thread\".")
  endif()
  add_compile_options(-fsanitize=${INGOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INGOT_SANITIZE})
endif()

# Every target counts its branches for libFuzzer, which only the fuzzers link (tests/fuzz).
if(INGOT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
