"""FSDP2 that gathers the weights of ingot.nn's modules in FP8 over gloo: training has the bits that it has without, for
every recipe and module, and what is sent is counted."""

import contextlib
import copy
import gc
import importlib.util
import itertools
import logging
import pickle
import re
import time
import types
import unittest
import warnings
import weakref
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import other_gathers
import torch.distributed as dist
import two_processes
from conftest import rare_collections
from gathered_models import RECIPES, Case, loss_of, said
from sharded_situations import ROWS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from ingot.nn import (
    Float8Linear, LayerNormLinear, float8_all_gather, precompute_float8_all_gather, sync_amax_history
)
from ingot.nn._delayed import warn_of_no_sync
from ingot.torch import LinearError, _shard_gather, _sharded_weight
from ingot.torch._fsdp_units import Unit
from ingot.torch._gathered_weight import Casts, GatheredWeight
from ingot.torch._progress import progress
from ingot.torch._shard_casts import ShardCast, rows_of
from ingot.torch._sharded_weight import Gather, ShardedWeight, _Asked, _Ranks, _Sent
from ingot.torch._unit_casts import Scratch, UnitCasts, _Gather


@contextlib.contextmanager
def collectives():
    """What is sent: (the collective, dtype, elements), FSDP's gathers and ours, those of scale_inv that go "apart"."""
    seen = []
    names = [name for name in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, name)]

    def spy(name, original):
        def noted(*args, **kwargs):
            sent = kwargs["input_tensor"] if "input_tensor" in kwargs else args[1]
            seen.append(("all_gather", sent.dtype, sent.numel()))
            return original(*args, **kwargs)

        return noted

    import torch.distributed._functional_collectives as functional

    def reduced(values, *args, **kwargs):
        seen.append(("all_reduce", values.dtype, values.numel()))
        return all_reduce(values, *args, **kwargs)

    def apart(values, *args, **kwargs):
        seen.append(("apart", values.dtype, values.numel()))
        return gather_apart(values, *args, **kwargs)

    all_reduce, gather_apart = functional.all_reduce, _sharded_weight._all_gather
    with contextlib.ExitStack() as stack:
        name = names[0]  # the newer one; FSDP calls it
        stack.enter_context(mock.patch.object(dist, name, spy(name, getattr(dist, name))))
        stack.enter_context(mock.patch.object(functional, "all_reduce", reduced))
        stack.enter_context(mock.patch.object(_sharded_weight, "_all_gather", apart))
        yield seen


def check_eager(rank):
    for recipe in RECIPES:
        Case(recipe, mixed=True, precompute=True).check(rank)
        Case(recipe, even=False).check(rank)


def check_all_eager(rank):
    for recipe in RECIPES:
        for even in (True, False):
            for precompute in (True, False):
                Case(recipe, even=even, mixed=True, precompute=precompute).check(rank)
                Case(recipe, even=even, precompute=precompute).check(rank)
                Case(recipe, even=even, dtype=torch.bfloat16, precompute=precompute).check(rank)


def check_compiled(rank):
    eager = Case("rowwise", mixed=True, precompute=True)
    Case("rowwise", compiled=True, mixed=True, precompute=True).check(rank, expected_of=eager)


def check_all_compiled(rank):
    for recipe in RECIPES:
        Case(recipe, compiled=True, mixed=True, precompute=True).check(rank)
        Case(recipe, compiled=True, even=False).check(rank)


def sent_by(row, layers, steps=2):
    """What steps of a model send that gathers in FP8, without its first one; row: None for bfloat16."""
    net = nn.Sequential(*(nn.Linear(*sizes, bias=False) for sizes in layers))
    net = net.bfloat16() if row is None else row.converted(net, True)
    if row is not None:
        row.gather(net)
    for part in (*net, net):
        fully_shard(part)
    x = torch.randn(4, layers[0][0], dtype=torch.bfloat16 if row is None else torch.float32).requires_grad_()
    for step in range(steps + 1):
        with collectives() as sent:
            net(x).sum().backward()
            precompute_float8_all_gather(net)
        assert step < 2 or sent == before, (row, sent, before)  # every step after the first
        before = sent
    return [[each for each in sent if each[0] == kind] for kind in ("all_gather", "all_reduce", "apart")]


