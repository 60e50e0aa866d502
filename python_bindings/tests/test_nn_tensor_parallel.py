"""Tensor and sequence parallel styles of ingot.nn, in every recipe: outputs and gradients of a layer that ranks divide against
the whole layer's, to the bit where the ranks compute the same products in the same order, and what is sent."""

import contextlib
import copy
import itertools
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
import two_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from two_processes import DEVICE, WORLD, normal

import ingot.float8 as float8
from ingot.float8 import float8_tensor_parallel as float8_styles
from ingot.nn import (
    Float8ColwiseParallel, Float8Linear, Float8RowwiseParallel, GatedMlp, LayerNormLinear, Mlp, PrepareFloat8ModuleInput,
    RMSNormLinear, SharedInputLinears, convert, float8_all_gather, precompute_float8_all_gather, shared_input, sync_amax_history
)  # fmt: skip
from ingot.torch import LinearError
from ingot.torch._parallel_linear import GatheredInput
from ingot.torch._prepare import _reason_to_leave_out
from ingot.torch._ranks import Ranks, in_order, one_after_another
from ingot.torch._sharded_weight import is_in_high_precision

RECIPES = ("high_precision", "tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed")
ROWWISE = RECIPES[2:5]
K = N = 128 * WORLD  # a block for each rank
# Relative bounds, of the sum of squares: sums in another order in bf16, and operands with other scales, which is FP8's error.
ORDER, SCALES = 6e-3, 0.06


def error(ours, theirs):
    difference, size = (ours.double() - theirs.double()).norm().item(), theirs.double().norm().item()
    return difference / size if size else difference


def same(ours, theirs, what):
    """On a GPU the size of a part decides which kernel multiplies, and so the order of its sums."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, what
    if DEVICE == "cpu":
        assert torch.equal(ours, theirs), (what, error(ours, theirs))
    else:
        assert error(ours, theirs) <= ORDER, what


def close(ours, theirs, what, bound=ORDER):
    assert ours.shape == theirs.shape and error(ours, theirs) <= bound, (what, error(ours, theirs))


def compare(ours, theirs, what, bound):
    same(ours, theirs, what) if bound == 0 else close(ours, theirs, what, bound)


def mesh_of():
    return init_device_mesh(DEVICE, (WORLD,))


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor, dim, rank):
    return tensor if dim is None else tensor.chunk(WORLD, dim)[rank].contiguous()


def linear(recipe, in_features=K, out_features=N, bias=True, name="fc"):
    torch.manual_seed(0)
    return Float8Linear(in_features, out_features, bias, recipe=recipe, layer_name=name).to(torch.bfloat16)


def divided(module, style, mesh=None):
    """A copy that ranks divide."""
    net = nn.Sequential(copy.deepcopy(module))
    return parallelize_module(net, mesh or mesh_of(), {"0": style} if not isinstance(style, dict) else style)


TOKENS = (2 * WORLD, 4 * WORLD)


def tokens(features, seed=1):
    return normal(*TOKENS, features, seed=seed).to(torch.bfloat16)


def run(module, x, grad):
    """Output, and the gradient of the input."""
    x = x.clone().requires_grad_()
    output = module(x)
    output.backward(grad)
    return output.detach(), x.grad


def gradients(module):
    return {name: whole(each.grad) for name, each in module.named_parameters()}


class Sent(TorchDispatchMode):
    """The collectives that run, and how many bytes this rank gives to each."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "_c10d_functional" and "wait" not in func._schema.name:
            given = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
            name = func._schema.name.split("::")[1].replace("_into_tensor", "").replace("_tensor", "").replace("_coalesced", "")
            self.seen.append((name, sum(each.numel() * each.element_size() for each in given)))
        return func(*args, **(kwargs or {}))


# ---- against the whole layer ----


def check_columns(rank):
    for at, recipe in enumerate(RECIPES):
        layer = linear(recipe)
        x, grad = tokens(K), tokens(N, 2)
        output, grad_input = run(layer, x, grad)
        for dim in (None, at % 2):
            net = divided(layer, Float8ColwiseParallel(input_layouts=Replicate() if dim is None else Shard(dim)))
            ours, ours_input = run(net, part(x, dim, rank), part(grad, -1, rank))
            same(ours, part(output, -1, rank), (recipe, dim))
            close(ours_input, part(grad_input, dim, rank), (recipe, dim), SCALES if recipe in ROWWISE else ORDER)
            for name, gradient in gradients(layer).items():
                same(gradients(net)[f"0.{name}"], gradient, (recipe, dim, name))


def check_rows(rank):
    others = {"rowwise_folded", "rowwise_with_gw_hp"}
    for at, recipe in enumerate(RECIPES):
        layer = linear(recipe)
        x, grad = tokens(K), tokens(N, 2)
        output, grad_input = run(layer, x, grad)
        for dim in (None, (at + 1) % 2):
            net = divided(layer, Float8RowwiseParallel(output_layouts=Replicate() if dim is None else Shard(dim)))
            ours, ours_input = run(net, part(x, -1, rank), part(grad, dim, rank))
            close(ours, part(output, dim, rank), (recipe, dim), SCALES if recipe in ROWWISE else ORDER)
            compare(ours_input, part(grad_input, -1, rank), (recipe, dim), SCALES if recipe in others else 0)
            bounds = {"weight": SCALES if recipe == "rowwise_folded" else 0, "bias": ORDER}
            for name, gradient in gradients(layer).items():
                compare(gradients(net)[f"0.{name}"], gradient, (recipe, dim, name), bounds[name])


