"""Which operators compute ingot.float8's layers: Ingot's own, also where operands come in FP8."""

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode

from ingot.float8 import _kernels as kernels
from ingot.float8 import Float8Linear, Float8LinearConfig, GemmInputRole, ScalingGranularity
from ingot.float8.float8_linear import matmul_with_hp_or_float8_args
from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic


class Seen(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))

    def count(self, name):
        return sum(each.startswith(name) for each in self.names)


def float8(tensor, layer, role):
    return hp_tensor_to_float8_dynamic(tensor, torch.float8_e4m3fn, layer.linear_mm_config, gemm_input_role=role)


@pytest.mark.parametrize("given", ["input", "weight", "both"])
def test_operands_in_float8_are_multiplied_by_ingot(given, monkeypatch):
    """As tensor parallel gives the input, and FSDP the weight."""
    torch.manual_seed(0)
    layer = Float8Linear(48, 32, bias=False)
    x = torch.randn(24, 48, requires_grad=True)
    expected = layer(x)
    grad_output = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, (x, layer.weight), grad_output)
    input = x if given == "weight" else float8(x, layer, GemmInputRole.INPUT)
    weight = layer.weight if given == "input" else float8(layer.weight, layer, GemmInputRole.WEIGHT)
    calls = []  # a mode does not see what a subclass of tensors calls

    def counting(operator):
        return lambda *args: calls.append(operator) or operator(*args)

    monkeypatch.setattr(kernels, "_gemm", counting(kernels._gemm))
    monkeypatch.setattr(kernels, "_quantize", counting(kernels._quantize))
    gemm, quantize = torch.ops.ingot.gemm.default, torch.ops.ingot.quantize.default
    y = matmul_with_hp_or_float8_args.apply(input, weight.t(), layer.linear_mm_config, layer.config)
    grads = torch.autograd.grad(y, (x, layer.weight), grad_output)
    assert calls.count(gemm) == 3
    # What is not given is cast in forward and once more in backward.
    assert calls.count(quantize) == (1 if given == "both" else 3)
    # The same codes; the sums' order may differ.
    for got, wanted in zip((y, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("shape", [(24, 40), (3, 8, 40), (40,)], ids=str)
def test_casts_are_pytorchs(shape, axis, dtype, pow2):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 100).to(dtype)
    granularity = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
    for tensor in (x, x.t()) if x.dim() == 2 else (x,):
        for target in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz):
            with Seen() as seen:
                cast = hp_tensor_to_float8_dynamic(
                    tensor,
                    target,
                    None,
                    scaling_granularity=granularity,
                    axiswise_dim=axis,
                    round_scales_to_power_of_2=pow2,
                )
            assert seen.count("ingot.quantize") == 1
            largest = torch.finfo(target).max
            expected = (tensor.float() * cast._scale).clamp(-largest, largest).to(target)
            assert cast._data.stride() == expected.stride()
            assert torch.equal(cast._data.view(torch.uint8), expected.view(torch.uint8))


def test_dynamic_layers_are_one_operator_each_way():
    layer = Float8Linear(48, 32, config=Float8LinearConfig.from_recipe_name("rowwise"))
    with Seen() as seen:
        layer(torch.randn(24, 48)).sum().backward()
    assert [name for name in seen.names if name.startswith("ingot.")] == [
        "ingot.linear_forward_bias.default",
        "ingot.linear_backward.default",
    ]
