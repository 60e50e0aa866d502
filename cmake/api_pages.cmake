# API pages, made by Doxygen from the public headers' comments: cmake --build <build> --target api_pages. They are in
# <build>/api/html. A comment that Doxygen cannot read is an error.
find_program(INGOT_DOXYGEN doxygen)
mark_as_advanced(INGOT_DOXYGEN)
if(NOT INGOT_DOXYGEN)
  return()
endif()
include(public_headers)
ingot_public_headers(${PROJECT_SOURCE_DIR}/src api_headers)
list(TRANSFORM api_headers PREPEND ${PROJECT_SOURCE_DIR}/src/)
list(JOIN api_headers " " INGOT_API_HEADERS)
configure_file(cmake/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
add_custom_target(api_pages COMMAND ${INGOT_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile VERBATIM
                  COMMENT "API pages in ${PROJECT_BINARY_DIR}/api/html")
