"""A whole weight in FP8, as FSDP2 gathers it for a layer. To PyTorch it is a tensor of the dtype that was cast; Ingot's
operators get its codes and their scale_inv in its place, and so layers take it like any other weight."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch

from ._errors import LinearError

aten = torch.ops.aten

# ---- which codes ----


class Casts(NamedTuple):
    """How the GEMMs of a layer read its weight (out_features, in_features), or each of a stack of experts (experts, out_features,
    in_features).

    dtype: of the codes. output: the elements that share a scale in the codes that the GEMM of the output reads: "tensor",
    "row" or "128x128". grad_input: in those that the GEMM of grad_input reads: the same word where it reads the same codes,
    else "col" or "tensor". pow2: are scales powers of two? delayed: is the scale that of the layer's buffers?
    """

    dtype: torch.dtype
    output: str
    grad_input: str
    pow2: bool
    delayed: bool = False

    @property
    def alternates(self) -> bool:
        """Do forward and backward read different codes?"""
        return self.output != self.grad_input

    @property
    def is_of_all_parts(self) -> bool:
        """Is its scale that of the whole weight where tensor parallelism divides it? All others are those of a rank's part."""
        return self.output == self.grad_input == "tensor"

    def kind(self, backward: bool) -> str:
        return self.grad_input if backward else self.output


def scale_inv_count(kind: str, *shape: int) -> int:
    """How many scale_inv the codes of a matrix have, or of a stack of matrices, each of which has its own."""
    *experts, rows, columns = shape
    if kind == "128x128":
        of_each = -(-rows // 128) * -(-columns // 128)
    else:
        of_each = {"tensor": 1, "row": rows, "col": columns}[kind]
    return of_each * math.prod(experts)


def is_shared(kind: str, dimensions: int) -> bool:
    """Are the scales of a weight that is sharded along its first dimension those of all ranks' values? Those of a stack of
    experts are each expert's, which is whole."""
    return dimensions == 2 and kind in ("tensor", "col")


# ---- the weight ----


class Turn:
    """What the memory of a gathered weight holds now. holds: False for the codes of forward, True for those of backward, None for
    both. again makes codes and scale_inv of the kind that is not there: again(backward) -> (codes, scale_inv)."""

    __slots__ = ("again", "holds")

    def __init__(self) -> None:
        self.holds: Optional[bool] = None
        self.again: Optional[Callable] = None


class GatheredWeight(torch.Tensor):
    """codes: float8 of the weight's shape, contiguous; scale_inv: float32, as many as Casts.output has, in a row.
    of_backward: None, or the scale_inv of Casts.grad_input where that reads other codes, which then take the place of the
    first ones in the same memory while a backward runs. turn: which of the two are there, also to aliases.

    FSDP frees the memory of all, and fills it again; this object stays. own_amax: of delayed scales, max |x| of this rank's
    shard, float32 of one element, which the layer's forward notes.
    """

    is_of_ingot = True

    __slots__ = ("own_amax", "codes", "of_backward", "scale_inv", "second_codes", "turn")

    @staticmethod
    def __new__(cls, codes, scale_inv, of_backward, second_codes, own_amax, dtype, requires_grad: bool = False):
        self = torch.Tensor._make_wrapper_subclass(
            cls, codes.size(), strides=codes.stride(), storage_offset=0, dtype=dtype, device=codes.device,
            requires_grad=requires_grad,
        )  # fmt: skip
        self.codes, self.scale_inv, self.of_backward, self.second_codes = codes, scale_inv, of_backward, second_codes
        self.own_amax: Optional[torch.Tensor] = own_amax
        self.turn = Turn()
        return self

    def _like(self, codes: torch.Tensor, second_codes: Optional[torch.Tensor], dtype: Optional[torch.dtype] = None):
        new = GatheredWeight(codes, self.scale_inv, self.of_backward, second_codes, self.own_amax, dtype or self.dtype)
        new.turn = self.turn
        return new

    @property
    def in_turn(self) -> bool:
        """Do the codes of backward take the place of those of forward?"""
        return self.of_backward is not None and self.second_codes is None

    def has(self, backward: bool) -> bool:
        """Are the codes there that a forward or a backward reads?"""
        return self.turn.holds is not (not backward)

    def read_by(self, backward: bool) -> Tuple[torch.Tensor, torch.Tensor]:
        """The codes and scale_inv that a forward or a backward reads."""
        if self.of_backward is None:
            return self.codes, self.scale_inv
        if self.turn.holds is (not backward) and self.turn.again is not None:
            return self.turn.again(backward)
        if not backward:
            return self.codes, self.scale_inv
        return (self.codes if self.second_codes is None else self.second_codes), self.of_backward

    def __tensor_flatten__(self):
        return [name for name in _TENSORS if getattr(self, name) is not None], {"dtype": self.dtype}

    @staticmethod
    def __tensor_unflatten__(inner, metadata, outer_size, outer_stride):
        return GatheredWeight(*map(inner.get, _TENSORS), metadata["dtype"])

    def __repr__(self) -> str:
        return f"GatheredWeight(shape={tuple(self.shape)}, codes={self.codes.dtype}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol: Any):
        raise LinearError(
            "a weight that FSDP has gathered in FP8 cannot be copied or saved: its memory is FSDP's; take the sharded "
            "parameters, as state_dict() has them"
        )

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "ingot":
            return func(*_with_codes(func, args, kwargs), **kwargs)
        source = args[0]
        if func in (aten.detach.default, aten.alias.default):
            return source._like(source.codes, source.second_codes)
        if func in (aten.zeros_like.default, aten.empty_like.default, aten.new_zeros.default):  # of gradients
            plain = torch.empty((), dtype=source.dtype, device=source.device).expand(source.shape)
            return func(plain, *args[1:], **kwargs)
        if func is aten.as_strided.default and _is_first_rows(source, *args[1:]):
            views = [None if each is None else func(each, *args[1:]) for each in (source.codes, source.second_codes)]
            return source._like(*views)
        if func in _VIEWS and tuple(getattr(args[1], "shape", args[1])) == tuple(source.shape):
            return source._like(source.codes, source.second_codes)
        raise LinearError(
            f"{func} of a weight that FSDP has gathered in FP8, which Ingot's layers multiply by and nothing else can "
            "read: leave this weight out of the gather in FP8 (float8_all_gather(model, filter=...))"
        )

    __torch_function__ = torch._C._disabled_torch_function_impl


# By a size, or as another tensor: a DTensor's local one in inference mode.
_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.view_as.default}