class Gated(nn.Module):
    def __init__(self, recipe, made=Float8Linear):
        super().__init__()
        torch.manual_seed(0)
        options = {"recipe": recipe} if made is Float8Linear else {}
        for name, sizes in {"gate": (K, N), "up": (K, N), "down": (N, K)}.items():
            setattr(self, name, made(*sizes, bias=False, **options, **({"layer_name": name} if options else {})))

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def gated_plan(styles, dim=1):
    colwise, rowwise, prepare = styles
    return {
        "0": prepare(input_layouts=Shard(dim), desired_input_layouts=Replicate()),
        "0.gate": colwise(),
        "0.up": colwise(),
        "0.down": rowwise(output_layouts=Shard(dim)),
    }


OURS = (Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput)
OURS_BY_FLOAT8 = tuple(getattr(float8_styles, style.__name__) for style in OURS)


def check_shared_input(rank):
    """Two column-parallel layers share a gathered input, and its gradient is summed once."""
    for recipe in ("tensorwise", "rowwise", "rowwise_folded", "delayed"):
        module = Gated(recipe).to(torch.bfloat16)
        x, grad = tokens(K), tokens(K, 2)
        output, grad_input = run(module, x, grad)
        for styles in (OURS, OURS_BY_FLOAT8)[: 2 if recipe == "rowwise" else 1]:
            net = divided(module, gated_plan(styles))
            with torch.no_grad():
                net(part(x, 1, rank))  # the first call asks for the sizes
            with Sent() as sent:
                ours, ours_input = run(net, part(x, 1, rank), part(grad, 1, rank))
            close(ours, part(output, 1, rank), recipe, SCALES if recipe in ROWWISE else ORDER)
            close(ours_input, part(grad_input, 1, rank), recipe, SCALES if recipe in ROWWISE else ORDER)
            for name, gradient in gradients(module).items():
                close(gradients(net)[f"0.{name}"], gradient, (recipe, name), SCALES)
            names = [name for name, _ in sent.seen]
            assert (names.count("all_gather"), names.count("reduce_scatter")) == (2, 2), (recipe, names)


def check_float8_layers(rank):
    """Those of ingot.float8 with a scale for each row, converted as torchao's are."""
    for recipe in ("rowwise", "rowwise_with_gw_hp"):
        config = float8.Float8LinearConfig.from_recipe_name(recipe)
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(K, N))
        layer = float8.convert_to_float8_training(layer, config=config).to(torch.bfloat16)[0]
        x, grad = tokens(K), tokens(N, 2)
        output, grad_input = run(layer, x, grad)
        for styles, at in ((OURS_BY_FLOAT8, 0), (OURS_BY_FLOAT8, 1), (OURS, 0)):
            column = at == 0
            net = divided(layer, styles[at](**({"input_layouts": Shard(1)} if column else {"output_layouts": Shard(1)})))
            ours, ours_input = run(net, part(x, 1 if column else -1, rank), part(grad, -1 if column else 1, rank))
            compare(ours, part(output, -1 if column else 1, rank), recipe, 0 if column else SCALES)
            close(ours_input, part(grad_input, 1 if column else -1, rank), recipe, SCALES)
            same(gradients(net)["0.weight"], gradients(layer)["weight"], recipe)
        module = float8.convert_to_float8_training(Gated(recipe, nn.Linear), config=config).to(torch.bfloat16)
        net = divided(module, gated_plan(OURS_BY_FLOAT8))
        grad = tokens(K, 3)
        close(run(net, part(x, 1, rank), part(grad, 1, rank))[0], part(run(module, x, grad)[0], 1, rank), recipe, SCALES)


