"""Modules of several parts on two processes over gloo (two_processes.py has other numbers, and NCCL): DDP and FSDP2 give
what one process gives, to the bit.

Each process has its part of the batch, a half of two. One process that takes both halves, one after the other, and adds its
gradients sums the same numbers: a loss is halved exactly, and so are the scale_inv of its gradient's casts."""

import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import tempfile
import types
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
import torch.utils.checkpoint
import two_processes
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import ingot.float8 as float8
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    load_float8_checkpoint,
    save_float8_checkpoint,
    shared_input,
    sync_amax_history,
)
from ingot.nn import _scale_buffers
from ingot.torch import LinearError

WORLD, DEVICE = two_processes.WORLD, two_processes.DEVICE
near, all_near = two_processes.near, two_processes.all_near
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "high_precision"]
WIDTH, STEPS = 13, 3  # 13 rows are seven on one rank and six on the other


class Separate(nn.Module):
    """Layers that stay where they are and share an input."""

    def __init__(self, recipe):
        super().__init__()
        self.q, self.k, self.v = (Float8Linear(WIDTH, rows, recipe=recipe, layer_name=f"s{rows}") for rows in (6, 5, 1))

    def forward(self, x):
        return torch.cat(shared_input(x, self.q, self.k, self.v), -1)


class Joined(nn.Module):
    """q, k and v as one module; the last has one row, which leaves nothing to the second rank."""

    def __init__(self, recipe):
        super().__init__()
        shared = {"recipe": recipe, "norm": "rms", "layer_name": "qkv"}
        self.qkv = SharedInputLinears(WIDTH, {"q": 7, "k": 5, "v": 1}, **shared)

    def forward(self, x):
        return torch.cat(self.qkv(x), -1)


def model(recipe):
    torch.manual_seed(0)
    gate, up, down = nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)
    return nn.Sequential(
        LayerNormLinear(6, WIDTH, recipe=recipe, activation="gelu", layer_name="first"),
        Joined(recipe),
        Mlp(WIDTH, 11, norm="layer", recipe=recipe, layer_name="mlp"),
        GatedMlp(WIDTH, 5, norm="rms", recipe=recipe, layer_name="gated"),
        GatedMlp.from_parts((gate, up), down, recipe=recipe, layer_name="gated_of_two"),
        Separate(recipe),
        RMSNormLinear(12, 3, bias=False, recipe=recipe, zero_centred=True, layer_name="last"),
    )


def halves():
    return two_processes.normal(WORLD, 5, 6, 6, seed=1) + 0.3


def loss_of(net, x):
    return net(x).float().square().mean()


def train(net, step):
    """The losses of a few steps and the parameters after them. `step(at)` leaves gradients and returns the loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        losses.append(step().detach())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def by_one_process(net, rank, dtype=None, after=lambda: None, divisor=WORLD):
    """The loss of this rank's half in each step, of a model that sees both and divides their sum."""
    data = halves()

    def run(x):
        if dtype is None:
            return loss_of(net, x)
        low = {name: parameter.to(dtype) for name, parameter in net.named_parameters()}
        return torch.func.functional_call(_Loss(net), {f"net.{name}": p for name, p in low.items()}, (x.to(dtype),))

    def step():
        losses = []
        for half in data:
            losses.append(run(half))
            (losses[-1] / divisor).backward()
        after()
        return losses[rank]

    return train(net, step)


class _Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return loss_of(self.net, x)


def by_this_rank(net, rank, after=lambda: None):
    half = halves()[rank]

    def step():
        loss = loss_of(net, half)
        loss.backward()
        after()
        return loss

    return train(net, step)


def same_parameters(net, expected):
    for (name, parameter), wanted in zip(net.named_parameters(), expected.parameters(), strict=True):
        value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        near(value, wanted, name)


def compare(recipe, rank, wrap, divisor=WORLD):
    expected = model(recipe)
    losses = by_one_process(expected, rank, divisor=divisor)
    net = model(recipe)
    all_near(by_this_rank(wrap(net), rank), losses, recipe)
    same_parameters(net, expected)


