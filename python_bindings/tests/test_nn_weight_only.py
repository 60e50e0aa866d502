"""ingot.nn.WeightOnlyLinear and quantize_(): values against float64, state, moves, compilers, and messages."""

import copy
import io
import pickle
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import ingot
from ingot import _core
from ingot.nn import Float8Linear, Float8WeightOnlyConfig, MXWeightOnlyConfig, WeightOnlyLinear, quantize_

N, K = 72, 160
FLOAT8 = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
CASES = [(d, s) for d in FLOAT8 for s in ("tensor", "row", "1x128", "1x64", "1x32", "128x128")] + [
    (d, "mx") for d in ("e4m3fn", "e5m2", "e3m2fn", "e2m3fn", "e2m1fn")
]
MANTISSA = {"e4m3fn": 3, "e5m2": 2, "e4m3fnuz": 3, "e5m2fnuz": 2, "e3m2fn": 2, "e2m3fn": 3, "e2m1fn": 1}


def plain(dtype=torch.bfloat16, bias=True, seed=0, n=N, k=K):
    torch.manual_seed(seed)
    return torch.nn.Linear(k, n, bias=bias, dtype=dtype)


def inputs(dtype=torch.bfloat16, shape=(3, 5), k=K):
    torch.manual_seed(1)
    return torch.randn(*shape, k, dtype=dtype)


