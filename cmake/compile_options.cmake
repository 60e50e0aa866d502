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
  if(INGOT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # no garbage collection below 2 GB: a tenth of the processor's time
    target_compile_options(${target} PRIVATE --param=ggc-min-heapsize=2000000)
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

# Of programs: `ingot` and the examples. Not CLI11, which leaves half a megabyte in every unit that includes it, whatever
# that uses: seconds to compile. So few files include it.
set(INGOT_PROGRAM_HEADERS <fmt/format.h> <nlohmann/json.hpp> <algorithm> <array> <chrono> <cmath> <filesystem> <functional>
                          <memory> <optional> <span> <string> <string_view> <variant> <vector> <ingot/ingot.h>)

# ingot_unity_group(name folder...): the sources of these folders, relative to the current one, are one unit, where names in
# their anonymous namespaces differ. For pip's build, which compiles everything once: the more a unit holds, the less often
# the same templates of the standard library are compiled. In the other builds a changed file should cost less.
function(ingot_unity_group name)
  list(TRANSFORM ARGN APPEND /*.cpp)
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set_source_files_properties(${files} PROPERTIES UNITY_GROUP ${name})
endfunction()

# ingot_unity(target [file...]): with INGOT_UNITY, which quick builds and wheels have, the target's sources, or these of
# them, are compiled in units of up to 16 files of one folder, which parse their headers once: less than half the
# processor's time. A file that has a UNITY_GROUP keeps it. The presets dev, asan and tsan compile each file by itself, so
# that one that lacks an #include is found.
function(ingot_unity target)
  if(NOT INGOT_UNITY)
    return()
  endif()
  set(sources ${ARGN})
  if(NOT sources)
    get_target_property(sources ${target} SOURCES)
  endif()
  set(folders "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(group ${source} UNITY_GROUP)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR ${source} ours)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} generated)
    if(source MATCHES "\\.cpp$" AND ours AND NOT generated AND NOT options AND NOT definitions AND NOT alone AND NOT group)  # CMake leaves these out too
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(MAKE_C_IDENTIFIER ${folder} folder)
      list(APPEND folders ${folder})
      list(APPEND files_${folder} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH files_${folder} count)
    math(EXPR units "(${count} + 15) / 16")
    set(index 0)
    foreach(file IN LISTS files_${folder})
      math(EXPR unit "${index} * ${units} / ${count}")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${folder}_${unit})
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