@functools.lru_cache(maxsize=None)
def fsdp_divisor():
    """PyTorch 2.7's FSDP2 sums gradients over gloo; later versions take the mean."""
    layer = fully_shard(nn.Linear(1, 1))
    layer(torch.ones(1, 1)).sum().backward()
    return WORLD / layer.weight.grad.full_tensor().item()


def sharded(net, **options):
    for part in net:
        fully_shard(part, **options)
    return fully_shard(net, **options)


def check_ddp(rank):
    for recipe in RECIPES:
        compare(recipe, rank, DistributedDataParallel)
    compare("rowwise", rank, lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True))


def check_fsdp(rank):
    for recipe in RECIPES:
        compare(recipe, rank, sharded, fsdp_divisor())
    compare("tensorwise", rank, lambda net: sharded(net, reshard_after_forward=False), fsdp_divisor())
    compare("rowwise", rank, fully_shard, fsdp_divisor())  # one group for the whole model


def check_bfloat16(rank):
    """Parameters are kept in f32 and gathered in bfloat16; with DDP the inputs are converted by autocast."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for recipe in ("tensorwise", "rowwise"):
        expected = model(recipe)
        losses = by_one_process(expected, rank, torch.bfloat16, divisor=fsdp_divisor())
        net = model(recipe)
        all_near(by_this_rank(sharded(net, mp_policy=policy), rank), losses, recipe)
        same_parameters(net, expected)
        with torch.autocast(DEVICE, torch.bfloat16):
            compare(recipe, rank, DistributedDataParallel)


def check_checkpointing(rank):
    """Modules that run again in backward, when their parameters are gathered again."""

    def wrap(net):
        for part in net:
            part.forward = functools.partial(torch.utils.checkpoint.checkpoint, part.forward, use_reentrant=False)
        return sharded(net)

    compare("rowwise", rank, wrap, fsdp_divisor())


def check_accumulation(rank):
    """Two halves of a half batch, of which only the second is reduced."""

    def of_two(net, x, quiet):
        with quiet(True):
            (loss_of(net, x[:2]) / 2).backward()
        with quiet(False):
            (loss_of(net, x[2:4]) / 2).backward()

    expected = model("rowwise")
    for half in halves():
        of_two(expected, half, lambda _: contextlib.nullcontext())
    sums = [parameter.grad for parameter in expected.parameters()]
    parallel = DistributedDataParallel(model("rowwise"))
    of_two(parallel, halves()[rank], lambda quiet: parallel.no_sync() if quiet else contextlib.nullcontext())
    fsdp = sharded(model("rowwise"))

    @contextlib.contextmanager
    def without_reduction(quiet):
        fsdp.set_requires_gradient_sync(not quiet)
        yield

    of_two(fsdp, halves()[rank], without_reduction)
    for net, divisor in ((parallel, WORLD), (fsdp, fsdp_divisor())):
        for parameter, grad in zip(net.parameters(), sums, strict=True):
            got = parameter.grad.full_tensor() if isinstance(parameter, DTensor) else parameter.grad
            # Each process has rounded the sum of its own two; one process rounds after each of the four.
            torch.testing.assert_close(got, grad / divisor, rtol=1e-5, atol=1e-6)


def delayed_model():
    """With histories of one step, which both halves have seen."""
    torch.manual_seed(0)
    delayed = {"recipe": "delayed", "history_length": 1}
    net = nn.Sequential(Float8Linear(6, WIDTH, **delayed), Float8Linear(WIDTH, 3, **delayed))
    for half in halves():
        loss_of(net, half).backward()
    sync_amax_history(net)
    net.zero_grad()
    return net


def in_one_all_reduce(net):
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduces:
        sync_amax_history(net)
    assert reduces.call_count == 1


def check_delayed(rank):
    """Scales are made of the maxima of both halves, in one all-reduce."""
    for wrap, divisor in ((DistributedDataParallel, WORLD), (sharded, fsdp_divisor())):
        expected = delayed_model()
        scales = [layer.fp8_scale.clone() for layer in expected]
        losses = by_one_process(expected, rank, after=lambda: sync_amax_history(expected), divisor=divisor)
        assert not any(torch.equal(layer.fp8_scale, scale) for layer, scale in zip(expected, scales))
        net = delayed_model()
        all_near(by_this_rank(wrap(net), rank, after=lambda: in_one_all_reduce(net)), losses)
        same_parameters(net, expected)
        halved = torch.tensor([[1.0], [1.0], [divisor]])  # one process's loss, and so its grad_output, is divided
        for layer, other in zip(net, expected):
            near(layer.fp8_amax_history, other.fp8_amax_history * halved)
            near(layer.fp8_scale, other.fp8_scale / halved.squeeze(1))


def check_delayed_on_one_rank(rank):
    """A module that one rank alone has run starts on both, with the same scales."""
    torch.manual_seed(0)
    layer, other = (Float8Linear(6, WIDTH, recipe="delayed") for _ in range(2))
    if rank == 0:
        layer(halves()[0]).square().sum().backward()
    net = nn.ModuleList([layer, other])
    for _ in range(2):
        sync_amax_history(net)
        assert layer.scales_started and not other.scales_started
    scales = of_all_ranks(layer.fp8_scale)
    assert all(torch.equal(scales[0], each) for each in scales) and (scales[0] != 1).all()


def check_delayed_of_a_group(rank):
    """Layers that one rank has alone: an error on both ranks where that is not said, and nothing is changed; right with a
    group or without reduction. Whatever a rank has loaded, and even where it has no layer, the collectives are the same."""
    groups = [dist.new_group([each]) for each in range(WORLD)]
    torch.manual_seed(0)
    expert = Float8Linear(6, WIDTH, recipe="delayed")
    both = Float8Linear(6, WIDTH, recipe="delayed")
    x = halves()[0] * (1 + 9 * rank)

    def run(*modules):
        for module in modules:
            module(x).sum().backward()

    run(expert, both)
    sync_amax_history(expert, group=groups[rank])
    assert expert.fp8_amax_history[0, 0] == x.abs().max()
    run(expert)
    sync_amax_history(expert, reduce=False)
    assert expert.fp8_amax_history[0, 0] == x.abs().max()
    with pytest.raises(LinearError, match="sync_amax_history group: this rank is not in it: give the group that it is in"):
        sync_amax_history(expert, group=groups[(rank + 1) % WORLD])
    sync_amax_history(both)  # from here on it is known, and its collective is nothing else than that of a new model
    stages = [[1, 2], [2, 0], [2, 2]]
    texts = ["1 with delayed scales on one, 2", "0 with delayed scales on one, 2", "2 with delayed scales each, but of other"]
    for counts, text in zip(stages, texts, strict=True):
        first = [both] if counts == [1, 2] and rank == 0 else []
        made = [Float8Linear(6, 4, recipe="delayed") for _ in range(counts[min(rank, 1)] - len(first))]
        stage = nn.Sequential()
        for at, layer in enumerate([*first, *made]):
            stage.add_module(f"block{2 * rank + at}", layer)
        run(*stage)
        before = [layer.fp8_amax.clone() for layer in stage]
        if first and DEVICE != "cpu":  # on a GPU a rank reads once what the ranks of a model hold
            sync_amax_history(stage)
            assert all((layer.fp8_amax_history[:, 0] >= was).all() for layer, was in zip(stage, before, strict=True))
        else:
            with pytest.raises(LinearError, match=f"sync_amax_history: the ranks hold different layers: {text}"):
                sync_amax_history(stage)
            assert all(map(torch.equal, before, [layer.fp8_amax for layer in stage]))
        sync_amax_history(stage, reduce=False)
    # One rank has loaded scales, the other begins.
    if rank == 1:
        both.load_state_dict(Float8Linear(6, WIDTH).state_dict())
    run(both)
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduces:
        for _ in range(3):
            sync_amax_history(both)
    assert reduces.call_count == 3 and both.scales_started
    large = nn.ModuleList(Float8Linear(1, 1, bias=False, recipe="delayed", history_length=1) for _ in range(1400))
    for at, layer in enumerate(large):
        layer.fp8_amax.fill_(1.0 + at + rank)
    sync_amax_history(large)  # more than one collective takes
    assert all(layer.fp8_amax_history[0, 0] == float(WORLD + at) for at, layer in enumerate(large))


def of_all_ranks(tensor):
    found = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(found, tensor)
    return found


def check_overflow_on_one_rank(rank):
    """Inf among one rank's maxima counts as 0 on both, also in a first step, whose maxima enter the history twice."""
    inf = float("inf")
    for count, starts in itertools.product((1, 2), (False, True)):
        net = nn.ModuleList(Float8Linear(6, 4, recipe="delayed", history_length=3) for _ in range(count))
        for layer in net:
            layer._has_run, layer.scales_started = True, not starts
            layer.fp8_amax_history[:, 0] = 0.0 if starts else 0.5
            layer.fp8_scale.fill_(8.0)
            layer.fp8_amax.copy_(torch.tensor([inf, 2.0, 1.0] if rank == 0 else [1.0, 4.0, inf]))
        sync_amax_history(net)
        before = [0.0, 4.0, 0.0] if starts else [0.5, 0.5, 0.5]
        for layer in net:
            assert layer.fp8_amax_history.tolist() == [[new, old, 0.0] for new, old in zip((0.0, 4.0, 0.0), before)]
            assert layer.fp8_scale.tolist() == ([8.0, 112.0, 8.0] if starts else [896.0, 112.0, 114688.0])
            scales = of_all_ranks(layer.fp8_scale)
            assert all(torch.equal(scales[0], each) for each in scales), (count, starts)
            assert torch.equal(layer.fp8_amax, torch.zeros(3)) and layer.scales_started


