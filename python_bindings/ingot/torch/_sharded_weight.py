"""A weight that FSDP2 gathers in FP8: each rank casts its shard as a cast of the whole weight would, and bytes are sent.

FSDP's parameters stay in high precision. A gather sends the codes that the next GEMM reads (Casts): for most recipes forward
and backward read the same. A scale of the whole weight, or of its columns, needs the maxima of all ranks, and the scale_inv of
rows and blocks those of the other ranks' rows: precompute() of _shard_gather.py asks for them for all weights of a model at
once. A stack of experts (experts, N, K) is sharded by experts, each of which is whole and has its own scales: no maxima are
reduced. Codes are made when a gather begins (_unit_casts.py). Of a weight that tensor parallelism divides too, what FSDP
gathers is a rank's part, which its layer casts by itself: only one scale of the whole weight is of the other parts' maxima, too.
"""

from __future__ import annotations

import inspect
import math
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.distributed import _functional_collectives as collectives
from torch.distributed.tensor import DTensor

from ._errors import LinearError
from ._fsdp_units import Unit, is_recomputed, unit_of
from ._gathered_weight import Casts, GatheredWeight, scale_inv_count
from ._other_gathers import is_flattened, refuse_fsdp1
from ._names import UNNAMED, all_layers, name_where
from ._saying import say_once
from ._shard_casts import Known, ShardCast, rounded, rows_of
from ._shard_plan import Asks, CodesPlan, Part
from ._unit_casts import Wanted, casts_of, copy_over, read_on_this_stream, scaled

aten = torch.ops.aten

# FSDP pads and moves its shard with views and with these, whose results have to stay of the class: with what is known where
# the values are the same, ...
_COPIES = {aten._pin_memory.default, aten._to_copy.default, aten.clone.default}
# ... and without it where they are new. What is copied into them later brings nothing along, but into zeros: FSDP pads shards
# so, again and again on ranks with fewer rows, and what ranks know has to be the same.
_ZEROS = {aten.new_zeros.default, aten.zeros_like.default}
_NEW = {aten.empty_like.default, aten.new_empty.default, *_ZEROS}


# ---- how it is gathered ----


class Gather(NamedTuple):
    """How a weight is gathered: mode "high_precision"; "codes", the same for forward and backward; "in_turn", those of
    forward for a forward and those of backward for a backward; or "both"."""

    mode: str


class _Ranks(NamedTuple):
    """The ranks that a weight is sharded over: one where each has all of it, whatever the mesh has."""

    mesh: Any
    count: int

    def size(self) -> int:
        return self.count


class _Asked(NamedTuple):
    """What FSDP asks a weight's gather for; dtype: what values are rounded to before the cast, or None."""

    gather: Gather
    mesh: _Ranks
    outer_size: torch.Size
    dtype: Optional[torch.dtype]

    def sides(self, backward: bool) -> Tuple[int, ...]:
        """Which codes are sent."""
        return {"in_turn": (int(backward),), "both": (0, 1)}.get(self.gather.mode, (0,))

    @property
    def asks(self) -> Asks:
        return asks_of(self.mesh.mesh)


class _Sent(NamedTuple):
    """What a gather tells of itself: its mode, which codes were sent, and the scale_inv of forward and backward; `scale` of codes
    that have one; amax: ShardCast.amax; stays: does the weight outlive this gather? together: of all weights of the unit."""

    gather: Gather
    backward: bool
    mesh: _Ranks
    outer_size: torch.Size
    scale_inv: Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]
    scale: Optional[torch.Tensor] = None
    amax: Optional[torch.Tensor] = None
    stays: bool = True
    together: Any = None

    @property
    def tensors(self) -> Tuple[Optional[torch.Tensor], ...]:
        return (*self.scale_inv, self.scale, self.amax)


