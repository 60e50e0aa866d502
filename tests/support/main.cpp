// main() of the test programs that have none of their own (those of support/gpu_test.h have). With
// INGOT_CASES_IN_TURN=n in the environment it runs every n-th test case, from another one on each day, so that n days'
// runs have them all.
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>

#include <cstddef>

#include "support/in_turn.h"

namespace {

namespace unit_test = boost::unit_test;

struct LeaveOut : unit_test::test_tree_visitor {
  ingot::test::InTurn turns = ingot::test::InTurn::of_environment("INGOT_CASES_IN_TURN");
  std::size_t next = 0;

  void visit(const unit_test::test_case& test_case) override {
    if (turns.has(next++)) return;
    unit_test::framework::get<unit_test::test_case>(test_case.p_id).p_default_status.value =
        unit_test::test_unit::RS_DISABLED;
  }
};

bool leave_out() {
  LeaveOut visitor;
  if (visitor.turns.turns > 1) unit_test::traverse_test_tree(unit_test::framework::master_test_suite(), visitor, true);
  return true;
}

}  // namespace

int main(int argc, char** argv) { return unit_test::unit_test_main(leave_out, argc, argv); }
