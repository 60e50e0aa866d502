"""FSDP2 that gathers stacks of experts in FP8 over gloo: training has the bits that it has without, for functions of experts and
converted modules, and what is sent is counted. The table of test_sharded_situations.py has rows of experts besides."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
import other_gathers
import torch.distributed as dist
import two_processes
from gathered_models import said
from test_nn_all_gather import collectives
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from two_processes import DEVICE, WORLD, normal

import ingot
from ingot.integrations.grouped_experts import convert_grouped_experts_
from ingot.nn import ExpertsMlp, GroupedLinear, float8_all_gather, precompute_float8_all_gather
from ingot.torch import LinearError, LinearOptions, experts_mlp, grouped_linear
from ingot.torch._gathered_weight import GatheredWeight

HIDDEN, INTERMEDIATE, CHOSEN, TOKENS, STEPS = 32, 48, 2, 12, 3
RECIPES = ("rowwise", "tensorwise", "blockwise")


# ---- on one process: operators take codes in both directions ----


def cast(stack, recipe, backward):
    """Codes of a stack by rows, and its scale_inv, by a cast of each expert."""
    whole = {"tensorwise": "tensor", "blockwise": "128x128"}
    scale = whole.get(recipe, "col" if backward else "row")
    casts = [ingot.cast(each, "e4m3fn", scale=scale, pow2=recipe == "rowwise") for each in stack.detach()]
    return torch.stack([each.codes for each in casts]), torch.cat([each.scale_inv.reshape(-1) for each in casts])


def gathered(stack, recipe):
    """As a gather of both sets of codes leaves it."""
    codes, scale_inv = cast(stack, recipe, False)
    second, of_backward = cast(stack, recipe, True) if recipe == "rowwise" else (None, None)
    return nn.Parameter(GatheredWeight(codes, scale_inv, of_backward, second, None, stack.dtype))


def mlp(x, gate_up, down, options):
    index = torch.arange(x.shape[0] * CHOSEN, device=DEVICE).view(-1, CHOSEN) % gate_up.shape[0]
    return experts_mlp(x, index, torch.full(index.shape, 0.5, device=DEVICE), gate_up, down, options)


def products(x, gate_up, down, options):
    ends = (torch.arange(gate_up.shape[0], device=DEVICE, dtype=torch.int32) + 1) * x.shape[0] // gate_up.shape[0]
    hidden = grouped_linear(x, gate_up, ends=ends, options=options)
    return grouped_linear(hidden, down, ends=ends, options=options, activation="silu(x) * up")


def stacks(experts, dtype=torch.float32, hidden=HIDDEN, intermediate=INTERMEDIATE):
    gate_up, down = normal(experts, 2 * intermediate, hidden, seed=1) / 8, normal(experts, hidden, intermediate, seed=2) / 7
    return [nn.Parameter(each.to(dtype)) for each in (gate_up, down)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("function", [mlp, products])
def test_operators_take_codes(function, recipe, dtype):
    """Of both weights, or of one of them."""
    options, x = LinearOptions(recipe, name="moe"), normal(TOKENS, HIDDEN, seed=3).to(dtype)

    def results(*weights):
        given = x.clone().requires_grad_()
        output = function(given, *weights, options)
        output.float().square().mean().backward()
        return [output.detach(), given.grad, *(each.grad for each in weights)]

    plain = stacks(4, dtype)
    expected = results(*plain)
    for which in ((0, 1), (0,), (1,)):
        weights = [gathered(each, recipe) if at in which else nn.Parameter(each.detach()) for at, each in enumerate(plain)]
        for name, ours, theirs in zip(("output", "grad_input", "grad_gate_up", "grad_down"), results(*weights), expected, strict=True):
            assert ours.isfinite().all() and torch.equal(ours, theirs), (which, name)
        with torch.no_grad():
            assert torch.equal(function(x, *weights, options), expected[0])


def test_codes_of_another_recipe_are_refused():
    x, weights = normal(TOKENS, HIDDEN, seed=3), stacks(4)
    for function, name in ((mlp, 'experts "moe" up_weight_scale_inv'), (products, 'grouped linear "moe" weight_scale_inv')):
        given = [gathered(each, "tensorwise") for each in weights]
        with pytest.raises(LinearError) as raised:
            function(x, *given, LinearOptions("rowwise", name="moe"))
        assert str(raised.value) == (
            f"{name}: has 4 elements, but the GEMM of the output takes {4 * 2 * INTERMEDIATE}, one for each row of each expert: give "
            "those of the cast for this GEMM"
        )
    codes, scale_inv = cast(weights[0], "rowwise", False)
    ends = torch.full((4,), TOKENS, dtype=torch.int32, device=DEVICE)
    plan, again = torch.ops.ingot.grouped_linear_forward, torch.ops.ingot.grouped_linear_backward
    from ingot.torch._grouped_layer import _PLANS

    rest = (torch.float32, torch.float32, True)
    sizes = (4, 2 * INTERMEDIATE, HIDDEN)
    keeps, _ = _PLANS.plan("moe", "rowwise", sizes, *rest, False, False, "", False)
    number, _ = _PLANS.plan("moe", "rowwise", sizes, *rest, True, False, "", False)
    for wrong, message in (
        ((codes.transpose(1, 2).contiguous(), scale_inv), f"weight: must be [4, {2 * INTERMEDIATE}, {HIDDEN}] = [experts, out_features, in_features]"),
        ((codes.view(torch.float8_e5m2), scale_inv), "weight: comes with scale_inv, so it must be codes in e4m3fn"),
        ((codes, scale_inv.double()), "weight_scale_inv: must be float32: convert it with .float()"),
    ):
        with pytest.raises(RuntimeError) as raised:
            plan(x, wrong[0], ends, number, 0, weight_scale_inv=wrong[1])
        assert f'grouped linear "moe" {message}' in str(raised.value)
    grad = normal(TOKENS, 2 * INTERMEDIATE, seed=4)
    with pytest.raises(RuntimeError) as raised:
        again(grad, None, codes, ends, None, None, keeps, 1, weight_scale_inv=scale_inv)
    assert "weight_scale_inv: is given, but the plan has forward leave the codes that backward reads: give neither" in str(raised.value)


def test_what_is_no_stack_of_experts_is_refused():
    net = nn.Sequential(nn.Linear(4, 4))
    for experts, message in (
        (["0.weight"], r"experts: is a list, expected a function \(name, parameter\) that returns the recipe of a stack"),
        (lambda name, weight: "high_precision", "experts: of 0.weight recipe: 'high_precision' is not one of tensorwise, delayed, rowwise"),
        (of_experts_of("rowwise", "0.weight"), r"experts: takes 0.weight, which is \(4, 4\), expected weights \(experts, N, K\)"),
    ):
        with pytest.raises(LinearError, match=f"float8_all_gather {message}"):
            float8_all_gather(net, experts=experts)
    assert type(net[0].weight) is nn.Parameter


# ---- FSDP2 ----


def of_experts_of(recipe, *names):
    return lambda name, weight: recipe if name in names else None


class Moe(nn.Module):
    """Code of one's own: a router, and functions of experts."""

    def __init__(self, recipe, experts, function=mlp, hidden=HIDDEN, intermediate=INTERMEDIATE):
        super().__init__()
        self.router = nn.Parameter(normal(experts, hidden, seed=0) / 6)
        self.gate_up, self.down = stacks(experts, torch.float32, hidden, intermediate)
        self.options, self.function = LinearOptions(recipe, name="moe"), function

    def forward(self, x):
        if self.function is products:
            return x + products(x, self.gate_up, self.down, self.options)
        weights, index = (x.float() @ self.router.T.float()).softmax(-1).topk(min(CHOSEN, self.router.shape[0]))
        return x + experts_mlp(x, index, weights, self.gate_up, self.down, self.options)