def _decided(weight: "ShardedWeight", mesh: Any, outer_size: torch.Size, unit: Optional[Unit]) -> Tuple[Gather, str]:
    """How to gather it, and why not in FP8, or not with one set of codes at a time; "" if there is nothing to say."""
    casts = weight._casts
    ranks = mesh.size()
    kinds = {casts.output, casts.grad_input}
    rows, is_stack = -(-outer_size[0] // ranks), len(outer_size) == 3
    if unit is not None and unit.keeps_a_part:
        raise LinearError(
            f"{weight.subject()} weight: FSDP gathers it in FP8, and cannot keep a part of that after forward "
            "(reshard_after_forward=<int>): set it to True or False"
        )
    if is_stack and weight._tensor.shape[1:] != outer_size[1:]:
        return Gather("high_precision"), "it is sharded within its experts: shard their number, dimension 0"
    if is_stack and unit is not None and unit.is_split_again and not unit.is_split_along_rows:
        return Gather("high_precision"), "another parallelism has split its experts too"
    if not is_stack and "128x128" in kinds and ranks > 1 and rows % 128 != 0:
        whose = "its" if unit is None or not unit.others else "a tensor-parallel rank's"
        return Gather("high_precision"), (
            f"{whose} {outer_size[0]} rows on {ranks} ranks are {rows} each, which are no whole blocks of 128: choose sizes or a "
            "shard_placement_fn with a multiple of 128 rows a rank"
        )
    if not is_stack and kinds != {"tensor"} and weight._tensor.shape[1:] != outer_size[1:]:
        return Gather("high_precision"), "it is sharded along its columns: shard its rows"
    if not casts.alternates:
        return Gather("codes"), ""
    if unit is not None and unit.reshards and not is_recomputed(unit):
        return Gather("in_turn"), ""
    why = (
        "its forward and backward read different codes, and "
        + ("FSDP does not say whether it frees the weight after forward" if unit is None else
           "activation checkpointing runs its forward again in backward" if unit.reshards else
           "FSDP does not free it after forward")
    )  # fmt: skip
    if unit is None or unit.gathered_dtype.itemsize <= 2 or ranks == 1:  # PyTorch takes one tensor of a single rank
        return Gather("high_precision"), why + ": both sets would be as many bytes as 16 bits"
    return Gather("both"), ""


def subject_of(name: str, dimensions: int) -> str:
    """What messages call a weight."""
    return f'{"experts" if dimensions == 3 else "linear"} "{name}"'


def _gather_of(weight: "ShardedWeight", mesh: Any, outer_size: torch.Size, unit: Optional[Unit]) -> Gather:
    """Decided when the weight is gathered first: FSDP's memory has that size from then on."""
    if unit is not None:
        found = vars(unit.parameter).get("_ingot_gather")
        if found is not None:
            return found
    gather, why = _decided(weight, mesh, outer_size, unit)
    if why:
        say_once(weight.subject(), f"FSDP gathers its weight in high precision: {why}")
    if unit is not None:
        unit.parameter._ingot_gather = gather
    return gather


def _decision(weight: "ShardedWeight") -> Optional[Gather]:
    unit = weight._unit()
    return None if unit is None else vars(unit.parameter).get("_ingot_gather")


def was_gathered(weight: "ShardedWeight") -> bool:
    return _decision(weight) is not None


def is_in_high_precision(weight: "ShardedWeight") -> bool:
    """Has it been gathered so? Before the first gather that is not known."""
    gather = _decision(weight)
    return gather is not None and gather.mode == "high_precision"


# ---- the weight ----


class ShardedWeight(torch.Tensor):
    """A weight that FSDP2 gathers in FP8.

    Holds the tensor, how its layer casts it (Casts), the layer's name, and whether values are rounded to the dtype of a
    gather in high precision before the cast (`rounds`), so that codes have the bits that they have without the gather.
    Operations see a plain tensor. What is known of the values in FP8 belongs to the memory: all aliases share it (.data,
    .detach(), views, slices, what state_dict() returns), and one that writes drops it, so that old codes are never used. Who
    writes past PyTorch, by a raw pointer, says so with weights_changed().
    """

    is_of_ingot = True
    _rounds = True

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, *_: Any, **__: Any):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=tensor.device,
            pin_memory=tensor.is_pinned(),
            requires_grad=tensor.requires_grad,
        )

    def __init__(self, tensor: torch.Tensor, casts: Casts, name: str = "linear", rounds: bool = True) -> None:
        self._tensor = tensor
        self._casts, self._name, self._rounds = casts, name, rounds
        self._known = Known(tensor)

    def _config(self) -> tuple:
        """The arguments of __init__ after the tensor, which __tensor_flatten__() gives compilers to compare."""
        return self._casts, self._name, self._rounds

    @property
    def data(self) -> "ShardedWeight":
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Raises an error for another shape or dtype: PyTorch would change what it knows of this tensor, but not its
        values."""
        if is_flattened(self):
            refuse_fsdp1(self.subject())
        if value.shape != self.shape or value.dtype != self.dtype or value.device != self.device:
            raise LinearError(
                f"the data of a weight that FSDP gathers in FP8 is {self.dtype} of shape {tuple(self.shape)} on "
                f"{self.device}, and cannot become {value.dtype} of shape {tuple(value.shape)} on {value.device}: make "
                "a new parameter"
            )
        is_same = isinstance(value, ShardedWeight)
        self._tensor = value._tensor if is_same else value.detach()
        self._known = value._known if is_same else Known(self._tensor)

    def _like(self, tensor: torch.Tensor) -> "ShardedWeight":
        return type(self)(tensor, *self._config())

    def _alias(self, tensor: torch.Tensor) -> "ShardedWeight":
        alias = self._like(tensor)
        alias._known = self._known
        return alias

    def _copy(self, tensor: torch.Tensor) -> "ShardedWeight":
        copy = self._like(tensor)
        cast = self._known.cast_of(self.dtype)
        if copy.dtype != self.dtype or copy.shape != self.shape:
            return copy
        rows = rows_of(copy._tensor)
        if copy.device != self.device:  # as FSDP brings parameters that are offloaded
            copy._known.unit = self._unit()
            cast = cast and cast.of(rows_of(self._tensor), cast.dtype).to(copy.device, rows)
        else:
            cast = cast and cast.scale_alone(rows)
        if cast is not None:
            copy._known.give(cast, copy.dtype, copy._tensor)
        return copy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "c10d":  # collectives write what they are given, and do not say so
            for each in _sharded_in((*args, *kwargs.values())):
                each._known.written()
        result = func(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
        if func is aten.copy_.default:
            return _after_copy(args[0], args[1])
        source = args[0] if args and isinstance(args[0], ShardedWeight) else None
        if func._schema.is_mutable:
            _forget_written(func, args, kwargs)
        elif source is None:
            return result
        elif func.is_view or func is aten._unsafe_view.default:
            return source._alias(result) if isinstance(result, torch.Tensor) else type(result)(map(source._alias, result))
        elif func in _COPIES:
            return source._copy(result)
        elif func in _NEW:
            new = source._like(result)
            new._known.is_zero = func in _ZEROS
            return new
        # What writes in place returns the tensor that it was given; what writes to lists of tensors returns nothing.
        return source if source is not None and result is source._tensor else result

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def __setstate__(self, state: dict) -> None:
        self._known = Known(state["_tensor"])
        for name in ("_tensor", *state):
            setattr(self, name, state[name])

    def __copy__(self) -> "ShardedWeight":
        alias = self._alias(self._tensor).requires_grad_(self.requires_grad)
        alias.__dict__.update(self.__dict__)
        return alias

    def share_memory_(self) -> "ShardedWeight":
        self._tensor.share_memory_()
        return self

    def is_shared(self) -> bool:
        return self._tensor.is_shared()

    def __tensor_flatten__(self):
        return ["_tensor"], self._config()

    @classmethod
    def __tensor_unflatten__(cls, inner_tensors, config, outer_size, outer_stride):
        return cls(inner_tensors["_tensor"], *config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tensor}, casts={self._casts})"

    # ---- its cast ----

    def scaled(self, dtype: Optional[torch.dtype], side: int) -> Optional[ShardCast]:
        """What is known of how this shard is cast, with the scales of this side; None: they have to be found."""
        known = self._known.cast_of(self.dtype)
        cast = None if known is None else known.of(rows_of(self._tensor), dtype)
        scale = None if cast is None else cast.scales[side]
        if scale is None or (cast.own[side] is None and cast.kept[side] is None and scale.dim() > 0):
            return None
        if cast.scale_inv[side] is None:  # a program has set the scale
            cast.scale_inv[side] = scale.reciprocal().reshape(-1)
        if cast is not known:
            self.knows(cast)
        return cast

    def knows(self, cast: ShardCast) -> None:
        self._known.give(cast, self.dtype, self._tensor, *self.watched())

    def wanted(self, asked: _Asked, side: int) -> Wanted:
        return Wanted(self, self.part(side, asked.dtype, asked.mesh.count, asked.outer_size, self._unit()), asked)

    def part(self, side: int, dtype: Optional[torch.dtype], ranks: int, whole: torch.Size, unit: Optional[Unit]) -> Part:
        """ranks: how many share the rows of what has the size `whole`."""
        others = unit.others if unit is not None and self.dim() == 2 and self._casts.is_of_all_parts else ()
        rows = rows_sent(ranks, whole, self._tensor)
        return Part(self.shard_values(), self._casts, side, dtype, rows, whole[0], others)

    def shard_values(self) -> torch.Tensor:
        """The shard, which plans read by its address in later steps too."""
        if not self._tensor.is_contiguous():
            raise LinearError(
                f"{self.subject()} weight: the shard that FSDP gathers in FP8 is not contiguous, its shape is "
                f"{tuple(self.shape)} and its strides are {self._tensor.stride()}: set contiguous data"
            )
        return self._tensor

    def delayed_scales(self) -> Tuple[torch.Tensor, ...]:
        return (self._delayed_scale(),) if self._casts.delayed else ()

    def _delayed_scale(self) -> torch.Tensor:
        layer, place = self._layer()
        return layer.scales_of_weights()[place]

    def _layer(self) -> Tuple[torch.nn.Module, int]:
        found = self._known.layer
        layer = None if found is None else found[0]()
        if layer is not None:
            return layer, found[1]
        unit = self._unit()
        sharded = None if unit is None else unit.parameter.sharded_param
        for each in all_layers():
            for place, (_, weight) in enumerate(each.named_weights() if hasattr(each, "scales_of_weights") else ()):
                if weight is sharded or weight is self or local_of(weight) is self:
                    self._known.layer = (weakref.ref(each), place)
                    return each, place
        raise LinearError(f'{self.subject()} weight: its layer, which has the scale, is not there any more')

    def full_name(self) -> str:
        """For messages: the layer's, or where it has none FSDP's path to the weight."""
        unit = self._unit()
        sharded = None if unit is None else unit.parameter.sharded_param
        name = name_where(lambda weight: weight is sharded or weight is self or local_of(weight) is self)
        if name is not None:
            return name
        path = getattr(unit.parameter, "_param_fqn", None) if unit is not None and self._name in UNNAMED else None
        return path.removesuffix(".weight") if path else self._name

    def subject(self) -> str:
        return subject_of(self.full_name(), self.dim())

    # ---- FSDP2's all-gather ----

    @property
    def fsdp_pre_all_gather(self) -> "_PreAllGather":
        """FSDP's hook: a function that returns what this rank sends, and what the rest of the gather is told."""
        return _PreAllGather(self)

    def _sent(self, mesh, outer_size, mp_policy) -> Tuple[Tuple[torch.Tensor, ...], _Sent]:
        """The codes of this rank's shard, with as many rows as all ranks send; and what the rest of the gather is told."""
        unit = self._unit()
        together = unit is not None and unit.parameter.sharded_param._local_tensor is self  # else a copy of an offloaded one
        found = casts_of(unit).sent(unit) if together else None
        if found is not None:
            return found
        mesh = _Ranks(mesh, mesh.size() if unit is None else unit.ranks)
        outer_size = _whole_size(self, mesh, outer_size)
        gather = _gather_of(self, mesh, outer_size, unit)
        dtype = (mp_policy.param_dtype if mp_policy is not None else None) or self.dtype
        if gather.mode == "high_precision":
            sent = _Sent(gather, False, mesh, outer_size, (None, None))
            return (_padded(rounded(self._tensor, dtype), mesh, outer_size),), sent
        asked = _Asked(gather, mesh, outer_size, dtype if self._rounds else None)
        backward = unit is not None and unit.is_backward
        made = {side: self._cast_alone(asked, side) for side in asked.sides(backward)}
        if together:  # FSDP gathers all of a unit; from the next gather on they are cast together
            casts_of(unit).add(unit.parameter, asked)
        return self.sent_of(asked, backward, made)

    def _cast_alone(self, asked: _Asked, side: int) -> Tuple[ShardCast, torch.Tensor]:
        """The cast, and codes in memory of their own."""
        wanted = self.wanted(asked, side)
        (cast,), part = scaled([wanted], {}, 0), wanted.part
        kept = cast.kept[side]
        if kept is not None and kept.shape[0] == part.rows:
            return cast, kept
        memory = torch.empty(CodesPlan.size([part]), dtype=torch.uint8, device=self.device)
        plan = CodesPlan([part], [cast], memory)
        plan.run()
        return cast, plan.codes[0]

    def sent_of(
        self, asked: _Asked, backward: bool, made: Dict[int, Tuple[ShardCast, torch.Tensor]], together: Any = None
    ) -> Tuple[Tuple[torch.Tensor, ...], _Sent]:
        """What FSDP gets of a weight: `made` are the cast and codes of each side that is sent. In turn, the scale_inv of the codes
        that are not sent are NaN: nothing can be computed of codes with the other's scale_inv."""
        unit, (gather, mesh, outer_size, _) = self._unit(), asked
        scale_inv: List[Optional[torch.Tensor]] = [None, None]
        for side in (0, 1) if self._casts.alternates else (0,):
            if side in made:
                scale_inv[side] = made[side][0].scale_inv[side]
            else:
                scale_inv[side] = _nan(scale_inv_count(self._casts.kind(side == 1), *outer_size), self.device)
        first = next(iter(made.values()))[0]
        scale = first.scales[0] if self._casts.output == "tensor" and self.dim() == 2 else None
        stays = unit is None or not unit.reshards
        is_backward = gather.mode == "in_turn" and backward
        told = _Sent(gather, is_backward, mesh, outer_size, tuple(scale_inv), scale, first.amax, stays, together)
        return tuple(codes for _, codes in made.values()), told

    def _unit(self) -> Optional[Unit]:
        unit = self._known.unit
        if unit is None or unit.is_gone:
            unit = self._known.unit = unit_of(self)
        return unit

    def watched(self) -> tuple:
        """Tensors besides its own whose changes make its cast an old one."""
        unit = self._unit()
        scales = (self._layer()[0].fp8_scale,) if self._casts.delayed else ()
        return scales if unit is None else (unit.parameter.sharded_param, *scales)

    def fsdp_post_all_gather(self, all_gather_outputs, metadata: _Sent, param_dtype: torch.dtype, *, out=None):
        """Returns the gathered weight and the tensors that hold its memory besides FSDP's own; or notes in `out`, whose memory
        has been filled, what it holds now. Raises an error if `out` is another tensor than the one of the first gather."""
        gather, backward, mesh, outer_size = metadata[:4]
        if metadata.together is None:
            read_on_this_stream(metadata.tensors, None)
        else:
            metadata.together.read()
        if gather.mode == "high_precision":
            return (all_gather_outputs[0], ()) if out is None else None
        if out is None:
            local = self._made(all_gather_outputs, metadata, param_dtype)
        else:
            local = out._local_tensor if isinstance(out, DTensor) else out
            if not self._filled(local, metadata):
                raise LinearError(
                    "the weight that was gathered in FP8 before is now a "
                    f"{type(local).__name__}: it was replaced between two all-gathers; convert before fully_shard()"
                )
        if gather.mode == "in_turn":
            dtype = param_dtype if self._rounds else None
            local.turn.holds, local.turn.again = backward, lambda side: self._again(mesh, outer_size, dtype, side)
        return (local, ()) if out is None else None

    def _filled(self, local: torch.Tensor, metadata: _Sent) -> bool:
        """Notes what the memory of the weight that a gather made before holds now. False: this is no such weight."""
        if not isinstance(local, GatheredWeight):
            return False
        gather, known = metadata.gather, metadata.scale_inv
        local.own_amax = metadata.amax
        if gather.mode != "in_turn" and not metadata.stays:  # a backward has the weight, and the scales, of its forward
            local.scale_inv, local.of_backward = known
            return True
        memory = tuple(each for each in (local.scale_inv, local.of_backward) if each is not None)
        if gather.mode == "in_turn" and metadata.together is not None:
            metadata.together.fill(memory, metadata)
        else:
            copy_over(memory, tuple(each for each in known if each is not None))
        return True

    def _made(self, received, metadata: _Sent, param_dtype: torch.dtype) -> GatheredWeight:
        gather, outer_size, known = metadata.gather, metadata.outer_size, metadata.scale_inv
        both = gather.mode == "both"
        codes, *others = received
        second = others[0].view(self._casts.dtype) if both else None
        scale_inv, of_backward = known
        if gather.mode == "in_turn" or metadata.stays:  # of this weight alone: casts write theirs in place, while it stays
            scale_inv, of_backward = (None if each is None else each.clone() for each in known)
        return GatheredWeight(codes.view(self._casts.dtype), scale_inv, of_backward, second, metadata.amax, param_dtype)

    def _again(self, mesh, outer_size, dtype, backward: bool) -> Tuple[torch.Tensor, torch.Tensor]:
        """Codes and scale_inv of the whole weight that FSDP has not gathered now, by collectives of their own."""
        say_once(
            self.subject(),
            "its forward runs again in backward, or its backward without a gather before it, and reads codes that FSDP has "
            "not gathered: they are gathered once more, while everything waits. float8_all_gather(model, recomputed=True), or "
            "ingot.float8's config without enable_fsdp_float8_all_gather, gathers this weight in high precision instead",
        )
        asked, unit, side = _Asked(Gather("in_turn"), mesh, outer_size, dtype), self._unit(), int(backward)
        if self.device.type != mesh.mesh.device_type:  # FSDP keeps it on the CPU where it offloads
            cast, codes = self.to(mesh.mesh.device_type)._cast_alone(asked, side)
        elif unit is None:
            cast, codes = self._cast_alone(asked, side)
        else:
            cast, codes = casts_of(unit).again(unit, self.wanted(asked, side))
        codes = gathered_of(codes.reshape(-1), mesh.mesh) if mesh.size() > 1 else codes.clone()
        codes = codes.view(-1, *outer_size[1:])[: outer_size[0]].view(self._casts.dtype)
        return codes, cast.scale_inv[side]


