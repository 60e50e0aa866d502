"""Two processes over gloo (two_processes.py has other numbers, and NCCL): FSDP2 that gathers FP8, DDP, tensor parallel and delayed scaling give what one process
gives."""

import contextlib
import copy
import dataclasses
import functools
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import float8_parity
import torch.distributed as dist
import two_processes
from torch import nn
from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

import ingot
import ingot.float8 as float8
from ingot.float8 import CastConfig, Float8LinearConfig, ScalingType, WeightWithDynamicFloat8CastTensor
from ingot.float8.distributed_utils import tensor_already_casted_to_fp8
from ingot.float8.float8_scaling_utils import NoopFwToFloat8BwDynamic, hp_tensor_to_float8_dynamic
from ingot.float8.float8_tensor_parallel import Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput
from ingot.float8.float8_training_tensor import hp_tensor_and_scale_to_float8
from ingot.float8.float8_utils import tensor_to_scale
from ingot.torch import _operators as operators

WORLD, DEVICE = two_processes.WORLD, two_processes.DEVICE
E4M3 = torch.float8_e4m3fn


def model():
    """Shards of these layers are even (16 rows), uneven (5) and empty on rank 1 (1)."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 1, bias=False))


def data():
    return two_processes.normal(6, 8, seed=1)


def train(net, steps, after=lambda: None):
    """Returns the losses of a few steps."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = net(data()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after()
        losses.append(loss.item())
    return losses


def shard(net, **options):
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(net, **options)


def by_pytorch(net):
    """The same model, computed as tensor parallel layers are, in parts, which sum in another order."""
    for layer in float8.get_float8_layers(net):
        layer._operator_casts = None
    return net


@contextlib.contextmanager
def noted_operators():
    """The operators of layers that run, of Ingot's, with whether the weight was given in FP8."""
    names = set()
    wanted = [name for name in vars(operators) if name.startswith(("linear_forward", "linear_backward"))]

    def noting(name, operator):
        def noted(*args, **named):
            names.add((name, named.get("weight_scale_inv") is not None))
            return operator(*args, **named)

        return noted

    with contextlib.ExitStack() as stack:
        for name in wanted:
            stack.enter_context(mock.patch.object(operators, name, noting(name, getattr(operators, name))))
        yield names


def check_fsdp(rank):
    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    expected = train(float8.convert_to_float8_training(model()), 5)
    plain = shard(float8.convert_to_float8_training(model()))
    of_ranks = train(plain, 5)
    two_processes.all_near(of_ranks, expected)
    net = shard(float8.convert_to_float8_training(model(), config=gathers))
    with noted_operators() as names:
        assert train(net, 5) == of_ranks
    # The backward of the first layer, whose input has no gradient, needs no weight.
    assert names == {("linear_forward", True), ("linear_backward", True), ("linear_backward", False)}
    net = shard(float8.convert_to_float8_training(model(), config=gathers))
    assert train(net, 5, lambda: float8.precompute_float8_dynamic_scale_for_fsdp(net)) == of_ranks
    check_scales(net)


class Checkpointed(nn.Module):
    def __init__(self, net, use_reentrant):
        super().__init__()
        self.net, self.use_reentrant = net, use_reentrant

    def forward(self, x):
        return checkpoint(self.net, x.requires_grad_(self.use_reentrant), use_reentrant=self.use_reentrant)


def check_ways_to_shard(rank):
    """On meta until sharded, on the CPU between steps, not freed after forward, and under checkpointing."""
    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    expected = train(float8.convert_to_float8_training(model()), 3)
    for options in ({}, {"reshard_after_forward": False}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}):
        with torch.device("meta"):
            net = model()
        device = "cpu" if "offload_policy" in options else DEVICE
        net = shard(float8.convert_to_float8_training(net, config=gathers), **options).to_empty(device=device)
        with torch.no_grad():
            for to, value in zip(net.parameters(), model().parameters()):
                to.copy_(distribute_tensor(value, to.device_mesh, to.placements))
        losses = train(net, 3, lambda: float8.precompute_float8_dynamic_scale_for_fsdp(net))
        two_processes.all_near(losses, expected, options)
    for use_reentrant in (False, True):
        net = shard(float8.convert_to_float8_training(model(), config=gathers))
        two_processes.all_near(train(Checkpointed(net, use_reentrant), 3), expected)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