class Projections(nn.Module):
    """Layers that are called one by one, for which convert() computes their norm once."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(K)
        self.q, self.k, self.v = (nn.Linear(K, N) for _ in range(3))

    def forward(self, x):
        x = self.norm(x)
        return self.q(x), self.k(x), self.v(x)


def module_of(kind, recipe):
    torch.manual_seed(0)
    if kind == "converted":
        module = Projections()
        assert list(convert(module, recipe, example=torch.ones(1, K)).norms.values()) == ["is computed within q, k, v"]
        return module, {"0.q": 0, "0.k": 0, "0.v": 0}
    if kind == "rms":
        return RMSNormLinear(K, N, recipe=recipe, activation="silu", zero_centred=True), {"0": 0}
    if kind == "layer":
        return LayerNormLinear(K, N, recipe=recipe), {"0": 0}
    if kind == "shared":
        sizes = {"q": N, "k": N, "v": N}
        return SharedInputLinears(K, sizes, norm="rms", recipe=recipe), {f"0.{name}": 0 for name in sizes}
    if kind == "mlp":
        return Mlp(K, N, norm="layer", recipe=recipe), {"0.up_proj": 0, "0.down_proj": 1}
    layers = (nn.Linear(K, N, False), nn.Linear(K, N, False))
    gated = GatedMlp.from_parts(layers, nn.Linear(N, K, False), nn.RMSNorm(K), recipe=recipe)
    return gated, {"0.gate_proj": 0, "0.up_proj": 0, "0.down_proj": 1}


KINDS = ("rms", "layer", "shared", "mlp", "gated", "converted")


def check_modules(rank, recipes=("tensorwise", "rowwise"), compiles=False):
    """A norm with its layer, layers of one input, MLPs: the parts of a plan are those of the module."""
    bound = SCALES if compiles else 0.01  # older versions of PyTorch round activations otherwise in a graph
    for at, (kind, recipe) in enumerate((kind, recipe) for kind in KINDS for recipe in recipes):
        torch._dynamo.reset()
        module, plan = module_of(kind, recipe)
        module = module.to(torch.bfloat16)
        dim = (None, 1, 0)[at % 3]
        layout = Replicate() if dim is None else Shard(dim)
        styles = (Float8ColwiseParallel(input_layouts=layout), Float8RowwiseParallel(output_layouts=layout))
        net = divided(module, {path: styles[which] for path, which in plan.items()})
        forward = torch.compile(net, backend="aot_eager", fullgraph=True) if compiles else net
        x, ours_x = tokens(K).requires_grad_(), part(tokens(K), dim, rank).requires_grad_()
        outputs, ours = module(x), forward(ours_x)
        outputs, ours = (each if isinstance(each, tuple) else (each,) for each in (outputs, ours))
        grads = [normal(*each.shape, seed=9).to(torch.bfloat16) for each in outputs]
        of_output = dim if 1 in plan.values() else -1
        torch.autograd.backward(outputs, grads)
        torch.autograd.backward(ours, [part(each, of_output, rank) for each in grads])
        for one, other in zip(ours, outputs):
            close(one, part(other, of_output, rank), (kind, recipe, dim), bound)
        close(ours_x.grad, part(x.grad, dim, rank), (kind, recipe, dim), bound)
        for name, gradient in gradients(module).items():
            close(gradients(net)[f"0.{name}"], gradient, (kind, recipe, dim, name), bound)


def check_delayed(rank):
    """Scales and histories of all ranks are those of the whole layer, from the first step on."""
    for is_row in (False, True):
        layer = linear("delayed")
        style = Float8RowwiseParallel(output_layouts=Shard(0)) if is_row else Float8ColwiseParallel(input_layouts=Shard(0))
        net = divided(layer, style)
        dims = (-1, 0) if is_row else (0, -1)
        for step in range(3):
            x, grad = tokens(K, step), tokens(N, step + 9) * (step + 1)
            output, grad_input = run(layer, x, grad)
            ours, ours_input = run(net, part(x, dims[0], rank), part(grad, dims[1], rank))
            compare(ours, part(output, dims[1], rank), (is_row, step), ORDER if is_row else 0)
            compare(ours_input, part(grad_input, dims[0], rank), (is_row, step), 0 if is_row else ORDER)
            sync_amax_history(layer, reduce=False)
            sync_amax_history(net)
            for name, buffer in layer.named_buffers():
                assert torch.equal(net.get_buffer(f"0.{name}"), buffer), (is_row, step, name)
        assert net[0].scales_started
        with torch.no_grad():
            net(part(x, dims[0], rank))
        assert not net[0].fp8_amax.any()
    groups = [dist.new_group([each]) for each in range(WORLD)]
    message = r'sync_amax_history group: has the ranks \[\d\], but the ranks \[0, 1.*\] divide linear "fc", and its parts have one'
    with pytest.raises(LinearError, match=message):
        sync_amax_history(net, groups[rank])
    with pytest.raises(LinearError, match="sync_amax_history reduce: is False, but the ranks"):
        sync_amax_history(net, reduce=False)


# ---- what is sent ----


def check_what_is_sent(rank):
    own = TOKENS[0] * TOKENS[1] // WORLD
    values, codes, rows = ("all_gather", 2 * own * K), ("all_gather", own * K), ("all_gather", own * (K + 4))
    partial = ("reduce_scatter", 2 * WORLD * own * K)
    maxima = {1: ("all_reduce", 4), 2: ("all_reduce", 8)}
    columns = {
        "high_precision": [values, partial],
        "tensorwise": [maxima[2], codes, maxima[1], partial],
        "rowwise": [values, partial],
        "rowwise_folded": [rows, partial],
        "rowwise_with_gw_hp": [values, partial],
        "blockwise": [values, partial],
        "delayed": [codes, partial],
    }
    of_rows = {
        "high_precision": [partial, values],
        "tensorwise": [maxima[2], partial, maxima[1], codes],
        "rowwise": [partial, values],
        "rowwise_folded": [partial, values],
        "rowwise_with_gw_hp": [partial, values],
        "blockwise": [partial, values],
        "delayed": [partial, codes],
    }
    # Where no gradient of the weight is wanted.
    frozen = {"rowwise": ([rows, partial], [partial, rows]), "rowwise_with_gw_hp": ([rows, partial], [partial, rows])}
    x, grad = tokens(K), tokens(N, 2)
    for recipe in RECIPES:
        layer = linear(recipe, bias=False)
        column = divided(layer, Float8ColwiseParallel(input_layouts=Shard(0)))
        row = divided(layer, Float8RowwiseParallel(output_layouts=Shard(0)))
        for trains in (True, False) if recipe in frozen else (True,):
            for net, dims, expected in ((column, (0, -1), columns), (row, (-1, 0), of_rows)):
                net.requires_grad_(trains)
                arguments = part(x, dims[0], rank), part(grad, dims[1], rank)
                run(net, *arguments)  # the first call asks for the sizes
                if recipe == "delayed":
                    sync_amax_history(net)
                with Sent() as sent:
                    run(net, *arguments)
                assert sent.seen == (expected[recipe] if trains else frozen[recipe][net is row]), (recipe, trains, sent.seen)
        if recipe in ROWWISE:
            with torch.no_grad(), Sent() as sent:
                ours = column(part(x, 0, rank))
            assert sent.seen == [rows]
            same(ours, part(layer(x), -1, rank), recipe)
    plain = divided(linear("tensorwise"), Float8ColwiseParallel())
    run(plain, x, part(grad, -1, rank))
    with Sent() as sent:
        run(plain, x, part(grad, -1, rank))
    assert sent.seen == [maxima[1], maxima[1], ("all_reduce", 2 * WORLD * own * K)]


# ---- layouts and sizes ----


def check_layouts(rank):
    """DTensors with parts that are not equal, and layouts that PyTorch brings to another one."""
    mesh = mesh_of()
    layer = linear("rowwise")
    x, grad = (normal(2 * WORLD + 1, K, seed=seed).to(torch.bfloat16) for seed in (1, 2))
    output, grad_input = run(layer, x, grad)
    for given, column in (([Shard(0)], True), ([Replicate()], True), ([Shard(1)], True), ([Shard(1)], False), ([Replicate()], False)):
        if column:
            style = Float8ColwiseParallel(use_local_output=False)
        else:
            style = Float8RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
        net = divided(layer, style, mesh)
        ours = distribute_tensor(x, mesh, given).requires_grad_()
        result = net(ours)
        assert result.placements == ((Shard(1),) if column else (Shard(0),))
        result.backward(distribute_tensor(grad, mesh, result.placements))
        compare(result.full_tensor(), output, (given, column), 0 if column else SCALES)
        close(ours.grad.full_tensor(), grad_input, (given, column), SCALES)
        same(gradients(net)["0.weight"], gradients(layer)["weight"], (given, column))
        close(gradients(net)["0.bias"], gradients(layer)["bias"], (given, column))
    x, grad = tokens(K), tokens(N, 2)
    output, grad_input = run(layer, x, grad)
    for style in (
        Float8ColwiseParallel(output_layouts=Replicate()),
        Float8RowwiseParallel(input_layouts=Replicate()),
        Float8ColwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(0)),
        Float8RowwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1)),
    ):
        net = divided(layer, style)
        dims = [each.dim if each.is_shard() else None for each in (style.input_layouts[0], style.output_layouts[0])]
        ours, ours_input = run(net, part(x, dims[0], rank), part(grad, dims[1], rank))
        close(ours, part(output, dims[1], rank), style, SCALES)
        close(ours_input, part(grad_input, dims[0], rank), style, SCALES)


def check_sizes(rank):
    """Features that ranks do not divide, of which one may have none, no tokens, one token without a dimension of them."""
    for recipe in ("tensorwise", "rowwise", "blockwise"):
        for hidden in (16 * WORLD + 1, 1):
            first, last = linear(recipe, K, hidden), linear(recipe, hidden, K)
            x = tokens(K)
            expected = nn.Sequential(first, last)
            output, grad_input = run(expected, x, x)
            net = nn.Sequential(*map(copy.deepcopy, expected))
            parallelize_module(net, mesh_of(), {"0": Float8ColwiseParallel(), "1": Float8RowwiseParallel()})
            ours, ours_input = run(net, x, x)
            close(ours, output, (recipe, hidden), SCALES)
            close(ours_input, grad_input, (recipe, hidden), SCALES)
            for name, gradient in gradients(expected).items():
                close(gradients(net)[name], gradient, (recipe, hidden, name), SCALES)
        layer = linear(recipe)
        for dim in (0, 1):
            column = divided(layer, Float8ColwiseParallel(input_layouts=Shard(0)))
            row = divided(layer, Float8RowwiseParallel(output_layouts=Shard(0)))
            none = torch.empty((0, 3, K) if dim == 0 else (3, 0, K), dtype=torch.bfloat16)
            output, _ = run(column, none, none.new_empty(*(WORLD * none.shape[0], *none.shape[1:2]), N // WORLD))
            assert output.shape == (WORLD * none.shape[0], none.shape[1], N // WORLD)
            assert not gradients(column)["0.weight"].any()
            output, _ = run(row, column[0](none), none)
            assert output.shape == none.shape
        one = normal(K, seed=5).to(torch.bfloat16)
        same(divided(layer, Float8ColwiseParallel())(one), part(layer(one), -1, rank), recipe)
        row = divided(layer, Float8RowwiseParallel())
        close(row(part(one, -1, rank)), layer(one), recipe, SCALES)
        alone = init_device_mesh(DEVICE, (WORLD, 1), mesh_dim_names=("dp", "tp"))["tp"]
        for style in (Float8ColwiseParallel(input_layouts=Shard(0)), Float8RowwiseParallel(output_layouts=Shard(0))):
            net = divided(layer, style, alone)
            with Sent() as sent:
                results = run(net, x, tokens(N, 2))
            assert not sent.seen, sent.seen
            for ours, theirs in zip(results, run(layer, x, tokens(N, 2))):
                close(ours, theirs, recipe)


def check_autocast(rank):
    layer = linear("rowwise").float()
    x, grad = tokens(K).float(), tokens(N, 2)
    net = divided(layer, Float8ColwiseParallel(input_layouts=Shard(1)))
    with torch.autocast(DEVICE, torch.bfloat16):
        output, grad_input = run(layer, x, grad)
        ours, ours_input = run(net, part(x, 1, rank), part(grad, -1, rank))
    same(ours, part(output, -1, rank), "autocast")
    assert ours_input.dtype == torch.float32
    close(ours_input, part(grad_input, 1, rank), "autocast", SCALES)


def check_nan(rank):
    """A NaN that one rank has makes the scale of all parts, as in the whole tensor."""
    net = divided(linear("tensorwise"), Float8ColwiseParallel(input_layouts=Shard(0)))
    x = part(tokens(K), 0, rank)
    if rank == WORLD - 1:
        x[0, 0, 0] = float("nan")
    assert net(x).isnan().all()


# ---- what is refused ----


def check_refuses(rank):
    mesh = mesh_of()

    def refused(module, style, message, where="0"):
        with pytest.raises(LinearError, match=message):
            parallelize_module(nn.Sequential(module), mesh, {where: style})

    columns, rows = Float8ColwiseParallel(), Float8RowwiseParallel()
    layer = linear("tensorwise", name="wq")
    refused(nn.Linear(4, 4), columns, r"Float8ColwiseParallel takes layers of ingot.nn, got a torch.nn.modules.linear.Linear: conv")
    refused(Mlp(16, 32), columns, "takes no ingot.nn._mlp.Mlp as a whole: name its parts in the plan, up_proj with")
    refused(SharedInputLinears(8, {"q": 8, "k": 8}), rows, "takes no .*SharedInputLinears as a whole: name its layers in the plan")
    refused(RMSNormLinear(16, 16), rows, "a RMSNormLinear normalises all features of its input")
    refused(Float8Linear(16, 16, activation="silu"), rows, "the activation 'silu' is applied to the sum over all ranks")
    net = divided(layer, columns)
    refused(net[0], columns, 'Float8ColwiseParallel of linear "wq" its weight is divided already: call')
    two = init_device_mesh(DEVICE, (WORLD, 1))
    with pytest.raises(LinearError, match="mesh: has 2 dimensions, expected one"):
        columns._apply(linear("rowwise"), two)
    x = tokens(K)
    net[0].weight.main_grad = torch.zeros(1)
    with pytest.raises(LinearError, match=r'linear "wq" main_grad: is set, and a weight that ranks divide'):
        net(x)
    del net[0].weight.main_grad
    uneven = divided(layer, Float8ColwiseParallel(input_layouts=Shard(0)))
    with pytest.raises(LinearError, match=r'linear "wq" input: has tokens of other sizes on other ranks, \(2, 4\), \(3, 4\)'):
        uneven(tokens(K)[: 2 + rank, :4])
    with pytest.raises(LinearError, match="PrepareFloat8ModuleInput input: has tokens of other sizes on other ranks"):
        divided(Gated("rowwise"), gated_plan(OURS))(normal(2, 2 + rank, K, seed=1))
    with pytest.raises(LinearError, match=rf'linear "wq" input: has {K} features on this rank, whose part of the weight takes'):
        divided(layer, rows)(x)
    with pytest.raises(LinearError, match="input: has no dimensions"):
        net(torch.tensor(1.0))
    with pytest.raises(LinearError, match="input: is a list, expected a torch.Tensor"):
        net([x])
    with pytest.raises(LinearError, match="shared_input takes layers that this rank has all of"):
        shared_input(x, net[0], layer)
    with pytest.raises(LinearError, match="up_proj: other ranks have parts of down_proj, so its style has to be Float8ColwiseParallel"):
        parallelize_module(Mlp(K, N), mesh, {"down_proj": rows})(x.float())
    expression = Mlp(K, N, activation="x * 2")
    with pytest.raises(LinearError, match=r"activation: 'x \* 2' is an expression, and an MLP that ranks divide"):
        parallelize_module(expression, mesh, {"up_proj": columns, "down_proj": rows})(x.float())
    with pytest.raises(LinearError, match="gate_up_proj: has the gate's rows and then those of up"):
        parallelize_module(GatedMlp(K, N), mesh, {"gate_up_proj": columns, "down_proj": rows})(x.float())
    with pytest.raises(Exception, match="divided over several ranks, and torch.export makes programs of one"):
        torch.export.export(net, (x,))
    for module in (net[0], parallelize_module(Mlp(K, N), mesh, {"up_proj": columns})):
        assert "several ranks divide it" in _reason_to_leave_out(module)


def check_other_rank(rank):
    """Each rank hears of the first layer that is not the same on all of them: before it is divided, or at its first call."""
    columns, rows = Float8ColwiseParallel(input_layouts=Shard(1)), Float8RowwiseParallel(output_layouts=Shard(1))
    of_rows = f'Float8RowwiseParallel of linear "out" of a weight [{K}, {N}] bfloat16 and a bfloat16 bias, tensorwise, from S(-1) to S(1)'

    def a_model(recipe="tensorwise", features=N, bias=True, dtype=torch.bfloat16, trains=True, layers=2, styles=(columns, rows)):
        parts = [linear(recipe, K, features, bias, "in"), linear(recipe, features, K, bias, "out")][:layers]
        net = nn.Sequential(*parts).to(dtype).requires_grad_(trains)
        return parallelize_module(net, mesh_of(), {str(at): style for at, style in enumerate(styles[:layers])})

    def mlp(recipe="rowwise"):
        torch.manual_seed(0)
        return parallelize_module(Mlp(K, N, recipe=recipe), mesh_of(), {"up_proj": columns, "down_proj": rows})

    def torchaos(**options):
        net = nn.Sequential(nn.Linear(K, N, device=DEVICE))
        float8.convert_to_float8_training(net, config=float8.Float8LinearConfig(**options))
        return parallelize_module(net, mesh_of(), {"0": float8_styles.Float8ColwiseParallel()})

    def of_in(weight=f"a weight [{N}, {K}] bfloat16", bias="a bfloat16 bias", recipe="tensorwise", layout="S(1)"):
        return f'Float8ColwiseParallel of linear "in" of {weight} and {bias}, {recipe}, from {layout} to S(-1)'

    def call(of="in", recipe="tensorwise", dtype="bfloat16"):
        return f'a call of linear "{of}", {recipe}, with a plain tensor of {dtype}'

    x = tokens(K)
    e5m2 = float8.CastConfig(target_dtype=torch.float8_e5m2)
    cases = (  # what rank 0 does, what others do, what each of them comes to
        (a_model, lambda: a_model("rowwise"), of_in(), of_in(recipe="rowwise")),
        (a_model, lambda: a_model(features=N // 2), of_in(), of_in(f"a weight [{N // 2}, {K}] bfloat16")),
        (a_model, lambda: a_model(dtype=torch.float32), of_in(), of_in(f"a weight [{N}, {K}] float32", "a float32 bias")),
        (a_model, lambda: a_model(bias=False), of_in(), of_in(bias="no bias")),
        (a_model, lambda: a_model(trains=False), of_in(), of_in(f"a frozen weight [{N}, {K}] bfloat16")),
        (a_model, lambda: a_model(styles=(Float8ColwiseParallel(), rows)), of_in(), of_in(layout="R")),
        (a_model, lambda: a_model(layers=1)(x), of_rows, call()),  # with fewer layers, it comes to the first call
        (lambda: a_model()(x), lambda: a_model()(x.float()), call(), call(dtype="float32")),
        (lambda: mlp()(x), lambda: mlp("tensorwise")(x), call("mlp", "rowwise"), call("mlp")),
        (torchaos, lambda: torchaos(cast_config_weight=e5m2), "('e4m3fn', False), ('e5m2", "('e5m2', False), ('e5m2"),
    )
    for of_first, of_others, first, other in cases:
        with pytest.raises(LinearError) as caught:
            (of_others if rank else of_first)()
        message = str(caught.value)
        assert message.startswith("the ranks divide different layers: rank 0 comes to ") and "inputs of one dtype" in message
        ours, _, theirs = message.partition(", and rank 1 to ")
        assert first in ours and other in theirs, (first, other, message)
    autocasts = torch.autocast(DEVICE, torch.bfloat16) if rank else contextlib.nullcontext()
    with autocasts:  # what counts is the dtype that is computed with
        a_model(dtype=torch.float32)(x.float() if rank else x)


def check_prepare_refuses(rank):
    mesh = mesh_of()
    style = PrepareFloat8ModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    with pytest.raises(LinearError, match="there is no Float8Linear in torch.nn.modules.activation.ReLU"):
        parallelize_module(nn.ReLU(), mesh, style)
    mixed = Gated("rowwise")
    mixed.up = linear("tensorwise")
    with pytest.raises(LinearError, match=r"layers of .*Gated have several recipes \(gate: rowwise, up: tensorwise, down: rowwise\)"):
        parallelize_module(mixed, mesh, style)
    by_name = PrepareFloat8ModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate(), fwd_config_submodule_fqn="up"
    )
    parallelize_module(mixed, mesh, by_name)
    with pytest.raises(LinearError, match="Gated is called with 2 inputs, and input_layouts has 1"):
        mixed(tokens(K), None)
    with pytest.raises(LinearError, match="PrepareFloat8ModuleInput input: is a list, expected a torch.Tensor"):
        mixed([])
    with pytest.raises(NotImplementedError, match="casts to torch.float8_e4m3fn, not to torch.float8_e5m2"):
        PrepareFloat8ModuleInput(float8_dtype=torch.float8_e5m2)

    class Adds(Gated):
        def forward(self, x):
            return x + super().forward(x)

    net = divided(Adds("tensorwise").to(torch.bfloat16), gated_plan(OURS))
    with pytest.raises(LinearError, match=r"input: \w*add\w*\(\) reads values of an input that was gathered as FP8 codes"):
        net(part(tokens(K), 1, rank))
    codes = tokens(K).to(torch.float8_e4m3fn).view(torch.uint8)
    gathered = GatheredInput(tokens(K), codes, torch.ones(1))
    assert (gathered.shape, gathered.dim(), gathered.size(-1)) == (codes.shape, 3, K) and not gathered.requires_grad
    with pytest.raises(LinearError, match="was gathered as FP8 codes, and this layer reads its values: give all layers"):
        divided(linear("blockwise"), Float8ColwiseParallel())(gathered)
    with pytest.raises(LinearError, match="was gathered as FP8 codes for column-parallel layers, and this one has columns"):
        divided(linear("tensorwise"), Float8RowwiseParallel())(gathered)
    with pytest.raises(LinearError, match="was gathered as FP8 codes, and a norm reads its values"):
        divided(LayerNormLinear(K, N), Float8ColwiseParallel())(gathered)


def check_copies(rank):
    """A copy of a divided model computes by itself, with its own scales."""
    net = divided(Gated("delayed").to(torch.bfloat16), gated_plan(OURS))
    other = copy.deepcopy(net)
    x, grad = part(tokens(K), 1, rank), part(tokens(K, 2), 1, rank)
    same(run(other, x, grad)[0], run(net, x, grad)[0], "copy")
    sync_amax_history(other)
    assert other[0].gate.scales_started and not net[0].gate.scales_started
    loaded = divided(Gated("delayed").to(torch.bfloat16), gated_plan(OURS))
    loaded.load_state_dict(other.state_dict())
    same(run(loaded, x, grad)[0], run(other, x, grad)[0], "loaded")


def check_compiled(rank):
    """One graph, as a model's or as a layer's own."""
    for recipe in RECIPES:
        module = Gated(recipe).to(torch.bfloat16)
        x, grad = tokens(K), tokens(K, 2)
        for how in ("plain", "prepared", "module", "layers"):
            torch._dynamo.reset()
            dim = None if how == "plain" else 1
            if how == "plain":
                plan = {"0.gate": Float8ColwiseParallel(), "0.up": Float8ColwiseParallel(), "0.down": Float8RowwiseParallel()}
            else:
                plan = gated_plan(OURS)
            eager, net = divided(module, plan), divided(module, plan)
            forward, options = net, {"backend": "aot_eager", "fullgraph": True}
            if how in ("plain", "prepared"):
                forward = torch.compile(net, **options)
            for each in {"module": [net[0]], "layers": net[0].children()}.get(how, ()):
                each.compile(**options)
            for step in range(2 if recipe == "delayed" else 1):
                expected = run(eager, part(x, dim, rank), part(grad, dim, rank))
                found = run(forward, part(x, dim, rank), part(grad, dim, rank))
                for ours, theirs in zip((*found, *gradients(net).values()), (*expected, *gradients(eager).values())):
                    close(ours, theirs, (recipe, how, step), SCALES)  # older versions of PyTorch round silu otherwise
                if recipe == "delayed":
                    sync_amax_history(eager)
                    sync_amax_history(net)
                    for ours, theirs in zip(net.buffers(), eager.buffers()):
                        close(ours, theirs, (how, step), SCALES)


def check_async_tensor_parallel(rank):
    """PyTorch's switch of it fuses collectives with the products of PyTorch's layers, and leaves Ingot's operators as they are."""
    from torch._inductor import config  # which takes seconds
    from torch._inductor.fx_passes import post_grad
    from torch.distributed._symmetric_memory import _test_mode

    left = []

    def noted(graph, fuse=post_grad.micro_pipeline_tp_pass):
        fuse(graph)
        targets = [str(node.target) for node in graph.nodes]
        assert not any("symm_mem" in each for each in targets), f"fused: {targets}"  # the CPU has no kernel for what it makes
        left.append(targets)

    def compiled(layers, plan):
        torch._dynamo.reset()
        eager, net = (divided(layers, plan) for _ in range(2))
        x = part(normal(16 * WORLD, K, seed=1).to(torch.bfloat16), 0, rank)
        grad = torch.ones_like(eager(x))
        noting = mock.patch.object(post_grad, "micro_pipeline_tp_pass", noted)
        told = mock.patch.object(dist, "is_nccl_available", lambda: True)  # without it the pass does nothing
        with config.patch(_micro_pipeline_tp=True, fx_graph_cache=False), noting, told, _test_mode():
            found = run(torch.compile(net, fullgraph=True), x, grad), gradients(net)
        expected = run(eager, x, grad), gradients(eager)
        for each, other in zip((*found[0], *found[1].values()), (*expected[0], *expected[1].values()), strict=True):
            close(each, other, plan, SCALES)

    with pytest.raises(Exception, match="fused: .*symm_mem.fused_all_gather_matmul"):
        compiled(nn.Linear(K, N, bias=False).to(DEVICE, torch.bfloat16), {"0": ColwiseParallel(input_layouts=Shard(0))})
    plan = {"0.0": Float8ColwiseParallel(input_layouts=Shard(0)), "0.1": Float8RowwiseParallel(output_layouts=Shard(0))}
    for recipe in RECIPES:
        left.clear()
        compiled(nn.Sequential(linear(recipe), linear(recipe, N, K)), plan)
        collectives = [[each for each in targets if "reduce_scatter" in each or "all_gather" in each] for targets in left]
        assert len(left) == 2 and all(collectives), (recipe, left)  # of forward and of backward


