"""Scales and casts: against NumPy, and bit for bit against torchao where it is installed."""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

import ingot
from ingot.float8 import Float8LinearConfig, LinearMMConfig, ScalingGranularity
from ingot.float8 import float8_scaling_utils, float8_training_tensor, float8_utils

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = {
    torch.float8_e4m3fn: (ml_dtypes.float8_e4m3fn, 448),
    torch.float8_e5m2: (ml_dtypes.float8_e5m2, 57344),
    torch.float8_e4m3fnuz: (ml_dtypes.float8_e4m3fnuz, 240),
    torch.float8_e5m2fnuz: (ml_dtypes.float8_e5m2fnuz, 57344),
}
AXES = (None, 0, -1)


def random(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return (values * torch.exp2(torch.randint(-12, 12, shape, generator=generator))).to(dtype)


def granularity(axis):
    return ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scale_and_codes(dtype, fp8, axis):
    x = random((7, 5, 33), dtype)
    cast = float8_scaling_utils.hp_tensor_to_float8_dynamic(
        x, fp8, LinearMMConfig(), scaling_granularity=granularity(axis), axiswise_dim=axis
    )
    numpy_dtype, largest = FP8[fp8]
    exact = x.to(torch.float64).numpy()
    amax = np.abs(exact).max(axis=axis, keepdims=axis is not None)
    scale = (largest / amax).astype(np.float32)
    np.testing.assert_array_equal(cast._scale.numpy(), scale)
    product = np.clip(x.to(torch.float32).numpy() * scale, -largest, largest)
    expected = product.astype(numpy_dtype).view(np.uint8)
    np.testing.assert_array_equal(cast._data.view(torch.uint8).numpy(), expected)
    assert cast.dtype == cast.to_original_precision().dtype == dtype
    assert cast._axiswise_dim == axis


def test_power_of_two_scales_are_rounded_down():
    exponents = torch.arange(-126, 127, dtype=torch.float32)
    powers = torch.exp2(exponents)
    between = powers * 1.5
    rounded = float8_utils._round_scale_down_to_power_of_2
    assert torch.equal(rounded(powers), powers)
    assert torch.equal(rounded(between), powers)
    assert torch.isnan(rounded(torch.tensor(float("nan"))))
    with pytest.raises(AssertionError, match="scale must be float32 tensor, got torch.float64"):
        rounded(torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,)], ids=str)
@pytest.mark.parametrize("axis", AXES)
def test_empty_tensors(shape, axis):
    cast = float8_scaling_utils.hp_tensor_to_float8_dynamic(
        torch.empty(shape),
        torch.float8_e4m3fn,
        LinearMMConfig(),
        scaling_granularity=granularity(axis),
        axiswise_dim=axis,
    )
    assert cast.shape == shape and cast.to_original_precision().shape == shape


def test_zeros_have_a_scale_and_small_values_a_finite_one():
    scale = float8_utils.tensor_to_scale(torch.zeros(3), torch.float8_e4m3fn)
    assert scale.item() == np.float32(448 / 1e-12)
    tiny = torch.full((2,), 6e-8, dtype=torch.float16)
    assert torch.isfinite(float8_utils.tensor_to_scale(tiny, torch.float8_e5m2)).all()


def test_saturation_and_nan():
    values = torch.tensor([1e9, -1e9, float("inf"), float("nan"), 0.0])
    codes = float8_utils.to_fp8_saturated(values, torch.float8_e4m3fn).float()
    assert codes[:3].tolist() == [448, -448, 448] and torch.isnan(codes[3]) and codes[4] == 0


def test_statistics_and_error():
    x = torch.cat([torch.full((3,), 1e9), torch.ones(2), torch.full((4,), 1e-9)])
    cast = float8_training_tensor.hp_tensor_and_scale_to_float8(x, torch.tensor(1.0), torch.float8_e4m3fn)
    assert float8_utils.fp8_tensor_statistics(cast, torch.float8_e4m3fn) == (4, 3)
    assert float8_utils.compute_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])).item() == pytest.approx(20)


