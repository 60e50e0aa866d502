// The program `ingot`, all but its main(): reads the command line, runs the command and prints its error. Returns the
// exit code.
#pragma once

namespace ingot::tools {

int run_program(int argc, char** argv);

}  // namespace ingot::tools
