#include "ingot/runtime/util/standard_output.h"
#include "program.h"

int main(int argc, char** argv) {
  ingot::reserve_standard_streams();
  return ingot::tools::run_program(argc, argv);
}