def check_what_is_sent(rank):
    """One byte for each element in forward and in backward; in a step one reduction of all maxima of the model, none where scales
    are those of a rank's own rows, and one gather of the scale_inv of rows or blocks: at most 0.51 of bfloat16's bytes."""
    world = dist.get_world_size()
    layers = [(384 * world, 256 * world), (256 * world, 384 * world)]
    gathers, reduces, apart = sent_by(None, layers)
    order = [layers[0], layers[1], layers[1], layers[0]]
    assert gathers == [("all_gather", torch.bfloat16, columns * rows // world) for columns, rows in order]
    assert not reduces and not apart
    of_16_bits = 2 * sum(count for *_, count in gathers)
    for name, row in ROWS.items():
        if row.package == "experts":  # test_experts_all_gather.py counts what these send
            continue
        gathers, reduces, apart = sent_by(row, layers)
        counts = [columns * rows // world for columns, rows in order]
        assert gathers == [("all_gather", torch.uint8, count) for count in counts], (name, gathers)
        maxima = {"rowwise": sum(columns for columns, _ in layers), "rowwise_folded": 0, "blockwise": 0}.get(row.recipe, 2)
        assert reduces == ([("all_reduce", torch.int32, maxima)] if maxima else []), (name, reduces)  # the bits of f32
        of_rows = sum(rows for _, rows in layers) // world
        of_blocks = sum(rows // world // 128 * (columns // 128) for columns, rows in layers)
        scale_inv = {"tensorwise": 0, "delayed": 0, "blockwise": of_blocks}.get(row.recipe, of_rows)
        assert apart == ([("apart", torch.float32, scale_inv)] if scale_inv else []), (name, apart)
        assert sum(counts) + 4 * (maxima + scale_inv) <= 0.51 * of_16_bits, name
    rows = 3 * world + 1, 5 * world + 1  # which ranks do not divide
    for recipe in ("rowwise", "tensorwise"):
        gathers, reduces, apart = sent_by(ROWS[recipe], [(16, rows[0]), rows])
        longest = [-(-each // world) for each in rows]
        assert apart == ([("apart", torch.float32, sum(longest))] if recipe == "rowwise" else []), (recipe, apart)
        assert len(reduces) == 1 and gathers[0] == ("all_gather", torch.uint8, 16 * longest[0]), (recipe, gathers)


def live_bytes(*dtypes):
    """Of all tensors of these dtypes that Python knows, each memory once."""
    found = {}
    for each in gc.get_objects():
        if type(each) is torch.Tensor and each.dtype in dtypes:
            found[each.untyped_storage()._cdata] = each.untyped_storage().nbytes()
    return sum(found.values())


def live_in_steps(recipe, *dtypes, layers=4, width=1024):
    """live_bytes() between the parts of a step, and in the forward and backward of each layer, by name."""
    gc.collect()
    found = {}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = nn.Sequential(*(Float8Linear(width, width, bias=False, recipe=recipe or "high_precision") for _ in range(layers)))
    if recipe:
        float8_all_gather(net)
    for at, part in enumerate(net):
        fully_shard(part, mp_policy=policy)
        part.register_forward_pre_hook(lambda *_, at=at: found.update({f"forward of {at}": live_bytes(*dtypes)}))
        part.register_full_backward_pre_hook(lambda *_, at=at: found.update({f"backward of {at}": live_bytes(*dtypes)}))
    fully_shard(net, mp_policy=policy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(1, width, requires_grad=True)
    for _ in range(3):
        loss = net(x).float().sum()
        found["forward's end"] = live_bytes(*dtypes)
        loss.backward()
        found["optimizer"] = live_bytes(*dtypes)
        optimizer.step()
        optimizer.zero_grad()
        precompute_float8_all_gather(net)
        found["precompute's end"] = live_bytes(*dtypes)
    return found


def check_codes_that_live(rank):
    """Between gathers no more codes than those of one layer's shard, and while it is gathered no more bytes than in bfloat16."""
    rare_collections()  # live_bytes() then looks at what is made from here on, not at all that has been imported
    layer = 1024 * 1024
    plain = live_in_steps(None, torch.bfloat16)
    for recipe in ("tensorwise", "rowwise", "blockwise"):
        found = live_in_steps(recipe, torch.uint8, torch.float8_e4m3fn)
        for name in ("optimizer", "precompute's end"):
            assert found[name] <= layer // dist.get_world_size() + 512, (recipe, name, found)
        for part in ("forward of", "backward of"):
            ours, theirs = (max(each for name, each in of.items() if part in name) for of in (found, plain))
            assert 0 < ours <= theirs, (recipe, part, found, plain)


def check_kept_after_forward(rank):
    """Forward and backward read one gather, of both sets of codes where they are fewer bytes than values."""
    with said() as lines:
        Case("rowwise", precompute=True, reshard_after_forward=False).check(rank)
    assert not lines


def check_checkpointing(rank):
    """A forward that runs again in backward. Calls of torch.utils.checkpoint are seen when it does."""
    with said() as lines:
        Case("rowwise", checkpointed=True, mixed=True).check(rank)
    names = {line.split('"')[1] for line in lines if "they are gathered once more, while everything waits" in line}
    assert names == {"first", "qkv.q", "qkv.k", "qkv.v", "plain", "3", "gated", "two.gate", "two.up", "two.down", "last"}
    assert all('linear "' in line for line in lines)
    for dtype, why in ((torch.bfloat16, "activation checkpointing runs its forward again in backward"), (torch.float32, "")):
        outputs = []
        for gathers in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(*(Float8Linear(16, 16, recipe="rowwise", layer_name=f"l{at}") for at in range(2))).to(dtype)
            if gathers:
                float8_all_gather(net)
            for at in range(2):
                net[at] = fully_shard(checkpoint_wrapper(net[at]))
            fully_shard(net)
            x = two_processes.normal(4, 16, seed=rank).to(dtype).requires_grad_()
            with said() as lines:
                net(x).square().mean().backward()
            outputs.append((x.grad, [each.grad.full_tensor() for each in net.parameters()]))
            assert sum(why in line for line in lines) == (2 if why and gathers else 0), lines
        assert torch.equal(outputs[0][0], outputs[1][0]) and all(map(torch.equal, outputs[0][1], outputs[1][1]))


def check_who_warns(rank):
    """What is true of the model of all ranks is a warning of the first one; the others have it at level INFO."""
    layer = Float8Linear(16, 16, recipe="delayed", layer_name="one")
    head = nn.Embedding(16, 16)
    head.weight = layer.weight
    with mock.patch("ingot.torch._saying._SAID", set()), unittest.TestCase().assertLogs("ingot", "INFO") as found:
        float8_all_gather(nn.Linear(16, 16))
        float8_all_gather(nn.ModuleDict({"layer": layer, "head": head}))
    first, second = found.records
    assert "has no FP8 layers" in first.getMessage() and "head shares it" in second.getMessage()
    assert first.levelname == second.levelname == ("INFO" if rank else "WARNING")
    with warnings.catch_warnings(record=True) as warned, mock.patch("ingot.nn._delayed._WARNED", []), said() as lines:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_of_no_sync("linear")
    warned = [str(each.message) for each in warned]
    one, none = (lines, warned) if rank else (warned, lines)
    assert len(one) == 1 and not none
    assert one[0].startswith('linear recipe: is "delayed", and 1000 forwards have run without sync_amax_history(model)')
    has_tqdm = importlib.util.find_spec("tqdm") is not None
    with mock.patch("sys.stderr", mock.Mock(isatty=lambda: True)) as terminal, progress("something", 50):
        assert terminal.write.called == (rank == 0 and has_tqdm)


def check_recomputed_in_a_graph(rank):
    """What a compiled backward would compute of other codes is refused, with the remedy."""

    class Again(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=False)

    for recipe, recomputed in (("rowwise", False), ("rowwise", True), ("rowwise_folded", False)):
        grads = []
        for gathers in (False, True):
            torch.manual_seed(0)
            net = Again(nn.Sequential(Float8Linear(16, 32, recipe=recipe, layer_name="a"), nn.GELU()))
            if gathers:
                float8_all_gather(net, recomputed=recomputed)
            net.compile(fullgraph=True, backend="aot_eager")
            fully_shard(net, reshard_after_forward=True)
            x = two_processes.normal(4, 16, seed=rank).requires_grad_()
            if gathers and recipe == "rowwise" and not recomputed:
                if hasattr(dist, "all_gather_single"):
                    with pytest.raises(Exception, match=r"float8_all_gather\(model, recomputed=True\), or wrap the module"):
                        net(x)
                else:  # older versions of PyTorch do not say while they trace what will run again
                    net(x).square().mean().backward()
                    assert x.grad.isnan().all() or torch.equal(x.grad, grads[0][0])
                break
            net(x).square().mean().backward()
            grads.append((x.grad, net.part[0].weight.grad.full_tensor()))
        assert len(grads) < 2 or all(map(torch.equal, *grads)), (recipe, recomputed)


def check_no_codes_are_kept(rank):
    """Where FSDP frees weights after forward, layers keep none of their codes for backward, in high precision either."""
    kept = {}
    for reshards, compiled in itertools.product((False, True), (False, True)):  # where one model frees, all are taken to
        torch._dynamo.reset()
        net = nn.Sequential(Float8Linear(64, 64, bias=False, layer_name="a"))
        if compiled:
            net[0].compile(dynamic=False, backend="aot_eager")
        for part in (net[0], net):  # PyTorch 2.7 never frees what belongs to the root
            fully_shard(part, reshard_after_forward=reshards)
        sizes = []
        pack = lambda each: sizes.append(each.numel() if each.dtype == torch.uint8 else 0) or each
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
            net(torch.randn(2, 64, requires_grad=True))
        kept[reshards, compiled] = sum(sizes)
    for compiled in (False, True):
        assert kept[False, compiled] - kept[True, compiled] >= 2 * 64 * 64, (compiled, kept)


def check_models_are_freed(rank):
    """A model that nothing holds any more is freed, with its shards, by a garbage collection."""
    for recipe, precomputes in (("tensorwise", True), ("rowwise", False), ("delayed", True)):
        net = small(recipe, True)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            loss_of(net, batch(rank)).backward()
            optimizer.step()
            if precomputes:
                precompute_float8_all_gather(net)
        shards = [weakref.ref(each._local_tensor) for each in net.parameters()]
        del net, optimizer
        end = time.monotonic() + 10
        gc.collect()
        while any(shard() is not None for shard in shards):  # a GPU's thread of autograd may not have let go of the last step yet
            assert time.monotonic() < end, (recipe, precomputes)
            time.sleep(0.05)
            gc.collect()


def check_offload(rank):
    """Shards on the CPU whose codes are gathered once more."""
    Case("rowwise", checkpointed=True, offload_policy=CPUOffloadPolicy(pin_memory=False)).check(rank)


def small(recipe, gathers, **options):
    torch.manual_seed(0)
    net = nn.Sequential(
        LayerNormLinear(16, 32, recipe=recipe, layer_name="a"), Float8Linear(32, 7, recipe=recipe, layer_name="b")
    )
    if gathers:
        float8_all_gather(net)
    for part in net:
        fully_shard(part, **options)
    return fully_shard(net, **options)


def batch(rank, at=0):
    return two_processes.normal(4, 16, seed=10 * rank + at)


def check_written_weights(rank):
    """Averages that take the weights' places for an evaluation, and what other aliases write, are what is cast next."""
    for recipe in ("rowwise", "tensorwise", "delayed"):
        outputs = []
        for gathers in (False, True):
            net = small(recipe, gathers)
            loss_of(net, batch(rank)).backward()
            found = []
            for write in (lambda to: to.mul_(4), lambda to: to.data.mul_(2), lambda to: to._local_tensor.detach().mul_(3)):
                if gathers:
                    precompute_float8_all_gather(net)
                with torch.no_grad():
                    kept = [each._local_tensor.detach().clone() for each in net.parameters()]
                    for each in net.parameters():
                        write(each)
                    found.append(net(batch(rank)))
                    for each, value in zip(net.parameters(), kept):
                        each._local_tensor.copy_(value)
                    found.append(net(batch(rank)))
            outputs.append(found)
        assert all(map(torch.equal, *outputs)), recipe


def check_copies(rank):
    """Copies of weights keep their values in FP8 when the originals change: casts are written in place."""
    for recipe in ("tensorwise", "rowwise"):
        net = small(recipe, True)
        precompute_float8_all_gather(net)
        before = net(batch(rank))
        kept = [each.detach().clone() for each in net.parameters()]
        with torch.no_grad():
            for each in net.parameters():
                each.mul_(3)
            precompute_float8_all_gather(net)
            net(batch(rank))
            for each, value in zip(net.parameters(), kept):
                each.copy_(value)
        assert torch.equal(net(batch(rank)), before), recipe
        other = copy.deepcopy(kept)
        assert all(torch.equal(each._local_tensor, value._local_tensor) for each, value in zip(other, kept))


def rows_of_last(rows):
    """How many every rank has at least."""
    longest = -(-rows // two_processes.WORLD)
    return max(0, rows - longest * (two_processes.WORLD - 1))


def check_one_shard(rank):
    """Replicas that each have all rows, and weights that a collective writes."""
    mesh = init_device_mesh(two_processes.DEVICE, (two_processes.WORLD, 1), mesh_dim_names=("replicate", "shard"))
    for recipe in ("tensorwise", "rowwise", "rowwise_folded"):
        Case(recipe, mesh=mesh, reshard_after_forward=False).check(rank)
    for recipe in ("tensorwise", "rowwise_folded"):
        net = small(recipe, True)
        net(batch(rank))
        precompute_float8_all_gather(net)
        with torch.no_grad():
            for each in net.parameters():
                local = each._local_tensor
                dist.all_reduce(local[: rows_of_last(each.shape[0])])
            plain = small(recipe, False)
            for to, each in zip(plain.parameters(), net.parameters()):
                to._local_tensor.copy_(getattr(each._local_tensor, "_tensor", each._local_tensor))
            assert torch.equal(net(batch(rank)), plain(batch(rank))), recipe
        net, plain = (small(recipe, gathers, mesh=mesh) for gathers in (True, False))
        for of in (net, plain):
            state = of.state_dict()
            precompute_float8_all_gather(of)
            for each in state.values():
                assert type(each._local_tensor) is torch.Tensor  # of a full state dict on one rank, which files take
                each.mul_(2)
        assert torch.equal(net(batch(rank)), plain(batch(rank))), recipe
        unsharded = nn.Sequential(Float8Linear(16, 32, recipe=recipe))
        float8_all_gather(unsharded)
        assert all(type(each) is torch.Tensor for each in unsharded.state_dict().values())


def check_stays(rank):
    """What stays gathered has the scales of its own values, whatever is cast meanwhile."""
    for recipe in ("tensorwise", "delayed"):
        outputs = []
        for gathers in (False, True):
            net = small(recipe, gathers, reshard_after_forward=False)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
            for step in range(3):
                loss_of(net, batch(rank)).backward()
                sync_amax_history(net)
                with torch.no_grad():
                    outputs.append(net(batch(rank, step)))
                optimizer.step()
                optimizer.zero_grad()
                if gathers:
                    precompute_float8_all_gather(net)
                with torch.no_grad():
                    outputs.append(net(batch(rank, step)))  # of the weights before the step, as FSDP has it
        half = len(outputs) // 2
        assert all(map(torch.equal, outputs[:half], outputs[half:])), (recipe, outputs)


def check_assigned(rank):
    """Parameters that a checkpoint puts in the place of others are gathered as those before."""
    whole = {name: each.full_tensor().detach() for name, each in small("rowwise", True).state_dict().items()}
    net = nn.Sequential(LayerNormLinear(16, 32, recipe="rowwise"), Float8Linear(32, 7, recipe="rowwise"))
    float8_all_gather(net)
    net.load_state_dict(whole, assign=True)
    assert all(isinstance(each, ShardedWeight) for _, each in [*net[0].named_weights(), *net[1].named_weights()])


def check_other_rank(rank):
    """Before the first gather every rank hears of the first weight that is not the same on all of them."""
    for of_ranks, message in (
        ({"recipe": ("rowwise", "tensorwise")}, 'number 0 is "0.weight" [32, 16] float32 cast to float8_e4m3fn by row and col with powers of two as scales on rank 0 and "0.weight" [32, 16] float32 cast to float8_e4m3fn by tensor on rank 1'),
        ({"recipe": ("tensorwise", "delayed")}, 'by tensor on rank 0 and "0.weight" [32, 16] float32 cast to float8_e4m3fn by tensor with delayed scales on rank 1'),
        ({"dtype": (torch.float32, torch.bfloat16)}, 'number 0 is "0.weight" [32, 16] float32 cast to float8_e4m3fn by tensor on rank 0 and "0.weight" [32, 16] bfloat16 cast'),
        ({"rows": (32, 48)}, 'number 0 is "0.weight" [32, 16] float32 cast to float8_e4m3fn by tensor on rank 0 and "0.weight" [48, 16]'),
        ({"count": (2, 1)}, 'rank 0 has 2 and rank 1 has 1; number 1 is "1.weight"'),
    ):
        mine = {"recipe": "tensorwise", "rows": 32, "count": 2, "dtype": None}
        mine |= {name: values[min(rank, 1)] for name, values in of_ranks.items()}
        rows, options = mine["rows"], {"recipe": mine["recipe"], "dtype": mine["dtype"]}
        net = nn.Sequential(*(Float8Linear(16 if at == 0 else rows, rows, **options) for at in range(2)))
        float8_all_gather(net, filter=lambda name, weight: name in [str(at) for at in range(mine["count"])])
        for part in net:
            fully_shard(part)
        fully_shard(net)
        with pytest.raises(LinearError) as caught:
            net(torch.ones(1, 16))
        assert message in str(caught.value) and "convert the same layers on every rank" in str(caught.value)


def test_codes_that_were_not_gathered_come_from_the_device_of_the_mesh():
    """Of a shard that FSDP keeps on the CPU; meta stands for the GPU."""
    shard = ShardedWeight(two_processes.normal(16, 32, seed=0), Casts(torch.float8_e4m3fn, "row", "col", False))
    kept = ShardCast(torch.float32, rows_of(shard._tensor))  # as precompute() leaves it
    kept.scales[1], kept.scale_inv[1] = torch.ones(32), torch.ones(32)
    kept.kept[1] = torch.zeros(16, 32, dtype=torch.uint8)
    for device in (two_processes.DEVICE, "meta"):
        ranks = _Ranks(types.SimpleNamespace(device_type=device, size=lambda: 1), 1)
        shard.knows(kept)
        with said():
            codes, scale_inv = shard._again(ranks, shard.shape, torch.float32, True)
        assert {codes.device.type, scale_inv.device.type} == {device}
        assert codes.shape == (16, 32) and codes.dtype == torch.float8_e4m3fn and scale_inv.shape == (32,)


CHECKS = [
    check_no_codes_are_kept,  # first: other models would still be there
    check_eager,
    check_compiled,
    check_what_is_sent,
    check_codes_that_live,
    check_kept_after_forward,
    check_checkpointing,
    check_who_warns,
    check_recomputed_in_a_graph,
    check_models_are_freed,
    check_offload,
    check_written_weights,
    check_copies,
    check_one_shard,
    check_stays,
    check_assigned,
    check_other_rank,
    *other_gathers.CHECKS,
]
ALL_CASES = [check_all_eager, check_all_compiled, *other_gathers.COMPILED]


def check_uneven(rank):
    for recipe in ("tensorwise", "rowwise", "rowwise_folded", "delayed"):
        Case(recipe, even=False, mixed=True, precompute=True).check(rank)


def test_what_is_gathered_is_not_read_otherwise():
    codes = torch.zeros(4, 8).to(torch.float8_e4m3fn)
    weight = GatheredWeight(codes, torch.ones(1), None, None, None, torch.bfloat16)
    assert weight.dtype == torch.bfloat16 and weight.shape == (4, 8) and "float8_e4m3fn" in repr(weight)
    with pytest.raises(LinearError, match=r"mm.* of a weight that FSDP has gathered in FP8, which Ingot's layers multiply by"):
        torch.mm(torch.ones(2, 4), weight)
    with pytest.raises(LinearError, match="gathered in FP8 cannot be copied or saved: its memory is FSDP's"):
        pickle.dumps(weight)


def test_the_allocator_knows_who_reads_what_a_gather_tells(monkeypatch):
    """FSDP makes it on another stream than the one that reads it."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"reads {device}")
    told = [mock.Mock(is_cuda=True, device="cuda:1") for _ in range(4)]
    sent = _Sent(Gather("high_precision"), False, None, torch.Size((2, 2)), tuple(told[:2]), scale=told[2], amax=told[3])
    gathered = torch.zeros(2, 2)
    assert ShardedWeight.fsdp_post_all_gather(None, (gathered,), sent, torch.float32) == (gathered, ())
    for each in told:
        each.record_stream.assert_called_once_with("reads cuda:1")
    # What a unit sends again and again is told once to each stream, by the first of its weights after each cast: the allocator
    # remembers it until the memory is freed.
    gather = _Gather(mock.Mock(), [], True)
    sent = sent._replace(together=gather)
    gather.sent = {1: ((), sent), 2: ((), sent._replace(scale_inv=(None, None), scale=None, amax=None))}
    streams = [mock.Mock(cuda_stream=number) for number in (1, 2)]
    for stream, calls in ((streams[0], 2), (streams[0], 2), (streams[1], 3), (streams[0], 3)):
        monkeypatch.setattr(torch.cuda, "current_stream", mock.Mock(return_value=stream))
        gather.run()
        for _, each in gather.sent.values():
            ShardedWeight.fsdp_post_all_gather(None, (gathered,), each, torch.float32)
        assert torch.cuda.current_stream.call_count == 1
        assert [each.record_stream.call_count for each in told] == [calls] * 4
    assert [told[0].record_stream.call_args_list[at].args[0] for at in (1, 2)] == streams


def test_a_model_without_layers_of_ingot_is_told(caplog):
    with caplog.at_level(logging.WARNING, "ingot"):
        assert float8_all_gather(nn.Sequential(nn.Linear(4, 4))) == ()
        assert float8_all_gather(nn.Sequential(Float8Linear(4, 4, layer_name="a"))) == ("a",)
    assert [each.getMessage() for each in caplog.records] == [
        "float8_all_gather: the model has no FP8 layers of Ingot, and nothing changes: convert() it first"
    ]


class _OneUnit:
    """Of weights that no FSDP has, on one rank; `scratch` is shared by the units of a model."""

    reshards = True

    def __init__(self, scratch, weight):
        self._scratch, self.casts = scratch, UnitCasts()
        self.parameter = types.SimpleNamespace(sharded_param=types.SimpleNamespace(_local_tensor=weight))
        self.asked = _Asked(Gather("in_turn"), _Ranks(None, 1), weight.shape, None)
        self.casts.add(self.parameter, self.asked)

    def common(self, name, make):
        return self._scratch


@pytest.mark.parametrize("many", [1, 4])  # of four, the first are dropped by number
def test_codes_of_an_outgrown_memory_do_not_keep_it(many):
    """Those of every key, not of the one that is cast next alone, and without Python's collector."""
    scratch, casts = Scratch(), Casts(torch.float8_e4m3fn, "row", "col", False)
    small, large = (_OneUnit(scratch, ShardedWeight(two_processes.normal(rows, 32, seed=0), casts)) for rows in (16, 64))
    weight = small.parameter.sharded_param._local_tensor
    for number in range(many):
        small.reshards = number % 2 == 0
        weight.data = two_processes.normal(16, 32, seed=number)
        for backward in (False, True):
            small.casts._found(small, backward)
            small.casts.again(small, weight.wanted(small.asked, int(backward)))
    outgrown = weakref.ref(scratch._memory)
    large.casts._found(large, False)
    gather = small.casts._found(small, False)
    assert scratch._memory.numel() == 64 * 32 and outgrown() is None
    gather.run()
    assert torch.equal(gather.codes.codes[0], weight._cast_alone(small.asked, 0)[1])


def test_the_allocator_knows_each_stream_that_writes_the_codes_of_a_model(monkeypatch):
    device, scratch = torch.device("cuda", 0), Scratch()
    memory = scratch._memory = mock.Mock(device=device)
    memory.numel.return_value = 64
    streams = [mock.Mock(), mock.Mock()]
    for stream, calls in ((streams[0], 0), (streams[0], 0), (streams[1], 1), (streams[1], 1)):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
        assert scratch.of(64, device) is memory and memory.record_stream.call_count == calls
    memory.record_stream.assert_called_once_with(streams[1])
    streams[1].wait_stream.assert_called_once_with(streams[0])


def test_nothing_of_a_fake_mode_is_kept():
    device = torch.device("cpu")
    with FakeTensorMode():
        assert isinstance(_sharded_weight._nan(7919, device), FakeTensor)
    found = _sharded_weight._nan(7919, device)
    assert type(found) is torch.Tensor and found.isnan().all() and _sharded_weight._nan(7919, device) is found


def test_a_shard_that_is_not_contiguous_is_refused():
    """Plans read it by its address: a copy would be freed before they do."""
    weight = ShardedWeight(torch.ones(8, 4).t(), Casts(torch.float8_e4m3fn, "row", "row", False), "a")
    message = (
        'linear "a" weight: the shard that FSDP gathers in FP8 is not contiguous, its shape is (4, 8) and its strides are '
        "(1, 4): set contiguous data"
    )
    with pytest.raises(LinearError, match=re.escape(message)):
        weight.fsdp_pre_all_gather(types.SimpleNamespace(size=lambda: 1), weight.shape)
    with pytest.raises(LinearError, match=re.escape(message)):
        _shard_gather._parts((types.SimpleNamespace(size=lambda dim: 1), (0,)), mock.Mock(_local_tensor=weight, shape=weight.shape))


def test_what_fsdp_has_dropped_is_gone():
    for dropped in (0, 1):
        parts = [nn.Module(), nn.Module()]  # a group and a parameter of it
        unit = Unit(*parts)
        assert not unit.is_gone
        del parts[dropped]
        assert unit.is_gone


def test_sharded_weights_are_copied_and_pickled():
    casts = Casts(torch.float8_e4m3fn, "row", "col", True)
    weight = nn.Parameter(ShardedWeight(torch.randn(4, 8), casts, "a"))
    for other in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight.detach()))):
        assert isinstance(other, ShardedWeight) and other._casts == casts and other._name == "a"
        assert torch.equal(other._tensor, weight._tensor)
    with pytest.raises(LinearError, match="cannot become torch.float32 of shape .2, 2. on cpu: make a new parameter"):
        weight.data = torch.ones(2, 2)


def test_a_sharded_model_is_refused():
    class Sharded(nn.Linear, torch.distributed.fsdp.FSDPModule):
        def __new__(cls, *args):
            return nn.Linear.__new__(cls)

    with pytest.raises(LinearError, match="float8_all_gather model: is sharded by FSDP already: call it before fully_shard"):
        float8_all_gather(nn.Sequential(Sharded(4, 4)))


folder = two_processes.fixture(CHECKS)
needs_averages = pytest.mark.skipif(
    torch.__version__.startswith("2.7."), reason="in PyTorch 2.7 gloo has no averages, by which FSDP2 reduces replicas"
)


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=needs_averages if check is check_one_shard else ()) for check in CHECKS],
    ids=lambda check: check.__name__,
)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)


three, four = (two_processes.fixture([check_uneven], count) for count in (3, 4))


@pytest.mark.nightly
@pytest.mark.parametrize(("world", "name"), [(3, "three"), (4, "four")])
def test_uneven(world, name, request):
    """Shards some of which have no rows."""
    two_processes.passed(check_uneven, request.getfixturevalue(name), world)


all_cases = two_processes.fixture(ALL_CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("check", ALL_CASES, ids=lambda check: check.__name__)
def test_all_cases(check, all_cases):
    two_processes.passed(check, all_cases)
