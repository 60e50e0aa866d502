"""grouped_linear(): the rows of many experts times their weights in FP8, in one launch. Weights in high precision are cast
and train (_grouped_layer.py); FP8 weights do not, and pass gradients on to the rows (_frozen_experts.py)."""

from __future__ import annotations

from typing import Dict, Optional

import torch

from ._checks import SubjectOfExperts, check_bias_of_experts, check_dense, is_transformed, layer_error, refuse_transforms
from ._errors import LinearError
from ._exported import is_exporting
from ._frozen_experts import multiply, run_frozen_experts, scale_of
from ._grouped_layer import run_grouped_layer
from ._linear import LinearOptions, in_autocasts_dtype
from ._module_calls import DelayedScales
from ._operators import HIGH_PRECISION
from ._quantize_operators import OUTPUTS
from ._schemas import fake


def _check_operands(operands: Dict[str, torch.Tensor]) -> None:
    """All tensors of the input's device. PyTorch would take one on meta for a wish to know the output's shape."""
    for name, operand in operands.items():
        check_dense("grouped_linear", name, operand)
        device = operands["input"].device
        if operand.device != device:
            remedy = "load its values first" if operand.is_meta else "move one with .to()"
            raise LinearError(f"grouped_linear {name}: is on {operand.device} and the input on {device}: {remedy}")


def check_options(caller: str, options: object) -> None:
    if not isinstance(options, LinearOptions):
        is_text = isinstance(options, str)
        found, wants = (repr(options), f"({options!r})") if is_text else (f"a {type(options).__name__}", "")
        raise LinearError(f"{caller} options: is {found}, expected LinearOptions{wants}")


def _records(operands: Dict[str, torch.Tensor], options: LinearOptions) -> bool:
    """With FP8 weights: does the input get a gradient? Refuses gradients of what has none, and tangents, which need no gradients to
    be on."""
    if is_transformed(*operands.values(), records=torch.is_grad_enabled() and operands["input"].requires_grad):
        refuse_transforms(SubjectOfExperts("grouped linear", options))
    if not torch.is_grad_enabled():
        return False
    input, weight = operands["input"], operands["weight"]
    for name, operand in operands.items():
        if operand.requires_grad and (name != "input" or operand.dtype not in HIGH_PRECISION):
            raise LinearError(
                f"grouped_linear {name}: requires a gradient, and with FP8 weights of experts only an input in high precision gets "
                "one: detach() it, or give weights in high precision, which are cast and train"
            )
    if not input.requires_grad:
        return False
    if torch.compiler.is_compiling() and is_exporting():
        raise LinearError(
            "grouped_linear input: requires a gradient, and exported programs have none with FP8 weights: export under torch.no_grad()"
        )
    scale_inv = operands["weight_scale_inv"]
    if weight.dim() == 3 and scale_inv.dim() == 3 and scale_of(weight, scale_inv) is None:
        raise LinearError(
            f"grouped_linear weight_scale_inv: has the shape {tuple(scale_inv.shape)}, with which the input, that requires a gradient, "
            "can have none: give one for each expert, row or block of 128 x 128, call it under torch.no_grad(), or give the weight in "
            "high precision"
        )
    return True


def _trained(
    input,
    weight,
    ends,
    others: Dict[str, object],
    options: LinearOptions,
    activation: Optional[str],
    bias: Optional[torch.Tensor],
    delayed: Optional[DelayedScales],
) -> torch.Tensor:
    """others: what only FP8 weights take."""
    for name, given in others.items():
        if given is not None:
            remedy = "give an input (M, K) and ends" if name == "counts" else "leave it out"
            raise LinearError(f"grouped_linear {name}: is given, but weights in high precision take none: {remedy}")
    if activation is not None and (not isinstance(activation, str) or not activation.strip()):
        raise LinearError(
            f"grouped_linear activation: is {activation!r}, expected an expression of the input, such as 'silu(x) * up', or None"
        )
    if input.dim() != 2:
        raise LinearError(
            f"grouped_linear input: has the shape {tuple(input.shape)}, expected (M, K) with weights in high precision"
        )
    if weight.dim() != 3 or (activation is None and weight.shape[2] != input.shape[1]):
        columns = "K" if activation is not None else input.shape[1]
        raise LinearError(f"grouped_linear weight: has the shape {tuple(weight.shape)}, expected (experts, N, {columns})")
    if input.dtype not in HIGH_PRECISION:
        raise LinearError(
            f"grouped_linear input: is {input.dtype}, expected float32, float16 or bfloat16 with weights in high precision"
        )
    check_bias_of_experts("grouped_linear", "bias", bias, weight)
    if is_transformed(input, weight, bias):
        refuse_transforms(SubjectOfExperts("grouped linear", options))
    input = in_autocasts_dtype(input)
    if torch.compiler.is_compiling():
        return run_grouped_layer(input, weight, ends, options, activation, bias, delayed)
    try:
        return run_grouped_layer(input, weight, ends, options, activation, bias, delayed)
    except RuntimeError as error:
        raise layer_error(error, SubjectOfExperts("grouped linear", options).subject) from None


