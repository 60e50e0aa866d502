"""ingot.float8 on a GPU: the bits of the CPU's casts, and layers close to torch.nn.Linear at any size."""

import copy

import pytest

torch = pytest.importorskip("torch")

import ingot.float8 as float8
from ingot.float8 import Float8Linear, Float8LinearConfig, GemmInputRole, LinearMMConfig, ScalingGranularity
from ingot.float8.float8_ops import scaled_product
from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from ingot.float8.float8_utils import compute_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_have_the_cpus_bits(dtype, axis, pow2):
    granularity = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
    x = torch.randn(65, 130, generator=torch.Generator().manual_seed(0)).to(dtype)
    for fp8 in (torch.float8_e4m3fn, torch.float8_e5m2):
        casts = [
            hp_tensor_to_float8_dynamic(
                each,
                fp8,
                LinearMMConfig(),
                scaling_granularity=granularity,
                axiswise_dim=axis,
                round_scales_to_power_of_2=pow2,
            )
            for each in (x, x.cuda())
        ]
        assert torch.equal(casts[0]._scale, casts[1]._scale.cpu())
        assert torch.equal(casts[0]._data.view(torch.uint8), casts[1]._data.cpu().view(torch.uint8))


def step(layer, x, gradient):
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(gradient)
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


@pytest.mark.parametrize("sizes", [(64, 256, 256), (17, 41, 29), (1, 16, 16), (0, 16, 16)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_close_to_linear(recipe, dtype, sizes):
    m, k, n = sizes
    torch.manual_seed(0)
    layer = torch.nn.Linear(k, n, device="cuda", dtype=dtype)
    config = Float8LinearConfig.from_recipe_name(recipe)
    converted = Float8Linear.from_float(copy.deepcopy(layer), config)
    x, gradient = (torch.randn(m, size, device="cuda", dtype=dtype) for size in (k, n))
    for ours, exact in zip(step(converted, x, gradient), step(layer, x, gradient)):
        assert ours.shape == exact.shape and ours.dtype == exact.dtype
        assert exact.numel() == 0 or not exact.any() or compute_error(exact.double(), ours.double()) > 17


def test_formats_that_tensor_cores_do_not_multiply():
    both = float8.CastConfig(target_dtype=torch.float8_e5m2)
    config = Float8LinearConfig(cast_config_input=both, cast_config_weight=both, cast_config_grad_output=both)
    layer = Float8Linear(64, 32, device="cuda", config=config)
    x = torch.randn(16, 64, device="cuda")
    exact = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert compute_error(exact, layer(x)) > 12


def test_autocast():
    layer = Float8Linear(64, 32, device="cuda")
    x = torch.randn(16, 64, device="cuda")
    with torch.autocast("cuda"):
        assert layer(x).dtype == torch.float16
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled(recipe):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 256, device="cuda", dtype=torch.bfloat16)
    converted = Float8Linear.from_float(copy.deepcopy(layer), Float8LinearConfig.from_recipe_name(recipe))
    compiled = torch.compile(converted, fullgraph=True)
    x, gradient = (torch.randn(64, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for ours, exact in zip(step(compiled, x, gradient), step(layer, x, gradient)):
        assert compute_error(exact.double(), ours.double()) > 17


def test_delayed_scaling():
    torch.manual_seed(0)
    delayed = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = Float8LinearConfig(cast_config_input=delayed, cast_config_weight=delayed, cast_config_grad_output=delayed)
    layer = torch.nn.Linear(64, 64, device="cuda")
    converted = float8.convert_to_float8_training(copy.deepcopy(layer), config=config)
    for _ in range(3):
        x, gradient = (torch.randn(32, 64, device="cuda") for _ in range(2))
        for ours, exact in zip(step(converted, x, gradient), step(layer, x, gradient)):
            assert compute_error(exact, ours) > 15
        float8.sync_float8_amax_and_scale_history(converted)


@pytest.mark.parametrize("layouts", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("sizes", [(256, 512, 384), (17, 41, 29), (1, 16, 16)], ids=str)
def test_products_of_float8_tensors(sizes, layouts):
    """Operands by rows and by columns, of formats that tensor cores know and others, with scales of rows and of all."""
    m, k, n = sizes
    generator = torch.Generator().manual_seed(0)
    scales = (torch.rand(m, 1, generator=generator) + 0.5, torch.rand(1, n, generator=generator) + 0.5)
    for a_format, b_format in (
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e5m2),
        (torch.float8_e4m3fnuz, torch.float8_e4m3fnuz),
    ):
        a, b = (
            torch.randn(shape, generator=generator).to(format)
            for shape, format in (((m, k), a_format), ((k, n), b_format))
        )
        for a_scale, b_scale in (scales, (scales[0].max(), scales[1].max())):
            exact = (a.double() / a_scale.double()) @ (b.double() / b_scale.double())
            on_gpu = [
                each.view(torch.uint8).t().contiguous().t().view(each.dtype).cuda() if turned else each.cuda()
                for each, turned in zip((a, b), layouts)
            ]
            product = scaled_product(on_gpu[0], a_scale.cuda(), on_gpu[1], b_scale.cuda(), torch.float32, False)
            assert compute_error(exact, product.cpu().double()) > 60


def test_a_gathered_weight_is_the_parameter():
    layer = Float8Linear(256, 384, device="cuda", dtype=torch.bfloat16)
    x, gradient = (torch.randn(130, size, device="cuda", dtype=torch.bfloat16) for size in (256, 384))
    expected = step(layer, x, gradient)
    gathered = copy.copy(layer)
    gathered._parameters = {"bias": layer.bias}
    gathered.weight = hp_tensor_to_float8_dynamic(
        layer.weight.detach(), torch.float8_e4m3fn, layer.linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT
    ).requires_grad_()
    x = x.requires_grad_()
    y = gathered(x)
    got = [y.detach(), *torch.autograd.grad(y, (x, gathered.weight, layer.bias), gradient)]
    assert all(torch.equal(a, e) for a, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_of_one_input_compiled(recipe, mode):
    """q, k and v share a cast in the graph, and have the bits that they have from eager."""
    torch._dynamo.reset()
    config = Float8LinearConfig.from_recipe_name(recipe)
    layers = torch.nn.ModuleList(
        Float8Linear(256, n, device="cuda", dtype=torch.bfloat16, config=config) for n in (256, 128, 128)
    )

    def call(x):
        return torch.cat([layer(2 * x) for layer in layers], -1)

    compiled = torch.compile(call, mode=mode, fullgraph=True)
    x, gradient = (torch.randn(130, n, device="cuda", dtype=torch.bfloat16) for n in (256, 512))
    expected = [call(x).detach(), *torch.autograd.grad(call(x), [*layers.parameters()], gradient)]
    for at in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        y = compiled(x)
        got = [y.detach().clone(), *(each.clone() for each in torch.autograd.grad(y, [*layers.parameters()], gradient))]
        for name, a, e in zip(("y", *(name for name, _ in layers.named_parameters())), got, expected, strict=True):
            assert torch.equal(a, e), f"step {at}: {name} differs in {int((a != e).sum())} of {a.numel()} elements"


def test_a_compiled_layer_of_a_gathered_weight_has_eagers_bits():
    """Inductor divides float32 approximately: the scale_inv of a scale must not come from such a kernel."""
    layer = Float8Linear.from_float(torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16), Float8LinearConfig())
    compiled = torch.compile(torch.func.functional_call, fullgraph=False, dynamic=False)
    x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
    for seed in range(24):  # as many scales
        weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).to("cuda", torch.bfloat16)
        gathered = hp_tensor_to_float8_dynamic(
            weight, torch.float8_e4m3fn, layer.linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT
        )
        tensors = {"weight": gathered, "bias": layer.bias.detach()}
        with torch.no_grad():
            plain = torch.func.functional_call(layer, tensors, (x,))
            assert torch.equal(compiled(layer, tensors, (x,)), plain), seed
