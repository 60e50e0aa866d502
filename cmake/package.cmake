# The installed package: find_package(ingot CONFIG) gives ingot::ingot. tests/package/ tests it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(INGOT_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/ingot)

install(TARGETS ingot EXPORT ingotTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ingotTargets NAMESPACE ingot:: DESTINATION ${INGOT_PACKAGE_FOLDER})

if(TARGET ingot_shared)
  install(TARGETS ingot_shared EXPORT ingotSharedTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ingot_shared
          EXCLUDE_FROM_ALL NAMELINK_COMPONENT ingot_shared INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  # In a separate folder, because CMake makes one file for both exports if they go to the same one.
  install(EXPORT ingotSharedTargets FILE ingotTargets.cmake NAMESPACE ingot:: DESTINATION ${INGOT_PACKAGE_FOLDER}-shared
          COMPONENT ingot_shared EXCLUDE_FROM_ALL)
endif()

include(public_headers)
ingot_public_headers(${PROJECT_SOURCE_DIR}/src public_headers)
foreach(header IN LISTS public_headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/${header})
  cmake_path(GET header PARENT_PATH folder)
  install(FILES src/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ingot/${folder})
endforeach()

configure_package_config_file(cmake/ingotConfig.cmake.in ${PROJECT_BINARY_DIR}/ingotConfig.cmake
                              INSTALL_DESTINATION ${INGOT_PACKAGE_FOLDER})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ingotConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ingotConfig.cmake ${PROJECT_BINARY_DIR}/ingotConfigVersion.cmake
        DESTINATION ${INGOT_PACKAGE_FOLDER})
include(documents)

# The templates, for a user's own kernels that include them and are compiled for the CPU as well.
install(DIRECTORY templates/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ingot/templates FILES_MATCHING PATTERN "*.cuh")
