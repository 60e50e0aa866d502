# ccache, where it is installed and this is the top-level project that chose no launcher of its own.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(INGOT_CCACHE ccache)
  mark_as_advanced(INGOT_CCACHE)
  if(INGOT_CCACHE)
    # ccache takes part in builds with precompiled headers only if it may ignore their macros and times. It has to compare
    # headers byte by byte (depend mode), not by the preprocessor's output: g++ knows a header by its bytes, and would
    # include it again beside a precompiled one that differs in a comment. The namespace keeps away from results that were
    # stored without depend mode, which ccache finds as well.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
        CCACHE_NAMESPACE=ingot-depend ${INGOT_CCACHE})
  endif()
endif()
