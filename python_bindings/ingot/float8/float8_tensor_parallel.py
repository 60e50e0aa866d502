"""Tensor parallel styles that send FP8: inputs are cast before they are gathered, gradients before they are sent back.

They take layers with one dynamic scale for input and grad_output; others go with PyTorch's own styles.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn as nn
from torch.distributed._tensor import DTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from ..torch._errors import Float8AssertionError, Float8NotImplementedError, Float8RuntimeError, Float8ValueError
from ..torch._modules import type_name
from .config import ScalingGranularity, ScalingType, e4m3_dtype
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_linear import Float8Linear
from .float8_scaling_utils import NoopFwToFloat8BwDynamic, hp_tensor_to_float8_dynamic
from .float8_training_tensor import GemmInputRole, LinearMMConfig


def _float8_linear_supports_float8_allgather(m: Float8Linear) -> bool:
    """Has the layer one dynamic scale for its input, and one for its gradient?"""
    casts = (m.config.cast_config_input, m.config.cast_config_grad_output)
    return all(
        cast.scaling_type is ScalingType.DYNAMIC and cast.scaling_granularity is ScalingGranularity.TENSORWISE
        for cast in casts
    )


def _require_supported(module: nn.Module) -> None:
    if not isinstance(module, Float8Linear):
        raise Float8ValueError(
            f"Expecting module to be Float8Linear but found {type_name(module)}: convert the model first, or use "
            "PyTorch's own style for this layer"
        )
    if not _float8_linear_supports_float8_allgather(module):
        raise Float8AssertionError(
            f"unsupported: {module} has other scales than one dynamic scale for input and grad_output, and only those "
            "can be sent in FP8; use PyTorch's own style"
        )


def _require_equal_parts(mod: Float8Linear, part: torch.Tensor, layouts: tuple, mesh: DeviceMesh) -> None:
    """PyTorch takes a plain tensor for one of equal parts, and ranks that see other shapes would wait for each other."""
    is_part = any(place.is_shard() and place.dim % part.dim() == part.dim() - 1 for place in layouts)
    if is_part and mod.in_features % mesh.size() != 0:
        raise Float8RuntimeError(
            f"the {mod.in_features} input features of {mod} are not equal parts on {mesh.size()} ranks, and a plain "
            "tensor does not say so: set use_local_output=False in the styles of the layers before it"
        )


def _as_dtensor(tensor: torch.Tensor, mesh: DeviceMesh, layouts: tuple) -> DTensor:
    return tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, layouts, run_check=False)


def _cast_input(tensor: DTensor, dtype: torch.dtype, mm_config: LinearMMConfig) -> DTensor:
    if tensor_already_casted_to_fp8(tensor):
        return tensor
    return hp_tensor_to_float8_dynamic(tensor, dtype, mm_config, gemm_input_role=GemmInputRole.INPUT)


def _prepare_input(input_layouts, desired_input_layouts, mod: Float8Linear, inputs: tuple, device_mesh: DeviceMesh):
    """Casts the input; then PyTorch's style, the same for both, brings it to the layout that the layer wants."""
    if not isinstance(inputs[0], DTensor):
        _require_equal_parts(mod, inputs[0], input_layouts, device_mesh)
    tensor = _as_dtensor(inputs[0], device_mesh, input_layouts)
    tensor = _cast_input(tensor, mod.config.cast_config_input.target_dtype, mod.linear_mm_config)
    return ColwiseParallel._prepare_input_fn(input_layouts, desired_input_layouts, mod, (tensor,), device_mesh)


def _prepare_output(output_layouts, use_local_output: bool, mod: Float8Linear, outputs: DTensor, device_mesh):
    """PyTorch's style brings the output to its layout; its gradient will be cast before it goes the other way."""
    outputs = ColwiseParallel._prepare_output_fn(output_layouts, False, mod, outputs, device_mesh)
    dtype = mod.config.cast_config_grad_output.target_dtype
    outputs = NoopFwToFloat8BwDynamic.apply(outputs, mod.linear_mm_config, dtype)
    return outputs.to_local() if use_local_output else outputs


class _OfFloat8Linear:
    """What both styles do for a Float8Linear. They raise ValueError for another module and AssertionError for scales that
    cannot be sent."""

    _prepare_input_fn = staticmethod(_prepare_input)
    _prepare_output_fn = staticmethod(_prepare_output)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _require_supported(module)
        return super()._apply(module, device_mesh)


class Float8ColwiseParallel(_OfFloat8Linear, ColwiseParallel):
    """ColwiseParallel for a Float8Linear, whose input is gathered in FP8."""


class Float8RowwiseParallel(_OfFloat8Linear, RowwiseParallel):
    """RowwiseParallel for a Float8Linear, whose gradient is gathered in FP8."""


class PrepareFloat8ModuleInput(PrepareModuleInput):
    """PrepareModuleInput which casts to FP8 before it gathers, so that layers that share an input gather it once.

    The GEMMs are configured as those of the submodule `fwd_config_submodule_fqn`, or of every Float8Linear in the
    module, which then have to be alike. Raises NotImplementedError for another dtype than e4m3, AssertionError where
    layers differ or there is none.
    """

    def __init__(
        self,
        *,
        input_layouts=None,
        desired_input_layouts=None,
        input_kwarg_layouts=None,
        desired_input_kwarg_layouts=None,
        use_local_output: bool = False,
        float8_dtype: torch.dtype = torch.float8_e4m3fn,
        fwd_config_submodule_fqn: Optional[str] = None,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_output,
        )
        if float8_dtype != torch.float8_e4m3fn:
            raise Float8NotImplementedError(
                f"PrepareFloat8ModuleInput casts to torch.float8_e4m3fn, not to {float8_dtype}"
            )
        self.float8_dtype = float8_dtype
        self.linear_mm_config: Optional[LinearMMConfig] = None
        self.fwd_config_submodule_fqn = fwd_config_submodule_fqn

    def _prepare_input_arg(self, input: Any, mesh: DeviceMesh, input_layout: Any, desired_layout: Any) -> Any:
        if input_layout is None:
            return input
        if not isinstance(input, torch.Tensor):
            raise Float8AssertionError(f"expecting input to be a torch.Tensor, got a {type_name(input)}")
        tensor = _cast_input(_as_dtensor(input, mesh, (input_layout,)), e4m3_dtype, self.linear_mm_config)
        if desired_layout is not None and input_layout != desired_layout:
            tensor = tensor.redistribute(placements=(desired_layout,))
        return tensor.to_local() if self.use_local_output else tensor

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self.fwd_config_submodule_fqn is not None:
            layers = [module.get_submodule(self.fwd_config_submodule_fqn)]
        else:
            layers = list(module.modules())
        configs = {layer.linear_mm_config for layer in layers if isinstance(layer, Float8Linear)}
        if len(configs) > 1:
            raise Float8AssertionError(
                "All the Float8Linear modules should have same linear_mm_config! Convert them with one config, or name "
                "one of them in fwd_config_submodule_fqn"
            )
        if not configs:
            raise Float8AssertionError(f"there is no Float8Linear in {type_name(module)}: convert the model first")
        (self.linear_mm_config,) = configs
        super()._apply(module, device_mesh)
        return module