def losses_of_blocks(compiled, dtype, precompute=False, trains_first=True, **options):
    """Returns the losses of a few steps, and the last output without gradients."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 3)).to(dtype)
    net[0].requires_grad_(trains_first)
    float8.convert_to_float8_training(net, config=Float8LinearConfig(**options))
    for at in (0, 1):
        if compiled:
            net[at] = torch.compile(net[at], dynamic=False, fullgraph=True, backend="aot_eager")
        fully_shard(net[at])
    fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = data().to(dtype)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if precompute:
            float8.precompute_float8_dynamic_scale_for_fsdp(net)
    with torch.no_grad():
        return losses, net(x)


def check_fsdp_compiled(rank):
    """Compiled blocks have the bits of eager ones, and gathering in FP8 those of gathering in 16 or 32 bits."""
    for dtype, options in (
        (torch.float32, {"precompute": True}),
        (torch.bfloat16, {"pad_inner_dim": True, "trains_first": False}),
        (torch.float32, {"emulate": True}),
    ):
        plain, plain_output = losses_of_blocks(False, dtype, **options)
        for compiled in (False, True):
            losses, output = losses_of_blocks(compiled, dtype, enable_fsdp_float8_all_gather=True, **options)
            assert losses == plain, (dtype, options, compiled, losses, plain)
            assert torch.equal(output, plain_output)


def check_scales(net):
    """Scales are those of whole weights, are kept where values are, and dropped where they change."""
    float8.precompute_float8_dynamic_scale_for_fsdp(net)
    for layer in float8.get_float8_layers(net):
        weight = layer.weight
        local = weight._local_tensor
        assert isinstance(weight, DTensor) and isinstance(local, WeightWithDynamicFloat8CastTensor)
        whole = torch.cat([shard._tensor if hasattr(shard, "_tensor") else shard for shard in [gathered(weight)]])
        assert torch.equal(local._precomputed_scale, tensor_to_scale(whole, E4M3))
        state = net.state_dict()
        assert torch.equal(local.clone()._precomputed_scale, local._precomputed_scale)  # its own, which stays
        kept = [local.detach(), local.view(-1), state[name_of(net, layer)]._local_tensor]
        kept += list(local.split(1)) if local.numel() else []
        assert all(each._precomputed_scale is local._precomputed_scale for each in kept)
        other = torch.empty_like(local)
        assert other._precomputed_scale is None and other.copy_(local) is other
        assert other._precomputed_scale is None  # a rank whose shard is padded would copy into a part of its memory
        for write in WRITES:
            float8.precompute_float8_dynamic_scale_for_fsdp(net)
            assert local._precomputed_scale is not None
            with torch.no_grad():
                write(weight, state[name_of(net, layer)])
            assert local._precomputed_scale is None


WRITES = (
    lambda weight, state: weight.mul_(1),
    lambda weight, state: weight.data.mul_(1),
    lambda weight, state: weight.detach().copy_(weight * 1),
    lambda weight, state: state.mul_(1),
    lambda weight, state: torch._foreach_add_([weight], 0.0),
    lambda weight, state: weight._local_tensor._tensor.mul_(1),
)


def check_written_weights(rank):
    """Averages that take the weights' places, and a checkpoint that is loaded in place, are what the next forward
    casts."""
    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    net = shard(float8.convert_to_float8_training(model(), config=gathers))
    other = float8.convert_to_float8_training(model())
    for factor, write in ((4.0, lambda to, new: to.data.copy_(new)), (16.0, lambda to, new: to.copy_(new))):
        net(data())
        float8.precompute_float8_dynamic_scale_for_fsdp(net)
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                parameter.mul_(factor)
                to = net.state_dict()[name] if factor == 16 else net.get_parameter(name)
                write(to, distribute_tensor(parameter, to.device_mesh, to.placements))
            assert torch.equal(net(data()), other(data()))


def check_ranks_that_disagree(rank):
    """Every rank gets an error where they hold other weights to gather, or cast them to other codes."""
    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    cases = (
        ("0", "rank 0 has 2 and rank 1 has 1; number 1 is .2.weight. .* on rank 0 and no more weights on rank 1: convert"),
        ("", "rank 0 has 2 and rank 1 has 0; number 0 is .0.weight. .* on rank 0 and no more weights on rank 1: convert"),
        ("0,1", r"number 1 is .2.weight. \[8, 4\] float32 cast to float8_e4m3fn by tensor on rank 0 and .1.weight. \[4, 16\]"),
    )
    for kept, message in cases:
        layers = [nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 8)]
        net = nn.Sequential(*layers)
        takes = ("0", "2") if rank == 0 else tuple(kept.split(","))
        float8.convert_to_float8_training(net, config=gathers, module_filter_fn=lambda layer, name: name in takes)
        fully_shard(net)
        with pytest.raises(RuntimeError, match=f"the ranks hold different weights to gather in FP8: .*{message}"):
            float8.precompute_float8_dynamic_scale_for_fsdp(net)
    others = (
        ({"cast_config_weight": CastConfig(target_dtype=torch.float8_e5m2)}, "cast to float8_e5m2 by tensor on rank 1: convert"),
        ({"round_scales_to_power_of_2": True}, "cast to float8_e4m3fn by tensor with powers of two as scales on rank 1: convert"),
    )
    for options, message in others:
        of_rank = Float8LinearConfig(enable_fsdp_float8_all_gather=True, **options) if rank else gathers
        net = float8.convert_to_float8_training(nn.Sequential(nn.Linear(8, 16)), config=of_rank)
        fully_shard(net)
        with pytest.raises(RuntimeError, match=rf".0.weight. \[16, 8\] float32 cast to float8_e4m3fn by tensor on rank 0 and .*{message}"):
            float8.precompute_float8_dynamic_scale_for_fsdp(net)


def name_of(net, layer):
    return next(f"{name}.weight" for name, each in net.named_modules() if each is layer)


def gathered(weight):
    """The whole weight, from the plain shards of all ranks."""
    local = weight._local_tensor._tensor.detach().contiguous()
    rows = -(-weight.shape[0] // WORLD)
    padded = torch.zeros(rows, weight.shape[1])
    padded[: local.shape[0]] = local
    parts = [torch.empty_like(padded) for _ in range(WORLD)]
    dist.all_gather(parts, padded)
    return torch.cat(parts)[: weight.shape[0]]


def check_what_is_sharded_stays(rank):
    net = nn.Sequential(fully_shard(nn.Linear(4, 4)), fully_shard(float8.Float8Linear(4, 4)))
    before = list(net)
    float8.convert_to_float8_training(net)
    assert list(net) == before
    (row,) = float8.conversion_report(net).left_alone
    assert row.reason == "is sharded by FSDP already: convert before fully_shard()"


def check_what_is_wrapped_is_refused(rank):
    """What shards a model holds the layers that it found. DDP holds parameters, which conversion keeps."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    from ingot.nn import Float8WeightOnlyConfig, quantize_

    model = lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    inner = model()
    fully_shard(inner[1])
    device = torch.device("cpu") if DEVICE == "cpu" else torch.cuda.current_device()
    fsdp1 = lambda of: FullyShardedDataParallel(of, device_id=device, use_orig_params=True)
    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    cases = [
        (fully_shard(model()), None, "the model is sharded by FSDP already: convert before fully_shard()"),
        (inner, None, "1 is sharded by FSDP already: convert before fully_shard()"),
        (fsdp1(model()), None, "the model is sharded already: convert before FullyShardedDataParallel()"),
        (DistributedDataParallel(model()), gathers, "wrapped already: convert before DistributedDataParallel()"),
    ]
    for wrapped, config, message in cases:
        for error, replace, word in (
            (RuntimeError, lambda: float8.convert_to_float8_training(wrapped, config=config), "convert"),
            (ingot.Error, lambda: quantize_(wrapped, Float8WeightOnlyConfig()), "quantize"),
        ):
            before = list(wrapped.modules())
            with pytest.raises(error) as caught:
                replace()
            assert message.replace("convert", word) in str(caught.value), str(caught.value)
            assert list(wrapped.modules()) == before
    net = float8.convert_to_float8_training(DistributedDataParallel(model()))
    net(torch.randn(4, 4)).sum().backward()
    assert sum(isinstance(each, float8.Float8Linear) for each in net.modules()) == 2
    assert all(parameter.grad is not None for parameter in net.parameters())


