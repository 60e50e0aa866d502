"""ingot.float8 on a GPU: the bits of the CPU's casts, and layers close to torch.nn.Linear at any size."""

import copy

import pytest

torch = pytest.importorskip("torch")

import ingot.float8 as float8
from ingot.float8 import Float8Linear, Float8LinearConfig, LinearMMConfig, ScalingGranularity
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
