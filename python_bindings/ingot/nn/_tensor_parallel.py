"""Tensor and sequence parallel styles for the layers of ingot.nn, for torch's parallelize_module(): what ranks exchange is FP8
where one set of codes serves all that reads it. docs/distributed.md says what each recipe sends."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from .._text import counted
from ..torch._checks import refuse
from ..torch._errors import Float8NotImplementedError
from ..torch._linear import in_autocasts_dtype
from ..torch._modules import is_ingot_layer, type_name
from ..torch._parallel_linear import PartOf, gathered_input
from ._divided import Division, dtype_name, require_same, slots_of
from ._float8_linear import Float8Linear
from ._mlp import GatedMlp, Mlp
from ._norm_linear import _NormLinear
from ._parts import LinearParameters
from ._shared_input import SharedInputLinears


def _subject(style: Any, module: nn.Module) -> str:
    name = getattr(module, "layer_name", "") if is_ingot_layer(module) else ""
    return type(style).__name__ + (f' of linear "{name}"' if name else "")


def _check_divisible(style: Any, module: nn.Module, mesh: DeviceMesh, is_row: bool) -> None:
    """Refuses what the style cannot divide, with what to do."""
    subject = _subject(style, module)
    if mesh.ndim != 1:
        refuse(subject, f"mesh: has {mesh.ndim} dimensions, expected one: give mesh[\"tp\"], say")
    if isinstance(module, (Mlp, GatedMlp)):
        first = "gate_proj and up_proj" if isinstance(module, GatedMlp) else "up_proj"
        refuse(
            subject,
            f"takes no {type_name(module)} as a whole: name its parts in the plan, {first} with Float8ColwiseParallel and "
            "down_proj with Float8RowwiseParallel",
        )
    if isinstance(module, SharedInputLinears):
        refuse(subject, f"takes no {type_name(module)} as a whole: name its layers in the plan, with Float8ColwiseParallel")
    if isinstance(module, _NormLinear) and is_row:
        refuse(
            subject,
            f"a {type(module).__name__} normalises all features of its input, of which a row-parallel layer has a part: use "
            "Float8ColwiseParallel, or a norm and a Float8Linear",
        )
    if not isinstance(module, (Float8Linear, _NormLinear, LinearParameters)):
        refuse(
            subject,
            f"takes layers of ingot.nn, got a {type_name(module)}: convert it first, or use torch's own style",
        )
    activation = getattr(getattr(module, "options", None), "activation", "")
    if activation and is_row:
        refuse(
            subject,
            f"the activation {activation!r} is applied to the sum over all ranks, which no GEMM has: apply it after the layer",
        )
    if getattr(module, "_division", None) is not None or isinstance(module._parameters.get("weight"), DTensor):
        refuse(subject, "its weight is divided already: call parallelize_module() once for each layer, before fully_shard()")


def require_same_division(style: Any, module: nn.Module, mesh: DeviceMesh) -> None:
    """Raises LinearError, on every rank, where ranks divide other layers, or by other styles: they would wait for each other, or
    take each other's values for their own. What an MLP's parts are computed by is asked at its first call."""
    if mesh.size() == 1:
        return
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    of_weight = "no weight" if weight is None else f"weight {list(weight.shape)} {dtype_name(weight.dtype)}"
    if weight is not None:
        of_weight = f"a {of_weight}" if weight.requires_grad else f"a frozen {of_weight}"
    of_bias = "no bias" if bias is None else f"a {dtype_name(bias.dtype)} bias"
    recipe = getattr(getattr(module, "options", None), "recipe", "a part")
    layouts = f"from {style.input_layouts[0]} to {style.output_layouts[0]}{'' if style.use_local_output else ' as a DTensor'}"
    part = f"{_subject(style, module)} of {of_weight} and {of_bias}, {getattr(module, 'config_of_part', recipe)}, {layouts}"
    require_same(mesh, part)


def _divide(style: Any, module: nn.Module, mesh: DeviceMesh, is_row: bool) -> nn.Module:
    _check_divisible(style, module, mesh, is_row)
    require_same_division(style, module, mesh)
    for name in ("weight", "bias"):
        tensor = module._parameters.get(name)
        if tensor is None:
            continue
        placement = Shard(0) if not is_row else Shard(1) if name == "weight" else Replicate()
        source = getattr(style, "src_data_rank", 0)
        part = distribute_tensor(tensor, mesh, [placement], src_data_rank=source)
        module.register_parameter(name, nn.Parameter(part, requires_grad=tensor.requires_grad))
    (layout_in,), (layout_out,) = style.input_layouts, style.output_layouts
    module._division = Division(mesh, is_row, layout_in, layout_out, style.use_local_output)
    return module


class Float8ColwiseParallel(ColwiseParallel):
    """torch's ColwiseParallel for a layer of ingot.nn: Float8Linear, LayerNormLinear, RMSNormLinear, the layers of
    SharedInputLinears, and up_proj (gate_proj) of an Mlp or a GatedMlp of two layers.

    Ranks have rows of the weight. With input_layouts=Shard(0) or Shard(1) they divide the tokens, which are gathered as FP8
    codes where the recipe allows it (docs/distributed.md). A norm runs before, on the tokens that a rank has.

    Raises ingot.Error for other modules. Plain tensors are equal parts; DTensors may be unequal ones.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _divide(self, module, device_mesh, False)


