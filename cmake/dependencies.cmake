# The libraries that Ingot is built with: headers only, so that neither an installed package nor a project that embeds
# Ingot has to find any of it again. No CUDA library is linked: they are opened at run time.
find_package(Threads REQUIRED GLOBAL)  # the one that the link line of a user needs
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
include(fmt_library)
find_path(INGOT_XXHASH_INCLUDE xxhash.h REQUIRED)

# CUDA's headers: cuda.h, nvrtc.h, cublasLt.h, cuda_fp8.h. From a toolkit, or from Python's nvidia wheels, which
# scripts/setup.sh installs into .venv where there is no toolkit.
file(GLOB _ingot_wheels ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13)
set(_ingot_cuda_roots ${INGOT_CUDA_ROOT} $ENV{INGOT_CUDA_ROOT} $ENV{CUDA_PATH} $ENV{CUDA_HOME} /usr/local/cuda ${_ingot_wheels})
foreach(_root IN LISTS _ingot_cuda_roots)
  if(EXISTS ${_root}/include/cuda.h AND EXISTS ${_root}/include/nvrtc.h AND EXISTS ${_root}/include/cublasLt.h
     AND (EXISTS ${_root}/include/nv/target OR EXISTS ${_root}/include/cccl/nv/target))
    set(INGOT_CUDA_HEADERS ${_root}/include)
    if(EXISTS ${_root}/include/cccl)
      list(APPEND INGOT_CUDA_HEADERS ${_root}/include/cccl)
    endif()
    set(INGOT_CUDA_FOUND_ROOT ${_root})
    break()
  endif()
endforeach()
if(INGOT_CUDA_ROOT AND NOT INGOT_CUDA_FOUND_ROOT STREQUAL INGOT_CUDA_ROOT)
  message(FATAL_ERROR "INGOT_CUDA_ROOT is ${INGOT_CUDA_ROOT}, but cuda.h, nvrtc.h, cublasLt.h and nv/target are not all in its "
                      "include folder. Name another toolkit, or leave the option empty to search for one.")
endif()
if(NOT INGOT_CUDA_HEADERS)
  list(JOIN _ingot_cuda_roots ", " _ingot_looked_in)
  message(FATAL_ERROR "No CUDA headers: cuda.h, nvrtc.h, cublasLt.h and nv/target are not all in the include folder of any of: "
                      "${_ingot_looked_in}. Run scripts/setup.sh, or pass -DINGOT_CUDA_ROOT=<toolkit>.")
endif()
message(STATUS "CUDA headers: ${INGOT_CUDA_HEADERS}")

# ingot_use_headers(target library...): the include folders and definitions of header-only libraries, for this target
# alone. Linking to them would put their names into our exported link line.
function(ingot_use_headers target)
  foreach(library IN LISTS ARGN)
    target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
endfunction()
