"""A check of test_float8_distributed.py: FSDP2 that gathers FP8 has the losses and parameters, to the bit, of FSDP2 that
gathers 16 or 32 bits, by ingot.float8, for all recipes, parameters in float32 and bfloat16, and shards that are equal, unequal
or empty; eager and compiled, on any number of ranks. Inductor measures which of its own kernels to take, whose sums have
another order: with it on a GPU, losses are the same, and parameters are close."""

import itertools

import torch
import two_processes
from torch import nn
from torch.distributed.fsdp import fully_shard

import ingot.float8 as float8

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
DTYPES = (torch.float32, torch.bfloat16)
STEPS = 3


def sizes(shards):
    """Width, hidden features and outputs: multiples of the ranks, or not, and one row, of which one rank alone has any."""
    world = two_processes.WORLD
    return {"even": (8 * world, 16 * world, 4 * world), "uneven": (13, 11, 7), "empty": (8, 1, 1)}[shards]


class Block(nn.Module):
    """Attention of one head, and an MLP."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        y = self.norm1(x)
        weights = torch.softmax(self.q(y) @ self.k(y).mT * 0.3, -1)
        x = x + self.o(weights @ self.v(y))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def losses_of(rank, gathers, recipe, dtype, shards, backend, trains_first=True):
    """The losses of a few steps, and this rank's shards after them by name. backend: of torch.compile(), "" for eager."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    width, hidden, outputs = sizes(shards)
    net = nn.Sequential(Block(width, hidden), Block(width, hidden), nn.Linear(width, outputs)).to(dtype)
    net[0].requires_grad_(trains_first)
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "enable_fsdp_float8_all_gather", gathers)
    float8.convert_to_float8_training(net, config=config)
    for at in range(2):
        if backend:
            net[at].compile(dynamic=False, fullgraph=True, backend=backend)
        fully_shard(net[at])
    fully_shard(net[2])
    fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, losses = two_processes.normal(2, 5, width, seed=1 + rank).to(dtype), []
    for step in range(STEPS):
        loss = net(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if gathers and step > 0:  # the second step computes the scales itself
            float8.precompute_float8_dynamic_scale_for_fsdp(net)
        losses.append(loss.item())
    return losses, {name: getattr(each._local_tensor, "_tensor", each._local_tensor) for name, each in net.named_parameters()}


def same(rank, *case):
    (losses, shards), (expected, expected_shards) = (losses_of(rank, gathers, *case) for gathers in (True, False))
    assert losses == expected, (case, losses, expected)
    for name, shard in shards.items():
        of = expected_shards[name]
        if "inductor" in case:
            torch.testing.assert_close(shard, of, msg=lambda text: f"{case}, {name}: {text}")
        else:
            assert torch.equal(shard, of), (case, name, (shard - of).abs().max())
    assert losses[0] != losses[-1], case


def check_parity(rank):
    same(rank, "rowwise", torch.float32, "uneven", "")
    same(rank, "rowwise_with_gw_hp", torch.bfloat16, "empty", "")


def check_all_parity(rank):
    backends = ("", "aot_eager") if two_processes.DEVICE == "cpu" else ("", "aot_eager", "inductor")
    for case in itertools.product(RECIPES, DTYPES, ("even", "uneven", "empty"), backends):
        same(rank, *case)
    for recipe in RECIPES:
        same(rank, recipe, torch.bfloat16, "even", "aot_eager", False)