def of_experts(recipe):
    return lambda name, weight: recipe if weight.dim() == 3 else None


def local(tensor):
    shard = getattr(tensor, "_local_tensor", tensor)
    return getattr(shard, "_tensor", shard)


@dataclasses.dataclass
class Case:
    recipe: str
    experts: int = dataclasses.field(default_factory=lambda: 2 * dist.get_world_size() + 1)
    function: object = mlp
    dtype: torch.dtype = torch.float32
    mixed: bool = True
    precompute: bool = True
    compiled: bool = False
    tokens: int = TOKENS
    options: dict = dataclasses.field(default_factory=dict)

    def made(self, gathers):
        net = nn.Sequential(*(Moe(self.recipe, self.experts, self.function) for _ in range(2))).to(self.dtype)
        if gathers:
            names = float8_all_gather(net, experts=of_experts(self.recipe))
            assert names == ("0.gate_up", "0.down", "1.gate_up", "1.down")
        return net

    def sharded(self, gathers):
        net = self.made(gathers)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        options = {**self.options, **({"mp_policy": policy} if self.mixed else {})}
        for part in net:
            if self.compiled:
                part.compile(dynamic=False, backend="aot_eager")
            fully_shard(part, **options)
        return fully_shard(net, **options)

    def trained(self, rank, gathers):
        torch._dynamo.reset()
        net = self.sharded(gathers)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        found = []
        for step in range(STEPS):
            loss = net(normal(self.tokens, HIDDEN, seed=10 * rank + step).to(self.dtype)).float().square().sum() / TOKENS
            loss.backward()
            found += [loss.detach(), *(local(each.grad).clone() for each in net.parameters() if each.grad is not None)]
            optimizer.step()
            optimizer.zero_grad()
            if gathers and self.precompute:
                precompute_float8_all_gather(net)
        return found + [local(each).detach() for each in net.parameters()]

    def check(self, rank, expected_of=None):
        """Losses, gradients and parameters of all steps are those of a 16-bit gather. Returns the lines of the log. expected_of: the
        case that gathers in 16 bits, if it is another one than this."""
        expected = (expected_of or self).trained(rank, False)
        with said() as lines:
            found = self.trained(rank, True)
        assert len(found) == len(expected) and all(each.isfinite().all() for each in expected), self
        for at, (one, other) in enumerate(zip(found, expected)):
            assert torch.equal(one, other), (self, f"number {at} of {len(found)}", one, other)
        return lines


