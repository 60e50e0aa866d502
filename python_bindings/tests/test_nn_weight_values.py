"""The weight of a quantized layer as other code reads it: T5, Mamba, PEFT and nn.TransformerEncoder; and how layers of codes
are initialised, loaded and copied."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import ingot
from ingot.nn import Float8WeightOnlyConfig, FrozenFloat8Config, FrozenFloat8Linear, MXWeightOnlyConfig, WeightOnlyLinear, dequantize_, quantize_

CONFIGS = [Float8WeightOnlyConfig(), FrozenFloat8Config()]
KINDS = [WeightOnlyLinear, FrozenFloat8Linear]
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def plain(n=24, k=32, dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(k, n, dtype=dtype)


def close(actual, expected, bound):
    """No NaN passes."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return bool((actual - expected).norm() <= bound * expected.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_other_code_reads_the_weight(kind):
    layer = kind.from_float(plain(), layer_name="wq")
    values = layer.dequantize().bfloat16()
    weight = layer.weight
    assert weight.dtype == torch.bfloat16 and weight.shape == (24, 32) and not weight.requires_grad
    x = torch.randn(3, 32, dtype=torch.bfloat16, requires_grad=True)
    y = x @ weight.t()
    y.sum().backward()
    assert type(y) is torch.Tensor and torch.equal(y, x @ values.t())
    assert torch.equal(x.grad, torch.ones_like(y) @ values)
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, values))
    assert torch.equal(weight[2:4].float() + 1, values[2:4].float() + 1)
    assert torch.equal(weight.data.clone(), values) and torch.equal(weight.to(torch.float32), values.float())
    for copied in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        assert type(copied) is torch.Tensor and torch.equal(copied, values)
    assert weight.tolist() == values.tolist() and "WeightValues(tensor(" in repr(weight)
    assert "wq" not in dict(layer.named_parameters()) and layer.state_dict()["weight"] is not None
    compiled = torch.compile(lambda x: layer(x) * layer.weight.mean().to(x.dtype), backend="aot_eager", fullgraph=True)
    assert close(compiled(x), layer(x) * values.mean(), 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_weight_cannot_be_written_as_values(kind):
    layer = kind.from_float(plain(), layer_name="wq")
    before = layer.dequantize()

    def part(layer):
        layer.weight[:2] += 1

    def transposed(layer):
        layer.weight.t().data = before.t()

    writes = {
        "add": lambda layer: layer.weight.add_(1),
        "part": part,
        "data of the transpose": transposed,
        "data add": lambda layer: layer.weight.data.add_(1),
        "view": lambda layer: layer.weight.view(-1).zero_(),
        "transposed": lambda layer: layer.weight.t().zero_(),
        "item": lambda layer: layer.weight.__setitem__(0, 0.0),
        "initialisation": lambda layer: nn.init.normal_(layer.weight),
        "foreach": lambda layer: torch._foreach_mul_([layer.weight.detach()], 2),
        "out": lambda layer: torch.mul(layer.dequantize(), 2, out=layer.weight),
    }
    for name, write in writes.items():
        message = f'{kind.__name__} "wq" weight: is codes and scale_inv, and cannot be written in place: .*dequantize'
        with pytest.raises(ingot.Error, match=message), torch.no_grad():
            write(layer)
            pytest.fail(f"{name} was written")
    for value in (nn.Parameter(before.bfloat16()), before, kind.from_float(plain(seed=1)).weight):
        with pytest.raises(ingot.Error, match=r'"wq" weight: is a buffer of codes .*tie its weight before quantize_'):
            layer.weight = value
    assert torch.equal(layer.dequantize(), before)
    x = torch.randn(2, 32, dtype=torch.bfloat16)
    expected = layer(x)
    layer.weight = layer.weight.to("cpu")
    layer._buffers["weight"] = layer.weight.to("cpu")  # as accelerate moves tensors
    assert torch.equal(layer(x), expected) and torch.equal(layer.dequantize(), before)
    layer.weight = torch.zeros_like(layer.weight.codes)
    assert not layer.dequantize().any()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_t5_and_mamba_ask_for_the_dtype(config):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    t5 = transformers.T5Config(vocab_size=32, d_model=64, d_kv=16, d_ff=96, num_layers=1, num_heads=4)
    mamba = transformers.MambaConfig(vocab_size=32, hidden_size=64, num_hidden_layers=1, state_size=8)
    for model in (transformers.T5EncoderModel(t5), transformers.MambaForCausalLM(mamba)):
        model = model.bfloat16().eval()
        with torch.no_grad():
            expected = model(input_ids=torch.arange(12)[None])[0]
            assert quantize_(model, config).converted
            assert close(model(input_ids=torch.arange(12)[None])[0], expected, 0.08)


BASES = {
    "frozen": (FrozenFloat8Config(), FrozenFloat8Linear, "e4m3fn", 0.06),
    "weight-only": (Float8WeightOnlyConfig(scale="128x128"), WeightOnlyLinear, "e4m3fn", 0.06),
    "MXFP8": (MXWeightOnlyConfig("e4m3fn"), WeightOnlyLinear, "e4m3fn", 0.06),
    "MXFP6": (MXWeightOnlyConfig("e2m3fn"), WeightOnlyLinear, "e2m3fn", 0.08),
    "MXFP4": (MXWeightOnlyConfig(), WeightOnlyLinear, "e2m1fn", 0.25),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["LoRA", "DoRA"])
def test_peft_over_quantized_layers(options, base, tmp_path):
    """Adapters train with the gradients that they have over the decoded values, are saved, loaded and merged."""
    peft = pytest.importorskip("peft")
    config, kind, weight_dtype, rounding = BASES[base]
    lora = peft.LoraConfig(r=4, target_modules=["0"], **options)
    model = nn.Sequential(plain(32, 32), nn.ReLU(), plain(8, 32))
    quantize_(model, config)
    exact = copy.deepcopy(model)
    assert dequantize_(exact) == 2
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, lora)
    torch.manual_seed(1)
    exact = peft.get_peft_model(exact, lora)
    adapters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert adapters
    with torch.no_grad():
        for name, each in adapters.items():
            each.add_(0.02 * torch.randn_like(each))
            exact.get_parameter(name).copy_(each)
    for each in (model, exact):
        each(x).square().sum().backward()
    assert all(close(each.grad, exact.get_parameter(name).grad, 0.2) for name, each in adapters.items())
    expected = model(x)
    model.save_pretrained(tmp_path)
    again = nn.Sequential(plain(32, 32), nn.ReLU(), plain(8, 32))
    quantize_(again, config)
    again = peft.PeftModel.from_pretrained(again, str(tmp_path))
    assert torch.equal(again(x), expected)
    wide = copy.deepcopy(model)
    assert dequantize_(wide) == 2
    for safe in (False, True):
        with pytest.warns(UserWarning, match=f"{kind.__name__} weight: new values were cast to {weight_dtype} again"):
            merged = copy.deepcopy(model).merge_and_unload(safe_merge=safe)
        assert type(merged[0]) is kind and close(merged(x), expected, rounding)
        merged = copy.deepcopy(wide).merge_and_unload(safe_merge=safe)
        assert type(merged[0]) is nn.Linear and close(merged(x), expected, 0.06)
    with pytest.warns(UserWarning, match=f"cast to {weight_dtype} again"):
        model.merge_adapter()
        model.unmerge_adapter()
    assert close(model(x), expected, 2 * rounding)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_peft_initialisations_that_change_the_base(init):
    peft = pytest.importorskip("peft")
    model = nn.Sequential(FrozenFloat8Linear.from_float(plain(32, 32)))
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    expected = model(x)
    with pytest.warns(UserWarning, match="cast to e4m3fn again"):
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0"], init_lora_weights=init))
    assert close(model(x), expected, 0.1)


