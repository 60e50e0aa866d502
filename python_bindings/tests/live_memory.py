"""The bytes of tensors that are alive while a program runs, counted on any device: of all that operators return, each memory once,
until it is freed. What operators take and give back within themselves is not seen."""

from __future__ import annotations

import weakref
from typing import Callable, Dict, List, Tuple

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveMemory(TorchDispatchMode):
    """Counts while it is entered, and what was freed at other times too; `peak` and the bytes alive after each operator. Memory that
    the first operator to see it was given, and not the one that made it, is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.calls: List[Tuple[str, int]] = []
        self._known: Dict[int, weakref.ref] = {}

    def restart(self) -> None:
        self.peak, self.calls = self.bytes, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)}
        results = function(*args, **(kwargs or {}))
        for each in tree_iter(results):
            if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata not in given:
                self._count(each.untyped_storage())
        self.peak = max(self.peak, self.bytes)
        self.calls.append((str(function), self.bytes))
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def freed(_, self=self):
            del self._known[key]
            self.bytes -= size

        self._known[key] = weakref.ref(storage, freed)
        self.bytes += size


def counted_backend(live: LiveMemory) -> Callable:
    """For torch.compile: graphs as inductor has them before it makes kernels, run operator by operator, each tensor freed when
    its last reader has run."""

    def compiler(graph, _):
        def call(arguments):
            with live:
                return torch.fx.Interpreter(graph).boxed_run(arguments)  # which keeps what its last run returned

        call._boxed_call = True
        return call

    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