def check_bits(rank):
    """Experts that ranks do not divide, and fewer than ranks; some casts are made by the gathers."""
    assert not Case("rowwise").check(rank)
    assert not Case("tensorwise", experts=1, precompute=False).check(rank)
    assert not Case("rowwise", mixed=False, dtype=torch.bfloat16, precompute=False, function=products).check(rank)


def check_all_bits(rank):
    for recipe in RECIPES:
        for experts in (1, 2 * WORLD, 2 * WORLD + 1):
            for function in (mlp, products):
                for precompute in (True, False):
                    for how in ({}, {"mixed": False}, {"mixed": False, "dtype": torch.bfloat16}):
                        assert not Case(recipe, experts, function, precompute=precompute, **how).check(rank)


def check_compiled(rank):
    assert not Case("rowwise", compiled=True).check(rank, expected_of=Case("rowwise"))


def check_all_compiled(rank):
    for recipe in RECIPES:
        for experts in (2 * WORLD, 2 * WORLD + 1):
            for function in (mlp, products):
                assert not Case(recipe, experts, function, compiled=True, mixed=False).check(rank)


def check_a_rank_without_tokens(rank):
    assert not Case("tensorwise", tokens=0 if rank == WORLD - 1 else TOKENS).check(rank)


class OfSize(Case):
    hidden, intermediate = 384, 384

    def made(self, gathers):
        net = nn.Sequential(Moe(self.recipe, self.experts, self.function, self.hidden, self.intermediate))
        if gathers:
            float8_all_gather(net, experts=of_experts(self.recipe))
        return net


def sent_by(recipe, experts):
    """What a step sends of experts' weights, after the first ones; recipe "": in bfloat16."""
    net = OfSize(recipe or "rowwise", experts).sharded(bool(recipe))
    for step in range(3):
        with collectives() as sent:
            net(normal(TOKENS, OfSize.hidden, seed=10 * dist.get_rank() + step).requires_grad_()).sum().backward()
            if recipe:
                precompute_float8_all_gather(net)
        assert step < 2 or sent == before, (recipe, sent, before)  # every step after the first
        before = sent
    return [[each for each in sent if each[0] == kind] for kind in ("all_gather", "all_reduce", "apart")]


