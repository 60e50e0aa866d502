# ccache, where it is installed and this is the top-level project that chose no launcher of its own.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(INGOT_CCACHE ccache)
  mark_as_advanced(INGOT_CCACHE)
  if(INGOT_CCACHE)
    # ccache takes part in builds with precompiled headers only if it may ignore their macros and times.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${INGOT_CCACHE})
  endif()
endif()
