"""Float8Linear: torch.nn.Linear with its three GEMMs in FP8, each operand cast by the layer's config."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch._subclasses.fake_tensor import FakeTensor

from .. import nn
from ..torch._checks import check_dense, is_dense, is_transformed, refuse_batched_gradients, refuse_transforms
from ..torch._codes import FLOAT8
from ..torch._errors import Float8RuntimeError, Float8TypeError, Float8ValueError
from ..torch._exported import is_exporting
from ..torch._gathered_weight import Casts as GatherCasts, GatheredWeight
from ..torch._eager_linear import EagerPlan, note_eager, run_eager
from ..torch._linear import in_autocasts_dtype, plan_of, run_linear
from ..torch._modules import KNOWN_TENSORS, held, in_place_of, reason_against_replacing, type_name
from ..torch._names import register
from ..torch._operators import HIGH_PRECISION, Casts, PlanTable
from ._gathered_linear import gathered_linear, is_gathered
from .config import (
    CastConfig, Float8LinearConfig, ScalingGranularity, ScalingType, checked_config, config_has_stateful_scaling
)
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_scaling_utils import get_maybe_axiswise_dim, hp_tensor_to_float8_dynamic
from .float8_training_tensor import Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig
from .fsdp_utils import WeightWithDynamicFloat8CastTensor, gathered_again, gathered_in_float8, plain_in_state_dict


def _cast(
    tensor: torch.Tensor,
    cast: CastConfig,
    role: GemmInputRole,
    axis: int,
    linear_mm_config: LinearMMConfig,
    config: Float8LinearConfig,
) -> torch.Tensor:
    """Casts an operand as its config says; what is FP8 already, or is to keep its precision, is returned as it is."""
    if tensor_already_casted_to_fp8(tensor) or cast.scaling_type is ScalingType.DISABLED:
        return tensor
    return hp_tensor_to_float8_dynamic(
        tensor,
        cast.target_dtype,
        linear_mm_config,
        gemm_input_role=role,
        scaling_granularity=cast.scaling_granularity,
        axiswise_dim=get_maybe_axiswise_dim(axis, cast.scaling_granularity),
        round_scales_to_power_of_2=config.round_scales_to_power_of_2,
    )


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns (..., features) as a matrix, which may be empty."""
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.reshape(1, tensor.shape[0])


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns a @ b. In high precision b is first converted to a's dtype: an f32 weight with bf16 inputs lacks it."""
    if a.dtype != b.dtype and not tensor_already_casted_to_fp8(a) and not tensor_already_casted_to_fp8(b):
        b = b.to(a.dtype)
    return torch.mm(a, b)


@torch._dynamo.allow_in_graph
class matmul_with_hp_or_float8_args(torch.autograd.Function):
    """input (..., K) @ weight_t (K, N), each in high precision or in FP8.

    What is in high precision is cast by `config`; what is FP8 is taken to be cast so. Plain PyTorch operations do it,
    on any device and any subclass of tensors. Backward casts what was given again: nothing more is kept than nn.Linear
    keeps.
    """

    @staticmethod
    def forward(
        ctx,
        input_hp: torch.Tensor,
        weight_hp_t: torch.Tensor,
        linear_mm_config: LinearMMConfig,
        config: Float8LinearConfig,
    ) -> torch.Tensor:
        ctx.save_for_backward(input_hp, weight_hp_t)
        ctx.linear_mm_config = linear_mm_config
        ctx.config = config
        input = _cast(input_hp, config.cast_config_input, GemmInputRole.INPUT, -1, linear_mm_config, config)
        weight_t = _cast(weight_hp_t, config.cast_config_weight, GemmInputRole.WEIGHT, 0, linear_mm_config, config)
        shape = input.shape
        output = _mm(_rows_of(input), weight_t)
        return output.reshape(*shape[:-1], output.shape[-1])

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        if torch.is_grad_enabled():
            raise Float8RuntimeError(
                "the gradient of an FP8 GEMM has no gradient itself (create_graph=True): leave this layer an nn.Linear"
            )
        refuse_batched_gradients("Float8Linear", grad_output)
        input, weight_t = ctx.saved_tensors
        shape = grad_output.shape
        grad_output = _rows_of(grad_output)
        grad_output_cast = _cast_grad_output(ctx, grad_output)
        grad_input = grad_weight_t = None
        if ctx.needs_input_grad[0]:
            grad_input = _grad_input(ctx, grad_output_cast, weight_t)
            grad_input = grad_input.reshape(*shape[:-1], grad_input.shape[-1])
        if ctx.needs_input_grad[1]:
            grad_weight_t = _grad_weight(ctx, grad_output, grad_output_cast, input).t()
        return grad_input, grad_weight_t, None, None


