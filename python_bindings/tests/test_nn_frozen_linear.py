"""ingot.nn.FrozenFloat8Linear: values and gradients of x against float64, state, PEFT's LoRA over it, and messages."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
from conftest import in_ci

import ingot
from ingot.nn import FrozenFloat8Config, FrozenFloat8Linear, quantize_
from ingot.torch._prepare import recording_of

N, K = 48, 144
SCALES = ["tensor", "row", "128x128"]


def plain(dtype=torch.bfloat16, bias=True, n=N, k=K):
    torch.manual_seed(0)
    return torch.nn.Linear(k, n, bias=bias, dtype=dtype)


def inputs(dtype=torch.bfloat16, shape=(2, 20)):
    torch.manual_seed(1)
    return torch.randn(*shape, K, dtype=dtype).requires_grad_()


def close(actual, expected, bound):
    """No NaN passes."""
    return bool((actual.double() - expected).norm() <= bound * expected.norm())


def step(layer, x, grad_output):
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(grad_output)
    return y.detach(), x.grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("code", ["e4m3fn", "e5m2"])
@pytest.mark.parametrize("scale", SCALES)
def test_values_and_gradient(scale, code, dtype):
    """Against float64 with the codes' values: what is left are the casts of x and of grad_output."""
    layer = FrozenFloat8Linear.from_float(plain(dtype), code, scale)
    values = layer.dequantize().double()
    assert close(values, plain(dtype).weight.detach().double(), 0.1)
    x, grad_output = inputs(dtype), torch.randn(2, 20, N, dtype=dtype)
    y, grad_input = step(layer, x, grad_output)
    assert y.dtype == grad_input.dtype == dtype
    assert close(y, x.detach().double() @ values.t() + layer.bias.double(), 0.04)
    assert close(grad_input, grad_output.double() @ values, 0.08)


@pytest.mark.parametrize(("columns", "copies"), [(40, False), (64, False), (72, True), (1040, False)])
def test_rows_that_tensor_cores_cannot_read_are_copied(columns, copies):
    """Into rows as a cast makes them: 72 codes are no whole units of 16 bytes. Rows below 64 have no gaps in a cast either."""
    layer = FrozenFloat8Linear.from_float(plain(k=columns), scale="row")
    x = torch.randn(20, columns).bfloat16()
    assert close(layer(x), x.double() @ layer.dequantize().double().t() + layer.bias.double(), 0.04)
    with torch.no_grad():
        recording = recording_of(layer, (20,), "h200")[0]
    assert ("relayout copied" in recording.splitlines()) == copies, recording


@pytest.mark.parametrize("scale", SCALES)
def test_codes_are_pytorchs(scale):
    layer = FrozenFloat8Linear.from_float(plain(), scale=scale)
    scale_inv = layer.weight_scale
    if scale == "128x128":
        scale_inv = scale_inv.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
    scaled = plain().weight.detach().float() / scale_inv
    near = scaled.to(torch.float8_e4m3fn).float()
    assert (layer.codes().float() - near).abs().max() <= 32  # a last bit of the largest codes
    assert (layer.codes().float() == near).double().mean() > 0.99


@pytest.mark.parametrize("scale", SCALES)
def test_gradient_of_a_sum(scale):
    layer = FrozenFloat8Linear.from_float(plain(), scale=scale)
    x = inputs()
    dense = step(layer, x, torch.ones(2, 20, N, dtype=torch.bfloat16))[1]
    layer(x).sum().backward()
    assert torch.equal(x.grad, dense)


def test_bias_that_trains():
    layer = FrozenFloat8Linear.from_float(plain())
    layer.bias.requires_grad_()
    grad_output = torch.randn(2, 20, N, dtype=torch.bfloat16)
    step(layer, inputs(), grad_output)
    assert close(layer.bias.grad, grad_output.double().sum((0, 1)), 0.01)
    assert not layer.weight.requires_grad and layer.weight.grad is None


def test_memory_is_a_byte_for_each_element():
    layer = FrozenFloat8Linear.from_float(plain(bias=False))
    assert sum(t.numel() * t.element_size() for t in layer.state_dict().values()) == N * K + 4 * N
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(inputs())
    assert {t.data_ptr() for t in saved} <= {layer.codes().data_ptr(), layer.weight_scale.data_ptr()}


