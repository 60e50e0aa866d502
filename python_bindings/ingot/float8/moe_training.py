"""torchao.prototype.moe_training's names of FP8: the config of quantize_() for mixtures of experts, and the functions below it.

    from ingot.float8.moe_training import Float8TrainingOpConfig
    ingot.nn.quantize_(model, Float8TrainingOpConfig(), filter_fn=lambda module, name: name.endswith("experts"))

Groups need no padding: the options that ask for it are taken, and change nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import Any, Callable, Dict, Optional, Set

import torch

from ..integrations.grouped_experts import check_grouped_experts, convert_grouped_experts_, is_grouped_experts
from ..torch._checks import check_dense, refuse
from ..torch._errors import LinearError
from ..torch._grouped_linear import grouped_linear
from ..torch._linear import LinearOptions
from ..torch._model_weights import is_stack
from ..torch._operators import HIGH_PRECISION
from ._conversion import ConversionReport, check_filter, check_module, conversion_report
from .config import Float8LinearConfig
from .float8_linear_utils import convert_to_float8_training

__all__ = [
    "Float8TrainingOpConfig",
    "Float8TrainingRecipe",
    "TrainingOpBaseConfig",
    "_quantize_then_scaled_grouped_mm",
    "_to_fp8_rowwise_then_scaled_grouped_mm",
]

_OPTIONS = LinearOptions("rowwise", "experts", fast_gradients=True)  # torchao's sums, in all GEMMs
_Filter = Optional[Callable[[torch.nn.Module, str], bool]]


class Float8TrainingRecipe(enum.Enum):
    """Names of ready configs for Float8TrainingOpConfig.from_recipe()."""

    FP8_ROWWISE = "fp8_rowwise"


class TrainingOpBaseConfig:
    """What configs of training are, Float8TrainingOpConfig for one."""


@dataclasses.dataclass(unsafe_hash=True)
class Float8TrainingOpConfig(TrainingOpBaseConfig):
    """For quantize_(): linear layers and experts of the modules that filter_fn takes train in FP8, experts by rows.

    float8_dtype: e4m3fn. out_dtype: of the functions below; modules return what they returned. float8_linear_recipe: one of
    Float8LinearConfig.from_recipe_name(), of linear layers. pad_token_groups_for_grouped_mm changes nothing."""

    float8_dtype: torch.dtype = torch.float8_e4m3fn
    out_dtype: Optional[torch.dtype] = torch.bfloat16
    pad_token_groups_for_grouped_mm: bool = False
    float8_linear_recipe: str = "rowwise"

    def __post_init__(self) -> None:
        _check_dtypes("Float8TrainingOpConfig", self.out_dtype, self.float8_dtype)
        Float8LinearConfig.from_recipe_name(self.float8_linear_recipe)

    @classmethod
    def from_recipe(cls, recipe: Float8TrainingRecipe) -> "Float8TrainingOpConfig":
        if recipe is not Float8TrainingRecipe.FP8_ROWWISE:
            raise LinearError(f"Float8TrainingOpConfig recipe: is {recipe!r}, expected Float8TrainingRecipe.FP8_ROWWISE")
        return cls()

    def convert_(self, model: torch.nn.Module, filter_fn: _Filter = None) -> ConversionReport:
        """What quantize_() calls. A model that is itself a linear layer cannot be replaced in place."""
        check_module("quantize_ model", model)
        check_filter("quantize_ filter_fn", filter_fn)
        if isinstance(model, torch.nn.Linear):
            raise LinearError("quantize_ model: is itself a linear layer, which cannot be replaced in place: give the module around it")
        return conversion_report(_converted(model, self, filter_fn))


def _check_dtypes(subject: str, out_dtype: object, float8_dtype: object) -> None:
    if float8_dtype is not torch.float8_e4m3fn:
        raise LinearError(f"{subject} float8_dtype: is {float8_dtype}, expected torch.float8_e4m3fn, which experts train in")
    if out_dtype is not None and out_dtype not in HIGH_PRECISION:
        raise LinearError(f"{subject} out_dtype: is {out_dtype}, expected bfloat16, float32, float16 or None for the input's")


def _check_operands(subject: str, A: torch.Tensor, B_t: torch.Tensor, offs: torch.Tensor) -> None:
    """By this function's names of them, and not those of grouped_linear()."""
    if offs is None:
        refuse(subject, "offs: is missing, expected int32 (experts,), the row at which each expert's rows end")
    for name, operand in (("A", A), ("B_t", B_t), ("offs", offs)):
        check_dense(subject, name, operand)
        if operand.device != A.device:
            refuse(subject, f"{name}: is on {operand.device} and A on {A.device}: move one with .to()")
        if name != "offs" and operand.dtype not in HIGH_PRECISION:
            refuse(subject, f"{name}: is {operand.dtype}, expected bfloat16, float32 or float16, which is cast to FP8 here")
    if B_t.dim() != 3 or A.dim() != 2 or A.shape[1] != B_t.shape[1]:
        refuse(subject, f"A and B_t: have the shapes {tuple(A.shape)} and {tuple(B_t.shape)}, expected (M, K) and (experts, K, N)")
    if offs.dtype != torch.int32 or tuple(offs.shape) != (B_t.shape[0],):
        refuse(
            subject,
            f"offs: is {offs.dtype} of the shape {tuple(offs.shape)}, expected int32 ({B_t.shape[0]},), the row at which each expert's "
            "rows end: convert it with .to(torch.int32)",
        )