def check_state_dict(rank):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    gathers = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    net = fully_shard(float8.convert_to_float8_training(nn.Sequential(nn.Linear(8, 16)), config=gathers))
    other = fully_shard(float8.convert_to_float8_training(nn.Sequential(nn.Linear(8, 16)), config=gathers))
    other.load_state_dict(net.state_dict(), strict=True)
    x = two_processes.normal(3, 8, seed=0)
    assert torch.equal(net(x), other(x))
    full = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        plain = nn.Sequential(nn.Linear(8, 16))
        plain.load_state_dict(full)


def check_ddp(rank):
    config = Float8LinearConfig.from_recipe_name("rowwise")
    expected = train(float8.convert_to_float8_training(model(), config=config), 3)
    net = nn.parallel.DistributedDataParallel(float8.convert_to_float8_training(model(), config=config))
    two_processes.all_near(train(net, 3), expected)


def check_delayed(rank):
    """Maxima are those of all ranks, for layers of both packages by one collective."""
    delayed = CastConfig(scaling_type=ScalingType.DELAYED)
    config = Float8LinearConfig(
        cast_config_input=delayed, cast_config_weight=delayed, cast_config_grad_output=delayed, enable_amax_init=False
    )
    layer = float8.convert_to_float8_training(nn.Linear(4, 4), config=config)
    other = ingot.nn.Float8Linear(4, 4, recipe="delayed")
    for each in (layer, other):
        each(torch.full((2, 4), 1.0 + rank)).sum().backward()
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduces:
        float8.sync_float8_amax_and_scale_history(nn.ModuleList([layer, other]))
    assert reduces.call_count == 1 and layer.fp8_amax_input.item() == WORLD
    scale = torch.tensor(448 / WORLD)
    assert layer.fp8_amax_history_input[0].item() == WORLD and layer.fp8_scale_input == scale
    assert other.fp8_amax_history[0, 0] == WORLD and other.fp8_scale[0] == scale