def adapted():
    """Layers with quantized weights, between layers that are trained."""
    torch.manual_seed(0)
    return nn.Sequential(
        Float8Linear(6, 32, recipe="rowwise", layer_name="in"),
        WeightOnlyLinear.from_float(nn.Linear(32, 48), layer_name="weight_only"),
        FrozenFloat8Linear.from_float(nn.Linear(48, 32), layer_name="frozen"),
        RMSNormLinear(32, 3, recipe="rowwise", layer_name="out"),
    ).bfloat16()


def check_quantized_weights(rank):
    """Gradients pass layers whose weights are codes. Those are buffers, which DDP is not to send."""
    data = halves().bfloat16()
    parallel = DistributedDataParallel(adapted(), broadcast_buffers=False)
    for net, divisor in ((parallel, WORLD), (sharded(adapted()), fsdp_divisor())):
        expected = adapted()
        for half in data:
            (loss_of(expected, half) / divisor).backward()
        loss_of(net, data[rank]).backward()
        for (name, parameter), other in zip(net.named_parameters(), expected.parameters(), strict=True):
            assert parameter.requires_grad == other.requires_grad == (other.grad is not None), name
            if parameter.requires_grad:
                got = parameter.grad.full_tensor() if isinstance(parameter, DTensor) else parameter.grad
                near(got, other.grad, name)


