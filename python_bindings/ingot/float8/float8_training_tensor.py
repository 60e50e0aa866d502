"""Float8TrainingTensor: FP8 codes with their scale, which looks to PyTorch like the tensor that was cast."""

from __future__ import annotations

import enum
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch.distributed._tensor import DTensor

from ..torch._errors import Float8AssertionError, Float8NotImplementedError, Float8RuntimeError
from . import _kernels as kernels
from .float8_utils import to_fp8_saturated


class ScaledMMConfig(NamedTuple):
    """How one GEMM runs: emulated in f32, with fast accumulation, with an FP8 result (no GEMM has one today), or with
    its summed dimension padded (which any size makes needless)."""

    emulate: bool = False
    use_fast_accum: bool = False
    fp8_output: bool = False
    pad_inner_dim: bool = False


class LinearMMConfig(NamedTuple):
    """How the three GEMMs of a linear layer run. An FP8 tensor carries it, and the GEMM that it enters picks its
    own."""

    output: ScaledMMConfig = ScaledMMConfig(use_fast_accum=True)
    grad_input: ScaledMMConfig = ScaledMMConfig()
    grad_weight: ScaledMMConfig = ScaledMMConfig()


class GemmInputRole(enum.Enum):
    """What an FP8 tensor is in its layer."""

    INPUT = "input"
    WEIGHT = "weight"
    GRAD_OUTPUT = "grad_output"


_GEMM_OF_ROLES = {
    (GemmInputRole.INPUT, GemmInputRole.WEIGHT): "output",
    (GemmInputRole.GRAD_OUTPUT, GemmInputRole.WEIGHT): "grad_input",
    (GemmInputRole.GRAD_OUTPUT, GemmInputRole.INPUT): "grad_weight",
}


def choose_scaled_mm_config(
    a_role: GemmInputRole, a_linear_mm_config: LinearMMConfig, b_role: GemmInputRole, b_linear_mm_config: LinearMMConfig
) -> ScaledMMConfig:
    """Returns how the GEMM of two operands runs, by their roles. Raises AssertionError for roles that share no GEMM,
    and for operands that ask for different ones."""
    gemm = _GEMM_OF_ROLES.get((a_role, b_role))
    if gemm is None:
        raise Float8AssertionError(f"unexpected a_role {a_role} and b_role {b_role}: no GEMM of a layer has these")
    a, b = getattr(a_linear_mm_config, gemm), getattr(b_linear_mm_config, gemm)
    if a != b:
        raise Float8AssertionError(f"linear_mm_config.{gemm} mismatch: {a} vs {b}")
    return a


# What PyTorch's operations do to it, by operation: functions (op, args, kwargs), which float8_ops enters.
FLOAT8_OPS_TABLE: Dict[Any, Callable] = {}


