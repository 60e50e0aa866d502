"""Which operators compute ingot.float8's layers: Ingot's own, also where operands come in FP8."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ingot.float8 import _kernels as kernels
from ingot.float8 import Float8Linear, Float8LinearConfig, GemmInputRole, ScalingGranularity
from ingot.float8.float8_linear import matmul_with_hp_or_float8_args
from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

from ingot.torch import _operators as operators
from ingot.torch import _split_operators as split_operators


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

    gemm, quantize = kernels._gemm, kernels._quantize
    monkeypatch.setattr(kernels, "_gemm", counting(gemm))
    monkeypatch.setattr(kernels, "_quantize", counting(quantize))
    y = matmul_with_hp_or_float8_args.apply(input, weight.t(), layer.linear_mm_config, layer.config)
    grads = torch.autograd.grad(y, (x, layer.weight), grad_output)
    assert calls.count(gemm) == 3
    # What is not given is cast in forward and once more in backward.
    assert calls.count(quantize) == (1 if given == "both" else 3)
    # The same codes; the sums' order may differ.
    for got, wanted in zip((y, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("wanted", ["xwb", "x", "w", "xw", "b"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gathered_weight_is_one_operator_each_way(dtype, bias, wanted):
    """A weight in FP8 in the place of the parameter, as FSDP leaves it, gives what the parameter gave."""
    if "b" in wanted and not bias:
        pytest.skip("no bias")
    torch.manual_seed(0)
    layer = Float8Linear(48, 32, bias=bias, dtype=dtype)
    x = torch.randn(3, 8, 48).to(dtype)
    of = {"x": x, "w": layer.weight, "b": layer.bias}
    for name, tensor in of.items():
        if tensor is not None:
            tensor.requires_grad_(name in wanted)
    grad_output = torch.randn(3, 8, 32).to(dtype)
    expected = layer(x)
    expected = (expected, *torch.autograd.grad(expected, [of[name] for name in wanted], grad_output))
    gathered = copy.copy(layer)
    gathered._parameters = {"bias": layer.bias}
    of["w"] = float8(layer.weight.detach(), layer, GemmInputRole.WEIGHT).requires_grad_("w" in wanted)
    gathered.weight = of["w"]
    with Seen() as seen:
        y = gathered(x)
        got = (y, *torch.autograd.grad(y, [of[name] for name in wanted], grad_output))
    for a, e in zip(got, expected, strict=True):
        assert torch.equal(a, e) and a.dtype == e.dtype
    assert [name for name in seen.names if name.startswith("ingot.")] == [
        "ingot.linear_forward.default",
        "ingot.linear_backward.default",
    ]
    with torch.no_grad():
        assert torch.equal(gathered(x), expected[0])


def test_opcheck_and_messages_of_gathered_weights():
    torch.manual_seed(0)
    layer = Float8Linear(96, 80)
    facts = operators.add_plan(layer._operator_casts, "wq", 96, 80, *(torch.float32,) * 3, True)
    weight, factor = torch.randn(80, 96).to(torch.float8_e4m3fn), torch.tensor(0.5)
    x, b = torch.randn(20, 96), torch.randn(80)
    # Without test_schema, which compares tensors in a way that PyTorch's CPU lacks for FP8.
    tests = ("test_autograd_registration", "test_faketensor")
    of_weight = {"weight_scale_inv": factor}
    check = lambda operator, *arguments: torch.library.opcheck(operator, arguments, of_weight, test_utils=tests)
    check(operators.linear_forward, x, weight, b, facts.number, operators.KEEP_SAVED)
    output, saved, kept_codes, _ = operators.linear_forward(
        x, weight, b, facts.number, operators.KEEP_SAVED | operators.KEEP_CODES, **of_weight
    )
    assert kept_codes is None
    input_plan = split_operators.add_input_plan(facts)
    codes, kept = split_operators.quantize_input(x, input_plan, operators.KEEP_SAVED)
    in_parts = (x, codes, kept, weight, b, input_plan, facts.number)
    check(split_operators.gemm_output, *in_parts)
    with FlopCounterMode(display=False) as counter:
        assert torch.equal(split_operators.gemm_output(*in_parts, **of_weight), output) and torch.equal(kept, saved)
    assert counter.get_total_flops() == 2 * 20 * 80 * 96
    with pytest.raises(RuntimeError, match='linear "wq" weight: must be .80, 96. = .out_features, in_features., as'):
        split_operators.gemm_output(*in_parts[:3], weight[:79], *in_parts[4:], **of_weight)
    check(operators.linear_backward, torch.randn(20, 80), x, weight, saved, None, facts.number, 7)
    wrong = (
        (weight[:79], "must be .80, 96. = .out_features, in_features."),
        (weight.t().contiguous().t(), "is not contiguous: call"),
        (torch.randn(80, 96), "comes with scale_inv, so it must be codes in e4m3fn"),
    )
    for tensor, text in wrong:
        with pytest.raises(RuntimeError, match=f'linear "wq" weight: {text}'):
            operators.linear_forward(x, tensor, b, facts.number, 0, **of_weight)
    with pytest.raises(RuntimeError, match='linear "wq" weight_scale_inv: has 2 elements, but the GEMM of the output'):
        operators.linear_forward(x, weight, b, facts.number, 0, weight_scale_inv=torch.ones(2))


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
        "ingot.linear_forward.default",
        "ingot.linear_backward.default",
    ]
