"""Columns of the table of test_sharded_situations.py: checkpoints and weights that come from elsewhere."""

import contextlib
import pathlib
import shutil
import tempfile

import gathered_models
import other_gathers
import sharded_situations
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import two_processes
from sharded_situations import How, Row, cell, reason_of, same, sharded, trained, weights_of
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
)
from torch.distributed.device_mesh import DeviceMesh

from ingot import Error
from ingot.nn import sync_amax_history

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
OF_SCALES = ("fp8_amax", "fp8_amax_history", "fp8_scale", "fp8_scales_started")


@contextlib.contextmanager
def folder_of_all(rank):
    """One folder for all ranks, which goes when all of them have left."""
    names = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(names)
    yield pathlib.Path(names[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(names[0])


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=1e-2)


def step_of(row, net, optimizer, rank, group):
    loss = sharded_situations.one_backward(row, net, rank)
    sync_amax_history(net, group=group)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def state_of(net, optimizer):
    model, of_optimizer = get_state_dict(net, optimizer)
    return {"model": model, "optimizer": of_optimizer}


def other_ranks(row, rank):
    """Model and optimizer, saved on n ranks and loaded on m, by models with FP8 gathers and without."""
    world = dist.get_world_size()
    half = DeviceMesh(two_processes.DEVICE, list(range(world // 2)), mesh_dim_names=("shard",))
    meshes = [(sharded_situations.mesh_of((world,), ("shard",)), world), (half, world // 2)]
    found, reasons = [], set()
    for (of_saved, saves), (of_loaded, loads) in (meshes, meshes[::-1]):
        with folder_of_all(rank) as folder, gathered_models.said() as lines:
            if rank < saves:
                net = sharded(row, How(options={"mesh": of_saved}), True)
                optimizer = adam(net)
                step_of(row, net, optimizer, rank, of_saved)
                dcp.save(state_of(net, optimizer), checkpoint_id=folder, process_group=of_saved.get_group())
            dist.barrier()
            if rank >= loads:
                continue
            results = []
            for gathers in (False, True):
                how = How(options={"mesh": of_loaded})
                net = sharded(row, how, gathers)
                optimizer = adam(net)
                step_of(row, net, optimizer, rank + 7, of_loaded)  # what is loaded takes the place of something else
                into = state_of(net, optimizer)
                dcp.load(into, checkpoint_id=folder, process_group=of_loaded.get_group())
                set_state_dict(net, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
                losses = [step_of(row, net, optimizer, rank, of_loaded) for _ in range(2)]
                results.append([*losses, *(sharded_situations.local(each).detach() for each in net.parameters())])
            same(*results[::-1], (row, saves, loads))
            found += weights_of(net)
        reasons |= set(map(reason_of, lines))
    return of_first_rank(cell(reasons, sum(found), len(found)))


def of_first_rank(text):
    """Ranks take other parts in what a check does."""
    texts = [text]
    dist.broadcast_object_list(texts)
    return texts[0]


def as_linear(row, rank):
    """A checkpoint of torch.nn.Linear is one of the FP8 model, and the other way round: of DCP, and of state_dict()."""
    _, net = trained(row, How(model=Row.blocks), rank, True, 1)
    whole = get_model_state_dict(net, options=FULL)
    plain = row.plain()
    expected = {name: each.full_tensor().detach().cpu() for name, each in net.named_parameters()}
    with folder_of_all(rank) as folder:
        dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder)
        if rank == 0:
            missing, others = plain.load_state_dict(whole, strict=False)
            assert not missing and all(name.rsplit(".")[-1] in OF_SCALES for name in others), (missing, others)
            same(list(plain.cpu().state_dict().values()), [expected[name] for name in plain.state_dict()], row)
            read = {name: torch.zeros_like(each) for name, each in plain.state_dict().items()}
            dcp.load({"model": read}, checkpoint_id=folder, no_dist=True)
            same(list(read.values()), [expected[name] for name in read], row)
    results = []
    for gathers in (False, True):
        other = sharded(row, How(model=Row.blocks), gathers)
        with torch.no_grad():
            for each in other.parameters():
                each.zero_()
        set_model_state_dict(other, dict(expected) if rank == 0 else {}, options=FROM_FIRST)  # it writes into the dict
        results.append(trained(row, How(model=Row.blocks), rank, gathers, 2, other)[0])
    same(*results, row)
    found = weights_of(other)
    return cell(set(), sum(found), len(found))


def simple_fsdp(row, rank):
    """Something else than FSDP2 gathers the weights: the first call says so, on every rank."""
    mesh = sharded_situations.mesh_of((dist.get_world_size(),), ("shard",))
    net = row.blocks(True)
    row.gather(net)
    net = other_gathers.simple_fsdp(net, mesh)
    try:
        net(row.x(net, rank))
    except Error as error:
        texts = [None] * dist.get_world_size()
        dist.all_gather_object(texts, str(error))
        assert len(set(texts)) == 1, texts
        return f"refused: {texts[0].split('weight: ')[1]}"
    raise AssertionError("gathered")


def from_first_rank(row, rank):
    """Rank 0 has real weights and others what memory holds, or none: sharded on meta, and loaded in two ways."""
    expected, _ = trained(row, How(), rank, False)
    found = []
    for of_accelerate in (True, False) if row.recipe != "delayed" else (False,):  # it loads no model that has buffers
        net = row.of_all_modules(True)
        row.gather(net)
        if rank != 0:
            with torch.no_grad():
                for each in net.parameters():
                    each.fill_(float("nan"))
        whole = net.state_dict()
        how = How(model=lambda row, gathers: net.to("meta"))
        results, given = loaded(row, how, whole, rank, of_accelerate)
        same(results, expected, (row, of_accelerate))
        found += weights_of(given)
    return cell(set(), sum(found), len(found))


def loaded(row, how, whole, rank, of_accelerate):
    net = sharded(Row(row.recipe, "given"), how, True)  # how.model() has said already that weights are gathered in FP8
    if of_accelerate:
        other_gathers.load_from_first_rank(net, whole, rank)
    else:
        net.to_empty(device=two_processes.DEVICE)
        set_model_state_dict(net, dict(whole) if rank == 0 else {}, options=FROM_FIRST)
    return trained(row, how, rank, True, net=net)