class _PreAllGather:
    """fsdp_pre_all_gather() of a weight. FSDP asks for its signature in each gather, which inspect makes anew for a method, and
    that takes longer than the rest."""

    __slots__ = ("_weight",)

    def __init__(self, weight: ShardedWeight) -> None:
        self._weight = weight

    def __call__(self, mesh, outer_size=None, outer_stride=None, module=None, mp_policy=None):
        return self._weight._sent(mesh, outer_size, mp_policy)


_PreAllGather.__signature__ = inspect.signature(_PreAllGather(None))


# An argument of an operator is a tensor, or lists of them. To read those alone takes less time than by trees of PyTorch,
# in each step of an optimizer, which gets the weights of a model as lists.
def _plain(argument: Any) -> Any:
    """The argument with tensors in place of the weights."""
    if isinstance(argument, ShardedWeight):
        return argument._tensor
    return type(argument)(map(_plain, argument)) if type(argument) in (list, tuple) else argument


def _sharded_in(argument: Any) -> Iterator[ShardedWeight]:
    if isinstance(argument, ShardedWeight):
        yield argument
    elif type(argument) in (list, tuple):
        for each in argument:
            yield from _sharded_in(each)


def _after_copy(target: torch.Tensor, source: Any) -> torch.Tensor:
    if not isinstance(target, ShardedWeight):
        return target
    cast, known = None, target._known
    if known.is_zero and isinstance(source, ShardedWeight) and source._config() == target._config():
        same = (source.shape, source.dtype, source.device) == (target.shape, target.dtype, target.device)
        cast = source._known.cast_of(source.dtype) if same else None
        cast = cast and cast.of(rows_of(source._tensor), cast.dtype)
    if cast is not None:
        cast.rows = rows_of(target._tensor)
    known.give(cast, target.dtype, *(() if cast is None else (target._tensor,)))
    return target


