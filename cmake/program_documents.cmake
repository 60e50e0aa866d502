# INGOT_PROGRAM_DOCUMENTS is a folder like share/ of an installation, with the man pages and the completions that the
# program `ingot` prints of itself. They are made with it, unless it cannot run here.
set(INGOT_PROGRAM_DOCUMENTS ${PROJECT_BINARY_DIR}/share)
set(bash_folder ${INGOT_PROGRAM_DOCUMENTS}/bash-completion/completions)
set(zsh_folder ${INGOT_PROGRAM_DOCUMENTS}/zsh/site-functions)
file(MAKE_DIRECTORY ${bash_folder} ${zsh_folder})
if(NOT CMAKE_CROSSCOMPILING)
  add_custom_command(OUTPUT ${bash_folder}/ingot ${zsh_folder}/_ingot ${INGOT_PROGRAM_DOCUMENTS}/man/man1/ingot.1
                     COMMAND ${CMAKE_COMMAND} -E rm -rf ${INGOT_PROGRAM_DOCUMENTS}/man
                     COMMAND ingot_cli man --folder ${INGOT_PROGRAM_DOCUMENTS}/man/man1
                     COMMAND ingot_cli completion bash > ${bash_folder}/ingot
                     COMMAND ingot_cli completion zsh > ${zsh_folder}/_ingot
                     DEPENDS ingot_cli
                     COMMENT "Man pages and completions of ingot")
  add_custom_target(ingot_documents ALL DEPENDS ${bash_folder}/ingot)
endif()
