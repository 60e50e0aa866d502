// Boost.Test, compiled once for all test programs: its headers by themselves would cost each of them twelve seconds.
#define BOOST_TEST_NO_MAIN
#include <boost/test/included/unit_test.hpp>
