"""INGOT_TESTS_IN_TURN=n: of all tests every n-th, from another one on each day, so that n days' runs have them all.

INGOT_TESTS_ALL=1: all, whatever that says.
"""

import datetime
import os


def pytest_collection_modifyitems(config, items):
    turns = 1 if "INGOT_TESTS_ALL" in os.environ else int(os.environ.get("INGOT_TESTS_IN_TURN", "1"))
    turn = int(os.environ.get("INGOT_TESTS_TURN", datetime.date.today().toordinal())) % turns
    if turns > 1:
        print(f"turn {turn + 1} of {turns}: INGOT_TESTS_TURN={turn} runs the same again")
    dropped = [item for at, item in enumerate(items) if at % turns != turn]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for at, item in enumerate(items) if at % turns == turn]
