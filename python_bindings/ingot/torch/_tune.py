"""tune(): the fastest kernel for each GEMM of a model, measured on the GPU at hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Tuple

import torch

from .. import _core
from .._context import context_for
from ._errors import LinearError
from ._layers import context_name, gpu_of
from ._prepare import Progress, Tokens, checked_tokens, recording_of


@dataclasses.dataclass(frozen=True)
class TunedMatmul:
    """One GEMM: `matmul` is its spec and M, N, K; `kernel` the spec of the fastest kernel, "" if there is none; `us` its
    time in microseconds; `problem` says why no kernel was found. Both are empty where tune()'s time
    limit left it out."""

    matmul: str
    kernel: str
    us: float
    problem: str


def tune(
    model: torch.nn.Module,
    tokens: Tokens,
    *,
    dtype: Optional[torch.dtype] = None,
    again: bool = False,
    seconds: Optional[float] = None,
    progress: Optional[Progress] = None,
) -> Tuple[TunedMatmul, ...]:
    """Measures all candidate kernels for each GEMM of the model's Ingot layers, and records the fastest in the store.

    tokens: how many rows the layers' inputs have in one step, batch times sequence; or several such numbers. dtype: that of the
    layers' inputs; by default that of each layer's weight. Under torch.no_grad() only forward is tuned. again: measure what has a record, too. seconds:
    the time for all GEMMs together; calling it again continues with the rest. progress(done, total, matmul) is called after
    each GEMM, and what it raises ends the tuning.

    Processes that start later use the records, and this one if it has run no GEMM on that GPU yet: so tune first. Raises
    ingot.Error if there is no GPU, for INGOT_TUNING=frozen, and if the store keeps nothing.
    """
    checked_tokens("ingot.torch.tune", tokens)
    why = "kernels are measured on a GPU, and PyTorch finds none here (torch.cuda.is_available() is False)"
    device = gpu_of(model, "ingot.torch.tune", why)
    context = context_for(context_name(device))
    name = _core.gpu_name(context)
    if not name:
        raise LinearError(
            "ingot.torch.tune: this GPU is not known by name: let the model run with INGOT_RECORD=run.ingot, and give "
            "that to `ingot tune --recording run.ingot`"
        )
    recording = recording_of(model, tokens, name, dtype)[0]
    found = _core.tune(
        context,
        recording,
        again,
        math.inf if seconds is None else seconds,
        progress if progress is not None else lambda *_: None,
    )
    return tuple(TunedMatmul(**each) for each in found)
