"""Which of these tests CI runs: all but those with the marker `nightly`, the same every day.

A test that starts another interpreter takes seconds, so of each kind of them CI runs one and the others are `nightly`.
"""

import gc
import itertools

import pytest


def in_ci(chosen, *values):
    """Parameters for parametrize(), of which CI runs those that `chosen` says; of several lists, all combinations."""
    return [
        pytest.param(*each, id="-".join(getattr(value, "__name__", str(value)) for value in each), marks=() if chosen(*each) else pytest.mark.nightly)
        for each in itertools.product(*values)
    ]


def devices_of_grouped_gemm():
    """Parameters of a test: the CPU, and a GPU where it is Hopper."""
    import torch

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not hopper, reason="no Hopper GPU"))]


def rare_collections():
    """What has been imported is never garbage, and need not be looked at by the collections that torch.compile brings about:
    they took a seventh of the processor's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes seconds, and CI runs another test of its kind")


def pytest_collection_finish():
    rare_collections()