def _forget_written(func: Any, args: tuple, kwargs: Dict[str, Any]) -> None:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for each in _sharded_in(value):
            each._known.written()


def local_of(weight: torch.Tensor) -> torch.Tensor:
    return weight._local_tensor if isinstance(weight, DTensor) else weight


def _whole_size(weight: ShardedWeight, mesh, outer_size: Optional[torch.Size]) -> torch.Size:
    """PyTorch's old hook is not told the size, and shards evenly."""
    if outer_size is not None:
        return outer_size
    return torch.Size((weight.shape[0] * mesh.size(), *weight.shape[1:]))


def _padded(rows: torch.Tensor, mesh, outer_size: torch.Size) -> torch.Tensor:
    """Pads the rows of a shard with zeros, because ranks that hold fewer rows, or none, send as many bytes as rank
    0."""
    if rows.shape[1:] != outer_size[1:]:
        return rows.contiguous()
    missing = math.ceil(outer_size[0] / mesh.size()) - rows.shape[0]
    return rows.contiguous() if missing == 0 else torch.nn.functional.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, missing))


def rows_sent(ranks: int, outer_size: torch.Size, shard: torch.Tensor) -> int:
    """How many rows each rank sends: those of the longest shard of a weight that is sharded along its rows."""
    return -(-outer_size[0] // ranks) if shard.shape[1:] == outer_size[1:] else shard.shape[0]


_NAN: Dict[tuple, torch.Tensor] = {}


def _nan(count: int, device: torch.device) -> torch.Tensor:
    found = _NAN.get((count, device))
    if found is None:
        found = torch.full((count,), math.nan, device=device)
        if type(found) is torch.Tensor:  # and not one of a compiler or another mode, which later calls could not read
            _NAN[count, device] = found
    return found


# Its name depends on the version of PyTorch.
_all_gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.wait() if isinstance(tensor, collectives.AsyncCollectiveTensor) else tensor


def largest_of(values: torch.Tensor, ranks: Any) -> torch.Tensor:
    """The elementwise maxima over a mesh, or over (mesh, dimension)."""
    return _waited(collectives.all_reduce(values, "MAX", ranks))


def gathered_of(values: torch.Tensor, ranks: Any) -> torch.Tensor:
    """The vectors of all ranks, one after the other."""
    return _waited(_all_gather(values, 0, ranks))


def over(all_ranks: Sequence[Any], values: torch.Tensor, ask: Callable[[torch.Tensor, Any], torch.Tensor]) -> torch.Tensor:
    """Asks the ranks of meshes, or of their dimensions, one after the other. Returns what is then on the device of the last."""
    for ranks in all_ranks:
        mesh = ranks[0] if isinstance(ranks, tuple) else ranks
        values = ask(values.to(mesh.device_type), ranks)
    return values


def asks_of(shards: Any) -> Asks:
    """shards: the ranks that share the rows of weights, a mesh or (mesh, dimension)."""
    return Asks(
        lambda maxima, others: over(others or (shards,), maxima, largest_of),
        lambda scale_inv: over((shards,), scale_inv, gathered_of),
    )


torch.serialization.add_safe_globals([ShardedWeight, Casts])