def test_padding_and_strides():
    x = torch.ones(3, 17)
    shapes = [tuple(float8_utils.pad_tensor_for_matmul(x, dims).shape) for dims in (0, 1, (0, 1))]
    assert shapes == [(16, 17), (3, 32), (16, 32)]
    assert float8_utils.pad_tensor_for_matmul(x, (0, 1)).sum() == x.sum()
    assert float8_utils.is_row_major((17, 1)) and not float8_utils.is_row_major((1, 17))
    assert [float8_utils._get_min_alignment(size, 8) for size in (0, 1, 8, 10)] == [0, 8, 8, 16]


REFUSED = [
    (
        ValueError,
        "float8_dtype is torch.float16, expected one of",
        lambda: float8_utils.to_fp8_saturated(torch.ones(1), torch.float16),
    ),
    (
        ValueError,
        "float8_dtype is torch.int8, expected one of",
        lambda: float8_utils.amax_to_scale(torch.ones(1), torch.int8),
    ),
    (
        AssertionError,
        "unsupported: axiswise scaling without axiswise_dim",
        lambda: float8_utils.tensor_to_amax(torch.ones(2, 2), scaling_granularity=ScalingGranularity.AXISWISE),
    ),
    (AssertionError, r"takes a matrix, got shape \(3,\)", lambda: float8_utils.pad_tensor_for_matmul(torch.ones(3), 0)),
    (AssertionError, "takes the strides of a matrix, got those of 3", lambda: float8_utils.is_row_major((4, 2, 1))),
    (
        NotImplementedError,
        "not from its 'mean'",
        lambda: float8_utils.amax_history_to_scale(torch.ones(2), torch.float8_e4m3fn, "mean"),
    ),
    (
        NotImplementedError,
        "not from its 'mean'",
        lambda: float8_utils.amax_history_to_scale_stack(torch.ones(2, 2), torch.float8_e4m3fn, "mean"),
    ),
]


@pytest.mark.parametrize("kind, message, call", REFUSED, ids=[message for _, message, _ in REFUSED])
def test_refused(kind, message, call):
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, ingot.Error)


needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@needs_torchao
@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_torchaos(dtype, axis, pow2):
    from torchao.float8 import config as their_config
    from torchao.float8 import float8_scaling_utils as theirs
    from torchao.float8.float8_training_tensor import LinearMMConfig as TheirMMConfig

    their_granularity = getattr(their_config.ScalingGranularity, granularity(axis).name)
    for seed, fp8 in enumerate(FP8):
        x = random((64, 96), dtype, seed)
        ours = float8_scaling_utils.hp_tensor_to_float8_dynamic(
            x,
            fp8,
            LinearMMConfig(),
            False,
            scaling_granularity=granularity(axis),
            axiswise_dim=axis,
            round_scales_to_power_of_2=pow2,
        )
        other = theirs.hp_tensor_to_float8_dynamic(
            x,
            fp8,
            TheirMMConfig(),
            False,
            scaling_granularity=their_granularity,
            axiswise_dim=axis,
            round_scales_to_power_of_2=pow2,
        )
        assert torch.equal(ours._scale, other._scale)
        assert torch.equal(ours._data.view(torch.uint8), other._data.view(torch.uint8))


@needs_torchao
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_an_emulated_layer_has_torchaos_bits(recipe, dtype):
    from torchao.float8 import Float8LinearConfig as TheirConfig
    from torchao.float8.float8_linear import Float8Linear as TheirLinear

    from ingot.float8 import Float8Linear

    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 32, dtype=dtype)
    results = []
    for linear, config_type in ((Float8Linear, Float8LinearConfig), (TheirLinear, TheirConfig)):
        config = config_type.from_recipe_name(recipe)
        object.__setattr__(config, "emulate", True)
        layer.zero_grad()
        converted = linear.from_float(layer, config)
        x = random((2, 16, 48), dtype).requires_grad_()
        y = converted(x)
        y.backward(random((2, 16, 32), dtype, 1))
        results.append([y, x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()])
    for ours, theirs in zip(*results):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