def check_compiled_modules(rank):
    check_modules(rank, RECIPES[1:], compiles=True)


def check_all_modules(rank):
    check_modules(rank, RECIPES)


CHECKS = [
    check_columns,
    check_rows,
    check_shared_input,
    check_float8_layers,
    check_modules,
    check_delayed,
    check_what_is_sent,
    check_layouts,
    check_sizes,
    check_autocast,
    check_nan,
    check_refuses,
    check_other_rank,
    check_prepare_refuses,
    check_copies,
]
NIGHTLY = [check_async_tensor_parallel, check_compiled, check_compiled_modules, check_all_modules]
folder = two_processes.fixture(CHECKS)
nightly_folder = two_processes.fixture(NIGHTLY)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("check", NIGHTLY, ids=lambda check: check.__name__)
def test_two_processes_nightly(check, nightly_folder):
    two_processes.passed(check, nightly_folder)


def test_parts_are_traced_under_a_default_device():
    """It is a mode of PyTorch's functions, in which Dynamo traces Python that torch.Tensor's own methods are written in."""
    ranks = Ranks("", 0, 2)
    values = torch.arange(2 * 4 * 6.0).reshape(2, 4, 6)
    for dim, empty in itertools.product((0, 1, 2), (False, True)):
        torch._dynamo.reset()
        given = values[:, :, :0] if empty and dim < 2 else values
        shares = torch.cat(given.chunk(2, dim))
        with torch.device("cpu"):
            for function, x, expected in ((one_after_another, given, shares), (in_order, shares, given)):
                found = torch.compile(function, backend="eager", fullgraph=True)(x, dim, ranks)
                assert torch.equal(found, expected), (function, dim)


