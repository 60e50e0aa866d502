"""Helpers of the table of recipes and situations of several ranks (test_sharded_situations.py): a row is a recipe, whose
weights FSDP2 gathers in FP8; a column is a situation that programs bring a model into. A cell is trained with FP8 gathers and
without, and says what was found: "right", or which weights were gathered in 16 bits and why, or the sentence of a refusal."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Callable, Optional

import gathered_models
import torch
import torch.distributed as dist
import torch.utils.checkpoint
import two_processes
from gathered_models import loss_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import ingot.float8 as float8
from ingot import nn as ingot_nn
from ingot.float8 import float8_tensor_parallel as float8_styles
from ingot.nn import Float8Linear, float8_all_gather, precompute_float8_all_gather, sync_amax_history
from ingot.torch import LinearOptions, experts_mlp
from ingot.torch._layers import ingot_layers
from ingot.torch._sharded_weight import ShardedWeight, is_in_high_precision

STEPS = 3


# ---- rows ----


class Block(nn.Module):
    """What every package converts."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Experts(nn.Module):
    """A router, and functions of experts, whose number ranks do not divide."""

    def __init__(self, width, hidden, recipe):
        super().__init__()
        experts = 2 * dist.get_world_size() + 1
        self.options = LinearOptions(recipe, name="experts")
        self.router = nn.Linear(width, experts, bias=False)
        for name, rows, columns in (("gate_up", 2 * hidden, width), ("down", width, hidden)):
            setattr(self, name, nn.Parameter(torch.randn(experts, rows, columns) / columns**0.5))

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(2)
        stacks = (each.to_local() if isinstance(each, DTensor) else each for each in (self.gate_up, self.down))
        gate_up, down = stacks
        return x + experts_mlp(x, index % gate_up.shape[0], weights, gate_up, down, self.options)


class Tied(nn.Module):
    """A head that multiplies by the weight of the embedding."""

    def __init__(self, width):
        super().__init__()
        self.embedding, self.inner, self.head = nn.Embedding(32, width), Block(width, width), nn.Linear(width, 32, bias=False)
        self.head.weight = nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, x):
        return self.head(self.inner(self.embedding(x)))


class Rows(nn.Module):
    """Looks rows of a stack up."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def forward(self, x):
        return nn.functional.embedding(x, self.stack.flatten(0, 1))


class TiedExperts(Tied):
    def __init__(self, width, recipe):
        nn.Module.__init__(self)
        self.inner, self.head = Experts(width, width, recipe), Experts(width, width, recipe)
        self.embedding = Rows(self.head.gate_up)


@dataclasses.dataclass(frozen=True)
class Row:
    """A recipe of a package. Blocks of 128 rows have to be whole on each rank, so their model is wider, but not of experts, which are
    whole; a GPU's grouped GEMMs take multiples of 16."""

    recipe: str
    package: str = "nn"

    @property
    def width(self) -> int:
        if self.package == "experts":
            return 144 if self.recipe == "blockwise" else 32  # a block, and a part of one
        return 128 * dist.get_world_size() if self.recipe == "blockwise" else 24

    def plain(self) -> nn.Module:
        torch.manual_seed(0)
        if self.package == "experts":
            net = nn.Sequential(*(Experts(self.width, 2 * self.width, self.recipe) for _ in range(2)))
            net.features = self.width
            return net
        blocks = (Block(self.width, 2 * self.width) for _ in range(2))
        net = nn.Sequential(*blocks, nn.Linear(self.width, self.width))
        net.features = self.width
        return net

    def tied(self) -> nn.Module:
        torch.manual_seed(0)
        return TiedExperts(self.width, self.recipe) if self.package == "experts" else Tied(self.width)

    def gather(self, net: nn.Module) -> None:
        """ingot.float8 converts with it."""
        if self.package == "nn":
            float8_all_gather(net)
        elif self.package == "experts":
            assert float8_all_gather(net, experts=lambda name, weight: self.recipe if weight.dim() == 3 and "stack" not in name else None)

    def converted(self, net: nn.Module, gathers: bool) -> nn.Module:
        """A model of torch.nn in FP8."""
        if self.package == "experts":
            return net
        if self.package == "nn":
            for parent in list(net.modules()):
                for name, layer in parent.named_children():
                    if isinstance(layer, nn.Linear) and not isinstance(layer, Float8Linear):
                        setattr(parent, name, Float8Linear.from_float(layer, self.recipe))
            return net
        config = float8.Float8LinearConfig.from_recipe_name(self.recipe)
        object.__setattr__(config, "enable_fsdp_float8_all_gather", gathers)
        heads = {id(each.weight) for each in net.modules() if isinstance(each, nn.Embedding)}
        takes = lambda layer, _: gathers or id(layer.weight) not in heads  # with a gather conversion leaves them out by itself
        return float8.convert_to_float8_training(net, config=config, module_filter_fn=takes)

    def blocks(self, gathers: bool) -> nn.Module:
        return self.converted(self.plain(), gathers)

    def of_all_modules(self, gathers: bool) -> nn.Module:
        """Of ingot.nn, a model that has every module with a weight."""
        if self.package != "nn":
            return self.blocks(gathers)
        net = gathered_models.model(self.recipe)
        net.features = 6
        return net

    def x(self, net: nn.Module, rank: int, at: int = 0) -> torch.Tensor:
        """A rank's tokens of a micro-batch."""
        if isinstance(net, Tied):
            return (torch.arange(6, device=two_processes.DEVICE) * 5 + rank + at) % 32
        dtype = next(net.parameters()).dtype
        return two_processes.normal(5, net.features, seed=1 + rank + 10 * at).to(dtype) + 0.3