class Float8RowwiseParallel(RowwiseParallel):
    """torch's RowwiseParallel for a layer of ingot.nn: Float8Linear, and down_proj of an Mlp or a GatedMlp.

    Ranks have columns of the weight, and the output is a sum over them. With output_layouts=Shard(0) or Shard(1) each gets
    that of its tokens, and grad_output is gathered as FP8 codes where the recipe allows it (docs/distributed.md).

    Raises ingot.Error for other modules.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _divide(self, module, device_mesh, True)


class PrepareFloat8ModuleInput(PrepareModuleInput):
    """torch's PrepareModuleInput for a module whose column-parallel layers of ingot.nn share its input (q, k and v; gate and
    up): the input is cast and gathered once, as FP8 codes where the layers' recipe allows it, else as values.

    fwd_config_submodule_fqn: the layer by which the input is cast; by default all of the module, which have one recipe then.
    Codes are for these layers alone; whatever else reads them raises an ingot.Error. Raises ingot.Error for a module
    without such layers, and for layers of several recipes.
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
        self.fwd_config_submodule_fqn = fwd_config_submodule_fqn

    def _layers_of(self, module: nn.Module) -> Dict[str, nn.Module]:
        if self.fwd_config_submodule_fqn is not None:
            return {self.fwd_config_submodule_fqn: module.get_submodule(self.fwd_config_submodule_fqn)}
        # A row-parallel layer may have another recipe: its input is not this one.
        return {
            name: each
            for name, each in module.named_modules()
            if isinstance(each, Float8Linear) and not (each._division is not None and each._division.is_row)
        }

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layers = {name: each for name, each in self._layers_of(module).items() if isinstance(each, Float8Linear)}
        if not layers:
            refuse(
                "PrepareFloat8ModuleInput",
                f"there is no Float8Linear in {type_name(module)}, as which the input would be cast: convert the model first, or "
                "use torch's PrepareModuleInput",
            )
        if len({layer.config_of_part for layer in layers.values()}) > 1:
            each = ", ".join(f"{name}: {layer.config_of_part}" for name, layer in layers.items())
            refuse(
                "PrepareFloat8ModuleInput",
                f"the layers of {type_name(module)} have several recipes ({each}), and its input is cast once: give them one, "
                "or name one of them in fwd_config_submodule_fqn",
            )
        prepared = _Prepared(self, tuple(layers), Division(device_mesh, False, Replicate(), Shard(-1), True))
        if self.with_kwargs:
            module.register_forward_pre_hook(prepared.with_kwargs, with_kwargs=True)
        else:
            module.register_forward_pre_hook(prepared.of_inputs)
        return module

    def _arg(self, prepared: "_Prepared", module: nn.Module, input: Any, layout: Any, desired: Any) -> Any:
        if layout is None:
            return input
        if not isinstance(input, torch.Tensor):
            refuse("PrepareFloat8ModuleInput", f"input: is a {type_name(input)}, expected a torch.Tensor")
        division, is_dtensor = prepared.division, isinstance(input, DTensor)
        division.agree("PrepareFloat8ModuleInput", module.get_submodule(prepared.layers[0]).config_of_part, input)
        if desired is not None and desired.is_replicate():
            dim = division.tokens_dim(input.placements[0] if is_dtensor else layout, input.shape, is_dtensor)
            if dim is not None:
                layers = [module.get_submodule(name) for name in prepared.layers]
                gathered = _gathered(input.to_local() if is_dtensor else input, layers, division, dim)
                if gathered is not None:
                    return gathered
        return super()._prepare_input_arg(input, division.mesh, layout, desired)


class _Prepared:
    """The hooks of one module. layers: the names in it of those that share its input."""

    def __init__(self, style: PrepareFloat8ModuleInput, layers: Tuple[str, ...], division: Division) -> None:
        self.style, self.layers, self.division = style, layers, division

    def of_inputs(self, module: nn.Module, inputs: tuple) -> tuple:
        layouts, desired = self.style.input_layouts, self.style.desired_input_layouts
        if layouts is None:
            return inputs
        if len(inputs) != len(layouts):
            refuse(
                "PrepareFloat8ModuleInput",
                f"{type_name(module)} is called with {counted(len(inputs), 'input', 'inputs')}, and input_layouts has {len(layouts)}: name a layout, "
                "or None, for each",
            )
        return tuple([self.style._arg(self, module, *each) for each in zip(inputs, layouts, desired)])

    def with_kwargs(self, module: nn.Module, inputs: tuple, named: dict) -> tuple:
        layouts, desired = self.style.input_kwarg_layouts, self.style.desired_input_kwarg_layouts
        arguments = {
            name: self.style._arg(self, module, value, layouts.get(name), desired.get(name)) for name, value in named.items()
        }
        return self.of_inputs(module, inputs), arguments


def _gathered(input: torch.Tensor, layers: List[nn.Module], division: Division, dim: int):
    """The codes of all tokens; None if the layers read values."""
    first = layers[0]
    name = "linear" if torch.compiler.is_compiling() else first.name_of_part
    part = PartOf(first.config_of_part, name, False, division.ranks, dim)
    input = in_autocasts_dtype(input)
    trains = torch.is_grad_enabled() and any([each.weight.requires_grad for each in layers])
    of = (first.in_features, first.out_features, input.dtype, first.weight.dtype, None, trains, False)
    slots = slots_of(first.scales_of_call(input))
    return gathered_input(input, of, part, None if slots is None else slots[0], values_too=False)
