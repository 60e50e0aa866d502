# cmake -DFILE=<in> -DNAMESPACE=<ns> -DNAME=<constant> -DOUT=<file.h> -P write_embedded_text.cmake
# A header that holds a file's text as a constant; "#pragma once" is left out, as the text becomes a unit by itself.
file(READ ${FILE} content)
string(REPLACE "#pragma once\n" "" content "${content}")
file(WRITE ${OUT} "#pragma once\n\n#include <string_view>\n\nnamespace ${NAMESPACE} {\n\n"
     "inline constexpr std::string_view ${NAME} = R\"INGOT_TEXT(${content})INGOT_TEXT\";\n\n}  // namespace ${NAMESPACE}\n")
