# Uses ccache where it is installed, if Ingot is the top-level project and no launcher was chosen.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(INGOT_CCACHE ccache)
  mark_as_advanced(INGOT_CCACHE)
  if(INGOT_CCACHE)
    # ccache takes part in builds with precompiled headers only if it may ignore their macros and times. In depend mode it
    # compares the headers' bytes. Otherwise it may compare only what the preprocessor prints, and then serves an old
    # precompiled header after a change to a comment; g++ notices that the bytes differ, and includes the header again.
    # The namespace hides results that were stored without depend mode.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
        CCACHE_NAMESPACE=ingot-depend ${INGOT_CCACHE})
  endif()
endif()
