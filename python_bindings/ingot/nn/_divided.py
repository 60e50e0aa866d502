"""A layer of ingot.nn that the ranks of a mesh divide: how its input comes, where its output goes, and the call of its part
(ingot/torch/_parallel_linear.py). The styles of _tensor_parallel.py make it."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..torch._checks import refuse
from ..torch._errors import LinearError
from ..torch._handshake import facts_of_ranks, other_rank
from ..torch._linear import in_autocasts_dtype
from ..torch._module_calls import DelayedScales
from ..torch._parallel_linear import GatheredInput, PartOf, run_part, with_summed_gradient
from ..torch._parallel_scales import DelayedSlot
from ..torch._ranks import ranks_of
from ..torch._sharded_weight import gathered_of, largest_of, over


def _row_of_starts(starts: torch.Tensor, layer: int) -> torch.Tensor:
    """starts_of() one of a module's layers."""
    for at in reversed(range(starts.dim() - 1)):
        if at != layer:
            starts = starts.select(at, 0)
    return starts


def slots_of(delayed: Optional[DelayedScales], layer: int = 0, of_input: int = 0):
    """The slots of one of a module's layers, whose input has the scale of the layer `of_input`."""
    if delayed is None:
        return None
    scale, amax = delayed.scale.view(-1, 3), delayed.amax.view(-1, 3)

    def slot(row: int, role: int) -> DelayedSlot:
        starts = _row_of_starts(delayed.starts, row)
        return DelayedSlot(scale[row, role : role + 1], amax[row, role : role + 1], starts, role)

    return slot(of_input, 0), slot(layer, 1), slot(layer, 2)


def values_of(input: Any) -> torch.Tensor:
    """What has an input's shape, device and dtype."""
    return input.values if isinstance(input, GatheredInput) else input