# ---- with FSDP2, on four processes ----


def check_fsdp(rank):
    """fully_shard() over the other dimension of a mesh: the gradients of both halves of a batch, and weights gathered in FP8
    (test_tensor_parallel_gathers.py compares bits)."""
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = divmod(rank, 2)
    probe = fully_shard(nn.Linear(2, 1, False), mesh=mesh["dp"])
    probe(torch.ones(1, 2)).sum().backward()
    sums = probe.weight.grad.full_tensor().max().item()  # 2 of older versions of PyTorch over gloo, which add and do not average
    for recipe in RECIPES:
        for gathers in (False, True) if recipe in ("tensorwise", "rowwise", "delayed") else (False,):
            module = Gated(recipe).to(torch.bfloat16)
            net = nn.Sequential(copy.deepcopy(module))
            parallelize_module(net, mesh["tp"], gated_plan(OURS))
            if gathers:
                assert float8_all_gather(net) == ("gate", "up", "down")
            fully_shard(net[0], mesh=mesh["dp"])
            fully_shard(net, mesh=mesh["dp"])
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, net)]
            for step in range(2):
                x = normal(2, 16, K, seed=step).to(torch.bfloat16)
                outputs = [module(each) for each in x.split(1)]
                (sum(each.float().square().mean() for each in outputs) / 2).backward()
                ours = net(x[dp : dp + 1].chunk(2, 1)[tp])
                (ours.float().square().mean() / 2 / sums).backward()
                close(ours, outputs[dp].chunk(2, 1)[tp], (recipe, step), SCALES)
                for name, gradient in gradients(module).items():
                    # full_tensor() of such parts is another order of rows before PyTorch 2.8
                    own = gradient.chunk(2, 1 if name == "down.weight" else 0)[tp].chunk(2)[dp]
                    close(net.get_parameter(f"0.{name}").grad.to_local(), own, (recipe, gathers, step, name), SCALES)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                if recipe == "delayed":
                    sync_amax_history(module, reduce=False)
                    sync_amax_history(net)
                if gathers:
                    assert not is_in_high_precision(net[0].gate.weight._local_tensor)
                    precompute_float8_all_gather(net)


FOUR = [check_fsdp]
folder_of_four = two_processes.fixture(FOUR, 4)


@pytest.mark.nightly
@pytest.mark.skipif(WORLD != 2, reason="sizes are those of two ranks")
@pytest.mark.parametrize("check", FOUR, ids=lambda check: check.__name__)
def test_four_processes(check, folder_of_four):
    two_processes.passed(check, folder_of_four, 4)
