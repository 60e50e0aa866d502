"""Delayed scaling of ingot.nn.Float8Linear: each tensor is cast with a scale made of the maxima of earlier steps, which
saves the pass that finds its own maximum."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist

from ..torch import _operators as ops
from ..torch._errors import LinearError
from ..torch._checks import check_layer, check_plain
from ..torch._linear import casts_weight_again, in_autocasts_dtype
from ..torch._scaled_linear import call, plan_of, run_backward, run_forward

# What one row of the buffers belongs to, and the largest value of its format.
_INPUT, _WEIGHT, _GRAD_OUTPUT = 0, 1, 2
_LARGEST = (448.0, 448.0, 57344.0)
_SMALLEST_AMAX = 1e-12


@dataclasses.dataclass(frozen=True)
class DelayedOptions:
    """How a layer with delayed scales computes: its name in messages, how many steps a maximum counts, and
    keep_weight_codes as LinearOptions has it."""

    name: str = "linear"
    history_length: int = 16
    keep_weight_codes: Optional[bool] = None
    recipe: str = dataclasses.field(default="delayed", init=False)

    def __post_init__(self) -> None:
        if self.history_length < 1:
            raise LinearError(f'linear "{self.name}" history_length: is {self.history_length}, expected 1 or more')
        object.__setattr__(self, "_plans", ops.PlanTable())

    def __reduce__(self):
        """Copies and pickles have no plans: their numbers are of this process."""
        return DelayedOptions, (self.name, self.history_length, self.keep_weight_codes)


def _scales_of(amaxes: torch.Tensor, limits: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Returns FP8_MAX / amax, of float64 limits, and the old scale where the maximum is 0."""
    new = (limits / amaxes.double().clamp_(min=_SMALLEST_AMAX)).float()
    return torch.where(amaxes == 0, old, new)


@torch.no_grad()
def _start(tensor: torch.Tensor, at: int, history: torch.Tensor, scale: torch.Tensor) -> None:
    """Makes the scale of the tensor's own maximum, as dynamic scaling does; with torch.distributed of that of all
    ranks."""
    amax = tensor.abs().max().float().reshape(1) if tensor.numel() > 0 else scale.new_zeros(1)
    if dist.is_initialized():
        dist.all_reduce(amax, dist.ReduceOp.MAX)
    history[at, :1].copy_(amax)
    limit = torch.full_like(amax, _LARGEST[at], dtype=torch.float64)
    scale[at : at + 1].copy_(_scales_of(amax, limit, torch.ones_like(amax)))


def _raise(amaxes: torch.Tensor, seen: torch.Tensor) -> None:
    amaxes.copy_(torch.maximum(amaxes, seen))


@torch._dynamo.allow_in_graph
class _DelayedLinear(torch.autograd.Function):
    """Forward and backward of a layer whose three scales are delayed. Backward notes the maximum of grad_output."""

    @staticmethod
    def forward(ctx, input, weight, bias, amax, history, scale, starts, plan, reads_input, reads_weight):
        # Not saved tensors: every forward and every step writes these buffers, and saved tensors refuse that.
        ctx.buffers = (amax, history, scale)
        ctx.starts = starts
        return run_forward(ctx, input, weight, bias, scale[:1], scale[1:2], plan, reads_input, reads_weight)

    @staticmethod
    def backward(ctx, grad_output, _):
        amax, history, scale = ctx.buffers

        def scale_of_grad_output() -> torch.Tensor:
            if ctx.starts:
                _start(grad_output, _GRAD_OUTPUT, history, scale)
            return scale[_GRAD_OUTPUT:]

        grads, seen = run_backward(ctx, grad_output, scale_of_grad_output)
        _raise(amax[_GRAD_OUTPUT:], seen[:1])
        return (*grads, *(None,) * 7)


def make_buffers(layer: torch.nn.Module) -> None:
    """Gives the layer its buffers, or makes them anew, on the weight's device: `fp8_amax` (3), the maxima since the last
    sync_amax_history(); `fp8_amax_history` (3, history_length), those of earlier steps, the newest first; `fp8_scale`
    (3). The rows are input, weight and grad_output; all are float32 and saved in checkpoints."""
    device = layer.weight.device
    layer.register_buffer("fp8_amax", torch.zeros(3, device=device))
    layer.register_buffer("fp8_amax_history", torch.zeros(3, layer.options.history_length, device=device))
    layer.register_buffer("fp8_scale", torch.ones(3, device=device))
    layer.scales_started = False


