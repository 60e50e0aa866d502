# ingot_document(<file>): installs a document of the source tree, in its folder. A link to what is not installed becomes
# plain text, so that the others hold.
function(ingot_document file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${PROJECT_SOURCE_DIR}/${file} text)
  string(REGEX REPLACE "\\[([^]]*)\\]\\((\\.\\./)?(src|templates|bench)/[^)]*\\)" "\\1" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/documents/${file} "${text}")
  cmake_path(GET file PARENT_PATH folder)
  install(FILES ${PROJECT_BINARY_DIR}/documents/${file} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endfunction()

file(GLOB documents RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/*.md ${PROJECT_SOURCE_DIR}/docs/*.md)
foreach(document IN LISTS documents)
  ingot_document(${document})
endforeach()
file(GLOB pictures CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.svg)
install(FILES ${pictures} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES examples/readme_example.cpp examples/fused_example.cpp examples/weight_only_example.cpp
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(DIRECTORY examples/common examples/consume examples/generate DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