ROWS = {recipe: Row(recipe) for recipe in gathered_models.RECIPES} | {
    f"{title} {recipe}": Row(recipe, package)
    for title, package, recipes in (("ingot.float8", "float8", 2), ("experts", "experts", 3))
    for recipe in ("tensorwise", "rowwise", "blockwise")[:recipes]
}


# ---- a training, with FP8 gathers and without ----


def one_backward(row, net, rank):
    loss = loss_of(net, row.x(net, rank))
    loss.backward()
    return loss


@dataclasses.dataclass(frozen=True)
class How:
    """model(row, gathers) makes it; before(net, row) changes it after conversion, such as tensor parallelism; wrap(part) is
    what each part becomes before it is sharded. step(row, net, rank) leaves gradients and returns what is compared. data: the
    number of a rank's data, where ranks share it. casts_first: are shards cast together before the first step too?"""

    model: Callable = Row.of_all_modules
    before: Callable = lambda net, row: None
    wrap: Callable = lambda part: part
    step: Callable = one_backward
    data: Optional[int] = None
    dtype: torch.dtype = torch.float32
    policy: Optional[MixedPrecisionPolicy] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    casts_first: bool = False
    options: dict = dataclasses.field(default_factory=dict)


def sharded(row, how, gathers):
    net = how.model(row, gathers)
    net = net.to(how.dtype)
    how.before(net, row)
    if gathers:
        row.gather(net)
    options = {**how.options, **({"mp_policy": how.policy} if how.policy else {})}
    for name, part in list(net.named_children()):
        if not isinstance(net, Tied) or name == "inner":  # the root gathers what parts share
            setattr(net, name, fully_shard(how.wrap(part), **options))
    return fully_shard(net, **options)


def local(tensor):
    shard = getattr(tensor, "_local_tensor", tensor)
    return getattr(shard, "_tensor", shard)


def trained(row, how, rank, gathers, steps=STEPS, net=None):
    """What is compared, and the model. Some casts are made for all shards together, and some by the gathers."""
    net = net or sharded(row, how, gathers)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
    found = []
    for step in range(steps):
        if gathers and (how.casts_first or step > 1):
            precompute_float8_all_gather(net)
        found.append(how.step(row, net, rank if how.data is None else how.data).detach())
        if step == steps - 1:
            found += [local(each.grad).clone() for each in net.parameters()]
        sync_amax_history(net)
        optimizer.step()
        optimizer.zero_grad()
    return found + [local(each).detach() for each in net.parameters()], net