def _to_fp8_rowwise_then_scaled_grouped_mm(
    A: torch.Tensor,
    B_t: torch.Tensor,
    offs: torch.Tensor,
    out_dtype: Optional[torch.dtype] = torch.bfloat16,
    float8_dtype: torch.dtype = torch.float8_e4m3fn,
    pad_token_groups_for_grouped_mm: bool = True,
) -> torch.Tensor:
    """The rows of each expert, A (M, K), which end at offs, int32 (experts,), times its matrix of B_t (experts, K, N), in FP8 with a
    scale for each row, with both gradients: ingot.torch.grouped_linear(). B_t is the transpose of a weight (experts, N, K), or is
    copied to one. Scales are powers of two, as torchao's are."""
    subject = "_to_fp8_rowwise_then_scaled_grouped_mm"
    _check_dtypes(subject, out_dtype, float8_dtype)
    _check_operands(subject, A, B_t, offs)
    output = grouped_linear(A, B_t.transpose(1, 2), ends=offs, options=_OPTIONS)
    return output if out_dtype is None else output.to(out_dtype)


def _quantize_then_scaled_grouped_mm(
    A: torch.Tensor,
    B_t: torch.Tensor,
    config: Float8TrainingOpConfig,
    offs: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The function above by a config."""
    if not isinstance(config, Float8TrainingOpConfig) or bias is not None:
        what = "bias: is given, but FP8 experts have none: add it to the result"
        if not isinstance(config, Float8TrainingOpConfig):
            what = f"config: is a {type(config).__name__}, expected a Float8TrainingOpConfig"
        raise LinearError(f"_quantize_then_scaled_grouped_mm {what}")
    return _to_fp8_rowwise_then_scaled_grouped_mm(A, B_t, offs, config.out_dtype, config.float8_dtype)


def _taken_by(chosen: Set[str]) -> Callable[[str], bool]:
    """Is a module of this name one of those that were chosen, or within one? Asks for no more than a name has parts."""

    def taken(name: str) -> bool:
        while name and name not in chosen:
            name = name.rpartition(".")[0]
        return name in chosen

    return taken


def _stacks_of_transformers(model: torch.nn.Module, taken: Callable[[str], bool]) -> bool:
    """Are its stacked experts to be converted? All of them or none, since they run by one implementation of the model's config."""
    if "transformers" not in sys.modules:
        return False
    stacks = {name: module for name, module in model.named_modules() if is_stack(module)}
    chosen = {name for name in stacks if taken(name)}
    if not chosen:
        return False
    left = next((name for name in stacks if name not in chosen), None)
    if left is not None:
        raise LinearError(
            f"quantize_ filter_fn: takes {next(name for name in stacks if name in chosen)} and leaves {left} out, but the experts of a "
            "transformers model run by one implementation, of its config: take all of them or none"
        )
    _refuse_part_of_model(model, stacks)

    from ..integrations.experts import stacks_to_convert

    stacks_to_convert(model, "quantize_")
    return True


def _refuse_part_of_model(model: torch.nn.Module, stacks: Dict[str, torch.nn.Module]) -> None:
    """Other layers' experts would switch too, and filter_fn would not have been asked of them."""
    owners = [each for each in model.modules() if hasattr(each, "set_experts_implementation")]
    whole = {stack for owner in owners for stack in owner.modules() if is_stack(stack) and stack.config is owner.config}
    for name, stack in stacks.items():
        if stack not in whole:
            raise LinearError(
                f"quantize_ {name or type(stack).__name__}: runs by its config's implementation, as all experts of its model do, and this is "
                "a part of the model, as torchao's quantize_() gives one module after the other: call ingot.nn.quantize_(model, config, "
                "filter_fn) with the whole model, or convert_experts_() of ingot.integrations.experts"
            )


def _converted(model: torch.nn.Module, config: Float8TrainingOpConfig, filter_fn: _Filter) -> torch.nn.Module:
    """Everything is checked before the model is changed. Returns it, or of a linear layer what replaces it."""
    chosen = {name for name, module in model.named_modules() if filter_fn is None or filter_fn(module, name)}
    taken = (lambda name: True) if "" in chosen else _taken_by(chosen)
    has_stacks = _stacks_of_transformers(model, taken)
    has_grouped = False
    for name, module in model.named_modules():
        if not taken(name):
            continue
        if is_grouped_experts(module):
            check_grouped_experts(module, f"quantize_ {name or type(module).__name__}")
            has_grouped = True
        elif filter_fn is not None and not (has_stacks and is_stack(module)):
            _refuse_other_experts(module, name)
    linear = Float8LinearConfig.from_recipe_name(config.float8_linear_recipe)
    model = convert_to_float8_training(model, config=linear, module_filter_fn=lambda layer, name: taken(name))
    if has_stacks:
        from ..integrations.experts import convert_experts_

        convert_experts_(model, "rowwise", fast_gradients=True)
    if has_grouped:
        convert_grouped_experts_(  # trusted: checked above
            model, "rowwise", fast_gradients=True, filter_fn=lambda each, name: taken(name), trusted=True
        )
    return model


def _refuse_other_experts(module: torch.nn.Module, name: str) -> None:
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return
    for key, parameter in module._parameters.items():
        if parameter is None or parameter.dim() != 3:
            continue
        if parameter.shape[0] != 1 or "expert" in f"{name}.{key} {type(module).__name__}".lower():  # 1: else a position embedding's
            raise LinearError(
                f"quantize_ {name or type(module).__name__}: multiplies by its {key} {tuple(parameter.shape)} itself, in a way that is not "
                "known, and would stay in high precision: call _to_fp8_rowwise_then_scaled_grouped_mm() in the place of its grouped_mm, "
                "or leave it out by filter_fn"
            )


def register_with_torchao() -> None:
    """Lets torchao.quantization.quantize_() take Float8TrainingOpConfig, where torchao is installed."""
    from torchao.core.config import AOBaseConfig
    from torchao.quantization.transform_module import register_quantize_module_handler

    AOBaseConfig.register(TrainingOpBaseConfig)

    @register_quantize_module_handler(Float8TrainingOpConfig)
    def _(module: torch.nn.Module, config: Float8TrainingOpConfig, **others: Any) -> torch.nn.Module:
        if others.get("parameter_name") is not None:
            raise LinearError(
                f"quantize_ parameter_name: is {others['parameter_name']!r}, but a module's experts train in FP8 together: leave it out"
            )
        return _converted(module, config, lambda child, name: name == "")
