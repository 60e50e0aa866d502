"""A weight's main_grad: the tensor to which backward adds the weight's gradient, as Megatron does."""

from __future__ import annotations

import enum
from typing import Optional

import torch

from ._checks import Subject, refuse
from ._operators import HIGH_PRECISION


def main_grad_of(weight: torch.Tensor, subject: Subject, part: str = "") -> Optional[torch.Tensor]:
    """The attribute main_grad of a weight; None if it has none, or if this call is for no gradient of it. Raises
    LinearError, with the layer's name `subject` and the weight's `part` in it, for one that cannot be added to."""
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None:
        return None
    if main_grad.shape != weight.shape or main_grad.dtype not in HIGH_PRECISION:
        refuse(
            subject,
            f"{part}main_grad: is {main_grad.dtype} of shape {tuple(main_grad.shape)}, expected float32, float16 or bfloat16 "
            f"of the weight's shape {tuple(weight.shape)}",
        )
    if main_grad.device != weight.device:
        refuse(
            subject, f"{part}main_grad: is on {main_grad.device} and the weight on {weight.device}: move one with .to()"
        )
    return main_grad if torch.is_grad_enabled() and weight.requires_grad else None


def main_grad_of_experts(weight: torch.Tensor, subject: Subject, part: str = "") -> Optional[torch.Tensor]:
    """The same of a weight of experts, whose main_grad is float32."""
    main_grad = main_grad_of(weight, subject, part)
    if main_grad is not None and main_grad.dtype != torch.float32:
        refuse(subject, f"main_grad: is {main_grad.dtype}, but the gradients of experts are added to float32 only")
    return main_grad


def converted(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the weight in the dtype that its GEMMs take. parameter_of() finds the parameter again, which has the
    attributes."""
    if weight.dtype == dtype:
        return weight
    result = weight.to(dtype)
    if not torch.compiler.is_compiling():
        result.ingot_parameter = weight
    return result


def parameter_of(weight: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return getattr(weight, "ingot_parameter", weight)


class Asks(enum.Enum):
    """What the engine does with a weight's gradient in the backward that runs."""

    NOTHING = 0  # it is for other gradients: a pipeline's backward of its inputs alone, say
    ACCUMULATES = 1  # as backward() does: it goes to main_grad
    RETURNS = 2  # as torch.autograd.grad() does: it is the caller's, and main_grad stays


def asks_for(ctx, edge: int, weight: torch.Tensor) -> Asks:
    """Returns what the engine does with the gradient of the weight at this place among the tensors that the
    autograd.Function was applied to. Call it in backward: ctx.needs_input_grad only says what forward knew."""
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() < 0:
        return Asks.ACCUMULATES
    node = ctx.next_functions[edge][0]
    if parameter_of(weight) is not weight:
        node = node.next_functions[0][0]  # after the conversion
    try:
        return Asks.ACCUMULATES if torch._C._will_engine_execute_node(node) else Asks.NOTHING
    except RuntimeError:  # "A leaf node was passed ..., but we are currently running autograd.grad()"
        return Asks.RETURNS


def _executes(node) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch.autograd.grad() returns its gradient
        return False


def engine_wants(address: int) -> Optional[bool]:
    """For an operator of a compiled backward: does the engine want the gradient of the weight whose main_grad is at this
    address? A graph may have copied it: None if the engine wants those of some of the graph's weights only."""
    node = torch._C._current_autograd_node()
    wanted = {}
    for each, _ in () if node is None else node.next_functions:
        main_grad = getattr(getattr(each, "variable", None), "main_grad", None)
        if main_grad is not None:
            wanted[main_grad.data_ptr()] = _executes(each)
    if address in wanted:
        return wanted[address]
    answers = set(wanted.values())
    return None if len(answers) > 1 else answers != {False}


def dummy_gradient(weight: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """Returns the gradient that Megatron's hook of the weight expects once it is told that main_grad is up to date."""
    weight = parameter_of(weight)
    if weight is None or not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)