def compared(row, rank, *ways):
    """Trains in each way, with FP8 gathers and without. Returns the cell."""
    reasons, gathered, weights = set(), 0, 0
    for how in ways:
        expected, _ = trained(row, how, rank, False)
        with gathered_models.said() as lines:
            results, net = trained(row, how, rank, True)
        same(results, expected, (row, how))
        found = weights_of(net)
        gathered, weights = gathered + sum(found), weights + len(found)
        reasons |= set(map(reason_of, lines))
    return cell(reasons, gathered, weights)


def same(results, expected, what):
    assert len(results) == len(expected), what
    for at, (one, other) in enumerate(zip(results, expected)):
        assert torch.equal(one, other), (what, f"number {at} of {len(results)}", one, other)


def weights_of(net):
    """Of each weight of an FP8 layer: is it gathered in FP8?"""
    shards = {id(weight): weight for _, layer in ingot_layers(net) for _, weight in layer.named_weights()}
    shards |= {id(weight): weight for weight in net.parameters() if weight.dim() == 3}
    shards = [getattr(weight, "_local_tensor", weight) for weight in shards.values()]
    return [isinstance(each, ShardedWeight) and not is_in_high_precision(each) for each in shards]


HIGH = "FSDP gathers its weight in high precision: "


def reason_of(line):
    """What was logged, without the layer's name and what differs from size to size."""
    text = line.split(": ", 1)[1].removeprefix(HIGH).split(". float8_all_gather(")[0]
    return re.sub(r"\b[\d]+ rows on \d+ ranks are \d+ each", "n rows a rank", text)


def cell(reasons, gathered, weights):
    assert weights > 0
    said = "; ".join(sorted(reasons))
    if gathered == weights:
        return f"right, again: {said}" if said else "right"
    assert said, "gathered in 16 bits, and nothing was logged"
    return f"right, {'some ' if gathered else ''}16 bits: {said}"


# ---- columns: FSDP2 ----


@functools.lru_cache(maxsize=None)
def mesh_of(sizes, names):
    return init_device_mesh(two_processes.DEVICE, sizes, mesh_dim_names=names)


def replicas():
    """Meshes of (replicas, shards): of four ranks two by two, of others with one of either."""
    world = dist.get_world_size()
    return [mesh_of(sizes, ("replicate", "shard")) for sizes in ([(2, 2)] if world == 4 else [(world, 1), (1, world)])]


def hsdp(row, rank):
    return compared(row, rank, *(How(options={"mesh": mesh}) for mesh in replicas()))


def resharded(row, rank):
    return compared(row, rank, How(options={"reshard_after_forward": True}))


def kept(row, rank):
    return compared(row, rank, How(options={"reshard_after_forward": False}))


def offloaded(row, rank):
    return compared(row, rank, How(options={"offload_policy": CPUOffloadPolicy(pin_memory=False)}))


def tied(row, rank):
    """ingot.float8 leaves the head alone, and says why."""
    how = How(model=lambda row, gathers: row.converted(row.tied(), gathers), options={"reshard_after_forward": True})
    found = compared(row, rank, how)
    left = float8.conversion_report(row.converted(row.tied(), True)).left_alone if row.package == "float8" else ()
    return found if not left else f"right, some 16 bits: {left[0].reason}"


def in_float32(row, rank):
    return compared(row, rank, How(policy=None))


def in_bfloat16(row, rank):
    return compared(row, rank, How(policy=None, dtype=torch.bfloat16))


MICRO_BATCHES = 2


def accumulation(says):
    """says(net, is_last) before the forward of each micro-batch."""

    def step(row, net, rank):
        for at in range(MICRO_BATCHES):
            says(net, at == MICRO_BATCHES - 1)
            loss = loss_of(net, row.x(net, rank, at)) / MICRO_BATCHES
            loss.backward()
        return loss

    return step