def close(actual, expected, bound):
    """No NaN passes."""
    error = (actual.double() - expected).norm()
    return bool(error <= bound * expected.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_values(case, bias, dtype):
    """The product in float64 of what the layer's codes stand for, and that against the weight itself."""
    code, scale = case
    layer = plain(dtype, bias)
    quantized = WeightOnlyLinear.from_float(layer, code, scale)
    assert close(quantized.dequantize(), layer.weight.detach().double(), 2.0 ** -MANTISSA[code])
    x = inputs(dtype)
    expected = x.double() @ quantized.dequantize().double().t()
    if bias:
        expected = expected + layer.bias.detach().double()
    y = quantized(x)
    assert y.dtype == dtype and y.shape == (3, 5, N)
    assert close(y, expected, 0.004 if dtype == torch.bfloat16 else 0.0005)


@pytest.mark.parametrize("code", FLOAT8)
def test_codes_mean_what_pytorch_says(code):
    """PyTorch's own conversion of the format, fnuz included, with a scale_inv for each row."""
    quantized = WeightOnlyLinear.from_float(plain(), code, "row")
    values = quantized.codes().view(FLOAT8[code]).double() * quantized.weight_scale.double()
    assert close(quantized.dequantize(), values, 1e-7)
    largest = quantized.codes().view(FLOAT8[code]).float().abs().amax(1)
    assert (largest == torch.finfo(FLOAT8[code]).max).all()


@pytest.mark.parametrize("layout", ["packed", "packed_f16", "row_major"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_layouts_hold_the_same_codes(case, layout):
    quantized = WeightOnlyLinear.from_float(plain(), *case, layout=layout)
    rows = WeightOnlyLinear.from_float(plain(), *case, layout="row_major")
    assert torch.equal(quantized.codes(), rows.weight.codes)
    assert torch.equal(quantized(inputs()), rows(inputs()))


def test_is_the_python_layer():
    """The same layer over NumPy and PyTorch arrays, whose tests compare it with float64."""
    layer = plain(torch.float16, bias=False)
    other = ingot.WeightOnlyLinear.quantize(layer.weight.detach(), "e4m3fn", scale="1x128")
    x = inputs(torch.float16)
    assert torch.equal(WeightOnlyLinear.from_float(layer, scale="1x128")(x), other(x))


def test_any_rank_and_stride():
    quantized = WeightOnlyLinear.from_float(plain())
    x = inputs(shape=(2, 3, 4))
    expected = quantized(x.reshape(24, K)).reshape(2, 3, 4, N)
    assert torch.equal(quantized(x), expected)
    assert torch.equal(quantized(x[0, 0, 0]), expected[0, 0, 0])
    assert torch.equal(quantized(x.permute(2, 0, 1, 3)), expected.permute(2, 0, 1, 3))
    assert quantized(x[:0]).shape == (0, 3, 4, N)


@pytest.mark.parametrize("case", [("e4m3fn", "row"), ("e5m2fnuz", "1x64"), ("e2m1fn", "mx")], ids="-".join)
def test_copies_and_checkpoints(case):
    quantized = WeightOnlyLinear.from_float(plain(), *case)
    x = inputs()
    expected = quantized(x)
    assert torch.equal(copy.deepcopy(quantized)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(quantized))(x), expected)
    file = io.BytesIO()
    torch.save(quantized.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    for layout in ("packed", "packed_f16", "row_major"):
        other = WeightOnlyLinear(K, N, weight_dtype=case[0], scale=case[1], layout=layout, dtype=torch.bfloat16)
        other.load_state_dict(state, strict=True)
        assert other.layout == layout
        assert torch.equal(other(x), expected)
    on_meta = WeightOnlyLinear(K, N, device="meta", weight_dtype=case[0], scale=case[1])
    assert on_meta(x.to("meta")).shape == (3, 5, N)
    on_meta.load_state_dict(state, strict=True, assign=True)
    assert torch.equal(on_meta(x), expected)


def test_dtype_moves_keep_codes_and_change_the_layout():
    quantized = WeightOnlyLinear.from_float(plain())
    codes, scale_inv = quantized.codes(), quantized.weight_scale.clone()
    assert quantized.layout == "packed"
    quantized.half()
    assert quantized.layout == "packed_f16"
    assert torch.equal(quantized.codes(), codes)
    assert quantized.weight_scale.dtype == torch.float32 and torch.equal(quantized.weight_scale, scale_inv)
    x = inputs(torch.float16)
    assert close(quantized(x), x.double() @ quantized.dequantize().double().t() + quantized.bias.double(), 0.0005)
    assert quantized.to(torch.bfloat16).layout == "packed"
    assert torch.equal(quantized.codes(), codes)
    fixed = WeightOnlyLinear.from_float(plain(), layout="row_major").half()
    assert fixed.layout == "row_major"


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("bias", [True, False])
def test_whole_graph(backend, bias):
    torch._dynamo.reset()
    model = torch.nn.Sequential(WeightOnlyLinear.from_float(plain(bias=bias)), torch.nn.ReLU())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(inputs()), model(inputs()))


@pytest.mark.parametrize("case", [("e4m3fn", "128x128"), ("e3m2fn", "mx"), ("e2m1fn", "mx")], ids="-".join)
def test_gradient_of_the_input(case):
    quantized = WeightOnlyLinear.from_float(plain(), *case)
    grad_output = torch.randn(3, 5, N, dtype=torch.bfloat16)
    for call in (quantized, torch.compile(quantized, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        x = inputs().requires_grad_()
        call(x).backward(grad_output)
        assert close(x.grad, grad_output.double() @ quantized.dequantize().double(), 0.005)


def test_operators_pass_opcheck():
    from ingot.torch import _weight_operators as operators

    quantized = WeightOnlyLinear.from_float(plain())
    plan = quantized._facts().number
    weight, scale_inv = quantized.weight.codes, quantized.weight_scale
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    check = lambda op, *arguments: torch.library.opcheck(op, arguments, test_utils=checks)
    check(operators.weight_only_linear, inputs(), weight, scale_inv, None, plan, 0)
    check(operators.weight_only_linear, inputs(), weight, scale_inv, quantized.bias, plan, 1)
    check(operators.weight_unpack, weight, plan)
    check(operators.weight_pack, quantized.codes(), plan)
    check(operators.weight_cast, plain().weight.detach(), plan)


def test_under_autocast():
    quantized = WeightOnlyLinear.from_float(plain(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = quantized(inputs(torch.float32))
    assert y.dtype == torch.bfloat16
    expected = inputs(torch.float32).double() @ quantized.dequantize().double().t() + quantized.bias.double()
    assert close(y, expected, 0.01)


@pytest.mark.parametrize("scale", ["tensor", "row", "1x128", "128x128"])
def test_from_codes(scale):
    made = WeightOnlyLinear.from_float(plain(bias=False), "e4m3fn", scale)
    codes = made.codes().view(torch.float8_e4m3fn)
    other = WeightOnlyLinear.from_codes(codes, made.weight_scale.reshape(-1), scale=scale)
    assert torch.equal(other(inputs()), made(inputs()))


# ---- quantize_ ----------------------------------------------------------------------------------------------------


class WithForward(torch.nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def model():
    torch.manual_seed(0)
    shared = plain(n=K)
    return torch.nn.ModuleDict(
        {
            "a": shared,
            "b": shared,
            "trained": Float8Linear.from_float(plain(n=K), "rowwise"),
            "special": WithForward(K, K, dtype=torch.bfloat16),
            "head": plain(),
            "wide": plain(torch.float64),
        }
    )


def test_quantize():
    found = model()
    report = quantize_(found, Float8WeightOnlyConfig(scale="128x128"), filter_fn=lambda _, name: name != "head")
    assert report.converted == ("a", "trained")
    assert found["a"] is found["b"] and isinstance(found["a"], WeightOnlyLinear)
    assert isinstance(found["trained"], WeightOnlyLinear)
    assert report.left_alone["head"] == "filter_fn leaves it out"
    assert "has its own forward" in report.left_alone["special"]
    assert "float64" in report.left_alone["wide"]
    assert "2 of 5 linear layers were quantized" in str(report)
    weight = found["a"].weight.codes
    again = quantize_(found, Float8WeightOnlyConfig(), filter_fn=lambda _, name: name != "head")
    assert again.converted == () and found["a"].weight.codes is weight
    assert again.left_alone["a"] == "is quantized already"


def test_quantize_to_small_formats():
    found = torch.nn.Sequential(plain(), torch.nn.ReLU())
    quantize_(found, MXWeightOnlyConfig("e2m1fn"))
    assert found[0].weight_dtype == "e2m1fn" and found[0].scale == "mx"
    assert found(inputs()).isfinite().all()


@pytest.mark.parametrize("name", ["weight", "weight_scale", "bias", "input"])
def test_tensors_in_different_places(name):
    quantized = WeightOnlyLinear.from_float(plain(), layer_name="wq")
    x = torch.zeros(5, K, dtype=torch.bfloat16, device="meta" if name == "input" else "cpu")
    if name != "input":
        tensor = getattr(quantized, name)
        meta = tensor.detach().to("meta")
        setattr(quantized, name, torch.nn.Parameter(meta, requires_grad=False) if name == "bias" else meta)
    message = 'WeightOnlyLinear "wq" (weight: is on cpu and the input on meta|%s: is on meta and the input on cpu)' % name
    with pytest.raises(ingot.Error, match=message):
        quantized(x)


def test_report_of_a_float32_model():
    report = quantize_(torch.nn.Sequential(torch.nn.Linear(K, N)), Float8WeightOnlyConfig())
    assert str(report).endswith("these layers take bfloat16 or float16, and the model was float32: call .bfloat16() on it, "
                                "or use torch.autocast")
    assert quantize_(torch.nn.Sequential(torch.nn.Linear(K, N)).bfloat16(), Float8WeightOnlyConfig()).note == ""


def test_messages():
    with pytest.raises(ingot.Error, match="Float8WeightOnlyConfig weight_dtype: 'fp8' is not one of e4m3fn"):
        Float8WeightOnlyConfig("fp8")
    quantized = WeightOnlyLinear.from_float(plain(), layer_name="wq")
    with pytest.raises(ingot.Error, match=r'WeightOnlyLinear "wq" input: has shape \(5, 3\), expected \(\.\.\., 160\)'):
        quantized(torch.zeros(5, 3, dtype=torch.bfloat16))
    with pytest.raises(ingot.Error, match='WeightOnlyLinear "wq" input: is torch.float32, expected bfloat16'):
        quantized(torch.zeros(5, K))
    with pytest.raises(ingot.Error, match="weight_dtype: 'e4m3' is not one of e4m3fn, .*: did you mean e4m3fn?"):
        WeightOnlyLinear.from_float(plain(), "e4m3")
    with pytest.raises(ingot.Error, match="scale: 'col' is not one of tensor, row"):
        WeightOnlyLinear(K, N, scale="col")
    with pytest.raises(ingot.Error, match='e2m1fn is made only with MX scales: set scale="mx"'):
        WeightOnlyLinear.from_float(plain(), "e2m1fn", "row")
    with pytest.raises(ingot.Error, match="takes a torch.nn.Linear, got a ReLU"):
        WeightOnlyLinear.from_float(torch.nn.ReLU())
    with pytest.raises(ingot.Error, match="weight: is on meta, without values: load the model first"):
        WeightOnlyLinear.from_float(torch.nn.Linear(4, 4, device="meta"))
    with pytest.raises(ingot.Error, match=r"scales: has shape \(3,\), expected \(72, 1\), one for each row"):
        WeightOnlyLinear.from_codes(torch.zeros(N, K, dtype=torch.float8_e4m3fn), torch.ones(3))
    with pytest.raises(ingot.Error, match="codes: is torch.float8_e5m2, but weight_dtype says e4m3fn"):
        WeightOnlyLinear.from_codes(torch.zeros(N, K).to(torch.float8_e5m2), torch.ones(N), weight_dtype="e4m3fn")
    with pytest.raises(ingot.Error, match="quantize_ model: is itself a linear layer"):
        quantize_(plain(), Float8WeightOnlyConfig())
    with pytest.raises(ingot.Error, match="quantize_ model: is a NoneType, expected a torch.nn.Module"):
        quantize_(None, Float8WeightOnlyConfig())
    with pytest.raises(ingot.Error, match=r"quantize_ filter_fn: is a str, expected a function \(layer, name\) that says"):
        quantize_(torch.nn.Sequential(torch.nn.Linear(4, 4)), Float8WeightOnlyConfig(), filter_fn="up")
    with pytest.raises(ingot.Error, match="quantize_ config: is a int, expected Float8WeightOnlyConfig"):
        quantize_(model(), 3)


def test_states_of_another_format():
    state = WeightOnlyLinear.from_float(plain()).state_dict()
    other = WeightOnlyLinear.from_float(plain(n=8)).state_dict()
    packing = state["packing"]  # of version 3
    cases = [
        (WeightOnlyLinear.from_float(plain(), "e5m2").state_dict(), "is stored as e5m2 with scale=row, but the layer is "
         "e4m3fn with scale=row: make the layer with the stored format"),
        (state | {"packing": packing + torch.tensor([1, 0, 0, 0], dtype=torch.int32)},
         "was packed by another version of Ingot: quantize the model again"),
        (state | {"packing": packing[:2]}, "has the packing [3, 0], which no version of Ingot writes: the state is damaged"),
        (state | {"packing": packing - 5}, "which no version of Ingot writes"),
        (state | {"weight": other["weight"]}, "bytes, but one of (72, 160) has"),
        (state | {"weight": other["weight"], "packing": torch.tensor([0, 2, 0, 1])}, "bytes, but one of (72, 160) has 11520"),
        (plain().state_dict(), "is torch.bfloat16, but the layer's codes are bytes (torch.uint8): make the layer with "
         "from_float() of a torch.nn.Linear"),
        ({"weight": torch.zeros(N, K).to(torch.float8_e4m3fn)}, "make the layer with from_codes()"),
        ({key: state[key] for key in ("weight", "weight_scale")}, "comes without packing, which its codes need"),
        ({key: state[key] for key in ("weight", "packing")}, "comes without weight_scale, which its codes need"),
    ]  # fmt: skip
    for found, message in cases:
        layer = WeightOnlyLinear(K, N, layer_name="wq")
        with pytest.raises(RuntimeError) as caught:
            torch.nn.Sequential(layer).load_state_dict({f"0.{key}": tensor for key, tensor in found.items()}, strict=False)
        assert f'WeightOnlyLinear "wq" 0.weight: ' in str(caught.value) and message in str(caught.value), caught.value
        assert not layer.dequantize().any()


def test_operators_refuse_other_tensors():
    from ingot.torch import _weight_operators as operators

    quantized = WeightOnlyLinear.from_float(plain(), layer_name="wq")
    plan = quantized._facts().number
    with pytest.raises(RuntimeError, match='WeightOnlyLinear "wq" weight: has 3 bytes, but this layer has'):
        operators.weight_only_linear(inputs(), quantized.weight.codes[:3].clone(), quantized.weight_scale, None, plan, 0)
    with pytest.raises(RuntimeError, match='WeightOnlyLinear "wq" weight_scale: must be float32'):
        operators.weight_only_linear(inputs(), quantized.weight.codes, quantized.weight_scale.double(), None, plan, 0)


def test_a_layer_waits_for_writes_of_weight_and_scale_inv():
    """Once for each, whichever alias was written or replaced; inference tensors, whose writes are not counted, are never
    read early."""
    layer = WeightOnlyLinear.from_float(torch.nn.Linear(32, 16, dtype=torch.bfloat16))
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    writes = (
        lambda: layer.weight_scale.mul_(2),
        lambda: layer.weight_scale.view(-1)[:1].zero_(),
        lambda: layer.weight_scale.detach().zero_(),
        lambda: layer.codes(),
        lambda: layer.weight.codes.zero_(),
        lambda: setattr(layer, "weight_scale", layer.weight_scale.clone()),
        lambda: layer.load_state_dict(layer.state_dict()),
        lambda: layer.to(torch.float16).to(torch.bfloat16),
    )
    with mock.patch.object(_core, "torch_synchronize", wraps=_core.torch_synchronize) as waits:
        for write in writes:
            layer(x)
            layer(x)
            before = waits.call_count
            write()
            layer(x)
            assert (waits.call_count > before) == (write is not writes[3])
    with torch.inference_mode():
        made = WeightOnlyLinear.from_float(torch.nn.Linear(32, 16, dtype=torch.bfloat16)).to(torch.float16)
        assert made._is_settled() and not made.weight_scale.is_inference()
        made.weight_scale = made.weight_scale.clone()
        assert made.weight_scale.is_inference() and not made._is_settled()
    with mock.patch.object(_core, "torch_synchronize", return_value=False):  # as while the stream is captured
        layer.weight_scale.mul_(2)
        assert not layer._is_settled()
    assert layer._is_settled()
