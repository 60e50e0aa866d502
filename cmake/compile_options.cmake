# ingot_compile_options(target [OPTIMIZED]): how our own code is compiled. Never set globally: a project that embeds
# Ingot keeps its own warnings and its own arithmetic. With INGOT_QUICK_BUILD only what is OPTIMIZED is built for speed:
# compiling a test with -O3 takes longer than running it with -Og.
function(ingot_compile_options target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor)
  if(INGOT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(INGOT_QUICK_BUILD)
    target_compile_options(${target} PRIVATE $<$<NOT:$<STREQUAL:${ARGN},OPTIMIZED>>:-Og>)
  endif()
  # A product and a sum stay two roundings: what the CPU computes is compared with the GPU bit for bit (--fmad=false).
  target_compile_options(${target} PRIVATE -ffp-contract=off)
endfunction()

# ingot_precompile(target header...): these headers are parsed once for all sources of the target. The presets asan and
# tsan go without, so that a source that lacks an #include is found.
function(ingot_precompile target)
  if(INGOT_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# ingot_precompile_as(target other): with the precompiled headers of another target, whose options are the same. The
# other one may be defined later.
function(ingot_precompile_as target other)
  if(INGOT_PRECOMPILE)
    cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY ${PROJECT_SOURCE_DIR} CALL target_precompile_headers ${target} REUSE_FROM ${other})")
  endif()
endfunction()