def reduced(row, rank):
    return compared(row, rank, How(step=accumulation(lambda net, is_last: None)))


def unreduced(row, rank):
    """Gradients are added on each rank, or within each replica, and the last micro-batch reduces them."""

    def of_last(net, is_last):
        net.set_requires_gradient_sync(is_last)
        net.set_reshard_after_backward(is_last)

    return compared(
        row,
        rank,
        How(step=accumulation(of_last)),
        How(step=accumulation(lambda net, is_last: net.set_requires_gradient_sync(is_last))),
        How(step=accumulation(lambda net, is_last: net.set_is_last_backward(is_last))),
        How(step=accumulation(lambda net, is_last: net.set_requires_all_reduce(is_last)), options={"mesh": replicas()[0]}),
    )


def clipped(row, rank):
    def step(row, net, rank):
        loss_of(net, row.x(net, rank)).backward()
        return nn.utils.clip_grad_norm_(net.parameters(), 0.1).full_tensor()

    return compared(row, rank, How(step=step))


# ---- columns: activation checkpointing ----


class Called(nn.Module):
    """A part whose forward calls torch.utils.checkpoint itself, which no wrapper says."""

    def __init__(self, part, **options):
        super().__init__()
        self.part, self.options = part, options

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=False, **self.options)


def of_ingot_is_saved():
    policies = torch.utils.checkpoint.CheckpointPolicy

    def policy(context, operator, *args, **kwargs):
        return policies.MUST_SAVE if operator.namespace == "ingot" else policies.PREFER_RECOMPUTE

    return torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)


def wrapped(row, rank):
    return compared(row, rank, How(wrap=checkpoint_wrapper))


def called(row, rank):
    return compared(row, rank, How(wrap=Called))


def selective(row, rank):
    """The products are kept, and the rest is computed again."""
    return compared(row, rank, How(wrap=functools.partial(checkpoint_wrapper, context_fn=of_ingot_is_saved)))


def selective_call(row, rank):
    return compared(row, rank, How(wrap=functools.partial(Called, context_fn=of_ingot_is_saved)))


# ---- columns: tensor parallelism ----


def divide_experts(net, mesh):
    for block in net:
        for name in ("gate_up", "down"):
            setattr(block, name, nn.Parameter(distribute_tensor(getattr(block, name).detach(), mesh, [Shard(0)])))


def divided(meshes, fsdp_dims):
    """Ways for meshes whose last dimension divides layers, and the others the batch."""
    for mesh in meshes:
        mesh_of_data = mesh[fsdp_dims] if isinstance(fsdp_dims, str) else mesh[tuple(fsdp_dims)]

        def before(net, row, mesh=mesh):
            if row.package == "experts":
                return divide_experts(net, mesh["tp"])
            styles = ingot_nn if row.package == "nn" else float8_styles
            plan = {}
            for at in range(2):
                plan |= {f"{at}.up": styles.Float8ColwiseParallel(), f"{at}.down": styles.Float8RowwiseParallel()}
            parallelize_module(net, mesh["tp"], plan)

        data = dist.get_rank() // mesh["tp"].size()
        yield How(model=Row.blocks, before=before, data=data, options={"mesh": mesh_of_data})


def two_dimensions(row, rank):
    world = dist.get_world_size()
    sizes = [(2, 2)] if world == 4 else [(1, world), (world, 1)]
    return compared(row, rank, *divided([mesh_of(each, ("dp", "tp")) for each in sizes], "dp"))


def three_dimensions(row, rank):
    world = dist.get_world_size()
    sizes = [(1, 2, 2), (2, 1, 2), (2, 2, 1)] if world == 4 else [(world, 1, 1), (1, 1, world)]
    names = ("replicate", "shard", "tp")
    return compared(row, rank, *divided([mesh_of(each, names) for each in sizes], names[:2]))
