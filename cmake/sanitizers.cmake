# INGOT_SANITIZE=address,undefined or thread: on every target of this build, since a sanitizer has to see all of a program.
if(INGOT_SANITIZE)
  add_compile_options(-fsanitize=${INGOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INGOT_SANITIZE})
endif()

# Every target counts its branches for libFuzzer, which only the fuzzers link (tests/fuzz).
if(INGOT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