def _is_first_rows(weight: GatheredWeight, size, stride, offset: int = 0) -> bool:
    """FSDP takes away the rows, or experts, by which shards were padded."""
    same = tuple(size[1:]) == tuple(weight.shape[1:]) and tuple(stride) == tuple(weight.stride()) and offset == 0
    return same and size[0] <= weight.shape[0]


_TENSORS = ("codes", "scale_inv", "of_backward", "second_codes", "own_amax")  # in the order of GatheredWeight()
_NAMES: dict = {}


def _with_codes(func, args: tuple, kwargs: dict) -> list:
    """The positional arguments with the codes of gathered weights; kwargs gets their scale_inv."""
    names = _NAMES.get(func)
    if names is None:
        names = _NAMES[func] = tuple(argument.name for argument in func._schema.arguments)
    backward = func._schema.name.endswith("_backward")
    given = list(args)
    for at, value in enumerate(given):
        if type(value) is GatheredWeight:
            if not backward and value.in_turn and _is_recomputed_in_graph():
                raise LinearError(
                    f"a weight {tuple(value.shape)} that FSDP gathers in FP8 for forward and backward in turn: activation "
                    "checkpointing runs its forward again within a compiled backward, where the codes of backward are: call "
                    "float8_all_gather(model, recomputed=True), or wrap the module with checkpoint_wrapper(), or leave "
                    "enable_fsdp_float8_all_gather off"
                )
            given[at], scale_inv = value.read_by(backward)
            place = names.index(names[at] + "_scale_inv")
            if place < len(given):
                given[place] = scale_inv
            else:
                kwargs[names[place]] = scale_inv
    return given


def _is_recomputed_in_graph() -> bool:
    """While a compiler traces: will what is traced run again in backward?"""
    return "recompute" in torch.fx.traceback.get_current_meta()


def is_gathered(weight: Any) -> bool:
    return isinstance(weight, GatheredWeight)
