"""Observers of a PyTorch model's layers: monitor(), nvtx_ranges() and trace().

Each is a context manager. Outside of it an operator makes one comparison. Backward is watched on autograd's thread as
forward is on its own.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any, Iterator, Optional, Union

import torch

from .. import _core
from .._context import context_for
from ._errors import LinearError
from ._layers import context_name, device_of, name_layers
from ._monitor_output import heat_map, write_scalars

FileName = Union[str, os.PathLike]


def _required_names(model: torch.nn.Module, who: str) -> tuple:
    names = name_layers(model)
    if not names:
        raise LinearError(f"{who}: the model has no layers of ingot.nn or ingot.float8: convert some of its layers first")
    return names


class Monitor:
    """What monitor() returns: statistics of every cast and of every GEMM's output, by the layer's name and the role.

    A step is what runs between two calls of step(). The results of the last `history` observed steps are kept.
    """

    def __init__(self, context: Any, every: int, history: int, layers: tuple) -> None:
        self._monitor = _core.TorchMonitor(context, every, history, list(layers))
        self._is_on = False

    def __enter__(self) -> "Monitor":
        if self._is_on:
            raise LinearError("ingot.torch.monitor: this monitor observes already: leave its `with` block first")
        self._monitor.start()
        self._is_on = True
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._monitor.stop()
        self._is_on = False
        if kind is None:
            self.step()

    def step(self) -> None:
        """Ends a step: waits for PyTorch's current stream and reads the results back, if the step was observed. Warns of
        every tensor that has a NaN or an Inf, by its name. Leaving the `with` block ends the last step, too."""
        self._monitor.step_done()
        for line in self._monitor.take_warnings():
            warnings.warn(f"ingot: {line}", RuntimeWarning, stacklevel=2)

    def table(self) -> str:
        """The last observed step as text, a line for each cast and each GEMM."""
        return self._monitor.table()

    def json_lines(self) -> str:
        """The same as JSON, one object per line; NaN and Inf are null."""
        return self._monitor.json_lines()

    def records(self) -> list[dict[str, Any]]:
        """The observed steps that are kept, as dicts, in the order of the work.

        All have step, layer, tensor ("input", "weight", "grad_output", or a GEMM's role: "output", "grad_input",
        "grad_weight"), kind ("cast" or "gemm"), dtype, elements, amax, smallest (of the values that are not 0), nan and
        inf (counts). Casts also have gemms (those that read the codes), codes (their format), scale (the granularity),
        transposed, smallest_scale_inv, largest_scale_inv, saturated_fraction and flushed_fraction (of all elements), and
        sqnr_db.
        """
        return self._monitor.records()

    def write_scalars(self, writer: Any, prefix: str = "ingot") -> int:
        """Adds amax, sqnr_db, saturated_fraction and flushed_fraction of each cast in the observed steps that are kept to a
        torch.utils.tensorboard.SummaryWriter, or what has its add_scalar(tag, value, step), by layer, tensor and the GEMMs that
        read the codes: "ingot/sqnr_db/layers.0.wq/input/output". What is not finite is left out.
        Returns how many. To be called after each observed step, or once with a `history` of all."""
        return write_scalars(self.records(), writer, prefix)

    def heat_map(self, path: FileName, value: str = "sqnr_db") -> None:
        """Draws a value of all casts in the observed steps that are kept, layers by steps, as a PNG or another picture that
        matplotlib writes. value: "sqnr_db", "saturated_fraction", "flushed_fraction" or "amax". Raises LinearError before
        the first step, for another value, without matplotlib, and if the file cannot be written."""
        heat_map(self.records(), path, value)

    def dump(self, layer: str, tensor: str, folder: FileName) -> None:
        """The next time this layer casts this tensor ("input", "weight" or "grad_output"), writes the values, the codes
        and the scale_inv to .npy files in `folder`, which must exist. That cast waits for the GPU."""
        folder = Path(folder)
        if not folder.is_dir():
            raise LinearError(f"monitor.dump: {folder} is no folder: make it first")
        self._monitor.dump(layer, tensor, folder)


def monitor(
    model: Optional[torch.nn.Module] = None, *, every: int = 1, history: int = 1, device: Optional[str] = None
) -> Monitor:
    """Observes FP8's accuracy in one step of `every`; `with monitor(model) as m:` does it within the block.

    model: whose layers are observed; each that has no name gets its path in the model as its name. None: all layers that
    run on `device`. device: "cpu" or "cuda:N"; by default the model's, or the current GPU. history: how many observed
    steps are kept. An observed step costs one more pass over each tensor that is cast and over each GEMM's output.

        with ingot.torch.monitor(model, every=100) as m:
            for batch in data:
                train(batch)
                m.step()
        print(m.table())

    Raises ingot.Error for a model without layers of Ingot, and for every < 1 or history < 1. A captured graph is not
    observed, nor are the replays of one.
    """
    names = () if model is None else _required_names(model, "ingot.torch.monitor")
    context = context_for(device or context_name(device_of(model)))
    return Monitor(context, every, history, names)


@contextlib.contextmanager
def nvtx_ranges(model: Optional[torch.nn.Module] = None) -> Iterator[None]:
    """Within the block a profiler shows ranges of all Ingot layers, such as "layers.0.wq forward" and, within it,
    "layers.0.wq output".

    model: its layers that have no name get their paths in it. Raises ingot.Error if NVTX is not installed.
    """
    if model is not None:
        _required_names(model, "ingot.torch.nvtx_ranges")
    ranges = _core.TorchNvtx()
    ranges.start()
    try:
        yield
    finally:
        ranges.stop()


_tracing: set = set()


@contextlib.contextmanager
def trace(file: FileName, model: Optional[torch.nn.Module] = None, *, device: Optional[str] = None) -> Iterator[None]:
    """Records what Ingot launches within the block, and writes it to `file` at the block's end, for chrome://tracing
    and Perfetto: when each launch was enqueued and ran, with the layer, the role and the thread.

    model: its layers that have no name get their paths in it. device: "cpu" or
    "cuda:N"; by default the model's, or the current GPU. Kernels do not overlap while they
    are traced, so a traced step is slower. Raises ingot.Error if the device is traced already, if the file cannot be
    written, and for a stream that captures a graph.
    """
    if model is not None:
        _required_names(model, "ingot.torch.trace")
    name = device or context_name(device_of(model))
    if name in _tracing:
        raise LinearError(f"ingot.torch.trace: {name} is traced already: leave that `with` block first")
    recording = _core.TorchTrace(context_for(name))
    _tracing.add(name)
    try:
        recording.start()
        yield
        recording.write(Path(file))
    finally:
        recording.stop()
        _tracing.discard(name)