def local(tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """This rank's part of a parameter."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require_same(mesh: DeviceMesh, what: str, details: Tuple[str, ...] = ()) -> Optional[List[str]]:
    """Before the first collective of a layer that ranks divide: raises LinearError, on every rank, where one of them does
    something else than `what`. Returns the ranks' details where these alone differ, and else None."""
    exchanges = [partial(over, (mesh,), ask=each) for each in (largest_of, gathered_of)]
    of_ranks = facts_of_ranks((what, *details), *exchanges)
    if of_ranks is None:
        return None
    does = [each[0] for each in of_ranks]
    if len(set(does)) == 1:
        return [each[1] for each in of_ranks]
    other = other_rank(does)
    raise LinearError(
        f"the ranks divide different layers: rank 0 comes to {does[0]}, and rank {other} to {does[other]}: convert and divide "
        "the same layers on every rank, and give them inputs of one dtype"
    )


class Division:
    """How the ranks of a mesh of one dimension divide a layer. is_row: by the columns of its weight, which a row-parallel
    style does. input_layout, output_layout: of plain tensors that come, and of what goes; use_local_output: does it go as a
    plain tensor?"""

    def __init__(
        self, mesh: DeviceMesh, is_row: bool, input_layout: Placement, output_layout: Placement, use_local_output: bool
    ) -> None:
        self.mesh, self.is_row, self.ranks = mesh, is_row, ranks_of(mesh)
        self.input_layout, self.output_layout, self.use_local_output = input_layout, output_layout, use_local_output
        self._agreed = self.ranks.size == 1

    def __deepcopy__(self, memo: dict) -> "Division":
        return Division(self.mesh, self.is_row, self.input_layout, self.output_layout, self.use_local_output)

    def __repr__(self) -> str:
        return f"{'columns' if self.is_row else 'rows'} of its weight on {self.ranks.size} ranks"

    # ---- layouts ----

    def tokens_dim(self, layout: Placement, shape: Tuple[int, ...], whole: bool) -> Optional[int]:
        """The dimension of the tokens that this layout divides in equal parts; None for another one. whole: is it the shape of
        all ranks' tokens?"""
        if not layout.is_shard() or self.ranks.size == 1:
            return None
        dim = layout.dim % len(shape)
        if dim == len(shape) - 1 or (whole and shape[dim] % self.ranks.size):
            return None
        return dim

    def agree(self, subject: str, config: Any, input: torch.Tensor) -> None:
        """At the first call: do all ranks compute alike, and have their plain tensors the same tokens? Where not, they would wait
        for each other."""
        if self._agreed or torch.compiler.is_compiling() or input.is_meta or isinstance(input, FakeTensor):
            return
        kind = "a DTensor" if isinstance(input, DTensor) else "a plain tensor"
        dtype = dtype_name(in_autocasts_dtype(input).dtype)
        call = f"a call of {subject}, {config}, with {kind} of {dtype}{'' if torch.is_grad_enabled() else ' without gradients'}"
        of_ranks = require_same(self.mesh, call, () if isinstance(input, DTensor) else (str(tuple(input.shape[:-1])),))
        if of_ranks is not None:
            refuse(
                subject,
                f"input: has tokens of other sizes on other ranks, {', '.join(of_ranks)}, and a plain tensor is one of equal "
                "parts: pad the tokens, or give DTensors (use_local_output=False in the style of the layer before)",
            )
        self._agreed = True

    def _as_dtensor(self, input: torch.Tensor) -> DTensor:
        return DTensor.from_local(input, self.mesh, (self.input_layout,), run_check=False)

    # ---- a call ----

    def run(
        self, options, config, input: Any, weight: torch.Tensor, bias: Optional[torch.Tensor], slots, name: str
    ) -> torch.Tensor:
        """The layer's output in its layout. options: the layer's, or its module's; config: a recipe's name, or casts; slots:
        those of delayed scales; name: in messages."""
        name = "linear" if torch.compiler.is_compiling() else name  # equal layers share a graph
        part = PartOf(config, name, self.is_row, self.ranks, None, options.keep_weight_codes)
        if getattr(weight, "main_grad", None) is not None:
            refuse(part.subject, "main_grad: is set, and a weight that ranks divide gets its gradient in .grad: delete it")
        if self.is_row:
            return self._row(part, input, local(weight), local(bias), slots)
        return self._column(part, input, local(weight), local(bias), slots, weight.shape[0])

    def _checked(self, part: PartOf, input: Any) -> None:
        if not isinstance(input, torch.Tensor):
            refuse(part.subject, f"input: is a {type(input).__name__}, expected a torch.Tensor")
        if input.dim() == 0:
            refuse(part.subject, "input: has no dimensions, expected (..., in_features)")
        if isinstance(input, DTensor) and input.device_mesh.ndim != 1:
            refuse(
                part.subject,
                f"input: is a DTensor on a mesh of {input.device_mesh.ndim} dimensions, expected one on the mesh that divides "
                "the layer",
            )
        self.agree(part.subject, part.config, input)

    def _column(self, part: PartOf, input, weight, bias, slots, features: int) -> torch.Tensor:
        if not isinstance(input, GatheredInput):
            self._checked(part, input)
            input, part = self._column_input(part, input)
        elif input.codes is not None and self.ranks.size > 1:
            part = part.with_tokens(0)  # as the input is divided, it has the scale of all parts
        output = run_part(input, weight, bias, part, slots)
        return self._given_out(output, Shard(output.dim() - 1), (*output.shape[:-1], features))

    def _column_input(self, part: PartOf, input: torch.Tensor):
        """The input as run_part() takes it."""
        if self.ranks.size == 1:
            return local(input), part
        if isinstance(input, DTensor):
            tokens = self.tokens_dim(input.placements[0], input.shape, True)
            if tokens is not None:
                return input.to_local(), part.with_tokens(tokens)
            if not input.placements[0].is_replicate():
                input = input.redistribute(placements=(Replicate(),))
            return input.to_local(grad_placements=(Partial(),)), part
        if self.input_layout.is_replicate():
            return with_summed_gradient(in_autocasts_dtype(input), self.ranks), part
        tokens = self.tokens_dim(self.input_layout, input.shape, False)
        if tokens is not None:
            return input, part.with_tokens(tokens)
        whole = self._as_dtensor(input).redistribute(placements=(Replicate(),))
        return whole.to_local(grad_placements=(Partial(),)), part

    def _row(self, part: PartOf, input, weight, bias, slots) -> torch.Tensor:
        if isinstance(input, GatheredInput):
            refuse(
                part.subject,
                "input: was gathered as FP8 codes for column-parallel layers, and this one has columns of its weight: leave "
                "PrepareFloat8ModuleInput out in front of it",
            )
        self._checked(part, input)
        input = self._row_input(part, input, weight)
        shape = (*input.shape[:-1], weight.shape[0])
        tokens = self.tokens_dim(self.output_layout, shape, True)
        is_whole = self.output_layout.is_replicate() or self.ranks.size == 1
        if tokens is not None or is_whole:
            output = run_part(input, weight, bias, part.with_tokens(tokens), slots)
            return self._given_out(output, Replicate() if tokens is None else Shard(tokens))
        # Something else divides or sums it.
        output = run_part(input, weight, None, part.with_tokens(None, sums=False), slots)
        output = DTensor.from_local(output, self.mesh, (Partial(),), run_check=False)
        output = output.redistribute(placements=(self.output_layout,))
        if bias is not None:
            output = output + DTensor.from_local(bias.to(output.dtype), self.mesh, (Replicate(),), run_check=False)
        return output.to_local() if self.use_local_output else output

    def _row_input(self, part: PartOf, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.ranks.size == 1:
            return local(input)
        columns = Shard(input.dim() - 1)
        if isinstance(input, DTensor) or self.tokens_dim(self.input_layout, input.shape, False) is not None:
            input = input if isinstance(input, DTensor) else self._as_dtensor(input)
        elif not self.input_layout.is_shard():
            input = self._as_dtensor(input)
        if isinstance(input, DTensor):
            placement = input.placements[0]
            if not placement.is_shard() or placement.dim % input.dim() != input.dim() - 1:
                input = input.redistribute(placements=(columns,))
            input = input.to_local()
        if input.shape[-1] != weight.shape[1]:
            refuse(
                part.subject,
                f"input: has {input.shape[-1]} features on this rank, whose part of the weight takes {weight.shape[1]}: the "
                "layer before has to be divided by the same mesh, or name the layout of the input in input_layouts",
            )
        return input

    def _given_out(
        self, output: torch.Tensor, layout: Placement, shape: Optional[Tuple[int, ...]] = None
    ) -> torch.Tensor:
        """In the layout of the output, as a plain tensor or a DTensor. shape: of all parts, which may be unequal."""
        wanted = self.output_layout
        if wanted.is_shard() and wanted.dim < 0:
            wanted = Shard(wanted.dim + output.dim())
        if self.ranks.size == 1:
            layout = wanted
        if layout == wanted and self.use_local_output:
            return output
        sizes = {} if shape is None else {"shape": torch.Size(shape), "stride": _contiguous(shape)}
        made = DTensor.from_local(output, self.mesh, (layout,), run_check=False, **sizes)
        if layout != wanted:
            made = made.redistribute(placements=(wanted,))
        return made.to_local() if self.use_local_output else made


def _contiguous(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))
