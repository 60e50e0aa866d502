"""FSDP2 that gathers in FP8 weights that tensor parallelism divides too: training has the bits that it has with 16-bit gathers, for
every recipe and every module that ranks divide, and the maxima that are reduced over either mesh are counted."""

import contextlib
import dataclasses
import itertools
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import gathered_models
import two_processes
from gathered_models import RECIPES, loss_of
from sharded_situations import ROWS, Called, How, accumulation, compared, local, mesh_of, same
from test_nn_all_gather import collectives
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

from ingot.nn import (
    Float8ColwiseParallel, Float8Linear, Float8RowwiseParallel, float8_all_gather, precompute_float8_all_gather, sync_amax_history,
    weights_changed
)  # fmt: skip
from ingot.torch import _shard_gather, _sharded_weight
from ingot.torch._gathered_weight import Casts
from ingot.torch._shard_casts import ShardCast, rows_of
from ingot.torch._shard_plan import Asks, Part, ShardPlan
from ingot.torch._sharded_weight import is_in_high_precision


# ---- a training, with FP8 gathers and without ----


def mesh_of_both(data=2, parts=2):
    return mesh_of((data, parts), ("dp", "tp"))


def divide(net, row):
    """All layers of gathered_models.model() but those of the fused GatedMlp, and of three that share an input if a rank would have no row
    of one, of which FSDP reduces no gradients. FSDP alone divides those."""
    mesh, columns, rows = mesh_of_both()["tp"], Float8ColwiseParallel, Float8RowwiseParallel
    shared = ["1.qkv.q", "1.qkv.k", "1.qkv.v"]
    if any(net.get_submodule(name).weight.shape[0] < mesh.size() for name in shared):
        shared = []
    plan = {name: columns(output_layouts=Replicate()) for name in ("0", *shared, "6")}
    plan |= {name: columns() for name in ("3.up_proj", "5.gate_proj", "5.up_proj")}
    plan |= {"2": rows(input_layouts=Replicate()), "3.down_proj": rows(), "5.down_proj": rows()}
    parallelize_module(net, mesh, plan)


def uneven(row, gathers):
    """13, 11, 7, 5, 3 rows and 1, of which some ranks have none."""
    net = gathered_models.model(row.recipe, even=False)
    net.features = 6
    return net


def compiled(part):
    part.compile(dynamic=False, backend="aot_eager")
    return part


def reduces_last(net, is_last):
    net.set_requires_gradient_sync(is_last)
    net.set_reshard_after_backward(is_last)


# Each with what is found of recipes whose forward and backward read different codes.
WAYS = {
    "found by gathers, and later together": ({}, "right"),
    "found together before the first step": ({"casts_first": True}, "right"),
    "f32": ({"policy": None}, "right"),
    "bf16": ({"policy": None, "dtype": torch.bfloat16}, "right"),
    "accumulation": ({"step": accumulation(lambda net, is_last: None)}, "right"),
    "accumulation, unreduced": ({"step": accumulation(reduces_last)}, "again"),
    "kept after forward": ({"options": {"reshard_after_forward": False}}, "16 bits"),
    "checkpoint_wrapper": ({"wrap": checkpoint_wrapper}, "16 bits"),
    "checkpoint()": ({"wrap": Called}, "again"),
    "uneven rows": ({"model": uneven}, "right"),
    "uneven rows, found together": ({"model": uneven, "casts_first": True}, "right"),
    "compiled": ({"wrap": compiled}, "right"),
}
ALTERNATE = {"rowwise", "rowwise_with_gw_hp"}