def check_parts_that_are_sharded(rank):
    """A part's forward is not called, so nothing gathers it: one sentence says what to shard."""

    def shards(module, *parts):
        for part in parts:
            fully_shard(part)
        return module

    mlp, norm = Mlp(6, 4, layer_name="a"), RMSNormLinear(6, 4, layer_name="b")
    shared = SharedInputLinears(6, {"q": 4, "k": 4}, layer_name="c")
    delayed = Float8Linear(6, 4, recipe="delayed", layer_name="d")
    whole = fully_shard(Float8Linear(6, 4, layer_name="e"))
    cases = [
        ('MLP "a"', shards(mlp, mlp.down_proj)),
        ('RMSNorm linear "b"', shards(norm, norm.norm)),
        ('shared input of linear "c.q", linear "c.k"', shards(shared, shared.k)),
        ('linear "d"', functools.partial(Float8Linear.forward, shards(delayed, delayed))),
        ('linear "e"', lambda x: whole(DTensor.from_local(x, whole.weight.device_mesh))),
    ]
    for subject, call in cases:
        with pytest.raises(LinearError) as caught:
            call(torch.randn(3, 6))
        assert str(caught.value) == (
            f"{subject} computes with plain tensors, and got a DTensor: shard the whole module whose forward is "
            "called, not a part of it, or pass .to_local() or .full_tensor()"
        )


