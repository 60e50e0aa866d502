"""Which of these tests CI runs: all but those with the marker `nightly`, the same every day.

A test that starts another interpreter takes seconds, so of each kind of them CI runs one and the others are `nightly`.
"""

import gc
import itertools
import os
import shutil

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


# What a backend of torch.compile() says when it finds no compiler, and where it looks: inductor, which asks CXX and g++, and Triton,
# which asks CC, gcc and clang. Whether a graph on a GPU needs Triton depends on its operators.
NO_COMPILER = {
    "No working C++ compiler found": ("torch.compile's backend inductor finds no C++ compiler (CXX or g++)", "CXX", ("g++",)),
    "Failed to find C compiler": (
        "Triton, which compiles graphs for torch.compile, finds no C compiler (CC, gcc or clang)", "CC", ("gcc", "clang")
    ),
}  # fmt: skip


def has_compiler(variable, names):
    """Is there one? Then a backend that finds none is a failure."""
    return any(shutil.which(each) for each in (*os.environ.get(variable, "").split()[:1], *names))


def without_compiler(error):
    """Why a test cannot pass where nothing is wrong with Ingot, or None. The text may be that of another process."""
    while error is not None:
        for text, (reason, *places) in NO_COMPILER.items():
            if text in str(error) and not has_compiler(*places):
                return reason
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except Exception as error:
        reason = without_compiler(error)
        if reason is None:
            raise
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter):
    """In a log, which has no width, the reasons of failures are not cut at 80 columns."""
    writer = terminalreporter.config.get_terminal_writer()
    if not terminalreporter.isatty:
        writer.fullwidth = max(writer.fullwidth, 320)


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes seconds, and CI runs another test of its kind")


def pytest_collection_finish():
    rare_collections()
