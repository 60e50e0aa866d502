"""conftest.py of scripts/torchao_tests.sh: torchao's own helpers for tests use ingot.float8 too, and without a GPU the
CPU takes its place."""

import os

import torch

_HAS_GPU = torch.cuda.is_available()


def pytest_configure(config):
    if not _HAS_GPU:
        _put_the_cpu_in_place_of_a_gpu()
    if not os.environ.get("TORCHAO_ITSELF"):
        import ingot.float8

        ingot.float8.replace_torchao()
    if _HAS_GPU:
        synchronize_threads()


def synchronize_threads():
    """Ranks that are threads share no stream: each collective waits for what the GPU does, before it and after."""
    from torch.testing._internal.distributed.multi_threaded_pg import Collective

    join = Collective.join

    def joined(self, rank, data):
        torch.cuda.synchronize()
        result = join(self, rank, data)
        torch.cuda.synchronize()
        return result

    Collective.join = joined


def _put_the_cpu_in_place_of_a_gpu():
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *args, **kwargs: self

    import torchao.utils

    for name in ("is_sm_at_least_89", "is_sm_at_least_90"):
        setattr(torchao.utils, name, lambda: True)
    _say_that_there_is_a_gpu(True)


def _say_that_there_is_a_gpu(answer):
    for module in (torch.cuda, torch.accelerator):
        module.is_available = lambda: answer


def pytest_collection_finish(session):
    # Tests ask when they are collected; torch.compile, which asks later, is to know the truth.
    if not _HAS_GPU:
        _say_that_there_is_a_gpu(False)
