"""Tensor parallel styles that send FP8: inputs are cast before they are gathered, gradients before they are sent back.

Layers with one dynamic scale for input and grad_output are computed as torchao computes them, on DTensors of FP8. Those with a
scale for each row, and the layers of ingot.nn, are computed as ingot.nn's own styles do (ingot/nn/_tensor_parallel.py).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn as nn
from torch.distributed._tensor import DTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from .. import nn as ingot_nn
from ..nn._tensor_parallel import require_same_division
from ..torch._errors import Float8AssertionError, Float8RuntimeError, Float8ValueError
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


def _is_torchaos(module: nn.Module) -> bool:
    """Is it computed as torchao's layers are?"""
    return isinstance(module, Float8Linear) and _float8_linear_supports_float8_allgather(module)


def _require_supported(module: nn.Module) -> None:
    if isinstance(module, Float8Linear):
        if module._gives_scales or module.options.casts is None or module.config.emulate:
            raise Float8AssertionError(
                f"unsupported: {module} has delayed or static scales, or is emulated, and ranks cannot divide it: use dynamic "
                'scales, or ingot.nn.Float8Linear with recipe="delayed"'
            )
    elif isinstance(module, nn.Linear) and not isinstance(module, ingot_nn.Float8Linear):
        raise Float8ValueError(
            f"Expecting module to be Float8Linear but found {type_name(module)}: convert the model first, or use "
            "PyTorch's own style for this layer"
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
    """What both styles do for a Float8Linear of one dynamic scale, by the DTensors of PyTorch's style. They raise ValueError for
    another module and AssertionError for scales with which ranks cannot divide a layer."""

    _prepare_input_fn = staticmethod(_prepare_input)
    _prepare_output_fn = staticmethod(_prepare_output)
    _of_pytorch: type

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if _is_torchaos(module):
            require_same_division(self, module, device_mesh)
            return self._of_pytorch._apply(self, module, device_mesh)
        _require_supported(module)
        return super()._apply(module, device_mesh)


class Float8ColwiseParallel(_OfFloat8Linear, ingot_nn.Float8ColwiseParallel):
    """ColwiseParallel for a Float8Linear, whose input is gathered in FP8, and ingot.nn's style for the layers of ingot.nn."""

    _of_pytorch = ColwiseParallel


class Float8RowwiseParallel(_OfFloat8Linear, ingot_nn.Float8RowwiseParallel):
    """RowwiseParallel for a Float8Linear, whose gradient is gathered in FP8, and ingot.nn's style for the layers of ingot.nn."""

    _of_pytorch = RowwiseParallel


class PrepareFloat8ModuleInput(ingot_nn.PrepareFloat8ModuleInput):
    """PrepareModuleInput which casts to FP8 before it gathers, so that layers that share an input gather it once.

    The GEMMs are configured as those of the submodule `fwd_config_submodule_fqn`, or of every Float8Linear in the
    module, which then have to be alike. Raises NotImplementedError for another dtype than e4m3, AssertionError where
    layers differ or there is none. For layers that ingot.nn's styles compute it is ingot.nn's.
    """

    linear_mm_config: Optional[LinearMMConfig] = None

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
        torchaos = [layer for layer in layers if isinstance(layer, Float8Linear) and not _is_ours(layer)]
        if not torchaos and any(isinstance(layer, ingot_nn.Float8Linear) for layer in layers):
            return super()._apply(module, device_mesh)
        configs = {layer.linear_mm_config for layer in torchaos}
        if len(configs) > 1 or (torchaos and any(_is_ours(layer) for layer in layers)):
            raise Float8AssertionError(
                "All the Float8Linear modules should have same linear_mm_config! Convert them with one config, or name "
                "one of them in fwd_config_submodule_fqn"
            )
        if not configs:
            raise Float8AssertionError(f"there is no Float8Linear in {type_name(module)}: convert the model first")
        (self.linear_mm_config,) = configs
        PrepareModuleInput._apply(self, module, device_mesh)
        return module


def _is_ours(layer: nn.Module) -> bool:
    """Do ingot.nn's styles compute this layer?"""
    return isinstance(layer, ingot_nn.Float8Linear) and not _is_torchaos(layer) and layer.config_of_part is not None