class Saved(nn.Module):
    """With layers of both packages, a module of several parts, and a norm."""

    def __init__(self):
        super().__init__()
        kind = {"recipe": "rowwise", "layer_name": "x"}
        self.own = Float8Linear(WIDTH, WIDTH, **kind)
        self.mlp = GatedMlp.from_parts((nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 9)), nn.Linear(9, WIDTH), **kind)
        self.norm = nn.LayerNorm(WIDTH)
        gathered = nn.Sequential(nn.Linear(WIDTH, 32))
        config = float8.Float8LinearConfig.from_recipe_name("rowwise")
        self.torchao = float8.convert_to_float8_training(gathered, config=config)

    def forward(self, x):
        return self.torchao(self.norm(self.mlp(self.own(x))))


def _saved(seed=0):
    torch.manual_seed(seed)
    return Saved()


def _refused(message, model, path):
    try:
        save_float8_checkpoint(model, path)
    except LinearError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"saved, expected: {message}")


def check_checkpoints(rank):
    """Sharded parameters are gathered and written once; what one rank alone cannot do is an error on all of them."""
    folders = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders, 0)
    folder = pathlib.Path(folders[0])
    if rank == 0:
        save_float8_checkpoint(_saved(), folder / "one.safetensors")
        rounded = _saved()
        rounded.own.weight.data.copy_(rounded.own.weight.bfloat16())
        save_float8_checkpoint(rounded, folder / "rounded.safetensors")
    sharded = _saved()
    for part in (sharded.mlp, sharded.torchao):
        fully_shard(part)
    fully_shard(sharded, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16), reshard_after_forward=False)
    files = ["config.json", "model.safetensors", "one.safetensors", "rounded.safetensors"]
    for step in range(2):  # the second time after a forward, which leaves parameters gathered, in bfloat16
        config = save_float8_checkpoint(sharded, folder)
        assert config["ignore"] == [] and sorted(os.listdir(folder)) == files
        # The codes that layers multiply by: where there is mixed precision, of weights that it has rounded.
        assert (folder / "model.safetensors").read_bytes() == (folder / "rounded.safetensors").read_bytes()
        assert (folder / "model.safetensors").read_bytes() != (folder / "one.safetensors").read_bytes()
        dist.barrier()
        sharded(torch.ones(2, WIDTH))
    tensor_parallel = _saved()
    mesh = init_device_mesh(DEVICE, (WORLD,))
    for layer, dim in ((tensor_parallel.own, 0), (tensor_parallel.mlp.down_proj, 1)):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(dim)]))
    save_float8_checkpoint(tensor_parallel, folder / "tp.safetensors")
    assert (folder / "tp.safetensors").read_bytes() == (folder / "one.safetensors").read_bytes()

    gathered = nn.Sequential(nn.Linear(32, 32, bias=False))
    nn.init.constant_(gathered[0].weight, 0.5)
    config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    fully_shard(float8.convert_to_float8_training(gathered, config=config))
    save_float8_checkpoint(gathered, folder / "gathered.safetensors")
    plain = nn.Sequential(nn.Linear(32, 32, bias=False))
    load_float8_checkpoint(plain, folder / "gathered.safetensors", layers="frozen")
    assert (plain[0].dequantize() == 0.5).all()

    other = _saved()
    if rank == 1:
        other.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
    _refused("the ranks hold different models (norm.weight, norm.bias differ: ", fully_shard(other), folder)
    lost = _saved()
    if rank == 1:
        lost.register_buffer("phase", torch.zeros(1, dtype=torch.complex64))
    _refused('"phase": is torch.complex64, which safetensors files lack', fully_shard(lost), folder)
    _refused("inside: cannot be written: Not a directory", sharded, folder / "one.safetensors" / "inside")
    try:
        load_float8_checkpoint(sharded, folder)
    except LinearError as error:
        assert "is sharded (a DTensor): load before fully_shard()" in str(error)
    else:
        raise AssertionError("loaded into shards")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def check_weight_codes(rank):
    """FSDP gathers the weight again for backward, into the memory that forward kept."""

    def train(keep, shards):
        torch.manual_seed(0)
        net = nn.Sequential(
            Float8Linear(16, 32, recipe="rowwise"),
            nn.ReLU(),
            Float8Linear(32, 5, recipe="rowwise_with_gw_hp"),
            nn.ReLU(),
            Float8Linear(5, 3, recipe="tensorwise"),
        )
        for layer in net:
            if isinstance(layer, Float8Linear):
                layer.keep_weight_codes(keep)
                if shards:
                    fully_shard(layer)
        net = fully_shard(net) if shards else net
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        losses = []
        for _ in range(STEPS):
            loss = net(torch.linspace(-1, 1, 96).reshape(6, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected = train(True, False)
    assert train(False, True) == expected
    assert train(None, True) == expected


CHECKS = [
    check_checkpoints,
    check_ddp,
    check_fsdp,
    check_bfloat16,
    check_checkpointing,
    check_accumulation,
    check_delayed,
    check_delayed_on_one_rank,
    check_delayed_of_a_group,
    check_overflow_on_one_rank,
    check_quantized_weights,
    check_parts_that_are_sharded,
    check_weight_codes,
]
folder = two_processes.fixture(CHECKS)


GLOO, NCCL, BOTH = "cpu:gloo,cuda:gloo", "cuda:nccl", "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("backends", "there", "model", "has_layers", "device"),
    [
        (GLOO, True, "empty", False, "cpu"),
        (NCCL, True, "empty", False, "cuda:3"),
        (BOTH, True, "empty", False, "cuda:3"),
        ("cpu:gloo", False, "empty", False, "cpu"),
        (BOTH, True, "plain", False, "cpu"),
        (NCCL, True, "plain", False, "cuda:3"),
        (BOTH, True, "plain", True, "cpu"),
        (NCCL, True, "plain", True, "cuda:3"),
        (BOTH, True, "offloaded", False, "cuda:3"),
        (NCCL, True, "offloaded", False, "cuda:3"),
        (GLOO, False, "sharded", False, "cpu"),
        (NCCL, True, "on meta", False, "cuda:3"),
    ],
)
def test_where_a_rank_joins_the_reduction_of_maxima(backends, there, model, has_layers, device, monkeypatch):
    """Without layers too it has to be where the others are."""
    names = {GLOO: "gloo", NCCL: "nccl"}
    monkeypatch.setattr(dist, "get_backend", lambda group: names.get(backends, "undefined"))
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    net = nn.Identity() if model == "empty" else nn.Linear(2, 2, device="meta" if model == "on meta" else "cpu")
    if model in ("offloaded", "sharded"):
        mesh = types.SimpleNamespace(device_type="cuda" if model == "offloaded" else "cpu")
        shard = mock.Mock(spec=DTensor, is_meta=False, device=torch.device("cpu"), device_mesh=mesh)
        monkeypatch.setattr(net, "parameters", lambda: iter([shard]))
    assert _scale_buffers._device_of(None, net, [torch.zeros(3)] if has_layers else []) == torch.device(device)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)
