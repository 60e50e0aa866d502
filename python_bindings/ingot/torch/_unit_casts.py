"""The codes of the weights that FSDP gathers together. The first of them that a gather asks for has all cast, in one launch for
each kind of cast, into memory that the units of a model share: FSDP copies codes into its own memory before it asks for those of
another unit. So no codes live longer than that, and of a model no more than one unit's."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._fsdp_units import Unit
from ._shard_casts import ShardCast, rows_of
from ._shard_plan import CodesPlan, Part, ShardPlan


class Wanted(NamedTuple):
    """One side of a weight: its part, and `Asked` of _sharded_weight.py, which knows the ranks."""

    weight: Any  # ShardedWeight
    part: Part
    asked: Any


Plans = Dict[Any, Tuple[tuple, ShardPlan, List[ShardCast]]]


def scaled(wanted: Sequence[Wanted], plans: Plans, slot: Any) -> List[ShardCast]:
    """A cast of each, with its scales. Those that are not known are found now, with one collective for all of them.

    What needed the other ranks is not kept: whether they are asked again must not depend on what one rank has seen of its own
    shard, which may be empty, or they would wait for each other. precompute() asks for all weights at once. plans: of earlier
    calls, one in each slot."""
    casts = [each.weight.scaled(each.part.dtype, each.part.side) for each in wanted]
    missing = [at for at, cast in enumerate(casts) if cast is None]
    if not missing:
        return casts
    stale = [wanted[at] for at in missing]
    parts = [each.part for each in stale]
    key = tuple(part.key for part in parts)
    found = plans.get(slot)
    if found is None or found[0] != key:
        new: Dict[int, ShardCast] = {}
        of = [new.setdefault(id(each.weight), ShardCast(each.part.dtype, rows_of(each.weight._tensor))) for each in stale]
        found = plans[slot] = key, ShardPlan(parts, of, stale[0].asked.mesh.count), of
    plan, made = found[1:]
    plan.run(stale[0].asked.asks, [scale for each in stale for scale in each.weight.delayed_scales()])
    for at, cast in zip(missing, made):
        casts[at] = cast
    if not plan.asks:
        for each, cast in zip(stale, made):
            each.weight.knows(cast)
    return casts


class Scratch:
    """Memory for the codes of one unit at a time. Who writes it waits for whoever read it before on another stream."""

    def __init__(self) -> None:
        self._memory: Optional[torch.Tensor] = None
        self._stream: Any = None

    @torch.inference_mode(False)
    def of(self, size: int, device: torch.device) -> torch.Tensor:
        if device.type == "cuda":
            stream = torch.cuda.current_stream(device)
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)
                if self._memory is not None:
                    self._memory.record_stream(stream)  # once freed it is not given away before this stream has read it
            self._stream = stream
        if self._memory is None or self._memory.numel() < size or self._memory.device != device:
            self._memory = None  # before there is more
            self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        return self._memory


def scratch_of(unit: Unit) -> Scratch:
    return unit.common("_ingot_scratch", Scratch)


def casts_of(unit: Unit) -> "UnitCasts":
    return unit.of_group("_ingot_casts", UnitCasts)


class _Gather:
    """What the weights of a unit send for forward or for backward, cast again and again.

    sent: by FSDP's parameter, what it gets. of: each weight by that, with its tensor and its cast, None of one that has found its
    scales for this gather alone. The gathered weights of rowwise codes have scale_inv in memory of their own, which each gather
    fills, all together: fill()."""

    def __init__(self, codes: CodesPlan, of: Sequence[Tuple[int, Any, Any, Any]], reshards: bool) -> None:
        self.codes, self._reshards = codes, reshards
        self.sent: Dict[int, tuple] = {}
        self._of = of
        self._filled = self._is_read = True
        self._streams: set = set()
        self._targets: Dict[int, Tuple[tuple, tuple]] = {}  # (memory, what it is to hold)

    def is_of(self, members: Dict[int, Tuple[Any, Any]], unit: Unit) -> bool:
        """Would the same be cast now, with the same scales?"""
        if len(members) != len(self._of) or unit.reshards != self._reshards:
            return False
        for key, weight, tensor, cast in self._of:
            if members[key][0].sharded_param._local_tensor is not weight or weight._tensor is not tensor:
                return False
            if cast is None or weight._known.cast_of(tensor.dtype) is not cast:
                return False
        return True

    def run(self) -> None:
        self.codes.run()
        self._filled = self._is_read = False

    def let_go(self) -> None:
        """Lets the memory be freed when nobody casts this any more: what is told refers back to this, and would keep it until Python's
        collector runs. Gathers that are under way still ask this."""
        del self.codes
        self.sent = {key: ((), told) for key, (_, told) in self.sent.items()}

    def read(self) -> None:
        """This stream reads what the weights were told; each of them asks."""
        if not self._is_read:
            self._is_read = True
            read_on_this_stream([each for _, told in self.sent.values() for each in told.tensors], self._streams)

    def fill(self, memory: Tuple[torch.Tensor, torch.Tensor], told: Any) -> None:
        """memory: of the scale_inv of the gathered weight that this gather tells `told`, for forward and backward."""
        found = self._targets.get(id(told))
        if found is None or found[0][0] is not memory[0]:
            self._targets[id(told)] = memory, told.scale_inv
            copy_over(memory, told.scale_inv)
        elif not self._filled:
            self._filled = True
            into, values = zip(*self._targets.values())
            copy_over(sum(into, ()), sum(values, ()))


def read_on_this_stream(tensors: Iterable[Optional[torch.Tensor]], known: Optional[set]) -> None:
    """FSDP calls fsdp_pre_all_gather() on a stream of its own, and this stream reads what was made there. PyTorch's allocator has
    to know, or it gives the memory of a tensor that Python frees to the next weights before this stream has read it. It
    remembers that for as long as the memory is not freed. known: the streams of which it knows."""
    there = [each for each in tensors if each is not None]
    if not there or not there[0].is_cuda:
        return
    stream = torch.cuda.current_stream(there[0].device)
    if known is not None:
        if stream.cuda_stream in known:
            return
        known.add(stream.cuda_stream)
    for each in there:
        each.record_stream(stream)


def copy_over(into: tuple, values: tuple) -> None:
    """In one launch. What an autograd graph has saved may be written."""
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(into):
        torch._foreach_copy_(into, values)


_MOST_GATHERS = 4  # of a unit: forward's and backward's, before the first precompute() and after it


class UnitCasts:
    """The weights of one unit that are gathered in FP8, each with how it is asked for: `Asked` of _sharded_weight.py."""

    def __init__(self) -> None:
        self._members: Dict[int, Tuple[Any, Any]] = {}  # FSDP's parameter, and Asked
        self._ready: Dict[int, tuple] = {}
        self._plans: Plans = {}
        self._gathers: Dict[tuple, _Gather] = {}
        self._last: Dict[bool, _Gather] = {}  # of forward and of backward
        self._again: Dict[tuple, Tuple[tuple, CodesPlan]] = {}

    def add(self, parameter: Any, asked: Any) -> None:
        self._members[id(parameter)] = parameter, asked

    def sent(self, unit: Unit) -> Optional[tuple]:
        """What a weight sends, after the unit's weights are cast; None of one that was not gathered before."""
        key = id(unit.parameter)
        if key not in self._members:
            return None
        if key not in self._ready:  # it is the first that this gather asks for
            self._ready = {}
            self._cast(unit)
        return self._ready.pop(key)

    def _cast(self, unit: Unit) -> None:
        backward = unit.is_backward
        gather = self._last.get(backward)
        memory = None if gather is None or not gather.is_of(self._members, unit) else gather.codes.memory
        if memory is None or scratch_of(unit).of(memory.numel(), memory.device) is not memory:
            gather = self._found(unit, backward)
        gather.run()
        self._ready = dict(gather.sent)

    def _found(self, unit: Unit, backward: bool) -> _Gather:
        wanted: List[Wanted] = []
        of: List[Tuple[int, Any, Any, tuple]] = []
        for key, (parameter, asked) in self._members.items():
            weight = parameter.sharded_param._local_tensor
            if not hasattr(weight, "scaled"):
                continue  # another tensor has taken its place, for which FSDP does not call
            sides = asked.sides(backward)
            of.append((key, weight, asked, sides))
            wanted += [weight.wanted(asked, side) for side in sides]
        casts = scaled(wanted, self._plans, backward)
        same = unit.reshards, *((id(cast), each.part.side, each.part.values.data_ptr()) for cast, each in zip(casts, wanted))
        parts = [each.part for each in wanted]
        memory = self._memory(unit, parts)
        gather = self._gathers.get(same)
        if gather is None:
            if len(self._gathers) >= _MOST_GATHERS:
                self._let_go(lambda each: True)
            listed = []
            for key, weight, *_ in of:
                known = weight._known.cast_of(weight.dtype)
                listed.append((key, weight, weight._tensor, known if any(known is cast for cast in casts) else None))
            gather = self._gathers[same] = _Gather(CodesPlan(parts, casts, memory), listed, unit.reshards)
            left = list(zip(casts, gather.codes.codes))
            for key, weight, asked, sides in of:
                made = {side: left.pop(0) for side in sides}
                gather.sent[key] = weight.sent_of(asked, backward, made, gather)
        self._last[backward] = gather
        return gather

    def _memory(self, unit: Unit, parts: Sequence[Part]) -> torch.Tensor:
        """For the codes of the parts. What has codes in memory that had no room for them, or for another unit's, is dropped: it
        would keep that memory."""
        memory = scratch_of(unit).of(CodesPlan.size(parts), parts[0].values.device)
        self._let_go(lambda each: each.codes.memory is not memory)
        self._again = {slot: each for slot, each in self._again.items() if each[1].memory is memory}
        return memory

    def _let_go(self, of: Callable[[_Gather], bool]) -> None:
        old = {each for each in (*self._gathers.values(), *self._last.values()) if of(each)}
        self._gathers = {key: each for key, each in self._gathers.items() if each not in old}
        self._last = {backward: each for backward, each in self._last.items() if each not in old}
        for each in old:
            each.let_go()

    def again(self, unit: Unit, wanted: Wanted) -> Tuple[ShardCast, torch.Tensor]:
        """One weight's cast and codes, in memory that the next gather writes."""
        slot = id(unit.parameter), wanted.part.side
        casts = scaled([wanted], self._plans, slot)
        memory = self._memory(unit, [wanted.part])
        same = id(casts[0]), wanted.part.values.data_ptr()
        found = self._again.get(slot)
        if found is None or found[0] != same:
            found = self._again[slot] = same, CodesPlan([wanted.part], casts, memory)
        found[1].run()
        return casts[0], found[1].codes[0]
