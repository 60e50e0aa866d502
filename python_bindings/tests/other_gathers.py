"""Checks of test_nn_all_gather.py: models that something else than fully_shard() shards, with weights that
were to be gathered in FP8. They are refused by a sentence, on every rank, or train with the bits of others."""

import pytest
import torch
import torch.distributed as dist
import two_processes
from gathered_models import loss_of, said
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import ingot.float8 as float8
from ingot.nn import Float8Linear, GatedMlp, Mlp, float8_all_gather, precompute_float8_all_gather

WIDTH = 16
INSTEAD = (
    "in high precision, and only FSDP2 gathers in FP8: shard the model by torch.distributed.fsdp.fully_shard() (FSDP2), or "
    "leave out float8_all_gather() (enable_fsdp_float8_all_gather in ingot.float8)"
)


def of_nn(gathers, recipe="rowwise"):
    torch.manual_seed(0)
    gate, up, down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
    net = nn.Sequential(
        Float8Linear(WIDTH, WIDTH, recipe=recipe),
        Mlp(WIDTH, 32, recipe=recipe, norm="layer"),
        GatedMlp.from_parts((gate, up), down, recipe=recipe),
    )
    if gathers:
        float8_all_gather(net)
    return net


def of_float8(gathers, recipe="rowwise"):
    torch.manual_seed(0)
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "enable_fsdp_float8_all_gather", gathers)
    return float8.convert_to_float8_training(
        nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)), config=config
    )


def x_of(rank):
    return two_processes.normal(4, WIDTH, seed=rank)


def fsdp1(model, **options):
    device = torch.device("cpu") if two_processes.DEVICE == "cpu" else torch.cuda.current_device()
    return FullyShardedDataParallel(model, device_id=device, **options)


def everywhere(name, call):
    """Is the call refused on every rank, with this sentence? None waits for another."""
    with pytest.raises(Exception) as caught:
        call()
    assert name in str(caught.value) and INSTEAD in str(caught.value), str(caught.value)


def check_fsdp1(rank):
    """FSDP1 says so itself, where it keeps the parameters, or the first call does."""
    gathers = "FullyShardedDataParallel (FSDP1) gathers it " + INSTEAD
    for model, first in ((of_nn, 'linear "0" weight: '), (of_float8, 'linear "0" weight: ')):
        for keeps in (True, False):
            wrap = lambda of: fsdp1(of, use_orig_params=keeps)

            def within(of):
                of[2] = wrap(of[2])
                return of

            cases = [(wrap, first), (lambda of: wrap(nn.Sequential(of)), first), (within, first.replace("0", "2"))]
            for shard, name in cases:
                name = name.replace('"2"', '"2.gate"') if model is of_nn else name

                def steps():
                    shard(model(True))(x_of(rank)).sum().backward()

                everywhere(name + gathers, steps)
            if not keeps:
                net = wrap(model(True))
                everywhere(first + gathers, lambda: precompute_float8_all_gather(net))
    fsdp1(of_nn(False))(x_of(rank)).sum().backward()  # without the gather it trains, and with one of what it leaves alone
    net = nn.Sequential(Float8Linear(WIDTH, WIDTH), Float8Linear(WIDTH, WIDTH))
    float8_all_gather(net, filter=lambda name, weight: name == "0")
    fsdp1(net, ignored_modules=[net[0]])(x_of(rank)).sum().backward()


def check_fsdp1_compiled(rank):
    for model in (of_nn, of_float8):
        compiled = torch.compile(fsdp1(model(True), use_orig_params=False), backend="aot_eager")
        everywhere("FullyShardedDataParallel (FSDP1) gathers it " + INSTEAD, lambda: compiled(x_of(rank)))
    torch._dynamo.reset()


def simple_fsdp(model, mesh):
    """Shards as torchtitan's SimpleFSDP does: each class has properties that gather what its parameters are."""

    def whole(shard):
        return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    for module in list(model.modules()):
        names = [name for name, parameter in module._parameters.items() if parameter is not None]
        for name in names:
            shard = distribute_tensor(module._parameters[name], mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(shard))
        if names:
            reads = {name: property(lambda self, name=name: whole(self._parameters[name])) for name in names}
            module.__class__ = type(f"Simple{type(module).__name__}", (type(module),), reads)
    return model


def gathers_in(call):
    """How often a property of simple_fsdp() gathers, while this is called."""
    seen = []
    original = DTensor.redistribute

    def noted(self, *args, **kwargs):
        seen.append(self)
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DTensor, "redistribute", noted)
        call()
    return len(seen)


def check_simple_fsdp(rank):
    """Trains with the bits of one process, one gather a parameter; FP8 gathers are refused."""
    of_simple_fsdp(rank, False)


def check_simple_fsdp_compiled(rank):
    of_simple_fsdp(rank, True)


def of_simple_fsdp(rank, compiled):
    world = dist.get_world_size()
    mesh = init_device_mesh(two_processes.DEVICE, (world,))
    refused = "a parametrization, like SimpleFSDP's, gathers it " + INSTEAD
    for model in (of_nn, of_float8):
        expected = model(False)
        for other in range(world):
            (loss_of(expected, x_of(other)) / world).backward()
        wrap = lambda net: torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
        net = simple_fsdp(model(False), mesh)
        (loss_of(wrap(net), x_of(rank)) / world).backward()
        for (name, one), other in zip(net.named_parameters(), expected.parameters(), strict=True):
            two_processes.near(one.grad.full_tensor(), other.grad, (model, name))
        if not compiled:
            assert gathers_in(lambda: net(x_of(rank))) == len(list(net.parameters()))
        net = simple_fsdp(model(True), mesh)
        everywhere('linear "0" weight: ' + refused, lambda: wrap(net)(x_of(rank)))
        everywhere('linear "0" weight: ' + refused, lambda: precompute_float8_all_gather(net))
        torch._dynamo.reset()


def load_from_first_rank(net, whole, rank):
    """As accelerate's cpu_ram_efficient_loading does: rank 0 sends what it has of a model that is sharded on meta, and all
    put the shards in the place of the parameters."""
    shards = {}
    for name, place in net.state_dict().items():
        values = whole[name].detach() if rank == 0 else torch.empty(place.size(), dtype=place.dtype)
        dist.broadcast(values, 0)
        shards[name] = distribute_tensor(values, place.device_mesh, place.placements).contiguous()
    net.load_state_dict(shards, assign=True)


def check_names(rank):
    """Layers of ingot.float8 are called by their paths in what is logged, made by a conversion or one by one."""
    with said() as lines:
        config = float8.Float8LinearConfig.from_recipe_name("rowwise")
        object.__setattr__(config, "enable_fsdp_float8_all_gather", True)
        made = nn.Sequential(nn.Sequential(float8.Float8Linear(WIDTH, WIDTH, config=config)))
        for net in (nn.Sequential(nn.Sequential(of_float8(True))), made.bfloat16()):
            net = fully_shard(net.bfloat16(), reshard_after_forward=False)
            net(x_of(rank).bfloat16())
    names = [line.split(": FSDP gathers its weight in high precision: its forward and backward read different")[0] for line in lines]
    assert names == ['linear "0"', 'linear "2"', 'linear "0.0"'], lines


CHECKS = [check_fsdp1, check_simple_fsdp, check_names]
COMPILED = [check_fsdp1_compiled, check_simple_fsdp_compiled]