@pytest.mark.parametrize("kind", [FrozenFloat8Linear, WeightOnlyLinear])
@pytest.mark.parametrize("pow2", [False, True])
def test_new_values_are_cast_again(kind, pow2):
    layer, other = (kind.from_float(plain(seed=seed), pow2=pow2, layer_name="wq") for seed in (0, 1))
    addresses = layer.weight.codes.data_ptr(), layer.weight_scale.data_ptr()
    with pytest.warns(UserWarning, match="weight: new values were cast to e4m3fn again, and rounded; ingot.nn.dequantize_"):
        layer.weight.data = plain(seed=1).weight
    assert torch.equal(layer.dequantize(), other.dequantize()) and torch.equal(layer.weight_scale, other.weight_scale)
    with pytest.warns(UserWarning):
        layer.weight.data += torch.ones(24, 32)
    exact = other.dequantize().bfloat16() + 1
    assert close(layer.dequantize(), exact, 0.05)
    assert addresses == (layer.weight.codes.data_ptr(), layer.weight_scale.data_ptr())  # graphs hold them
    for wrong, found in ((torch.ones(32, 24), r"torch.float32 \(32, 24\)"), (torch.ones(24, 32).long(), r"torch.int64 \(24, 32\)")):
        with pytest.raises(ingot.Error, match=f'"wq" weight: is given {found}, expected float32, float16 or bfloat16'):
            layer.weight.data = wrong


