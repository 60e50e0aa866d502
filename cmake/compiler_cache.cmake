# ccache, where it is installed and this is the top-level project that chose no launcher of its own.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(INGOT_CCACHE ccache)
  mark_as_advanced(INGOT_CCACHE)
  if(INGOT_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${INGOT_CCACHE})
  endif()
endif()
