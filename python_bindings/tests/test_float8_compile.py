"""torch.compile: whole graphs, the same numbers, and no compilation for another number of rows."""

import copy

import pytest

torch = pytest.importorskip("torch")
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import ingot.float8 as float8
from ingot.float8 import Float8Linear, Float8LinearConfig, GemmInputRole, LinearMMConfig
from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic


def step(layer, x):
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


def delayed_config(**options):
    cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    return Float8LinearConfig(cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast, **options)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whole_graph(backend, recipe):
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = Float8LinearConfig.from_recipe_name(recipe)
    layer = Float8Linear.from_float(torch.nn.Linear(16, 32, dtype=torch.bfloat16), config)
    x = torch.randn(8, 16, dtype=torch.bfloat16)
    expected = step(copy.deepcopy(layer), x)
    compiled = torch.compile(copy.deepcopy(layer), backend=backend, fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(step(compiled, x), expected))


def test_inductor():
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = Float8Linear.from_float(torch.nn.Linear(16, 32), Float8LinearConfig.from_recipe_name("rowwise"))
    x = torch.randn(8, 16)
    expected = step(copy.deepcopy(layer), x)
    compiled = torch.compile(layer, fullgraph=True)
    for ours, eager in zip(step(compiled, x), expected):
        torch.testing.assert_close(ours, eager, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_shared_input_is_cast_once(recipe):
    torch._dynamo.reset()
    config = Float8LinearConfig.from_recipe_name(recipe)
    layers = torch.nn.ModuleList(Float8Linear(16, n, config=config) for n in (32, 24, 8))
    graphs = []

    def note(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note, partition_fn=min_cut_rematerialization_partition)
    x = torch.randn(40, 16, requires_grad=True)

    def call(x):
        return sum(layer(2 * x).square().sum() for layer in layers)

    expected = torch.autograd.grad(call(x), [*layers.parameters()])
    got = torch.autograd.grad(torch.compile(call, backend=backend, fullgraph=True)(x), [*layers.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    forward, backward = graphs
    assert forward.count("ingot.quantize_input.default") == 1
    assert forward.count("ingot.gemm_output.default") == 3
    assert backward.count("ingot.linear_backward.default") == 3


def test_a_gathered_weight_leaves_the_graph_as_it_is():
    """Inductor keeps f32 between the operations of 16 bits that it fuses: a block has the same bits with a gathered weight
    only if it finds the same operators around them."""
    torch.manual_seed(0)
    layer = Float8Linear(48, 32)
    gathered = copy.copy(layer)
    gathered._parameters = {"bias": layer.bias}
    cast = hp_tensor_to_float8_dynamic(
        layer.weight.detach(), torch.float8_e4m3fn, layer.linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT
    )
    gathered.weight = cast.requires_grad_()
    x = torch.randn(16, 48, requires_grad=True)
    graphs, outputs = [], []

    def note(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "ingot" in str(node.target)])
        return make_boxed_func(graph.forward)

    for of in (layer, gathered):
        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=note, partition_fn=min_cut_rematerialization_partition)
        outputs.append(torch.compile(of, backend=backend, fullgraph=True)(x))
        outputs[-1].sum().backward()
    assert torch.equal(*outputs)
    assert graphs == [
        ["ingot.quantize_input.default", "ingot.quantize_weight.default", "ingot.gemm_output.default"],
        ["ingot.linear_backward.default"],
        ["ingot.quantize_input.default", "ingot.gemm_output.default"],
        ["ingot.linear_backward.default"],
    ]


def test_rows_are_dynamic():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    layer = Float8Linear(16, 32)
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for rows in (8, 24, 40):
        compiled(torch.randn(rows, 16)).sum().backward()
    assert counter.frame_count == 1


def test_autocast_within_a_graph():
    torch._dynamo.reset()
    compiled = torch.compile(Float8Linear(16, 16), backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(torch.randn(4, 16)).dtype == torch.bfloat16


@pytest.mark.parametrize("backend, starts", [("eager", False), ("aot_eager", False), ("inductor", True)])
def test_delayed_scaling_within_a_graph(backend, starts):
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = delayed_config(enable_amax_init=starts)
    layer = float8.convert_to_float8_training(torch.nn.Linear(16, 16), config=config)
    eager, compiled = copy.deepcopy(layer), torch.compile(copy.deepcopy(layer), backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 16)
        assert all(torch.equal(a, b) for a, b in zip(step(eager, x), step(compiled, x)))
        float8.sync_float8_amax_and_scale_history(eager)
        float8.sync_float8_amax_and_scale_history(compiled)
    assert all(map(torch.equal, eager.buffers(), compiled.buffers())) and compiled.is_amax_initialized


def test_casts_compile_to_the_same_bits():
    torch._dynamo.reset()
    compiled = torch.compile(hp_tensor_to_float8_dynamic, backend="aot_eager", fullgraph=True)
    for pow2 in (False, True):
        x = torch.randn(16, 16)
        arguments = (x, torch.float8_e4m3fn, LinearMMConfig())
        one, other = (f(*arguments, round_scales_to_power_of_2=pow2) for f in (hp_tensor_to_float8_dynamic, compiled))
        assert torch.equal(one._scale, other._scale)
        assert torch.equal(one._data.view(torch.uint8), other._data.view(torch.uint8))


def test_alike_blocks_share_a_compilation():
    """Blocks that are compiled one by one differ in their layers' names, which are no reason to compile again."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()) for _ in range(3))
    float8.convert_to_float8_training(blocks, config=Float8LinearConfig.from_recipe_name("rowwise"))
    assert [block[0].layer_name for block in blocks] == ["0.0", "1.0", "2.0"]
    x = torch.randn(4, 16, requires_grad=True)
    for block in blocks:
        block.compile(backend=counter, dynamic=False)
        x = block(x)
    x.sum().backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend, emulate", [("aot_eager", False), ("aot_eager", True), ("eager", False)])
def test_a_scale_that_starts_compiles_nothing_again(backend, emulate):
    """The weight has a scale after the first step, the input after its first tokens, and grad_output once it is not 0."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = delayed_config(emulate=emulate)
    eager = float8.convert_to_float8_training(torch.nn.Linear(16, 32), config=config)
    layer = copy.deepcopy(eager)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    noted, counts = [], []
    for rows, size in ((0, 1), (8, 0), (8, 1e-3), (8, 1e-3), (16, 1)):
        x, results = torch.randn(rows, 16), []
        for each, call in ((eager, eager), (layer, compiled)):
            each.zero_grad()
            given = x.clone().requires_grad_()
            y = call(given)
            results.append((y, *torch.autograd.grad((size * y).sum(), (given, each.weight, each.bias))))
            results[-1] += tuple(buffer.clone() for buffer in each.buffers())
            float8.sync_float8_amax_and_scale_history(each)
            results[-1] += tuple(buffer.clone() for buffer in each.buffers())
        assert all(map(torch.equal, *results))
        assert eager._starts.shape == layer._starts.shape
        noted.append(layer._starts.shape[0] - 2)
        counts.append(counter.frame_count)
    assert noted == [0b101, 0b100, 0, 0, 0]
    assert counts == [1, 2, 2, 2, 2]  # no tokens are a graph of PyTorch's
