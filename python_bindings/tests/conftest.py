"""Which of these tests CI runs: all but those with the marker `nightly`, the same every day.

A test that starts another interpreter takes seconds, so of each kind of them CI runs one and the others are `nightly`.
`--one-of N` takes a fixed N-th of the tests: the hash of a test's name decides, so a new test moves no other; of a file
that would have none it takes the test with the smallest hash.
"""

import gc
import itertools
import pathlib

import pytest


def in_ci(chosen, *values):
    """Parameters for parametrize(), of which CI runs those that `chosen` says; of several lists, all combinations."""
    return [
        pytest.param(*each, id="-".join(map(str, each)), marks=() if chosen(*each) else pytest.mark.nightly)
        for each in itertools.product(*values)
    ]


def devices_of_grouped_gemm():
    """Parameters of a test: the CPU, and a GPU where it is Hopper."""
    import torch

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not hopper, reason="no Hopper GPU"))]


def stable_hash(name):
    """FNV-1a of 64 bits, folded, as in tests/support/fixed_set.h."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return (value ^ value >> 32) % 2**32


def fixed_set(names, one_of):
    """Of names like "test_cast.py::test_bits[row]" the fixed N-th, and at least one of each file."""
    names = list(names)
    first = {}
    for name in sorted(names, key=stable_hash):
        first.setdefault(name.split("::")[0], name)
    return {name for name in names if stable_hash(name) % one_of == 0} | set(first.values())


def rare_collections():
    """What has been imported is never garbage, and need not be looked at by the collections that torch.compile brings about:
    they took a seventh of the processor's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_addoption(parser):
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="run a fixed N-th of the tests")


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes seconds, and CI runs another test of its kind")


def pytest_collection_modifyitems(config, items):
    one_of = config.getoption("--one-of")
    if one_of == 1:
        return
    names = {item: pathlib.Path(item.path).name + "::" + item.nodeid.split("::", 1)[1] for item in items}
    chosen = fixed_set(names.values(), one_of)
    config.hook.pytest_deselected(items=[item for item in items if names[item] not in chosen])
    items[:] = [item for item in items if names[item] in chosen]


def pytest_collection_finish():
    rare_collections()