@pytest.mark.parametrize("scale", SCALES)
def test_copies_checkpoints_and_moves(scale):
    layer = FrozenFloat8Linear.from_float(plain(), scale=scale)
    x, grad_output = inputs(), torch.randn(2, 20, N, dtype=torch.bfloat16)
    expected = step(layer, x, grad_output)
    same = lambda other: all(torch.equal(a, e) for a, e in zip(step(other, x, grad_output), expected, strict=True))
    assert same(copy.deepcopy(layer)) and same(pickle.loads(pickle.dumps(layer)))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert list(state) == ["bias", "weight", "weight_scale"]
    other = FrozenFloat8Linear(K, N, scale=scale, dtype=torch.bfloat16)
    other.load_state_dict(state, strict=True)
    assert same(other)
    renamed = {("weight_scale_inv" if k == "weight_scale" else k): v for k, v in state.items()}
    other = FrozenFloat8Linear(K, N, device="meta", scale=scale, dtype=torch.bfloat16)
    other.load_state_dict(renamed, strict=True, assign=True)
    assert same(other)
    assert same(layer.half().to(torch.bfloat16))
    assert layer.compute_dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("scale", "backend"),
    in_ci(
        lambda scale, backend: backend == "aot_eager" or scale == SCALES[0], SCALES, ["eager", "aot_eager", "inductor"]
    ),
)
def test_whole_graph(scale, backend):
    torch._dynamo.reset()
    layer = FrozenFloat8Linear.from_float(plain(), scale=scale)
    x, grad_output = inputs(), torch.randn(2, 20, N, dtype=torch.bfloat16)
    got = step(torch.compile(layer, backend=backend, fullgraph=True), x, grad_output)
    assert all(torch.equal(a, e) for a, e in zip(got, step(layer, x, grad_output), strict=True))


def test_operators_pass_opcheck():
    from ingot.torch import _operators as operators

    layer = FrozenFloat8Linear.from_float(plain())
    plan = operators.frozen_plan("fc", "rowwise_folded", "e4m3fn", N, K, torch.bfloat16, torch.bfloat16)
    x, codes = inputs().detach(), layer.codes().view(torch.uint8)  # opcheck itself cannot compare float8
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    of_weight = {"weight_scale_inv": layer.weight_scale}
    check = lambda op, *arguments: torch.library.opcheck(op, arguments, of_weight, test_utils=checks)
    check(operators.linear_forward, x, codes, layer.bias, plan, 0)
    check(operators.linear_backward, x[..., :N].contiguous(), None, codes, None, None, plan, operators.INPUT)


def train_lora(peft, config):
    """The losses of 40 steps of adapters of rank 8 over a two-layer model, whose base is as `config` says."""
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("up", torch.nn.Linear(64, 256, dtype=torch.bfloat16))
    model.add_module("act", torch.nn.SiLU())
    model.add_module("down", torch.nn.Linear(256, 64, dtype=torch.bfloat16))
    target = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (target.up, target.down):
            shape = layer.weight.shape
            layer.weight += 0.05 * (torch.randn(shape[0], 4) @ torch.randn(4, shape[1])).bfloat16()
    x = torch.randn(256, 64, dtype=torch.bfloat16)
    expected = target(x).detach().float()
    if config is not None:
        assert quantize_(model, config).converted == ("up", "down")
    torch.manual_seed(1)
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["up", "down"])
    model = peft.get_peft_model(model, lora)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 4 and all(p.dtype == torch.float32 for p in trained)
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(x).float() - expected).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("scale", in_ci(lambda scale: scale == "row", SCALES))
def test_peft_trains_adapters_over_it(scale):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = train_lora(peft, None)
    float8 = train_lora(peft, FrozenFloat8Config(scale=scale))
    assert base[-1] < 0.5 * base[0]
    assert abs(float8[-1] / base[-1] - 1) < 0.01, (base[-1], float8[-1])


def test_messages():
    layer = FrozenFloat8Linear.from_float(plain(), layer_name="wq")
    with pytest.raises(ingot.Error, match=r'FrozenFloat8Linear "wq" input: has shape \(5, 3\), expected .*144\)'):
        layer(torch.zeros(5, 3))
    with pytest.raises(ingot.Error, match='FrozenFloat8Linear "wq" input: is torch.float64, expected float32'):
        layer(torch.zeros(5, K, dtype=torch.float64))
    with pytest.raises(ingot.Error, match="scale: '1x128' is not one of tensor, row, 128x128, whose scale_inv serve"):
        FrozenFloat8Linear(K, N, scale="1x128")
    with pytest.raises(ingot.Error, match="weight_dtype: 'e4m3fnuz' is not one of e4m3fn, e5m2"):
        FrozenFloat8Linear(K, N, weight_dtype=torch.float8_e4m3fnuz)
    with pytest.raises(ingot.Error, match="codes: is torch.float32 of shape .*expected float8_e4m3fn"):
        FrozenFloat8Linear.from_codes(torch.zeros(N, K), torch.ones(1))
    with pytest.raises(RuntimeError, match="is torch.bfloat16, but the layer's codes are torch.float8_e4m3fn"):
        layer.load_state_dict(plain().state_dict(), strict=False)
    with pytest.raises(RuntimeError, match='FrozenFloat8Linear "wq" weight: comes without weight_scale, which its codes'):
        layer.load_state_dict({"weight": layer.codes()}, strict=False)
    x = inputs()
    with pytest.raises(ingot.Error, match="weight: is on cpu and the input on meta: move one with .to()"):
        layer(x.detach().to("meta"))
    with pytest.raises(ingot.Error, match=f"{layer._subject} backward: the gradient of an FP8 GEMM has no gradient itself"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)