def check_way(recipe, way, rank):
    torch._dynamo.reset()
    fields, expected = WAYS[way]
    if recipe not in ALTERNATE:
        expected = "16 bits" if recipe == "blockwise" and way.startswith("uneven") else "right"  # blocks of rows are cut
    options = {"mesh": mesh_of_both()["dp"], **fields.get("options", {})}
    found = compared(ROWS[recipe], rank, How(before=divide, data=rank // 2, **{**fields, "options": options}))
    assert found.removeprefix("right, ").partition(":")[0] == expected, (recipe, way, found)


@dataclasses.dataclass(frozen=True)
class Check:
    """Of one recipe, all ways."""

    recipe: str

    @property
    def __name__(self):
        return f"check_{self.recipe}"

    def __call__(self, rank):
        for name in WAYS:
            check_way(self.recipe, name, rank)


# ---- weights that are written ----


MESHES = ((2, 2), (1, 4))


def small(recipe, gathers, mesh):
    torch.manual_seed(0)
    net = nn.Sequential(*(Float8Linear(16, 16, False, recipe=recipe, layer_name=name) for name in "abc"))
    whole = {"output_layouts": Replicate()}
    parallelize_module(net, mesh["tp"], {"0": Float8ColwiseParallel(**whole), "1": Float8RowwiseParallel(input_layouts=Replicate())})
    if gathers:
        float8_all_gather(net)
    return fully_shard(net, mesh=mesh["dp"], reshard_after_forward=True)


def write_past_pytorch(values):
    """By another tensor of the same memory, whose writes this one's version does not count."""
    before = values._version
    torch.from_dlpack(values.detach()).mul_(0.5)
    assert values._version == before


def check_written_weights(rank):
    """By the optimizer, in place, and past PyTorch, with scales that are known and without. Of the three layers the last has a whole
    weight on each rank of the tensor-parallel mesh."""
    for recipe, sizes in itertools.product(RECIPES, MESHES):
        if recipe == "blockwise":
            continue  # 16 rows a rank are no block
        mesh = mesh_of_both(*sizes)
        data, outputs = rank // sizes[1], []
        for gathers in (False, True):
            net, found = small(recipe, gathers, mesh), []
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

            def past_pytorch():
                for each in net.parameters():
                    write_past_pytorch(local(each))
                weights_changed(net)

            writes = optimizer.step, lambda: [each.mul_(3) for each in net.parameters()], past_pytorch
            for known, write in itertools.product((False, True), writes):
                x = two_processes.normal(4, 16, seed=1 + data).requires_grad_()
                loss_of(net, x).backward()
                if gathers and known:
                    precompute_float8_all_gather(net)
                with torch.no_grad():
                    write()
                    found.append(net(x))
                with torch.inference_mode():
                    found.append(net(x))
                sync_amax_history(net)
            outputs.append([*found, *(local(each).detach() for each in net.parameters())])
        same(*reversed(outputs), recipe)


# ---- what is sent ----


@contextlib.contextmanager
def sent_between():
    """What ranks ask each other: of maxima the mesh that they are reduced over and how many, and of scale_inv how many a rank sends."""
    maxima, scale_inv = [], []
    reduce, gather = _sharded_weight.collectives.all_reduce, _sharded_weight._all_gather

    def reduced(values, operation, ranks):
        names = ranks[0].mesh_dim_names[ranks[1]] if isinstance(ranks, tuple) else ranks.mesh_dim_names[0]
        maxima.append((names, values.numel()))
        return reduce(values, operation, ranks)

    def gathered(values, dim, ranks):
        scale_inv.append(values.numel())
        return gather(values, dim, ranks)

    with mock.patch.object(_sharded_weight.collectives, "all_reduce", reduced):
        with mock.patch.object(_sharded_weight, "_all_gather", gathered):
            yield maxima, scale_inv


def check_what_is_sent(rank):
    """One reduction over the mesh of FSDP for all its weights, of a maximum for each weight with one scale or of one for each column that
    a rank has; one more over the tensor-parallel mesh, of the scales that are those of all parts of a divided weight. Every other
    scale is that of a rank's part, as a tensor-parallel layer casts it. So too where a gather asks; it sends a byte for an element."""
    for (dp, tp), recipe in itertools.product(MESHES, RECIPES[:4]):
        mesh = mesh_of_both(dp, tp)
        net = small(recipe, True, mesh)
        x = two_processes.normal(4, 16, seed=1 + rank // tp).requires_grad_()
        # Maxima of the two layers that tensor parallelism divides and of the third one, which is on a mesh of FSDP alone.
        shared = {"rowwise": (16 + 16 // tp, 16), "rowwise_folded": (0, 0)}.get(recipe, (2, 1))
        of_parts = [("tp", 2)] if recipe == "tensorwise" and tp > 1 else []
        rows = (0, 0) if recipe == "tensorwise" or dp == 1 else (16 // tp // dp + 16 // dp, 16 // dp)
        over_dp = [("dp", each) for each in shared if each and dp > 1]
        loss_of(net, x).backward()  # the first step, in which each weight is gathered before its unit is known
        precompute_float8_all_gather(net)  # ranks ask each other which weights they have
        with sent_between() as (maxima, scale_inv):
            precompute_float8_all_gather(net)
        assert maxima == over_dp[:1] + of_parts + over_dp[1:], (recipe, mesh, maxima)
        assert scale_inv == [each for each in rows if each], (recipe, mesh, scale_inv)
        with sent_between() as (maxima, scale_inv), collectives() as sent:
            net(x)
        assert not maxima and not scale_inv, (recipe, mesh, maxima, scale_inv)
        codes = 16 * 16 // dp * 2 // tp + 16 * 16 // dp
        assert sent == ([("all_gather", torch.uint8, codes)] if dp > 1 else sent), (recipe, mesh, sent)
        net = small(recipe, True, mesh)
        loss_of(net, x).backward()
        with torch.no_grad():
            for each in net.parameters():
                each.mul_(2)
        gathers = 1 if recipe in ALTERNATE else 2  # that ask, of forward's and backward's
        with sent_between() as (maxima, scale_inv):
            loss_of(net, x).backward()
        together = [("dp", sum(shared))] if over_dp else []
        assert maxima == (together + of_parts) * gathers, (recipe, mesh, maxima)
        assert scale_inv == ([sum(rows)] * gathers if any(rows) else []), (recipe, mesh, scale_inv)


def check_unknown_units(rank):
    """With a PyTorch that does not say what FSDP gathers with a weight, gathers ask for its scale, and all ranks read one."""
    with mock.patch.object(_sharded_weight, "unit_of", lambda _: None), mock.patch.object(_shard_gather, "unit_of", lambda _: None):
        outputs = []
        for gathers in (False, True):
            net = small("tensorwise", gathers, mesh_of_both())
            with torch.no_grad():
                for each in net.parameters():
                    local(each).mul_(8.0**rank)
            if gathers:
                precompute_float8_all_gather(net)
            outputs.append(net(two_processes.normal(4, 16, seed=1)))
        exact, found = outputs
        assert (found - exact).norm() <= 0.1 * exact.norm()


def check_cut_blocks(rank):
    """Those of a part's rows, which the ranks of FSDP divide, are gathered in 16 bits: in the log, with the part's rows."""
    with gathered_models.said() as lines:
        net = small("blockwise", True, mesh_of_both())
        net(torch.ones(4, 16))
    assert [is_in_high_precision(each._local_tensor) for each in net.parameters()] == [True] * 3
    for line, rows in zip(lines, ("a tensor-parallel rank's 8", "a tensor-parallel rank's 16", "its 16"), strict=True):
        of_each = int(rows.split()[-1]) // 2
        assert f"{rows} rows on 2 ranks are {of_each} each, which are no whole blocks of 128: choose sizes or" in line, line


def test_scales_of_all_parts_are_asked_of_the_ranks_that_have_them():
    """Of several weights in one plan, some of which tensor parallelism divides, over one mesh or another: each maximum is reduced over
    the ranks that have parts of its weight, and delayed scales stay those of their weights."""
    rows, one, other = torch.finfo(torch.float8_e4m3fn).max, (("one", 0),), (("other", 0), ("other", 1))
    casts = Casts(torch.float8_e4m3fn, "tensor", "tensor", False)
    delayed = casts._replace(delayed=True)
    values = [torch.full((2, 4), float(2 ** (at + 1))) for at in range(4)]
    of = ((casts, ()), (delayed, other), (delayed, ()), (casts, one))
    parts = [Part(each, how, 0, None, 2, 4, others) for each, (how, others) in zip(values, of)]
    made = [ShardCast(None, rows_of(each)) for each in values]
    asked = []

    def largest(maxima, others):
        found = maxima.view(torch.float32).clone()
        asked.append((others, found.tolist()))
        return (found * {(): 1, one: 2, other: 4}[others]).view(torch.int32)

    plan = ShardPlan(parts, made, 2)
    plan.run(Asks(largest, None), [torch.tensor(1.0), torch.tensor(64.0)])  # the first of them is not made
    assert asked == [((), [2.0, 8.0, 4.0, 16.0]), (other, [4.0]), (one, [16.0])]
    assert [float(each.scales[0]) for each in made] == [rows / 2, rows / 16, 64, rows / 32]
    assert [float(each.amax) for each in made[1:3]] == [4, 8]  # of this rank's shard


IN_CI, NIGHTLY = [check_what_is_sent, check_unknown_units, check_cut_blocks], [check_written_weights, *map(Check, RECIPES)]
folder, nightly_folder = two_processes.fixture(IN_CI, 4), two_processes.fixture(NIGHTLY, 4)
of_four = pytest.mark.skipif(two_processes.WORLD != 2, reason="meshes are those of two by two ranks")


@of_four
@pytest.mark.parametrize("check", IN_CI, ids=lambda check: check.__name__)
def test_four_processes(check, folder):
    two_processes.passed(check, folder, 4)


@of_four
@pytest.mark.nightly
@pytest.mark.parametrize("check", NIGHTLY, ids=lambda check: check.__name__)
def test_four_processes_nightly(check, nightly_folder):
    two_processes.passed(check, nightly_folder, 4)
