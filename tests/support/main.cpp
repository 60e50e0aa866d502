// main() of the test programs without their own main() (those of the label gpu have support/gpu_main.cpp's).
#include <boost/test/unit_test.hpp>

int main(int argc, char** argv) {
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
