"""Training of 100 steps on several ranks against one rank that has the whole batch and all weights, in every recipe: FSDP2, which
divides the batch, with FP8 gathers, and tensor parallelism, which divides layers. Outputs are equal to the bit where a token's
scales are its own; where ranks cast parts with other scales, or add in another order, differences are bounded.
`python test_ranks_against_one.py [ranks]` prints what was found."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

torch = pytest.importorskip("torch")
import sharded_situations as situations
import torch.distributed as dist
import two_processes
from sharded_situations import ROWS, How, Row
from torch.distributed.tensor import DTensor

from ingot.nn import precompute_float8_all_gather, sync_amax_history

STEPS, TOKENS = 100, 48  # which 2, 3 and 4 ranks divide
OF_TOKENS = ("rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")  # their inputs have scales for each token
LOSSES, VALUES = 0.01, 0.1  # relative; of outputs and gradients the error of FP8 through four layers


def steps_of(net, x, target, after):
    """The output of the first step, its gradients in one vector, and the losses of all steps. Wide models learn slowly too, so
    that losses stay numbers that are compared relatively."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.024 / x.shape[1])
    losses, first = [], None
    for _ in range(STEPS):
        output = net(x)
        loss = (output - target).square().mean()
        loss.backward()
        if first is None:
            first = output.detach(), torch.cat([whole(each.grad).flatten() for each in net.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        after(net)
        losses.append(loss.detach())
    return *first, torch.stack(losses).double()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def error(ours, theirs):
    difference, size = (ours.double() - theirs.double()).norm().item(), theirs.double().norm().item()
    return difference / size if size else difference


def by_fsdp(row, x, target, rank, world):
    def after(net):
        sync_amax_history(net)
        precompute_float8_all_gather(net)

    net = situations.sharded(row, How(model=Row.blocks, policy=None), True)
    output, gradients, losses = steps_of(net, x.chunk(world)[rank], target.chunk(world)[rank], after)
    dist.all_reduce(losses)
    return output, gradients, losses / world


def by_tensor_parallelism(row, x, target, rank, world):
    mesh = situations.mesh_of((1, world), ("dp", "tp"))
    (how,) = situations.divided([mesh], "dp")
    net = row.blocks(False)
    how.before(net, row)
    return steps_of(net, x, target, sync_amax_history)


WAYS = {"FSDP2": by_fsdp, "tensor parallel": by_tensor_parallelism}


@dataclasses.dataclass(frozen=True)
class Case:
    """A check of two_processes.py: a recipe in one way. With a folder it writes what it has found."""

    recipe: str
    way: str
    folder: str = ""

    @property
    def __name__(self):
        return f"{self.recipe}_{self.way.replace(' ', '_')}"

    def __call__(self, rank):
        world, row = dist.get_world_size(), ROWS[self.recipe]
        one = row.blocks(False)
        x, target = (two_processes.normal(TOKENS, row.width, seed=seed) for seed in (1, 2))
        expected = steps_of(one, x, target, lambda net: sync_amax_history(net, reduce=False))
        output, gradients, losses = WAYS[self.way](row, x, target, rank, world)
        theirs = expected[0].chunk(world)[rank] if self.way == "FSDP2" else expected[0]
        found = {
            "output": error(output, theirs),
            "gradients": error(gradients, expected[1]),
            "losses": ((losses - expected[2]).abs() / expected[2]).max().item(),
            "first loss": expected[2][0].item(),
            "last loss": expected[2][-1].item(),
        }  # of NaN no comparison below is true
        if self.folder:
            pathlib.Path(self.folder, f"{self.__name__}.found.{rank}").write_text(json.dumps(found))
        is_exact = self.way == "FSDP2" and self.recipe in OF_TOKENS and two_processes.DEVICE == "cpu"
        assert found["output"] <= (0 if is_exact else VALUES) and found["gradients"] <= VALUES, found
        assert found["losses"] <= LOSSES and found["last loss"] < 0.9 * found["first loss"], found


CASES = [Case(recipe, way) for recipe, row in ROWS.items() if row.package == "nn" for way in WAYS]


WORLDS = sorted({2, 3, 4, two_processes.WORLD})
for count in WORLDS:
    globals()[f"folder_of_{count}"] = two_processes.fixture(CASES, count)


def test_error():
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert error(one, one) == 0 and error(other, one) == pytest.approx(0.1)
    assert error(torch.zeros(2), torch.zeros(2)) == 0 and error(one, torch.zeros(2)) == 5
    for wrong in ([float("nan"), 4.0], [float("inf"), 4.0]):
        assert not error(torch.tensor(wrong), one) <= VALUES


@pytest.mark.nightly
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_ranks_against_one(world, check, request):
    two_processes.passed(check, request.getfixturevalue(f"folder_of_{world}"), world)


@pytest.mark.nightly
@pytest.mark.skipif(two_processes.DEVICE != "cpu" or two_processes.WORLD != 2, reason="runs the tests with numbers of their own")
@pytest.mark.parametrize("world", (3, 4))
def test_other_numbers_of_ranks(world):
    """What CI compares on two ranks, to the bit where these add alike: layers that ranks divide, DDP and FSDP2."""
    tests = [pathlib.Path(__file__).with_name(f"test_nn_{name}.py") for name in ("tensor_parallel", "distributed", "all_gather")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *tests]
    done = subprocess.run(command, env={**os.environ, "INGOT_TEST_RANKS": str(world)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else two_processes.WORLD
    failed = 0
    print(f"{ranks} ranks against one, largest relative differences; first and last loss of {STEPS} steps")
    with tempfile.TemporaryDirectory() as name:
        cases = [dataclasses.replace(each, folder=name) for each in CASES]
        two_processes.run_all(cases, name, ranks)
        for each in cases:
            files = [pathlib.Path(name, f"{each.__name__}.found.{rank}") for rank in range(ranks)]
            found = [json.loads(file.read_text()) for file in files if file.exists()]
            cells = (f"{max((of[key] for of in found), default=float('nan')):<10.2g}" for key in ("output", "gradients", "losses"))
            ends = f"{found[0]['first loss']:.4f} {found[0]['last loss']:.4f}" if found else ""
            print(f"{each.recipe:<20}{each.way:<17}", *cells, ends)
            problem = two_processes.problem_of(each, name, ranks)
            if problem:
                failed += 1
                print(f"    FAILED: {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
