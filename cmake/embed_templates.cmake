# Writes a C++ file that holds every file of templates/ as a raw string, so that the library needs none at run time.
# The list is globbed: a template is embedded because it is there.
file(GLOB_RECURSE INGOT_TEMPLATE_FILES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/templates/*.cuh)
set(INGOT_EMBEDDED_TEMPLATES ${PROJECT_BINARY_DIR}/embedded_templates.cpp)
add_custom_command(
  OUTPUT ${INGOT_EMBEDDED_TEMPLATES}
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR}/templates -DOUT=${INGOT_EMBEDDED_TEMPLATES}
          -P ${PROJECT_SOURCE_DIR}/cmake/write_embedded_templates.cmake
  DEPENDS ${INGOT_TEMPLATE_FILES} ${PROJECT_SOURCE_DIR}/cmake/write_embedded_templates.cmake
  COMMENT "Embedding templates")
