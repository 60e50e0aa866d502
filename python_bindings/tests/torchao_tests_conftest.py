"""conftest.py of scripts/torchao_tests.sh: torchao's own helpers for tests use ingot.float8 too, and without a GPU the CPU
takes its place."""

import os

import torch

_is_available = torch.cuda.is_available


def pytest_configure(config):
    if not _is_available():
        _put_the_cpu_in_place_of_a_gpu()
    if not os.environ.get("TORCHAO_ITSELF"):
        import ingot.float8

        ingot.float8.replace_torchao()


def _put_the_cpu_in_place_of_a_gpu():
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *args, **kwargs: self

    import torchao.utils

    for name in ("is_sm_at_least_89", "is_sm_at_least_90"):
        setattr(torchao.utils, name, lambda: True)
    # Tests ask when they are collected whether there is a GPU.
    torch.cuda.is_available = lambda: True


def pytest_collection_finish(session):
    torch.cuda.is_available = _is_available