def delayed_linear(layer: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    """The forward of a Float8Linear with delayed scales."""
    weight, bias, options = layer.weight, layer.bias, layer.options
    check_layer(f'linear "{options.name}"', input, weight, bias)
    input = in_autocasts_dtype(input)
    amax, history, scale = layer.fp8_amax, layer.fp8_amax_history, layer.fp8_scale
    starts = not layer.scales_started
    if starts:
        check_plain(f'linear "{options.name}"', input, weight)
        _start(input, _INPUT, history, scale)
        _start(weight, _WEIGHT, history, scale)
    again = casts_weight_again(options.keep_weight_codes, input, input.requires_grad)
    plan = plan_of("delayed", options.name, options._plans, input, weight, bias, again)
    if not torch.is_grad_enabled():
        return call(run_forward, options.name, None, input, weight, bias, scale[:1], scale[1:2], *plan)[0]
    output, seen = call(
        _DelayedLinear.apply, options.name, input, weight, bias, amax, history, scale, starts, *plan
    )
    with torch.no_grad():
        _raise(amax[:_GRAD_OUTPUT], seen)
    return output


def keep_float32(layer: torch.nn.Module, before: dict) -> None:
    """Brings the buffers back to float32, with the values that they had `before` the layer was converted."""
    for name, buffer in layer._buffers.items():
        if name.startswith("fp8_") and buffer is not None and buffer.dtype != torch.float32:
            layer._buffers[name] = before[name].to(buffer.device)


def has_loaded(layer: torch.nn.Module, state_dict: dict, prefix: str) -> None:
    """Goes on with the scales of a checkpoint that has any."""
    history = state_dict.get(f"{prefix}fp8_amax_history")
    if history is not None and not history.is_meta and bool((history != 0).any()):
        layer.scales_started = True


def _is_delayed(module: Any) -> bool:
    return isinstance(getattr(module, "options", None), DelayedOptions)


@torch.no_grad()
def sync_amax_history(model: torch.nn.Module) -> None:
    """Makes the scales of the next step from the maxima of this one, for all layers of the model with delayed scales
    together; to be called in every step, after backward.

    The maxima enter the histories, and are cleared; a scale is FP8_MAX divided by the largest of its history, and stays
    as it is where all of that are 0. With torch.distributed the maxima are those of all ranks, by one all-reduce. Until
    the first call every forward and backward takes the scales of its own tensors, as dynamic scaling does. A model
    without such layers is left as it is.
    """
    layers = [module for module in model.modules() if _is_delayed(module)]
    if not layers:
        return
    # Read from the dicts that have them: for a hundred layers nn.Module's way to them takes longer than all operations.
    buffers = [layer._buffers for layer in layers]
    seen = [each["fp8_amax"] for each in buffers]
    amaxes = torch.stack(seen)
    if dist.is_initialized():
        dist.all_reduce(amaxes, dist.ReduceOp.MAX)
    lengths = sorted({layer.options.history_length for layer in layers})
    for length in lengths:
        places = [at for at, layer in enumerate(layers) if layer.options.history_length == length]
        _update([buffers[at] for at in places], amaxes if len(lengths) == 1 else amaxes[places])
    torch._foreach_zero_(seen)
    for layer in layers:
        if not layer.scales_started:
            layer.scales_started = True


def _update(buffers: List[Dict[str, torch.Tensor]], amaxes: torch.Tensor) -> None:
    histories = [each["fp8_amax_history"] for each in buffers]
    scales = [each["fp8_scale"] for each in buffers]
    stack = torch.cat([amaxes.unsqueeze(2), torch.stack(histories)[:, :, :-1]], dim=2)
    limits = torch.full_like(amaxes, _LARGEST[_INPUT], dtype=torch.float64)
    limits[:, _GRAD_OUTPUT].fill_(_LARGEST[_GRAD_OUTPUT])
    new = _scales_of(stack.amax(dim=2), limits, torch.stack(scales))
    torch._foreach_copy_([*histories, *scales], [*stack.unbind(), *new.unbind()])
