# The libraries that Ingot is built with: headers only, so that neither an installed package nor a project that embeds
# Ingot has to find any of it again. No CUDA library is linked: they are opened at run time.
find_package(Threads REQUIRED GLOBAL)  # the one that the link line of a user needs
find_package(fmt QUIET)
find_package(nlohmann_json QUIET)
find_path(INGOT_XXHASH_INCLUDE xxhash.h)
set(_ingot_missing "")
foreach(_library "fmt_FOUND:libfmt-dev libfmt9" "nlohmann_json_FOUND:nlohmann-json3-dev" "INGOT_XXHASH_INCLUDE:libxxhash-dev")
  string(REGEX MATCH "(.*):(.*)" _parts ${_library})
  if(NOT ${CMAKE_MATCH_1})
    list(APPEND _ingot_missing ${CMAKE_MATCH_2})
  endif()
endforeach()
if(INGOT_TOOLS OR INGOT_EXAMPLES OR INGOT_BENCH)
  find_package(CLI11 QUIET)
  if(NOT CLI11_FOUND)
    list(APPEND _ingot_missing libcli11-dev)
  endif()
endif()
if(_ingot_missing)
  list(JOIN _ingot_missing " " _ingot_missing)
  message(FATAL_ERROR "The headers of these Debian packages are missing: ${_ingot_missing}; install them as root with apt-get, or "
                      "without root download and unpack them (`apt-get download ${_ingot_missing}`, `dpkg -x <file> <folder>` for "
                      "each) and set the environment variable CMAKE_PREFIX_PATH to <folder>/usr.")
endif()
include(fmt_library)

# CUDA's headers: cuda.h, nvrtc.h, cublasLt.h, cuda_fp8.h. From a toolkit, or from Python's nvidia wheels, which
# scripts/setup.sh installs into .venv where there is no toolkit, or those of the environment that pip installs into.
set(_ingot_environments ${PROJECT_SOURCE_DIR}/.venv)
if(SKBUILD)
  cmake_path(GET Python_EXECUTABLE PARENT_PATH _ingot_environment)
  cmake_path(GET _ingot_environment PARENT_PATH _ingot_environment)
  list(PREPEND _ingot_environments ${_ingot_environment})
endif()
list(TRANSFORM _ingot_environments APPEND /lib/python3*/site-packages/nvidia/cu13)
file(GLOB _ingot_wheels ${_ingot_environments})
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
                      "${_ingot_looked_in}. Run scripts/setup.sh, pass -DINGOT_CUDA_ROOT=<toolkit>, or for pip, first `pip install "
                      "--no-deps nvidia-cublas nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`.")
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
