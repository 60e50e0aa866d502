"""Models of all kinds of layers, trained for a few steps under FSDP2, with weights that are gathered in FP8 and without:
what tests of the all-gather compare."""

import contextlib
import functools
import logging
from unittest import mock

import torch
import torch.distributed as dist
import torch.utils.checkpoint
import two_processes
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ingot.nn import (
    Float8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    float8_all_gather,
    precompute_float8_all_gather,
    sync_amax_history,
)

RECIPES = ("tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed")
STEPS = 3


class Joined(nn.Module):
    """q, k and v as one module."""

    def __init__(self, width, rows, recipe):
        super().__init__()
        names = dict(zip(("q", "k", "v"), rows))
        self.qkv = SharedInputLinears(width, names, recipe=recipe, norm="rms", layer_name="qkv")

    def forward(self, x):
        return torch.cat(self.qkv(x), -1)


def model(recipe, even=True):
    """Every module that has a weight. Rows are equal on all ranks and whole blocks of 128, or 13, 5 and 1, of which some
    ranks have none."""
    torch.manual_seed(0)
    width, hidden, rows, last = 24, 48, (12, 12, 12), 12
    if even and recipe == "blockwise":
        width = hidden = last = 128 * dist.get_world_size()
        rows = (width, width, width)
    if not even:
        width, hidden, rows, last = 13, 11, (7, 5, 1), 3
    inner = sum(rows)
    return nn.Sequential(
        LayerNormLinear(6, width, recipe=recipe, activation="gelu", layer_name="first"),
        Joined(width, rows, recipe),
        Float8Linear(inner, width, recipe=recipe, layer_name="plain"),
        Mlp(width, hidden, norm="layer", recipe=recipe, layer_name="mlp"),
        GatedMlp(width, hidden, norm="rms", recipe=recipe, layer_name="gated"),
        GatedMlp.from_parts(
            (nn.Linear(width, hidden), nn.Linear(width, hidden)), nn.Linear(hidden, width), recipe=recipe, layer_name="two"
        ),
        RMSNormLinear(width, last, bias=False, recipe=recipe, zero_centred=True, layer_name="last"),
    )


def data(rank):
    return two_processes.normal(5, 6, seed=1 + rank) + 0.3


@contextlib.contextmanager
def said():
    """The lines that are logged, on every rank: the first one warns, the others say it at level INFO."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("ingot")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with mock.patch("ingot.torch._saying._SAID", set()):
            yield lines
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


def loss_of(net, x):
    return net(x).float().square().mean()


class Case:
    """How a model is trained: compiled parts, dtype of the parameters, mixed precision, options of fully_shard(), activation
    checkpointing, and whether shards are cast together after each step."""

    def __init__(self, recipe, *, even=True, compiled=False, dtype=torch.float32, mixed=False, precompute=False,
                 checkpointed=False, **options):  # fmt: skip
        self.recipe, self.even, self.compiled, self.dtype = recipe, even, compiled, dtype
        self.mixed, self.precompute, self.checkpointed, self.options = mixed, precompute, checkpointed, options

    def __repr__(self):
        return f"Case({vars(self)})"

    def sharded(self, gathers):
        net = model(self.recipe, self.even).to(self.dtype)
        names = float8_all_gather(net) if gathers else ()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {**self.options, **({"mp_policy": policy} if self.mixed else {})}
        for at, part in enumerate(net):
            if self.checkpointed:
                part.forward = functools.partial(torch.utils.checkpoint.checkpoint, part.forward, use_reentrant=False)
            if self.compiled:
                part.compile(dynamic=False, backend="aot_eager")
            fully_shard(part, **options)
        return fully_shard(net, **options), names

    def losses(self, gathers, rank, steps=STEPS):
        """The losses of a few steps, and the model."""
        torch._dynamo.reset()
        net, _ = self.sharded(gathers)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)  # Adam takes half of the time of a step
        losses, x = [], data(rank).to(self.dtype)
        for _ in range(steps):
            loss = loss_of(net, x)
            loss.backward()
            sync_amax_history(net)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if gathers and self.precompute:
                precompute_float8_all_gather(net)
        return losses, net

    def check(self, rank, expected_of=None):
        """expected_of: the case that gathers without FP8, if it is another one than this."""
        plain, expected = (expected_of or self).losses(False, rank)
        losses, net = self.losses(True, rank)
        assert losses == plain, (self, losses, plain)
        for (name, one), other in zip(net.named_parameters(), expected.parameters(), strict=True):
            ours, theirs = one._local_tensor, other._local_tensor
            assert torch.equal(getattr(ours, "_tensor", ours), theirs), (self, name)