def check_what_is_sent(rank):
    """One byte for each element in forward and in backward; nothing is reduced, and the scale_inv of whole experts cross in one
    more collective, whether ranks divide the experts or not: at most 0.51 of bfloat16's bytes."""
    experts, hidden, intermediate = 2 * WORLD, OfSize.hidden, OfSize.intermediate
    sizes = [(2 * intermediate, hidden), (hidden, intermediate)]
    router = 2 * (experts * hidden // WORLD)  # bfloat16, in every gather
    gathers, reduces, apart = sent_by("", experts)
    elements = sum(n * k for n, k in sizes) * experts // WORLD
    bytes_of = lambda seen: [number * dtype.itemsize for _, dtype, number in seen]
    assert not apart and not reduces and bytes_of(gathers) == [2 * elements + router] * 2
    for recipe, of_each in (("rowwise", sum(n + k for n, k in sizes)), ("tensorwise", 2)):
        gathers, reduces, apart = sent_by(recipe, experts)
        scale_inv = of_each * experts // WORLD
        assert not reduces and apart == [("apart", torch.float32, scale_inv)], (recipe, reduces, apart)
        assert bytes_of(gathers) == [elements + router] * 2, (recipe, gathers)
        assert 2 * elements + 4 * scale_inv <= 0.51 * 4 * elements, recipe
    gathers, reduces, apart = sent_by("rowwise", experts + 1)
    longest = -(-(experts + 1) // WORLD)
    assert not reduces and apart == [("apart", torch.float32, sum(n + k for n, k in sizes) * longest)], apart


def check_other_dimensions(rank):
    """Rows of each expert, or columns, which are gathered in 16 bits."""
    for dimension, recipe in ((1, "rowwise"), (2, "tensorwise")):
        place = lambda parameter: Shard(dimension) if parameter.dim() == 3 else None
        lines = Case(recipe, options={"shard_placement_fn": place}).check(rank)
        why = "FSDP gathers its weight in high precision: it is sharded within its experts: shard their number, dimension 0"
        assert sorted(lines) == [f'experts "{at}.{name}": {why}' for at in (0, 1) for name in ("down", "gate_up")], lines


class Product(nn.Module):
    """Of experts that tensor parallelism has divided by their rows."""

    def __init__(self, mesh):
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(stacks(4)[0].detach(), mesh, [Shard(1)]))

    def forward(self, x):
        ends = torch.full((4,), x.shape[0], dtype=torch.int32, device=DEVICE)
        return grouped_linear(x, self.weight.to_local(), ends=ends, options=LinearOptions("tensorwise", name="moe"))


class Products(Case):
    def made(self, gathers):
        mesh = init_device_mesh(DEVICE, (WORLD, 1), mesh_dim_names=("dp", "tp"))
        self.options = {"mesh": mesh["dp"]}
        net = nn.Sequential(Product(mesh["tp"]))
        if gathers:
            float8_all_gather(net, experts=of_experts(self.recipe))
        return net


def check_tensor_parallelism_of_experts(rank):
    why = "another parallelism has split its experts too"
    assert Products("tensorwise").check(rank) == [f'experts "0.weight": FSDP gathers its weight in high precision: {why}']


def check_other_numbers_of_experts(rank):
    for gathers in ("router", ""):
        net = nn.Sequential(Moe("rowwise", 4 + 2 * min(rank, 1)))
        float8_all_gather(net, experts=of_experts("rowwise"))
        for part in (*net, net):
            fully_shard(part)
        with pytest.raises(LinearError) as raised:
            precompute_float8_all_gather(net) if gathers else net(normal(TOKENS, HIDDEN, seed=0))
        sizes = f"{2 * INTERMEDIATE}, {HIDDEN}] float32 cast to float8_e4m3fn by row and col with powers of two as scales"
        assert str(raised.value) == (
            f'the ranks hold different weights to gather in FP8: rank 0 has 2 and rank 1 has 2; number 0 is "0.gate_up" [4, {sizes} on '
            f'rank 0 and "0.gate_up" [6, {sizes} on rank 1: convert the same layers on every rank'
        )


class GroupedExperts(nn.Module):
    """As torchtitan has it."""

    def __init__(self, experts):
        super().__init__()
        for at, name in enumerate(("w1", "w3", "w2")):
            sizes = (HIDDEN, INTERMEDIATE) if name == "w2" else (INTERMEDIATE, HIDDEN)
            setattr(self, name, nn.Parameter(normal(experts, *sizes, seed=at) / 6))


class OfTitan(nn.Module):
    def __init__(self, experts, recipe):
        super().__init__()
        self.experts, self.count = GroupedExperts(experts), experts
        convert_grouped_experts_(self, recipe, trusted=True)

    def forward(self, x):
        counts = torch.full((self.count,), x.shape[0] // self.count, device=DEVICE)
        return x + self.experts(x, counts)


class Titan(Case):
    def made(self, gathers):
        net = nn.Sequential(*(OfTitan(self.experts, self.recipe) for _ in range(2)))
        if gathers:
            assert float8_all_gather(net) == tuple(f"{at}.experts.{name}" for at in (0, 1) for name in ("w1", "w2", "w3"))
        return net


def check_grouped_experts(rank):
    assert not Titan("rowwise").check(rank)


class OfModules(nn.Module):
    def __init__(self, experts, recipe):
        super().__init__()
        self.moe = ExpertsMlp(experts, HIDDEN, INTERMEDIATE, True, recipe=recipe)
        self.rows = GroupedLinear(experts, HIDDEN, HIDDEN, True, recipe=recipe)
        for at, each in enumerate(self.parameters()):
            each.data = normal(*each.shape, seed=at) / 6

    def forward(self, x):
        index = torch.arange(x.shape[0] * CHOSEN, device=DEVICE).view(-1, CHOSEN) % self.moe.experts
        x = x + self.moe(x, index, torch.full(index.shape, 0.5, device=DEVICE))
        ends = (torch.arange(self.rows.experts, device=DEVICE, dtype=torch.int32) + 1) * x.shape[0] // self.rows.experts
        return x + self.rows(x, ends)


class Modules(Case):
    def made(self, gathers):
        net = nn.Sequential(*(OfModules(self.experts, self.recipe) for _ in range(2)))
        names = [f"{at}.{name}" for at in (0, 1) for name in ("moe.gate_up_proj", "moe.down_proj", "rows.weight")]
        if gathers:
            assert float8_all_gather(net) == (() if self.recipe == "delayed" else tuple(names))
        return net


def check_modules(rank):
    """Delayed scales are gathered in 16 bits, which the log says."""
    assert not Modules("rowwise").check(rank)
    assert not Modules("blockwise", compiled=True).check(rank, expected_of=Modules("blockwise"))
    lines = Modules("delayed", precompute=False).check(rank)
    why = "FSDP gathers its weight in high precision: each of its experts has a delayed scale, and FP8 gathers know one for a whole weight"
    assert lines == [
        f'experts "{at}.{name}": {why}' for at in (0, 1) for name in ("moe.gate_up_proj", "moe.down_proj", "rows.weight")
    ]


class Language(Case):
    """A model of transformers, whose linear layers stay as they are; experts: the name of its kind."""

    def made(self, gathers):
        from ingot.integrations.experts import convert_experts_
        from test_experts import model_of

        net = model_of(self.experts).train()
        names = convert_experts_(net, self.recipe)
        if gathers:
            found = float8_all_gather(net)
            assert found == (tuple(f"{name}.{each}_proj" for name in names for each in ("gate_up", "down")) if self.experts != "GptOss" else ())
        return net

    def sharded(self, gathers):
        net = self.made(gathers)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for part in (*net.model.layers, net):
            fully_shard(part, mp_policy=policy)
        forward = net.forward
        net.forward = lambda x: forward((x[:, :6].abs() * 20).long()).logits
        return net


def check_transformers(rank):
    for name, why in (("Qwen3Moe", ""), ("GptOss", "it is stored as (experts, K, N), and codes of (experts, N, K) are gathered")):
        for recipe in RECIPES:
            lines = Language(recipe, name).check(rank)
            assert len(lines) == (4 if why else 0) and all(line.startswith('experts "model.layers.') and line.endswith(why) for line in lines)


def check_experts_under_fsdp1(rank):
    net = Case("rowwise").made(True)
    with pytest.raises(Exception, match=r'experts "0.gate_up" weight: FullyShardedDataParallel .FSDP1. gathers it in high precision'):
        other_gathers.fsdp1(net, use_orig_params=True)(normal(TOKENS, HIDDEN, seed=0)).sum().backward()


CHECKS = [
    check_bits,
    check_compiled,
    check_a_rank_without_tokens,
    check_what_is_sent,
    check_other_dimensions,
    check_tensor_parallelism_of_experts,
    check_other_numbers_of_experts,
    check_grouped_experts,
    check_modules,
    check_experts_under_fsdp1,
]
ALL_CASES = [check_all_bits, check_all_compiled, check_transformers]
folder = two_processes.fixture(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)


all_cases = two_processes.fixture(ALL_CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("check", ALL_CASES, ids=lambda check: check.__name__)
def test_all_cases(check, all_cases):
    two_processes.passed(check, all_cases)


one, three = (two_processes.fixture([check_bits], count) for count in (1, 3))


@pytest.mark.parametrize(("world", "name"), [(1, "one"), (3, "three")])
def test_other_numbers_of_ranks(world, name, request):
    """Of three, one has no experts."""
    two_processes.passed(check_bits, request.getfixturevalue(name), world)
