# ingot_compile_options(target): how our own code is compiled. Never set globally: a project that embeds Ingot keeps its
# own warnings and its own arithmetic.
function(ingot_compile_options target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor)
  if(INGOT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  # A product and a sum stay two roundings: what the CPU computes is compared with the GPU bit for bit (--fmad=false).
  target_compile_options(${target} PRIVATE -ffp-contract=off)
endfunction()
