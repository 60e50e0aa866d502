# Installs the documents, and the examples that need nothing but the installed package; tests/package compiles these. The
# others include headers that are not installed.
set(installed_examples readme_example.cpp fused_example.cpp stateless_example.cpp checkpoint_example.cpp weight_only_example.cpp consume)

file(GLOB absent_examples RELATIVE ${PROJECT_SOURCE_DIR}/examples ${PROJECT_SOURCE_DIR}/examples/*)
list(REMOVE_ITEM absent_examples ${installed_examples})
list(JOIN absent_examples "|" absent_examples)
set(absent "src|templates|bench|tests|tools|scripts|cmake|python_bindings|examples/(${absent_examples})")

# ingot_document(<file>): installs a document of the source tree, in its folder. A link to what is not installed becomes
# plain text, so that every link that is left leads somewhere.
function(ingot_document file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${PROJECT_SOURCE_DIR}/${file} text)
  string(REGEX REPLACE "\\[([^]]*)\\]\\((\\.\\./)*(${absent})(/[^)]*)?\\)" "\\1" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/documents/${file} "${text}")
  cmake_path(GET file PARENT_PATH folder)
  install(FILES ${PROJECT_BINARY_DIR}/documents/${file} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endfunction()

file(GLOB documents RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/*.md
     ${PROJECT_SOURCE_DIR}/docs/*.md ${PROJECT_SOURCE_DIR}/docs/notes/*.md)
foreach(document IN LISTS documents)
  ingot_document(${document})
endforeach()
file(GLOB pictures CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.svg)
install(FILES ${pictures} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(example IN LISTS installed_examples)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/examples/${example})
    install(DIRECTORY examples/${example} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
  else()
    install(FILES examples/${example} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
  endif()
endforeach()
