"""Which tensors of a linear layer are cast to FP8, how they are scaled, and the recipes: torchao.float8.config, with
the delayed and static scaling that torchao had until version 0.9.

A layer has three GEMMs: output = input @ weight^T, grad_input = grad_output @ weight, grad_weight = grad_output^T @
input. Each of the three tensors is an operand of two of them, so each has two cast configs; the second is a copy of the
first unless it is given.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
from dataclasses import InitVar, dataclass
from typing import Optional, Tuple, Union

import torch

from ..torch._errors import Float8AssertionError, Float8TypeError
from ..torch._linear import RECIPES
from ..torch._saying import warn

logger = logging.getLogger(__name__)


class ScalingType(enum.Enum):
    """Where the scale of a tensor comes from."""

    DYNAMIC = "dynamic"  # from the tensor's own maximum
    DELAYED = "delayed"  # from the maxima of earlier steps; see sync_float8_amax_and_scale_history()
    STATIC = "static"  # from CastConfig.static_scale
    DISABLED = "disabled"  # the tensor keeps its precision

    def short_str(self) -> str:
        """Returns three letters for a layer's repr: "dyn", "del", "sta" or "dis"."""
        return self.value[:3]


class ScalingGranularity(enum.Enum):
    """How many elements share a scale."""

    TENSORWISE = "tensorwise"  # the whole tensor
    AXISWISE = "axiswise"  # each row or each column: whatever a GEMM sums over

    def short_str(self) -> str:
        """Returns three letters for a layer's repr: "ten" or "axs"."""
        return {"tensorwise": "ten", "axiswise": "axs"}[self.value]


@dataclass
class Float8TypeConfig:
    """The FP8 formats that casts have by default: those of the OCP standard, or AMD's on an MI300, which has no
    other."""

    e4m3_dtype: torch.dtype = torch.float8_e4m3fn
    e5m2_dtype: torch.dtype = torch.float8_e5m2

    def __post_init__(self) -> None:
        if torch.version.hip is None or not torch.cuda.is_available():
            return
        architecture = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        if architecture in ("gfx940", "gfx941", "gfx942"):
            self.e4m3_dtype = torch.float8_e4m3fnuz
            self.e5m2_dtype = torch.float8_e5m2fnuz


type_config = Float8TypeConfig()
e4m3_dtype = type_config.e4m3_dtype
e5m2_dtype = type_config.e5m2_dtype

_SHORT_DTYPES = {
    torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.float8_e4m3fnuz: "e4m3", torch.float8_e5m2fnuz: "e5m2"
}


@dataclass(frozen=True)
class CastConfig:
    """How one tensor is cast.

    `target_dtype` is an FP8 dtype; None becomes e4m3 for input and weight and e5m2 for grad_output. `static_scale`
    belongs to ScalingType.STATIC: a tensor with one element, by which the tensor is multiplied.
    `keep_original_precision` is the older name of ScalingType.DISABLED.

    Raises AssertionError if axiswise scales are not dynamic, if `target_dtype` has not 8 bits, or if a static scale is
    missing or has more than one element.
    """

    scaling_type: ScalingType = ScalingType.DYNAMIC
    scaling_granularity: ScalingGranularity = ScalingGranularity.TENSORWISE
    target_dtype: Optional[torch.dtype] = None
    static_scale: Optional[torch.Tensor] = None
    keep_original_precision: InitVar[bool] = False

    def __post_init__(self, keep_original_precision: bool) -> None:
        if keep_original_precision:
            object.__setattr__(self, "scaling_type", ScalingType.DISABLED)
        if self.scaling_granularity is ScalingGranularity.AXISWISE and self.scaling_type is not ScalingType.DYNAMIC:
            raise Float8AssertionError(
                "only dynamic scaling type is supported for axiswise scaling granularity, got "
                f"{self.scaling_type}: use ScalingType.DYNAMIC, or ScalingGranularity.TENSORWISE"
            )
        dtype = self.target_dtype
        if dtype is not None and not (dtype.is_floating_point and dtype.itemsize == 1):
            raise Float8AssertionError(f"must specify a 8-bit floating-point dtype as target_dtype, got {dtype}")
        if self.scaling_type is ScalingType.STATIC:
            self._check_static_scale()

    def _check_static_scale(self) -> None:
        if self.static_scale is None:
            raise Float8AssertionError(
                "static_scale must be specified for static scaling: a tensor with one element, by which the tensor "
                "that is cast is multiplied"
            )
        if not isinstance(self.static_scale, torch.Tensor) or self.static_scale.numel() != 1:
            raise Float8AssertionError(
                f"static_scale must be a tensor with one element, got {_described(self.static_scale)}"
            )
        if type(self.static_scale) is torch.Tensor and not self.static_scale.is_meta:
            scale = float(self.static_scale)
            if not (0 < scale < math.inf):
                raise Float8AssertionError(f"static_scale must be a positive, finite number, got {scale}")

    def short_str(self) -> str:
        """Returns the config in a layer's repr, such as "dyn_ten_e4m3"."""
        dtype = _SHORT_DTYPES.get(self.target_dtype, str(self.target_dtype))
        return f"{self.scaling_type.short_str()}_{self.scaling_granularity.short_str()}_{dtype}"