def test_dequantize_refuses():
    with pytest.raises(ingot.Error, match="dequantize_ model: has no quantized layer"):
        dequantize_(nn.Sequential(plain()))
    with pytest.raises(ingot.Error, match="dequantize_ model: is itself a quantized layer"):
        dequantize_(FrozenFloat8Linear.from_float(plain()))
    with pytest.raises(ingot.Error, match="dequantize_ model: is a str"):
        dequantize_("model")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_encoder_layers_run_quantized_in_every_mode(config):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True).bfloat16().eval()
    model = nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 5, 32).bfloat16()
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    with torch.no_grad():
        expected = model(x), model(x, src_key_padding_mask=mask)[:, :3]
        quantize_(model, config)
    for mode in MODES:
        with mode():
            assert close(model(x), expected[0], 0.06)
            assert close(model(x, src_key_padding_mask=mask)[:, :3], expected[1], 0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_own_initialisation_of_quantized_layers(kind):
    """Made on meta, then empty memory, then reset_parameters() of every module, then a state."""
    layer = kind.from_float(plain())
    for name in ("weight_scale", "bias"):
        assert getattr(layer, name).abs().max() > 0
    fresh = kind(32, 24, device="meta", dtype=torch.bfloat16).to_empty(device="cpu")
    for buffer in fresh._buffers.values():
        if buffer is not None and buffer.dtype.is_floating_point:
            buffer.view(torch.uint8).fill_(0x7F)
    fresh.reset_parameters()
    x = torch.randn(2, 32, dtype=torch.bfloat16)
    assert not fresh(x).any() and not fresh.dequantize().any()
    assert {key: value.shape for key, value in fresh.state_dict().items()} == {
        key: value.shape for key, value in layer.state_dict().items()
    }
    packing = layer.state_dict().get("packing")
    assert packing is None or torch.equal(fresh.to_empty(device="cpu").state_dict()["packing"], packing)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    fresh.weight_scale = fresh.weight_scale.double()
    assert fresh.to(torch.float16).weight_scale.dtype == torch.float64  # what is set moves as it is
    for empty in (nn.Linear(0, 8, dtype=torch.bfloat16), nn.Linear(8, 0, dtype=torch.bfloat16)):
        made = kind.from_float(empty)
        zeros = torch.zeros(3, empty.in_features, dtype=torch.bfloat16)
        assert torch.equal(made(zeros), empty(zeros))


def misaligned(tensor):
    """A copy that begins at no multiple of 16 bytes, as in a safetensors file or a flat buffer."""
    raw = torch.empty(tensor.nbytes + 24, dtype=torch.uint8)
    at = (-raw.data_ptr()) % 16 + 8
    return raw[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_misaligned_states_and_buffers(kind):
    layer, x = kind.from_float(plain()), torch.randn(2, 32, dtype=torch.bfloat16)
    expected = layer(x)
    state = {key: misaligned(value) for key, value in layer.state_dict().items()}
    options = [{"layout": "packed"}, {"layout": "row_major"}] if kind is WeightOnlyLinear else [{}]
    for option in options:
        for assign in (False, True):
            made = kind(32, 24, dtype=torch.bfloat16, **option)
            made.load_state_dict(state, assign=assign)
            assert torch.equal(made(x), expected)
    layer._buffers["weight"] = misaligned(layer.weight.codes)
    assert torch.equal(layer(x), expected) and torch.equal(layer.dequantize(), made.dequantize())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_made_in_inference_mode_train_what_is_before_them(kind):
    with torch.inference_mode():
        layer = kind.from_float(plain())
    expected = kind.from_float(plain())
    x = torch.randn(2, 32, dtype=torch.bfloat16, requires_grad=True)
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer).share_memory()):
        (grad,) = torch.autograd.grad(each(x).sum(), x)
        assert torch.equal(each(x), expected(x)) and torch.equal(grad, torch.autograd.grad(expected(x).sum(), x)[0])


@pytest.mark.parametrize("how", ["cpu", "disk", "dispatch"])
def test_accelerate_offloads_layers(how, tmp_path):
    """Codes stay where they compute unless `offload_buffers` is set; the parts of a module come only with it."""
    accelerate = pytest.importorskip("accelerate")

    def offload(model, **options):
        options["offload_buffers"] = True
        folder = str(tmp_path / str(len(list(tmp_path.iterdir()))))
        if how == "cpu":
            return accelerate.cpu_offload(model, "cpu", **options)
        if how == "disk":
            return accelerate.disk_offload(model, folder, "cpu", **options)
        return accelerate.dispatch_model(model, {"0": "disk"}, main_device="cpu", offload_dir=folder, **options)

    x = torch.randn(3, 32, dtype=torch.bfloat16)
    makers = [kind.from_float for kind in (*KINDS, ingot.nn.Float8Linear)]
    makers.append(lambda linear: WeightOnlyLinear.from_float(linear, "e2m1fn", "mx"))
    for make in makers:
        layer = make(plain())
        model, twin = nn.Sequential(layer), copy.deepcopy(layer)
        with torch.no_grad():
            expected = layer(x)
            offload(model)
            assert all(each.is_meta for each in [*layer.buffers(), *layer.parameters()])
            for _ in range(2):
                assert torch.equal(model(x), expected)
            accelerate.hooks.remove_hook_from_submodules(model)
            assert torch.equal(model(x), expected)
            assert torch.equal(layer.weight.float(), twin.weight.float())
    mlp = ingot.nn.GatedMlp(32, 48, norm="rms", dtype=torch.bfloat16)
    expected = mlp(x)
    with pytest.raises(ingot.Error, match="is on meta and .* list the class of this module in its preload_module_classes"):
        offload(nn.Sequential(copy.deepcopy(mlp)))(x)
    assert torch.equal(offload(nn.Sequential(mlp), preload_module_classes=["GatedMlp"])(x), expected)