def _cast_grad_output(ctx, grad_output: torch.Tensor) -> torch.Tensor:
    cast = ctx.config.cast_config_grad_output
    return _cast(grad_output, cast, GemmInputRole.GRAD_OUTPUT, -1, ctx.linear_mm_config, ctx.config)


def _grad_input(ctx, grad_output: torch.Tensor, weight_t: torch.Tensor) -> torch.Tensor:
    cast = ctx.config.cast_config_weight_for_grad_input
    weight_t = _cast(weight_t, cast, GemmInputRole.WEIGHT, -1, ctx.linear_mm_config, ctx.config)
    return _mm(grad_output, weight_t.t())


def _grad_weight(ctx, grad_output: torch.Tensor, grad_output_cast: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    config = ctx.config
    cast = config.cast_config_grad_output_for_grad_weight
    # With one scale both GEMMs take the same codes.
    is_same = cast == config.cast_config_grad_output and cast.scaling_granularity is ScalingGranularity.TENSORWISE
    if is_same:
        grad_output = grad_output_cast
    else:
        grad_output = _cast(grad_output, cast, GemmInputRole.GRAD_OUTPUT, 0, ctx.linear_mm_config, config)
    input = _rows_of(input)
    cast = config.cast_config_input_for_grad_weight
    input = _cast(input, cast, GemmInputRole.INPUT, 0, ctx.linear_mm_config, config)
    return _mm(grad_output.t(), input)


def _mm_config(config: Float8LinearConfig) -> LinearMMConfig:
    gemms = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
    return LinearMMConfig(
        *(ScaledMMConfig(config.emulate, gemm.use_fast_accum, False, config.pad_inner_dim) for gemm in gemms)
    )


_KNOWN_WEIGHTS = (*KNOWN_TENSORS, Float8TrainingTensor, GatheredWeight, WeightWithDynamicFloat8CastTensor)


def _transposed(weight: torch.Tensor) -> torch.Tensor:
    """weight.t(). In inference mode PyTorch makes no views of a wrapping tensor, such as a DTensor, that was made outside of it.
    (Compilers do not trace the question.)"""
    if type(weight) in _PLAIN or torch.compiler.is_compiling():
        return weight.t()
    if not torch.is_inference_mode_enabled() or weight.is_inference():
        return weight.t()
    with torch.inference_mode(False), torch.no_grad():
        return weight.t()


def is_foreign(weight: torch.Tensor) -> bool:
    """Is this a tensor of another library's class, which defines its own products?"""
    return type(weight) not in _KNOWN_WEIGHTS


_EAGER = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (*_EAGER, FakeTensor)  # the last in programs that torch.export traces
_INPUTS = (*_PLAIN, AsyncCollectiveTensor)  # the last, which tensor-parallel layers return, waits where an operator takes it
_GATHERED = (GatheredWeight, Float8TrainingTensor)
_EAGER_WEIGHTS = (*_EAGER, *_GATHERED)

_FLOAT8_NAMES = {dtype: name for name, dtype in FLOAT8.items()}


# Equal casts are one object, which is what compilers guard: alike layers share a compilation.
_KNOWN_CASTS: Dict[Casts, Casts] = {}


def _casts_of(config: Float8LinearConfig) -> Optional[Casts]:
    """The config as ingot.torch takes it; None if a format is not known."""
    operands = config.operands()
    casts = [first for _, first, _ in operands] + [second for _, _, second in operands]
    texts = []
    for cast in casts:
        if cast.scaling_type is ScalingType.DISABLED:
            texts.append(("", False))
        elif cast.target_dtype in _FLOAT8_NAMES:
            rows = cast.scaling_granularity is ScalingGranularity.AXISWISE
            texts.append((_FLOAT8_NAMES[cast.target_dtype], rows))
        else:
            return None
    gemms = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
    fast_accumulation = tuple(gemm.use_fast_accum for gemm in gemms)
    given = tuple(cast.scaling_type in (ScalingType.DELAYED, ScalingType.STATIC) for cast in casts[:3])
    return Casts(tuple(texts), config.round_scales_to_power_of_2, fast_accumulation, True, given)


@dataclasses.dataclass(eq=False)  # not frozen: Dynamo of PyTorch 2.7 would guard the name too
class ConfigOptions:
    """What ingot.nn's layer has in its options, of a config: its casts, None where PyTorch's operations compute it; its
    name in messages; and whether forward keeps the weight's codes for backward."""

    casts: Optional[Casts]
    name: str = ""
    keep_weight_codes: Optional[bool] = False

    def __post_init__(self) -> None:
        casts = self.casts and self.casts._replace(weight_again=not self.keep_weight_codes)
        self.casts = casts and _KNOWN_CASTS.setdefault(casts, casts)
        gathered = casts and casts._replace(weight_again=True)
        self.gathered_casts = gathered and _KNOWN_CASTS.setdefault(gathered, gathered)
        self.full_name = self.name or "Float8Linear"
        self.subject = f'linear "{self.full_name}"'
        self._plans, self._eager_plans = PlanTable(), PlanTable()

    def __reduce__(self):
        """Copies and pickles have no plans: their numbers are of this process."""
        return ConfigOptions, (self.casts, self.name, self.keep_weight_codes)


class Float8Linear(nn.Float8Linear):
    """ingot.nn's layer with torchao's configs in the place of recipes: torch.nn.Linear whose GEMMs run in FP8.

    Takes inputs (..., in_features) of float32, float16 or bfloat16, of any size, and returns (..., out_features) in
    that dtype, or in autocast's. Parameters, and so checkpoints, are those of torch.nn.Linear. `config` is the
    Float8LinearConfig, `layer_name` the name in messages.

    Raises ingot.Error for another shape or dtype of the input.
    """

    _gives_scales: bool = False  # does forward give the operators delayed and static scales?

    def __init__(self, *args: Any, config: Optional[Float8LinearConfig] = None, **kwargs: Any) -> None:
        torch.nn.Linear.__init__(self, *args, **kwargs)
        self._use_config(Float8LinearConfig() if config is None else config)
        self._wrap_weight()

    def _use_config(self, config: Float8LinearConfig) -> None:
        if config_has_stateful_scaling(config) and not self._gives_scales:
            raise Float8ValueError(
                "Float8Linear config: has delayed or static scales, which a StatefulFloat8Linear keeps: make the layer by "
                "StatefulFloat8Linear.from_float(), or by convert_to_float8_training()"
            )
        self.config = config
        for name, cast, _ in config.operands():
            setattr(self, f"scaling_type_{name}", cast.scaling_type)
        self.linear_mm_config = _mm_config(config)
        casts = _casts_of(config)
        self.options = ConfigOptions(casts if casts is None or self._gives_scales or not any(casts.given) else None)
        register(self)

    def keep_weight_codes(self, keep: Optional[bool] = True) -> None:
        """From now on forward keeps the weight's codes for backward, 2 bytes for each element, or backward casts the
        weight once more. Under FSDP, which gathers the weight again for backward, kept codes would be a second copy."""
        super().keep_weight_codes(bool(keep))

    @property
    def keeps_weight_codes(self) -> bool:
        """Does forward always keep the weight's codes for backward?"""
        return bool(self.options.keep_weight_codes)

    @property
    def _operator_casts(self) -> Optional[Casts]:
        return self.options.casts

    @_operator_casts.setter
    def _operator_casts(self, casts: Optional[Casts]) -> None:
        self.options = dataclasses.replace(self.options, casts=casts)

    def _cast_of_weight(self) -> Tuple[Optional[str], bool]:
        """For checkpoints: what shares a factor, None in high precision; are scales powers of two?"""
        cast = self.config.cast_config_weight
        if cast.scaling_type is ScalingType.DISABLED:
            return None, False
        kind = "row" if cast.scaling_granularity is ScalingGranularity.AXISWISE else "tensor"
        return kind, self.config.round_scales_to_power_of_2

    def named_weights(self) -> List[Tuple[str, Optional[torch.Tensor]]]:
        """The weight with the layer's name."""
        return [(self.options.full_name, held(self))]

    def _refuse(self, error: type, what: str) -> None:
        name = f'"{self.layer_name}", ' if self.layer_name else ""
        raise error(f"Float8Linear({name}{self.in_features} -> {self.out_features}): {what}")

    def _checked(self, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns the input in autocast's dtype, if there is one. A tensor that cannot be multiplied is refused."""
        if not is_dense(input):
            check_dense(f'Float8Linear "{self.layer_name}"' if self.layer_name else "Float8Linear", "input", input)
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            self._refuse(
                Float8RuntimeError, f"the input has shape {tuple(input.shape)}, expected (..., {self.in_features})"
            )
        if input.device != weight.device:
            self._refuse(
                Float8RuntimeError,
                f"the input is on {input.device} and the weight on {weight.device}: move one with .to()",
            )
        input = in_autocasts_dtype(input)
        if input.dtype not in HIGH_PRECISION:
            self._refuse(
                Float8TypeError,
                f"the input is {input.dtype}, expected float32, float16 or bfloat16: convert it with .to()",
            )
        return input

    def _check_transforms(self, *tensors: Optional[torch.Tensor], records: Optional[bool] = None) -> None:
        """Refuses what would be differentiated otherwise than by backward(): of the input, the weight and the bias."""
        if is_transformed(*tensors, records=records):
            refuse_transforms(f'Float8Linear "{self.layer_name}"' if self.layer_name else "Float8Linear")

    @property
    def config_of_part(self) -> Optional[Casts]:
        """How the layer is computed."""
        return self.options.casts

    @property
    def name_of_part(self) -> str:
        """The layer's name in messages."""
        return self.options.full_name

    def scales_of_call(self, input: torch.Tensor) -> None:
        """No delayed scales."""
        return None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., out_features) for (..., in_features)."""
        if self._division is not None:
            return self._divided(input)
        weight, bias = self.weight, self.bias  # once: a property of the class may gather them
        output = self._run_again(input, weight, bias)
        if output is not None:
            return output
        if is_foreign(weight):
            # Another library has put its own tensor here, quantized for inference perhaps: it knows what to do.
            return torch.nn.functional.linear(input, weight, bias)
        given, input = input, self._checked(input, weight)
        runs_as_operators = self._runs_as_operators(input, weight)
        self._check_transforms(input, weight, bias, records=None if runs_as_operators else True)
        # A compiler would guard each layer's name and compile alike blocks again for each.
        compiles = torch.compiler.is_compiling() and not is_exporting()
        options = self.options
        name = "Float8Linear" if compiles else options.full_name
        if runs_as_operators:
            casts = options.gathered_casts if type(weight) is GatheredWeight else options.casts
            output = run_linear(input, weight, bias, casts, name, options._plans)
            return self._noted(output, given is input, input, weight, bias, casts)
        if self._takes_gathered(input, weight, bias):
            output = gathered_linear(input, weight, bias, options.casts, name, options._plans)
            return self._noted(output, given is input, input, weight, bias, options.gathered_casts)
        output = matmul_with_hp_or_float8_args.apply(input, _transposed(weight), self.linear_mm_config, self.config)
        return output if bias is None else output + bias.to(output.dtype)

    def _run_again(self, input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """The output, in eager mode, of a call like one that was noted; else None."""
        plans = self.options._eager_plans
        if not plans or torch.compiler.is_compiling() or type(input) not in _EAGER or self._emulates:
            return None
        return run_eager(plans, input, weight, bias)

    def _noted(self, output, is_given: bool, input, weight, bias, casts: Casts) -> torch.Tensor:
        """The output. Notes its call for _run_again(): the casts are the same for any number of tokens."""
        plain = is_given and type(input) in _EAGER and type(weight) in _EAGER_WEIGHTS
        if plain and not torch.compiler.is_compiling() and getattr(weight, "main_grad", None) is None:
            options = self.options
            plan = plan_of(casts, options.full_name, options._plans, input, weight, bias)
            made = EagerPlan(options.full_name, plan, input, type(weight) in _GATHERED, True)
            note_eager(options._eager_plans, input, weight, bias, made)
        return output

    @property
    def _emulates(self) -> bool:
        return self.config.emulate or self.linear_mm_config.output.emulate

    def _takes_gathered(self, input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
        """Does an operator of Ingot's take the weight in FP8 as it is?"""
        if self._emulates or type(input) not in _INPUTS:
            return False
        return is_gathered(weight, self.options.casts) and type(bias) in (*_PLAIN, type(None))

    def _runs_as_operators(self, input: torch.Tensor, weight: torch.Tensor) -> bool:
        """Do Ingot's kernels compute this layer? Subclasses of tensors and emulation are left to PyTorch's."""
        if self.options.casts is None or self._emulates:
            return False
        plain = type(input) in _INPUTS and type(weight) in (*_PLAIN, GatheredWeight) and weight.dtype in HIGH_PRECISION
        # In high precision both operands of a GEMM have one dtype.
        disabled = ScalingType.DISABLED
        casts = (self.config.cast_config_weight, self.config.cast_config_weight_for_grad_input)
        return plain and (weight.dtype == input.dtype or all(cast.scaling_type is not disabled for cast in casts))

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """FSDP gathers a tensor that is assigned (assign=True) like the one before."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        self._wrap_weight()

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        plain_in_state_dict(self, destination, prefix)

    def extra_repr(self) -> str:
        config = self.config
        operands = config.operands()
        parts = [f"{name}:{cast.short_str()}" for name, (_, cast, _) in zip(("i", "w", "go"), operands)]
        others = [(name, second, first) for name, (_, first, second) in zip(("i_gw", "w_gi", "go_gw"), operands)]
        parts += [f"{name}:{cast.short_str()}" for name, cast, first in others if cast != first]
        return f"{torch.nn.Linear.extra_repr(self)}, cast_configs={','.join(parts)}"

    @classmethod
    def from_float(cls, mod: torch.nn.Linear, config: Optional[Float8LinearConfig] = None) -> "Float8Linear":
        """Returns an FP8 layer with everything of `mod`: the same parameters, hooks, `.training`, and whatever else was
        set on it. Raises TypeError if `mod` is no torch.nn.Linear, and RuntimeError for one whose forward another
        cannot replace."""
        if not isinstance(mod, torch.nn.Linear):
            raise Float8TypeError(f"Float8Linear.from_float takes a torch.nn.Linear, got a {type_name(mod)}")
        reason = reason_against_replacing(mod)
        if reason:
            raise Float8RuntimeError(f"Float8Linear.from_float module: {reason}")
        config = checked_config("Float8Linear.from_float", config)
        new = in_place_of(mod, cls)
        new._use_config(config)
        new._wrap_weight()
        return new

    def _wrap_weight(self) -> None:
        """Gives FSDP2 a weight that it gathers in FP8, if the config asks for it."""
        weight = held(self)
        casts = self._gather_casts()
        one_scale = casts.output == casts.grad_input == "tensor"
        computes = one_scale or not (self.config.emulate or self.options.casts is None)
        if not self.config.enable_fsdp_float8_all_gather or not computes:
            return
        self._gathers = True
        sharded = type(weight) is DTensor and not isinstance(weight._local_tensor, WeightWithDynamicFloat8CastTensor)
        if sharded or type(weight) is torch.nn.Parameter:
            dtype, pow2 = self.config.cast_config_weight.target_dtype, self.config.round_scales_to_power_of_2
            config = (self.linear_mm_config, dtype, None, pow2, casts, self.options.full_name)
            rounds = self.config.round_to_param_dtype
            made = lambda values: WeightWithDynamicFloat8CastTensor(values, *config, rounds)
            self._parameters["weight"] = (gathered_again if sharded else gathered_in_float8)(weight, made)

    def _gather_casts(self) -> GatherCasts:
        """How the two GEMMs that read the weight cast it."""
        first, second = self.config.cast_config_weight, self.config.cast_config_weight_for_grad_input
        rows = ScalingGranularity.AXISWISE
        kinds = (
            "row" if first.scaling_granularity is rows else "tensor",
            "col" if second.scaling_granularity is rows else "tensor",
        )
        return GatherCasts(first.target_dtype, *kinds, self.config.round_scales_to_power_of_2)