class FeedForward(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.w1 = nn.Linear(16, hidden, bias=False)
        self.w2 = nn.Linear(16, hidden, bias=False)
        self.out_proj = nn.Linear(hidden, 16, bias=False)

    def forward(self, x):
        return self.out_proj(torch.nn.functional.silu(self.w1(x)) * self.w2(x))


def check_delayed_of_a_group(rank):
    """Layers that this rank has alone, and ones that a rank has not run or has loaded: nothing waits for the other rank."""
    delayed = CastConfig(scaling_type=ScalingType.DELAYED)
    config = Float8LinearConfig(
        cast_config_input=delayed, cast_config_weight=delayed, cast_config_grad_output=delayed
    )
    groups = [dist.new_group([each]) for each in range(WORLD)]

    def layers(count):
        torch.manual_seed(0)
        return float8.convert_to_float8_training(nn.Sequential(*(nn.Linear(8, 8) for _ in range(count))), config=config)

    def run(model, size):
        model(torch.full((4, 8), size)).sum().backward()

    expert = layers(1)
    run(expert, 1.0 + 9 * rank)  # a first step reduces nothing: the other rank may not run the layer
    float8.sync_float8_amax_and_scale_history(expert, group=groups[rank])
    run(expert, 1.0 + 9 * rank)
    float8.sync_float8_amax_and_scale_history(expert, reduce=False)
    assert expert[0].fp8_amax_history_input[0] == 1.0 + 9 * rank and expert[0].is_amax_initialized
    with pytest.raises(ingot.Error, match="the ranks hold different layers: 2 with delayed scales on one, 3 on another"):
        float8.sync_float8_amax_and_scale_history(layers(2 + min(rank, 1)))
    shared, loaded = layers(1), layers(1)
    if rank == 0:
        run(shared, 3.0)
    else:
        loaded.load_state_dict(expert.state_dict())
    run(loaded, 2.0)
    both = nn.ModuleList([shared, loaded])
    for _ in range(2):
        float8.sync_float8_amax_and_scale_history(both)
    assert all(each[0].is_amax_initialized for each in both)
    assert shared[0].fp8_amax_history_input[:2].tolist() == [3.0, 3.0]
    assert shared[0].fp8_scale_input == torch.tensor(448 / 3.0)


def same_sums(ours, theirs):
    """On the CPU by the tolerances of float32. On a GPU the size of a part decides which kernel multiplies, which sums FP8 in fewer
    bits than float32 has."""
    tolerances = {} if DEVICE == "cpu" else {"rtol": 2e-3, "atol": 2e-3 * theirs.abs().max().item()}
    torch.testing.assert_close(ours, theirs, **tolerances)


def check_tensor_parallel(rank):
    mesh = init_device_mesh(DEVICE, (WORLD,))
    torch.manual_seed(0)
    whole = by_pytorch(float8.convert_to_float8_training(nn.ModuleDict({"ffn": FeedForward(16 * WORLD)})))
    net = copy.deepcopy(whole)
    sequence = copy.deepcopy(whole)
    plan = {
        "ffn.w1": Float8ColwiseParallel(),
        "ffn.w2": Float8ColwiseParallel(),
        "ffn.out_proj": Float8RowwiseParallel(),
    }
    parallelize_module(net, mesh, plan)
    prepare = PrepareFloat8ModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    rows = Float8RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    parallelize_module(sequence, mesh, {**plan, "ffn": prepare, "ffn.out_proj": rows})
    x = two_processes.normal(2, 2 * WORLD, 16, seed=0)
    expected = whole["ffn"](x)
    expected.sum().backward()
    y = net["ffn"](x)
    y.sum().backward()
    z = sequence["ffn"](x.chunk(WORLD, 1)[rank])
    z.sum().backward()
    same_sums(y, expected)
    same_sums(z.full_tensor(), expected)
    for name, parameter in whole.named_parameters():
        for each in (net, sequence):
            torch.testing.assert_close(each.get_parameter(name).grad.full_tensor(), parameter.grad, atol=0.1, rtol=0.1)


def check_tensor_parallel_in_inference_mode(rank):
    """Alone, and under FSDP2 that gathers in 16 bits and in FP8, with the bits of training. The last layer is whole: its input comes of
    a collective, and Ingot's kernels take it."""
    mesh = init_device_mesh(DEVICE, (1, WORLD), mesh_dim_names=("dp", "tp"))
    plan = {"0.w1": Float8ColwiseParallel(), "0.w2": Float8ColwiseParallel(), "0.out_proj": Float8RowwiseParallel()}
    x = two_processes.normal(2 * WORLD, 16, seed=0)
    for gathers in (None, False, True):
        torch.manual_seed(0)
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=bool(gathers))
        net = float8.convert_to_float8_training(nn.Sequential(FeedForward(16 * WORLD), nn.Linear(16, 16)), config=config)
        parallelize_module(net, mesh["tp"], plan)
        if gathers is not None:
            for part in (*net, net):
                fully_shard(part, mesh=mesh["dp"])
        expected = net(x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert torch.equal(net(x), expected), (gathers, mode)
        net(x).sum().backward()
        assert all(getattr(each.grad, "_local_tensor", each.grad).isfinite().all() for each in net.parameters())


def check_tensor_parallel_compiled(rank):
    """In one graph."""
    torch.manual_seed(0)
    net = float8.convert_to_float8_training(FeedForward(16 * WORLD))
    plan = {"w1": Float8ColwiseParallel(), "w2": Float8ColwiseParallel(), "out_proj": Float8RowwiseParallel()}
    parallelize_module(net, init_device_mesh(DEVICE, (WORLD,)), plan)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    results = []
    for forward in (net, compiled):
        x = two_processes.normal(2, 2 * WORLD, 16, seed=0).requires_grad_()
        output = forward(x)
        output.square().sum().backward()
        results.append((output, x.grad, *(parameter.grad.full_tensor() for parameter in net.parameters())))
        net.zero_grad()
    for eager, other in zip(*results, strict=True):
        same_sums(other, eager)


def check_tensor_parallel_of_odd_sizes(rank):
    """Parts that are not equal, and none on rank 1: right as DTensors, and refused on every rank as plain tensors."""
    mesh = init_device_mesh(DEVICE, (WORLD,))
    x = two_processes.normal(2, 3, 16, seed=0)
    for hidden in (16 * WORLD + 1, 1):
        torch.manual_seed(0)
        whole = by_pytorch(float8.convert_to_float8_training(FeedForward(hidden)))
        expected = whole(x)
        expected.sum().backward()
        for local in (False, True):
            net = copy.deepcopy(whole)
            first = Float8ColwiseParallel(use_local_output=local)
            parallelize_module(net, mesh, {"w1": first, "w2": first, "out_proj": Float8RowwiseParallel()})
            if local:
                message = f"the {hidden} input features of .* are not equal parts on {WORLD} ranks.*use_local_output=False"
                with pytest.raises(RuntimeError, match=message):
                    net(x)
                continue
            y = net(x)
            y.sum().backward()
            same_sums(y, expected)
            for name, parameter in whole.named_parameters():
                torch.testing.assert_close(
                    net.get_parameter(name).grad.full_tensor(), parameter.grad, atol=0.1, rtol=0.1
                )


def check_tensor_parallel_refuses(rank):
    mesh = init_device_mesh(DEVICE, (WORLD,))
    emulated = float8.convert_to_float8_training(
        nn.Linear(4, 4), config=dataclasses.replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    )
    for style in (Float8ColwiseParallel, Float8RowwiseParallel):
        with pytest.raises(
            ValueError, match="Expecting module to be Float8Linear but found torch.nn.modules.linear.Linear"
        ):
            parallelize_module(nn.Linear(4, 4), mesh, style())
        with pytest.raises(AssertionError, match="unsupported: .* has delayed or static scales, or is emulated"):
            parallelize_module(emulated, mesh, style())
    with pytest.raises(NotImplementedError, match="casts to torch.float8_e4m3fn, not to torch.float8_e5m2"):
        PrepareFloat8ModuleInput(float8_dtype=torch.float8_e5m2)
    prepare = functools.partial(PrepareFloat8ModuleInput, input_layouts=Shard(0), desired_input_layouts=Replicate())
    with pytest.raises(AssertionError, match="there is no Float8Linear in torch.nn.modules.activation.ReLU"):
        parallelize_module(nn.ReLU(), mesh, prepare())
    mixed = nn.Sequential(float8.Float8Linear(4, 4), float8.Float8Linear(4, 4, config=Float8LinearConfig(emulate=True)))
    with pytest.raises(AssertionError, match="should have same linear_mm_config"):
        parallelize_module(mixed, mesh, prepare())
    style = prepare(fwd_config_submodule_fqn="1")
    parallelize_module(mixed, mesh, style)
    with pytest.raises(AssertionError, match="expecting input to be a torch.Tensor, got a list"):
        style._prepare_input_arg([], mesh, Shard(0), Replicate())


def check_distributed_tensors(rank):
    mesh = init_device_mesh(DEVICE, (WORLD,))
    x = two_processes.normal(4 * WORLD, 16, seed=0)
    config = float8.LinearMMConfig()
    sharded = hp_tensor_to_float8_dynamic(distribute_tensor(x, mesh, [Shard(0)]), E4M3, config)
    assert isinstance(sharded, DTensor) and tensor_already_casted_to_fp8(sharded)
    assert torch.equal(sharded._local_tensor._scale, tensor_to_scale(x, E4M3))
    whole = sharded.redistribute(placements=[Replicate()]).to_local()
    whole = whole.wait() if hasattr(whole, "wait") else whole
    assert torch.equal(
        whole._data.view(torch.uint8), hp_tensor_to_float8_dynamic(x, E4M3, config)._data.view(torch.uint8)
    )
    with pytest.raises(AssertionError, match="a scale that is a DTensor too, and this one is a plain tensor"):
        hp_tensor_and_scale_to_float8(distribute_tensor(x, mesh, [Shard(0)]), torch.tensor(1.0), E4M3)
    local = torch.full((4,), 1.0 + rank)
    reduced = tensor_to_scale(local, E4M3, reduce_amax=True, device_mesh=mesh)
    assert torch.equal(reduced, tensor_to_scale(local, E4M3, reduce_amax=True)) and reduced == torch.tensor(448 / WORLD)
    y = NoopFwToFloat8BwDynamic.apply(x.requires_grad_(), config, torch.float8_e5m2)
    assert torch.equal(y, x)


CHECKS = [
    check_fsdp,
    check_ways_to_shard,
    check_fsdp_compiled,
    check_written_weights,
    check_ranks_that_disagree,
    check_what_is_sharded_stays,
    check_what_is_wrapped_is_refused,
    check_state_dict,
    check_ddp,
    check_delayed,
    check_delayed_of_a_group,
    check_tensor_parallel,
    check_tensor_parallel_in_inference_mode,
    check_tensor_parallel_of_odd_sizes,
    check_tensor_parallel_refuses,
    check_distributed_tensors,
    float8_parity.check_parity,
]


class _OneRank:
    def size(self):
        return 1


def test_a_weight_replaced_between_gathers_is_refused():
    weight = WeightWithDynamicFloat8CastTensor(torch.ones(4, 4), float8.LinearMMConfig(), E4M3)
    gathered, told = weight.fsdp_pre_all_gather(_OneRank(), weight.shape, weight.stride(), None, MixedPrecisionPolicy())
    with pytest.raises(RuntimeError, match="gathered in FP8 before is now a Tensor") as caught:
        weight.fsdp_post_all_gather(gathered, told, torch.float32, out=torch.ones(4, 4))
    assert isinstance(caught.value, ingot.Error)
    assert "dtype=torch.float8_e4m3fn" in repr(weight)


folder = two_processes.fixture(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)


NIGHTLY = [float8_parity.check_all_parity, check_tensor_parallel_compiled]
nightly_folder = two_processes.fixture(NIGHTLY)


@pytest.mark.nightly
@pytest.mark.parametrize("check", NIGHTLY, ids=lambda check: check.__name__)
def test_two_processes_nightly(check, nightly_folder):
    two_processes.passed(check, nightly_folder)
