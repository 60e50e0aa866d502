"""INGOT_CHECK_EXPERTS for the numbers of experts that a router gives each token: Python makes the indices of rows of them, so no
kernel's check sees them."""

from __future__ import annotations

import functools

import torch

from .. import _core
from ._checks import SubjectOfExperts, refuse
from ._linear import LinearOptions

# In a graph too: its result is what the rows are made of, so that a compiler keeps it.
_library = torch.library.Library("ingot", "FRAGMENT")
_library.define("checked_index(Tensor top_k_index, int experts, str subject) -> Tensor")


@functools.lru_cache(maxsize=None)
def _of_process() -> bool:
    return _core.torch_checks_experts()


@torch.compiler.assume_constant_result
def checks_experts() -> bool:
    """Is INGOT_CHECK_EXPERTS set? As contexts do, it reads the variable once."""
    return _of_process()


def checked_index(top_k_index: torch.Tensor, experts: int, options: LinearOptions) -> torch.Tensor:
    """Returns top_k_index, (tokens, k), after it was read, if INGOT_CHECK_EXPERTS asks for that: raises LinearError for a number that
    no expert has. One below 0 counts as none."""
    if not checks_experts():
        return top_k_index
    # A compiler would guard a name: equal layers share a graph.
    subject = "experts" if torch.compiler.is_compiling() else SubjectOfExperts("experts", options).subject
    return torch.ops.ingot.checked_index.default(top_k_index, experts, subject)


def _captures(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _run(top_k_index, experts, subject):
    if _captures(top_k_index):
        refuse(
            subject,
            "top_k_index: is to be read, as INGOT_CHECK_EXPERTS asks for, but the stream is capturing a graph: check steps that are not "
            "captured",
        )
    numbers = top_k_index.long()
    for token, choice in (numbers >= experts).nonzero()[:1].tolist():
        refuse(
            subject,
            f"top_k_index: says that token {token} has expert {numbers[token, choice].item()}, but there are {experts} experts: give 0 to "
            f"{experts - 1}, or a number below 0 for none",
        )
    return top_k_index.clone()


_library.impl("checked_index", _run, "CPU")
_library.impl("checked_index", _run, "CUDA")


@torch.library.register_fake("ingot::checked_index")
def _(top_k_index, experts, subject):
    return torch.empty_like(top_k_index)