def _described(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


@dataclass(frozen=True)
class DelayedScalingConfig:
    """Delayed scaling: how many steps a tensor's maxima are kept, and that the scale comes from the largest of them.

    Raises AssertionError for another function than "max", or a history of no steps.
    """

    history_len: int = 16
    scale_fn_name: str = "max"

    def __post_init__(self) -> None:
        if self.scale_fn_name != "max":
            raise Float8AssertionError(
                f"{self.scale_fn_name} is not implemented yet. Only max is supported for now. (scale_fn_name)"
            )
        if self.history_len < 1:
            raise Float8AssertionError(f"history_len must be at least 1, got {self.history_len}")


@dataclass(frozen=True)
class Float8GemmConfig:
    """How one GEMM runs. `use_fast_accum` lets tensor cores sum in fewer bits; emulated GEMMs ignore it."""

    use_fast_accum: bool = False


class Float8LinearRecipeName(enum.Enum):
    """Names of ready configs for Float8LinearConfig.from_recipe_name()."""

    TENSORWISE = "tensorwise"  # one scale per tensor: the fastest
    ROWWISE = "rowwise"  # one power-of-two scale per row of each operand, e4m3 throughout
    ROWWISE_WITH_GW_HP = "rowwise_with_gw_hp"  # rowwise, with grad_weight in the tensors' own precision

    # The names that they had in torchao 0.7 and 0.8.
    ALL_TENSORWISE = "tensorwise"
    ALL_AXISWISE = "rowwise"
    LW_AXISWISE_WITH_GW_HP = "rowwise_with_gw_hp"

    @classmethod
    def _missing_(cls, value: object) -> Optional["Float8LinearRecipeName"]:
        old_names = {name.lower(): member for name, member in cls.__members__.items()}
        return old_names.get(value) if isinstance(value, str) else None


def _second(operand: str) -> str:
    """Returns the field with the cast of an operand in the second GEMM that reads it."""
    gemm = {"input": "grad_weight", "weight": "grad_input", "grad_output": "grad_weight"}[operand]
    return f"cast_config_{operand}_for_{gemm}"


@dataclass(frozen=True)
class Float8LinearConfig:
    """How a linear layer computes in FP8. Fields and defaults are torchao's.

    `enable_fsdp_float8_all_gather` makes FSDP2 gather the weight in FP8, whatever its scales. With a mixed-precision policy
    the values are first rounded to its `param_dtype`, so that training has the bits that it has without that gather;
    `round_to_param_dtype=False` casts float32 parameters directly, as torchao does. `emulate` multiplies
    in f32 what was cast to FP8, with plain PyTorch operations, on every device. `round_scales_to_power_of_2` rounds
    scales down. `delayed_scaling_config` belongs to ScalingType.DELAYED. `pad_inner_dim` changes nothing here, because
    any size is computed; `force_recompute_fp8_weight_in_bwd`, `enable_amax_init` and `enable_pre_and_post_forward` are
    fields of older versions, of which `enable_amax_init=False` starts delayed scaling with scales of 1.

    Raises AssertionError for casts that no GEMM can combine; the message names the operand.
    """

    cast_config_input: CastConfig = CastConfig()
    cast_config_input_for_grad_weight: Optional[CastConfig] = None
    cast_config_weight: CastConfig = CastConfig()
    cast_config_weight_for_grad_input: Optional[CastConfig] = None
    cast_config_grad_output: CastConfig = CastConfig()
    cast_config_grad_output_for_grad_weight: Optional[CastConfig] = None

    gemm_config_output: Float8GemmConfig = Float8GemmConfig(use_fast_accum=True)
    gemm_config_grad_input: Float8GemmConfig = Float8GemmConfig()
    gemm_config_grad_weight: Float8GemmConfig = Float8GemmConfig()

    enable_fsdp_float8_all_gather: bool = False
    pad_inner_dim: bool = False
    emulate: bool = False
    force_recompute_fp8_weight_in_bwd: bool = False
    round_scales_to_power_of_2: bool = False

    enable_amax_init: bool = True
    enable_pre_and_post_forward: bool = True
    delayed_scaling_config: DelayedScalingConfig = DelayedScalingConfig()
    round_to_param_dtype: bool = True

    def __post_init__(self) -> None:
        for operand, default in (("input", e4m3_dtype), ("weight", e4m3_dtype), ("grad_output", e5m2_dtype)):
            self._fill_casts(f"cast_config_{operand}", _second(operand), operand, default)
        self._check_gemms()
        self._check_scaling_types()
        for cast in (self.cast_config_weight, self.cast_config_weight_for_grad_input):
            known = cast.scaling_type in (ScalingType.DYNAMIC, ScalingType.DELAYED)
            if self.enable_fsdp_float8_all_gather and not known:
                raise Float8AssertionError(
                    "enable_fsdp_float8_all_gather gathers weights whose scale is dynamic or delayed in both of their GEMMs, "
                    f"got {cast.scaling_type} for the weight"
                )
        if self.force_recompute_fp8_weight_in_bwd:
            warn("Float8LinearConfig: force_recompute_fp8_weight_in_bwd is an old field and has no effect", logger)

    def operands(self) -> Tuple[Tuple[str, CastConfig, CastConfig], ...]:
        """Returns the name of each operand, and its cast in the GEMM that reads it first and in the other."""
        names = ("input", "weight", "grad_output")
        return tuple((name, getattr(self, f"cast_config_{name}"), getattr(self, _second(name))) for name in names)

    def _fill_casts(self, first: str, second: str, operand: str, default: torch.dtype) -> None:
        """Gives both casts of one tensor their dtype. A frozen dataclass is changed here and nowhere else."""
        cast: CastConfig = getattr(self, first)
        other: CastConfig = getattr(self, second) or cast
        cast = _with_dtype(cast, default)
        other = _with_dtype(other, default)
        if cast.target_dtype != other.target_dtype:
            raise Float8AssertionError(
                f"{operand} must be cast to the same dtype in both matmuls it's used in, got {cast.target_dtype} "
                f"and {other.target_dtype}"
            )
        object.__setattr__(self, first, cast)
        object.__setattr__(self, second, other)

    def _check_gemms(self) -> None:
        for a, b, gemm in (
            (self.cast_config_input, self.cast_config_weight, "output"),
            (self.cast_config_grad_output, self.cast_config_weight_for_grad_input, "grad_input"),
            (self.cast_config_input_for_grad_weight, self.cast_config_grad_output_for_grad_weight, "grad_weight"),
        ):
            if (a.scaling_type is ScalingType.DISABLED) != (b.scaling_type is ScalingType.DISABLED):
                raise Float8AssertionError(
                    f"incompatible operand precision for {gemm}: {a.scaling_type} and {b.scaling_type}; disable both "
                    "casts or neither"
                )

    def _check_scaling_types(self) -> None:
        """Delayed and static scales are kept once for each tensor, so its two casts have to be the same."""
        if not config_has_stateful_scaling(self):
            return
        for operand, cast, other in self.operands():
            if cast is not other and cast != other:
                raise Float8AssertionError(
                    f"{operand} has two cast configs, and a config with delayed or static scaling takes one for each "
                    "tensor"
                )
            if cast.scaling_granularity is not ScalingGranularity.TENSORWISE or (
                cast.scaling_type is ScalingType.DISABLED
            ):
                raise Float8AssertionError(
                    f"{operand} is cast as {cast.short_str()}, and a config with delayed or static scaling casts every "
                    "tensor with one scale"
                )

    @staticmethod
    def from_recipe_name(recipe_name: Union[Float8LinearRecipeName, str]) -> "Float8LinearConfig":
        """Returns the config of a recipe, given as a Float8LinearRecipeName or its value. Raises AssertionError, with
        the names that there are, for another string."""
        if isinstance(recipe_name, str):
            recipe_name = _recipe_named(recipe_name)
        if recipe_name is Float8LinearRecipeName.TENSORWISE:
            return Float8LinearConfig()
        if recipe_name is Float8LinearRecipeName.ROWWISE:
            return _rowwise()
        if recipe_name is Float8LinearRecipeName.ROWWISE_WITH_GW_HP:
            return _rowwise_with_gw_hp()
        raise Float8AssertionError(f"unknown recipe_name {recipe_name}: expected a Float8LinearRecipeName or its value")


def _with_dtype(cast: CastConfig, default: torch.dtype) -> CastConfig:
    return cast if cast.target_dtype is not None else dataclasses.replace(cast, target_dtype=default)


def checked_config(caller: str, config: Optional[Float8LinearConfig]) -> Float8LinearConfig:
    """The config, or the default one in the place of None. Raises TypeError for anything else."""
    if config is None:
        return Float8LinearConfig()
    if isinstance(config, Float8LinearConfig):
        return config
    named = f": Float8LinearConfig.from_recipe_name({config!r}) makes one" if isinstance(config, str) else ""
    raise Float8TypeError(f"{caller} config: is a {type(config).__name__}, expected a Float8LinearConfig{named}")


def _recipe_named(name: str) -> Float8LinearRecipeName:
    try:
        return Float8LinearRecipeName(name)
    except ValueError:
        names = [member.value for member in Float8LinearRecipeName]
        known = f"; ingot.nn.Float8Linear(recipe={name!r}) has it" if name in (*RECIPES, "delayed") else ""
        if name == "delayed":
            known += ", and CastConfig(scaling_type=ScalingType.DELAYED) in a Float8LinearConfig"
        raise Float8AssertionError(f"recipe_name {name} not in valid names {names}{known}") from None


def _rowwise() -> Float8LinearConfig:
    rows = CastConfig(scaling_granularity=ScalingGranularity.AXISWISE, target_dtype=e4m3_dtype)
    return Float8LinearConfig(
        cast_config_input=rows, cast_config_weight=rows, cast_config_grad_output=rows, round_scales_to_power_of_2=True
    )


def _rowwise_with_gw_hp() -> Float8LinearConfig:
    rows = CastConfig(scaling_granularity=ScalingGranularity.AXISWISE, target_dtype=e4m3_dtype)
    whole = CastConfig(target_dtype=e4m3_dtype)
    uncast = CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=e4m3_dtype)
    return Float8LinearConfig(
        cast_config_input=rows,
        cast_config_weight=rows,
        cast_config_grad_output=rows,
        cast_config_input_for_grad_weight=uncast,
        cast_config_weight_for_grad_input=whole,
        cast_config_grad_output_for_grad_weight=uncast,
        round_scales_to_power_of_2=True,
    )


def recipe_name_to_linear_config(recipe_name: Union[Float8LinearRecipeName, str]) -> Float8LinearConfig:
    """The older name of Float8LinearConfig.from_recipe_name()."""
    return Float8LinearConfig.from_recipe_name(recipe_name)


def config_has_stateful_scaling(config: Float8LinearConfig) -> bool:
    """Does a layer with this config keep scales in buffers, because a scaling type is delayed or static?"""
    casts = [cast for _, *both in config.operands() for cast in both]
    return any(cast.scaling_type in (ScalingType.DELAYED, ScalingType.STATIC) for cast in casts)