class Float8TrainingTensor(torch.Tensor):
    """FP8 codes (`_data`), the f32 scale by which the tensor was multiplied (`_scale`), and the dtype that it had
    (`_orig_dtype`), which is also the dtype that it shows.

    The scale is a scalar, or has the shape of `_data` with 1 along `_axiswise_dim`, the dimension that its elements
    span: 0 or -1, None for a scalar. `_linear_mm_config` and `_gemm_input_role` choose how GEMMs with it run.

    `_scale_inv` is None, or 1 / scale where that is known, which a gather of FSDP2 brings: it saves a kernel a layer.

    Views, copies, transposes, joins, collectives and matrix products are in float8_ops. Raises NotImplementedError for
    other operations (to_original_precision() comes first), and AssertionError for another `axiswise_dim`.
    """

    is_of_ingot = True

    _data: torch.Tensor
    _scale: torch.Tensor
    _orig_dtype: torch.dtype
    _linear_mm_config: LinearMMConfig
    _gemm_input_role: GemmInputRole
    _axiswise_dim: Optional[int]
    _scale_inv: Optional[torch.Tensor] = None  # no slot: files of Ingot 0.1 have none

    __slots__ = ("_axiswise_dim", "_data", "_gemm_input_role", "_linear_mm_config", "_orig_dtype", "_scale")

    def __new__(
        cls,
        data: torch.Tensor,
        scale: torch.Tensor,
        orig_dtype: torch.dtype,
        linear_mm_config: Optional[LinearMMConfig],
        gemm_input_role: Optional[GemmInputRole] = GemmInputRole.INPUT,
        axiswise_dim: Optional[int] = None,
    ) -> "Float8TrainingTensor":
        if axiswise_dim not in (None, 0, -1):
            raise Float8AssertionError(f"unsupported axiswise_dim {axiswise_dim}: expected 0, -1 or None")
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=orig_dtype,
            layout=data.layout,
            requires_grad=data.requires_grad,
            device=data.device,
        )
        self._data, self._scale, self._axiswise_dim = data, scale, axiswise_dim
        self._orig_dtype = orig_dtype
        self._gemm_input_role = gemm_input_role
        self._linear_mm_config = LinearMMConfig() if linear_mm_config is None else linear_mm_config
        return self

    def has(self, backward: bool) -> bool:
        """As GatheredWeight, which may have the codes of the other direction."""
        return True

    def read_by(self, backward: bool) -> Tuple[torch.Tensor, torch.Tensor]:
        """The codes and scale_inv that a forward or a backward reads."""
        return self._data, kernels.scale_inv_of(self._scale) if self._scale_inv is None else self._scale_inv

    def _like(
        self, data: torch.Tensor, scale: Optional[torch.Tensor] = None, axiswise_dim: Any = "same"
    ) -> "Float8TrainingTensor":
        """Returns other codes with everything else of this tensor, except for what is given."""
        new = Float8TrainingTensor(
            data,
            self._scale if scale is None else scale,
            self._orig_dtype,
            self._linear_mm_config,
            self._gemm_input_role,
            self._axiswise_dim if axiswise_dim == "same" else axiswise_dim,
        )
        if scale is None or scale is self._scale:
            new._scale_inv = self._scale_inv
        return new

    def to_original_precision(self) -> torch.Tensor:
        """Returns codes / scale as a plain tensor of `_orig_dtype`. Gradients pass unchanged."""
        return _FromFloat8ConstrFunc.apply(self)

    def __repr__(self) -> str:
        return (
            f"Float8TrainingTensor({self.to_original_precision()}, codes={self._data.dtype}, scale={self._scale}, "
            f"axiswise_dim={self._axiswise_dim}, gemm_input_role={self._gemm_input_role}, "
            f"linear_mm_config={self._linear_mm_config})"
        )

    @property
    def data(self) -> "Float8TrainingTensor":
        """The tensor without its gradient's graph; codes and scale are shared. A value of this shape and dtype may be set."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Raises RuntimeError for anything but an FP8 tensor of this shape and dtype: PyTorch would change what it
        knows of this tensor, but not its codes."""
        if not isinstance(value, Float8TrainingTensor) or value.shape != self.shape or value.dtype != self.dtype:
            raise Float8RuntimeError(
                f"the data of a Float8TrainingTensor of shape {tuple(self.shape)} that shows {self.dtype} can only "
                f"become another such tensor's, got a {type(value).__name__} of shape {tuple(value.shape)} and {value.dtype}"
                ": cast it with hp_tensor_and_scale_to_float8()"
            )
        for name in Float8TrainingTensor.__slots__:
            setattr(self, name, getattr(value, name))
        self._scale_inv = value._scale_inv

    def share_memory_(self) -> "Float8TrainingTensor":
        """Moves codes and scale to memory that processes share."""
        self._data.share_memory_()
        self._scale.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Are codes and scale in memory that processes share?"""
        return self._data.is_shared() and self._scale.is_shared()

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """PyTorch's float8 tensors cannot be pickled but by torch.save(): codes go as bytes."""
        state = tuple(getattr(self, name) for name in _STATE)
        codes = self._data.detach()
        return _rebuilt, (codes.view(torch.uint8), codes.dtype, *state, self.requires_grad, dict(self.__dict__))

    def __tensor_flatten__(self):
        tensors = ["_data", "_scale"] if self._scale_inv is None else ["_data", "_scale", "_scale_inv"]
        return tensors, {name: getattr(self, name) for name in _STATE[1:]}

    @staticmethod
    def __tensor_unflatten__(inner_tensors, metadata, outer_size, outer_stride):
        options = [metadata[name] for name in _STATE[1:]]
        made = Float8TrainingTensor(inner_tensors["_data"], inner_tensors["_scale"], *options)
        made._scale_inv = inner_tensors.get("_scale_inv")
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        # Another subclass, such as DTensor, unwraps itself first and comes back with what it holds.
        if not all(_is_ours_or_traced(each) for each in types):
            return NotImplemented
        if func not in FLOAT8_OPS_TABLE:
            # Below autograd, where DTensor works, PyTorch brings operations made of others whole.
            result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
            raise Float8NotImplementedError(
                f"attempting to run {func}, this is not supported for FP8 tensors: call to_original_precision() first"
            )
        return FLOAT8_OPS_TABLE[func](func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


_STATE = ("_scale", "_orig_dtype", "_linear_mm_config", "_gemm_input_role", "_axiswise_dim")


def _rebuilt(codes: torch.Tensor, dtype: torch.dtype, *state: Any) -> Float8TrainingTensor:
    """What a pickle of a Float8TrainingTensor calls."""
    *options, requires_grad, attributes = state
    made = Float8TrainingTensor(codes.view(dtype), *options).requires_grad_(requires_grad)
    made.__dict__.update(attributes)
    return made


torch.serialization.add_safe_globals([_rebuilt])


def _is_ours_or_traced(kind: type) -> bool:
    return (
        issubclass(Float8TrainingTensor, kind)
        or issubclass(torch._subclasses.fake_tensor.FakeTensor, kind)
        or issubclass(torch._subclasses.functional_tensor.FunctionalTensor, kind)
    )


@torch._dynamo.allow_in_graph
class _ToFloat8ConstrFunc(torch.autograd.Function):
    """A cast whose gradient passes unchanged."""

    @staticmethod
    def forward(
        ctx,
        tensor: torch.Tensor,
        scale: torch.Tensor,
        float8_dtype: torch.dtype,
        linear_mm_config: Optional[LinearMMConfig] = None,
        gemm_input_role: Optional[GemmInputRole] = GemmInputRole.INPUT,
        axiswise_dim: Optional[int] = None,
        scale_is_its_own: bool = False,
    ) -> torch.Tensor:
        codes = _codes(tensor, scale, float8_dtype) if scale_is_its_own else None
        if codes is None:
            # In f32, because compiled code multiplies in f32 too.
            codes = to_fp8_saturated(tensor.to(torch.float32) * scale, float8_dtype)
        options = (tensor.dtype, linear_mm_config, gemm_input_role, axiswise_dim)
        if isinstance(codes, DTensor):
            return _distributed(codes, scale, options)
        return Float8TrainingTensor(codes, scale, *options)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None, None, None, None, None


def _codes(tensor: torch.Tensor, scale: torch.Tensor, float8_dtype: torch.dtype) -> Optional[torch.Tensor]:
    """Returns saturate(tensor * scale) by Ingot's kernel, None where it does not compute it. An Inf becomes NaN, as it
    does with the scale 0 that its own maximum gives."""
    if isinstance(tensor, DTensor) and isinstance(scale, DTensor) and _is_local(tensor, scale):
        codes = kernels.quantized(tensor.to_local(), scale.to_local(), float8_dtype)
        if codes is not None:
            layout = (tensor.device_mesh, tensor.placements)
            return DTensor.from_local(codes, *layout, run_check=False, shape=tensor.size(), stride=tensor.stride())
    return kernels.quantized(tensor, scale, float8_dtype)


def _is_local(tensor: DTensor, scale: DTensor) -> bool:
    """Can each rank cast what it holds? A sum that is still to be made cannot be cast."""
    whole = all(placement.is_replicate() for placement in scale.placements)
    return whole and scale.numel() == 1 and not any(placement.is_partial() for placement in tensor.placements)


def _distributed(codes: DTensor, scale: torch.Tensor, options: tuple) -> DTensor:
    """Returns DTensor(Float8TrainingTensor): what is distributed stays outermost."""
    if not isinstance(scale, DTensor):
        raise Float8AssertionError(
            "a DTensor is cast with a scale that is a DTensor too, and this one is a plain tensor: "
            "compute it from the DTensor with tensor_to_scale()"
        )
    local = Float8TrainingTensor(codes.to_local(), scale.to_local(), *options)
    return DTensor.from_local(
        local, codes.device_mesh, codes.placements, run_check=False, shape=codes.size(), stride=codes.stride()
    )


@torch._dynamo.allow_in_graph
class _FromFloat8ConstrFunc(torch.autograd.Function):
    """The inverse of a cast; its gradient passes unchanged."""

    @staticmethod
    def forward(ctx, tensor: Float8TrainingTensor) -> torch.Tensor:
        return (tensor._data.to(tensor._orig_dtype) / tensor._scale).to(tensor._orig_dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


def hp_tensor_and_scale_to_float8(
    hp_tensor: torch.Tensor,
    s: torch.Tensor,
    float8_dtype: torch.dtype,
    linear_mm_config: Optional[LinearMMConfig] = None,
    gemm_input_role: Optional[GemmInputRole] = GemmInputRole.INPUT,
    axiswise_dim: Optional[int] = None,
) -> torch.Tensor:
    """Returns saturate(hp_tensor * s) in `float8_dtype` as a Float8TrainingTensor, within a DTensor if `hp_tensor` is
    one.

    `s` is an f32 scalar, or has the shape of `hp_tensor` with 1 along `axiswise_dim`. Gradients pass unchanged. Raises
    ValueError if `float8_dtype` is not FP8, AssertionError if `hp_tensor` is a DTensor and `s` is not.
    """
    return _ToFloat8ConstrFunc.apply(hp_tensor, s, float8_dtype, linear_mm_config, gemm_input_role, axiswise_dim)


def cast_with_own_scale(
    hp_tensor: torch.Tensor,
    s: torch.Tensor,
    float8_dtype: torch.dtype,
    linear_mm_config: Optional[LinearMMConfig] = None,
    gemm_input_role: Optional[GemmInputRole] = GemmInputRole.INPUT,
    axiswise_dim: Optional[int] = None,
) -> torch.Tensor:
    """hp_tensor_and_scale_to_float8() for a scale that was made of the maximum of `hp_tensor`, or of more than it: the
    same bits, on Ingot's kernel."""
    return _ToFloat8ConstrFunc.apply(hp_tensor, s, float8_dtype, linear_mm_config, gemm_input_role, axiswise_dim, True)