@fake("grouped_linear")
def _(input, weight, output):
    return torch.empty((*input.shape[:-1], weight.shape[1]), dtype=OUTPUTS[output], device=input.device)


def _scales_of_codes(scale_inv: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """As the operator reads a dispatcher's: DeepEP's lie by columns, and with use_ue8m0 four exponents are one int32."""
    if scale_inv.dtype is not torch.int32:
        return scale_inv.contiguous()
    groups = -(-input.shape[-1] // 128)
    expected = *input.shape[:-1], -(-groups // 4)
    if tuple(scale_inv.shape) != expected:
        raise LinearError(
            f"grouped_linear input_scale_inv: is int32 of the shape {tuple(scale_inv.shape)}, expected {expected}, with the exponents of "
            "four groups of 128 in each, or float32"
        )
    exponents = scale_inv.contiguous().view(torch.uint8)[..., :groups].to(torch.int32)
    return (exponents << 23).view(torch.float32)


def rows_of_experts(
    caller: str, input: torch.Tensor, ends: Optional[torch.Tensor], counts: Optional[torch.Tensor]
) -> torch.Tensor:
    """The one of the two that says which rows each expert has."""
    if ends is not None and counts is not None:
        raise LinearError(f"{caller}: ends and counts are given: give counts for an input (experts, capacity, K), else ends")
    masked = input.dim() == 3
    given = counts if masked else ends
    if given is None:
        expected = "counts, how many rows each expert has" if masked else "ends, the row at which each expert's rows end"
        if counts is not None:
            raise LinearError(
                f"{caller} counts: are for an input (experts, capacity, K), and it has the shape {tuple(input.shape)}: give "
                f"{expected}"
            )
        raise LinearError(f"{caller} input: has the shape {tuple(input.shape)}: give {expected}")
    return given


def grouped_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    weight_scale_inv: Optional[torch.Tensor] = None,
    ends: Optional[torch.Tensor] = None,
    *,
    counts: Optional[torch.Tensor] = None,
    input_scale_inv: Optional[torch.Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    options: LinearOptions = LinearOptions(name="experts"),
    activation: Optional[str] = None,
    bias: Optional[torch.Tensor] = None,
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """Returns (M, N), or (experts, capacity, N): the rows of each expert times the transpose of its weight.

    input: (M, K), the rows of expert 0, then of expert 1, and so on; or masked, (experts, capacity, K), of which each expert uses
    its first rows. bfloat16, float16 or float32, of any strides; or FP8 codes e4m3fn or e5m2, contiguous, with input_scale_inv.
    weight: FP8 codes (experts, N, K), contiguous, of up to 512 experts. weight_scale_inv: float32, (experts,), (experts, N) for
    rows, (experts, ceil(N / 128), ceil(K / 128)) for blocks, as DeepSeek stores them, or (experts, N, ceil(K / 128)) for groups;
    values are code * scale_inv. ends: int32 (experts,) on the input's device, the row at which each expert's rows end, which do
    not decrease and are at most M; the host does not read them, so a captured graph takes other ends in each replay. Experts may
    have no rows, and none is padded. counts: with a masked input in place of ends, int32 (experts,), how many rows each expert
    has, at most the capacity. Rows that no expert has, have any values.

    Autocast does not apply. An input in high precision is cast to e4m3fn with a scale for each row, or for each 128 of a row
    where the weight has blocks or groups; input_scale_inv is float32 of one element or (M,), or (M, ceil(K / 128)), with
    (experts, capacity) in place of M for a masked input, of any strides, or int32 with four power-of-two exponents in each.
    Sums are float32. out_dtype: float32, bfloat16 or float16; by default the input's, and bfloat16 for codes.

    A weight in high precision, float32, bfloat16 or float16 without weight_scale_inv, trains: it is cast, each expert's with
    its own scales, and both gradients are grouped GEMMs in FP8. options: its recipe, "tensorwise", "delayed", "rowwise" or
    "blockwise", its name and keep_weight_codes (LinearOptions). input is (M, K) in high precision, in autocast's dtype under
    autocast, and the output has its dtype; a main_grad is float32 (experts, N, K). Along the rows, where the gradients of
    weights sum, the experts share a scale for each feature (rowwise) or one (tensorwise), so rows that no expert has must be
    finite; blockwise, each 128 rows of an expert have their own, and delayed, each expert's rows. delayed: of that recipe, its
    scales, (1, 3, experts), which an ingot.nn.ExpertScales keeps. Those of the output and of the input's gradient that no
    expert has are not written. The weights of experts without rows get zeros. activation: an expression (docs/pointwise.md) of
    the input, x, which the cast computes, such as "silu(x) * up": with `up` in it the input is (M, 2 * K), x and then up.
    Backward keeps such an input. bias: (experts, N) in high precision, of each expert, which the output's GEMM adds, rounded to
    the output's dtype (to bfloat16 for float32); its gradient is each expert's sum over its rows of the output's gradient, in
    an order that makes bits repeat.

    FP8 weights do not train: they pass gradients on to an input in high precision, by the transposed codes and grad_output cast
    to e4m3fn with a scale for each row or each 128 of a row (rows' scale_inv are factors of grad_output before its cast).
    Weights with groups have no backward, and rows that no expert has get zeros. Runs on the CPU and on Hopper's GPUs, there
    with K (with gradients also N) a multiple of 16 and codes at addresses that are multiples of 16 bytes. Raises LinearError
    for other tensors, and on the CPU for ends that decrease or leave the input and for counts beyond the capacity.
    """
    operands = {"input": input, "weight": weight}
    optional = {"weight_scale_inv": weight_scale_inv, "ends": ends, "counts": counts, "input_scale_inv": input_scale_inv}
    operands.update({name: each for name, each in optional.items() if each is not None})
    _check_operands(operands)
    check_options("grouped_linear", options)
    if weight_scale_inv is not None and weight_scale_inv.dtype in (torch.int32, torch.int64) and ends is None:
        raise LinearError(f"grouped_linear weight_scale_inv: is {weight_scale_inv.dtype}, expected float32: did you mean ends=?")
    rows = rows_of_experts("grouped_linear", input, ends, counts)
    if weight.dtype in HIGH_PRECISION:
        others = {"weight_scale_inv": weight_scale_inv, "input_scale_inv": input_scale_inv, "counts": counts}
        return _trained(input, weight, rows, {**others, "out_dtype": out_dtype}, options, activation, bias, delayed)
    if delayed is not None:
        raise LinearError("grouped_linear delayed: is given, but FP8 weights take none, as they do not train: leave it out")
    if bias is not None:
        raise LinearError("grouped_linear bias: is given, but FP8 weights take none: add each expert's to its rows of the output")
    if activation is not None:
        raise LinearError("grouped_linear activation: is given, but FP8 weights take none: apply it to the input")
    if weight_scale_inv is None:
        raise LinearError(
            f"grouped_linear weight_scale_inv: is missing, but the weight is {weight.dtype}: give FP8 codes with their "
            "scale_inv, or values in float32, bfloat16 or float16"
        )
    records = _records(operands, options)
    if input_scale_inv is not None and input.dim() > 1:
        input_scale_inv = _scales_of_codes(input_scale_inv, input)
    if out_dtype is None:
        out_dtype = input.dtype if input.dtype in OUTPUTS else torch.bfloat16
    if out_dtype not in OUTPUTS:
        raise LinearError(f"grouped_linear out_dtype: is {out_dtype}, expected float32, bfloat16 or float16")
    if records and input_scale_inv is None:
        return run_frozen_experts(input, weight, weight_scale_inv, rows, out_dtype, options.name)
    return multiply(input, weight, weight_scale_inv, rows, out_dtype, input_scale_inv)
