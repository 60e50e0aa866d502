"""Mixtures of experts on several processes: FSDP2, and expert parallelism with a plain all-to-all, by the example."""

import copy
import importlib.util
import pathlib
import sys
import tempfile

import pytest

torch = pytest.importorskip("torch")
import two_processes
from ingot.torch import LinearError, LinearOptions, experts_mlp, grouped_linear
from ingot.torch._experts import SWIGLU, routed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from two_processes import DEVICE, WORLD, near, normal

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from expert_parallel import expert_parallel, float8_experts

EXPERTS, HIDDEN, INTERMEDIATE, CHOSEN, TOKENS = 4 * WORLD, 64, 48, 2, 24
OPTIONS = LinearOptions("rowwise", name="moe")


def choice(tokens, seed):
    scores = torch.rand(tokens, EXPERTS, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return scores.argsort(1)[:, :CHOSEN].to(DEVICE)


class Moe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = torch.nn.Parameter(normal(EXPERTS, 2 * INTERMEDIATE, HIDDEN, seed=1) / 8)
        self.down = torch.nn.Parameter(normal(EXPERTS, HIDDEN, INTERMEDIATE, seed=2) / 7)

    def forward(self, x, index, weights):
        return x + experts_mlp(x, index, weights, self.gate_up, self.down, OPTIONS)


def losses(model, ranks, steps=3):
    """Of the first of these ranks; one process takes all ranks' tokens, one part after the other."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        for rank in ranks:
            seed = 100 * rank + step
            x, index, weights = normal(TOKENS, HIDDEN, seed=seed), choice(TOKENS, seed), normal(TOKENS, CHOSEN, seed=seed + 50)
            loss = model(x, index, weights).square().mean()
            (loss / len(ranks)).backward()
            found += [loss.item()] if rank == ranks[0] else []
        optimizer.step()
    return found


def check_fsdp2(rank):
    alone = losses(Moe(), [rank, *(other for other in range(WORLD) if other != rank)])
    for compiled in (False, True):
        model = fully_shard(Moe())
        if compiled:
            model.compile(backend="aot_eager")
        two_processes.all_near(losses(model, [rank]), alone, compiled)


def check_expert_parallel(rank):
    """The last rank has no tokens, and no token has the first expert. Outputs and the gradients of tokens have one process's
    bits; along the rows, a rank's experts share their scales with each other only."""
    tokens = [TOKENS] * (WORLD - 1) + [0]
    x, grad = normal(sum(tokens), HIDDEN, seed=3), normal(sum(tokens), HIDDEN, seed=4)
    index, weights = choice(sum(tokens), 5).clamp(min=1), normal(sum(tokens), CHOSEN, seed=6)
    whole = Moe()
    given = x.clone().requires_grad_()
    # The same products: experts_mlp() multiplies by the router's weights before the second one.
    first = lambda rows, _, ends: grouped_linear(rows, whole.gate_up, ends=ends, options=OPTIONS)
    second = lambda rows, _, ends: grouped_linear(rows, whole.down, ends=ends, options=OPTIONS, activation=SWIGLU)
    right = routed(given, index, weights, EXPERTS, first, second)
    right.backward(grad)

    mine = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
    experts = slice(rank * EXPERTS // WORLD, (rank + 1) * EXPERTS // WORLD)
    parts = [each.detach()[experts].clone().requires_grad_() for each in (whole.gate_up, whole.down)]
    own = x[mine].clone().requires_grad_()
    found = expert_parallel(own, index[mine], weights[mine], EXPERTS, float8_experts(*parts, OPTIONS))
    found.backward(grad[mine])
    torch.testing.assert_close(found, right[mine], rtol=1e-5, atol=1e-5)
    near(own.grad, given.grad[mine], "grad_input")
    for part, exact in zip(parts, (whole.gate_up.grad[experts], whole.down.grad[experts])):
        assert part.grad.isfinite().all() and (part.grad - exact).norm() <= 0.06 * exact.norm()
    assert rank != 0 or not parts[0].grad[0].any()

    halves = float8_experts(*(part.detach().bfloat16() for part in parts), OPTIONS)
    assert expert_parallel(own.detach().bfloat16(), index[mine], weights[mine].float(), EXPERTS, halves).dtype == torch.bfloat16
    # What one rank alone has wrong, all are told: none waits for another.
    of_index = f"index: each must be an expert, from 0 to {EXPERTS - 1}, and some of ranks "
    mixed = index.clone()
    mixed[2, 0] = -1 if rank else 1
    numbers = [EXPERTS + WORLD * each for each in range(WORLD)]
    uneven = [EXPERTS + each for each in range(WORLD)]
    for wrong, experts, message in (
        (index.clone().fill_(-1), EXPERTS, f"{of_index}{list(range(WORLD))} are not"),
        (index.clone().fill_(EXPERTS), EXPERTS, f"{of_index}{list(range(WORLD))} are not"),
        (mixed, EXPERTS, f"{of_index}{list(range(1, WORLD))} are not"),
        (index, EXPERTS + 1, f"experts: are {EXPERTS + 1}, which {WORLD} ranks do not divide evenly, into at most 512 each"),
        (index, numbers[rank], f"experts: are {numbers} on {WORLD} ranks: give all of them the same number"),
        (index, uneven[rank], f"experts: are {uneven} on {WORLD} ranks: give all of them the same number"),
    ):
        with pytest.raises(ValueError) as raised:
            expert_parallel(x, wrong, weights, experts, float8_experts(*parts, OPTIONS))
        assert str(raised.value) == message
    again = expert_parallel(x[mine], index[mine], weights[mine], EXPERTS, float8_experts(*parts, OPTIONS))
    assert torch.equal(again, found)


def check_saved_experts(rank):
    """Experts that expert parallelism divides as DTensors are gathered, and written by their numbers in the model. They are not quantized."""
    if importlib.util.find_spec("transformers") is None:
        return
    from expert_families import model_of, same_bits
    from safetensors.torch import load_file

    from ingot.integrations.experts import convert_experts_, quantize_experts_
    from ingot.nn import save_float8_checkpoint

    whole = model_of("mixtral", num_local_experts=EXPERTS)
    convert_experts_(whole)
    divided = copy.deepcopy(whole)
    mesh = init_device_mesh(DEVICE, (WORLD,))
    for layer in divided.model.layers:
        for key in ("gate_up_proj", "down_proj"):
            stack = distribute_tensor(getattr(layer.mlp.experts, key).detach(), mesh, [Shard(0)])
            setattr(layer.mlp.experts, key, torch.nn.Parameter(stack))
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder, "found.safetensors")
        save_float8_checkpoint(divided, found, scale="row")
        if rank == 0:
            save_float8_checkpoint(whole, pathlib.Path(folder, "whole.safetensors"), scale="row")
            same_bits(load_file(found), load_file(pathlib.Path(folder, "whole.safetensors")))
    with pytest.raises(LinearError, match=r"quantize_experts_ model.layers.0.mlp.experts: is sharded \(a DTensor\): quantize before fully_shard"):
        quantize_experts_(divided)


CHECKS = [check_fsdp2, check_expert_parallel, check_saved_experts]
folder = two_processes.fixture(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)
