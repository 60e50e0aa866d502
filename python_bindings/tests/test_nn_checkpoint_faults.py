"""FP8 checkpoints where something goes wrong: a load is whole or nothing, a save leaves the old checkpoint or the new one,
and text from a file is quoted so that a terminal shows it."""

import copy
import json
import os
import resource

import pytest

torch = pytest.importorskip("torch")

import ingot
from ingot import _core
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Config,
    GatedMlp,
    load_float8_checkpoint,
    quantize_,
    save_float8_checkpoint,
)
from ingot.nn import _checkpoint_files as files
from ingot.nn._checkpoint_files import NAMES, Reader
from ingot.nn._checkpoint_values import spread

N, K = 48, 32


class Model(torch.nn.Module):
    def __init__(self, device=None):
        super().__init__()
        kind = {"dtype": torch.bfloat16, "device": device}
        self.embed = torch.nn.Embedding(24, K, **kind)
        self.norm = torch.nn.LayerNorm(K, **kind)
        self.experts = torch.nn.Parameter(torch.randn(3, N, K, **kind))
        self.up = torch.nn.Linear(K, N, **kind)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64, device=device))


def model(seed=0, device=None):
    torch.manual_seed(seed)
    return Model(device)


def write(file, tensors):
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    _core.write_safetensors(
        str(file),
        [(n, NAMES[t.dtype], list(t.shape), t.data_ptr(), t.numel() * t.element_size()) for n, t in tensors.items()],
        {"format": "pt"},
    )


def codes_of(weight, dims):
    """FP8 codes with a scale_inv for all elements along `dims`, by PyTorch's own cast."""
    scale_inv = weight.float().abs().amax(dims, keepdim=True) / 448
    return (weight.float() / scale_inv).to(torch.float8_e4m3fn), scale_inv


def tensors_of(seed=1):
    """A checkpoint of the model with FP8 codes everywhere that public ones have them."""
    found = {name: tensor.detach().clone() for name, tensor in model(seed).state_dict().items()}
    for name, dims in (("up.weight", 1), ("embed.weight", 1), ("experts", (1, 2))):
        found[name], found[f"{name}_scale"] = codes_of(found[name], dims)
    return found


def state(module):
    return {name: (id(each), each.detach().clone()) for name, each in module.state_dict(keep_vars=True).items()}


def same(before, module):
    after = state(module)
    return before.keys() == after.keys() and all(
        before[name][0] == after[name][0] and torch.equal(before[name][1], after[name][1]) for name in before
    )


# ---- loading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "meta"])
def test_codes_outside_of_linear_layers_come_with_their_scale_inv(tmp_path, device):
    tensors = tensors_of()
    blocks = torch.rand(3, 1, 1) + 0.5  # of 128 x 128 of each expert
    tensors["experts_scale"] = blocks
    write(tmp_path / "model.safetensors", tensors)
    loaded = model(device=device)
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.layers == ("up",) and report.decoded == ("experts", "embed.weight")
    assert str(report).splitlines() == [
        "1 layer is FP8: up",
        "2 FP8 or MX weights decoded into higher precision: experts, embed.weight",
        "1 of these belongs to a stack of experts, which ingot.integrations.experts has computed in FP8 by quantize_experts_(), or "
        "convert_experts_() to train: experts",
    ]
    for name, scale_inv in (("embed.weight", tensors["embed.weight_scale"]), ("experts", blocks)):
        exact = tensors[name].double() * scale_inv.double()
        assert torch.equal(loaded.state_dict()[name], exact.float().bfloat16())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1), (3, 130, 1), (3, 1, 140), (3, 2, 2), (3, 130, 2)])
def test_scale_inv_of_stacked_experts(shape):
    scales = torch.rand(shape)
    all_of_them = spread(scales, (3, 130, 140), "x").expand(3, 130, 140)
    padded = scales.reshape(tuple(shape) + (1,) * (3 - len(shape)))
    for at in ((0, 0, 0), (1, 127, 127), (1, 128, 128), (2, 129, 139)):
        sizes = zip(at, padded.shape, (3, 130, 140))
        index = tuple(i if size == whole else i // 128 if size > 1 else 0 for i, size, whole in sizes)
        assert all_of_them[at] == padded[index]
    with pytest.raises(ingot.Error, match=r"x: has shape \(3, 3\), but FP8 codes \(3, 130, 140\) have along each dimension"):
        spread(torch.rand(3, 3), (3, 130, 140), "x")


def _without(name):
    return lambda tensors: tensors.pop(name)


def _with(**changes):
    return lambda tensors: tensors.update({name.replace("__", "."): value for name, value in changes.items()})


FAULTS = {
    "missing": (_without("norm.bias"), "lacks norm.bias"),
    "unexpected": (_with(other=torch.ones(1)), "has no place in the model for other"),
    "shape": (_with(norm__bias=torch.ones(3)), r'"norm.bias": has shape \(3,\), but the model has \(32,\)'),
    "codes without scale_inv": (_without("embed.weight_scale"), '"embed.weight": comes without scale_inv: neither weight_scale'),
    "experts without scale_inv": (_without("experts_scale"), '"experts": comes without scale_inv: neither experts_scale nor'),
    "shape of scale_inv": (_with(experts_scale=torch.ones(5)), r'"experts_scale": has shape \(5,\), but FP8 codes \(3, 48'),
    "scale_inv of integers": (_with(experts_scale=torch.ones(1, dtype=torch.int32)), "is int32, but scale_inv are F32, BF16"),
    "scale_inv of NaN": (_with(up__weight_scale=torch.full((N, 1), torch.nan)), '"up.weight_scale": has scale_inv that are NaN'),
    "scale_inv of Inf": (_with(up__weight_scale=torch.full((N, 1), torch.inf)), "Inf or negative, but a scale_inv is finite"),
    "negative scale_inv": (_with(embed__weight_scale=-torch.ones(N, 1)), '"embed.weight_scale": has scale_inv that are NaN'),
    "powers of two that are NaN": (
        _with(experts_scale=torch.full((3,), 255, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
        '"experts_scale": has scale_inv that are NaN, Inf or negative',
    ),
    "floats of integers": (_with(norm__bias=torch.ones(K, dtype=torch.int32)), "is int32, but the model has bfloat16"),
    "integers of floats": (_with(steps=torch.ones(1)), '"steps": is float32, but the model has int64, to which that is'),
    "two kinds of scale_inv": (_with(up__weight_scale_inv=torch.ones(1)), '"up.weight_scale_inv" is there too: leave one'),
    "a bias that the layer asks for": (_without("up.bias"), 'has no tensor "up.bias", which the model\'s layer asks for'),
    "three dimensions of scale_inv": (_with(up__weight_scale=torch.ones(N, 1, 2)), r"has shape \(48, 1, 2\), but a weight \(48, 32\) has one"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_load_is_whole_or_nothing(tmp_path, fault):
    change, message = FAULTS[fault]
    tensors = tensors_of()
    change(tensors)
    file = tmp_path / "model.safetensors"
    write(file, tensors)
    loaded = model()
    before, up = state(loaded), loaded.up
    with pytest.raises(ingot.Error, match=message):
        load_float8_checkpoint(loaded, file)
    assert same(before, loaded) and loaded.up is up


@pytest.mark.parametrize("at", range(0, 12, 2))
@pytest.mark.parametrize("device", [None, "meta"])
def test_a_disk_that_fails_changes_nothing(tmp_path, monkeypatch, at, device):
    write(tmp_path / "model.safetensors", tensors_of())
    loaded = model(device=device)
    before, up = {name: id(each) for name, each in loaded.state_dict(keep_vars=True).items()}, loaded.up
    values = None if device else state(loaded)
    reads = []

    def read(self, name, original=Reader.read):
        reads.append(name)
        if len(reads) > at:
            raise ingot.Error("cannot be read: Input/output error")
        return original(self, name)

    monkeypatch.setattr(Reader, "read", read)
    if at >= len(tensors_of()):
        return
    with pytest.raises(ingot.Error, match="Input/output error"):
        load_float8_checkpoint(loaded, tmp_path)
    assert {name: id(each) for name, each in loaded.state_dict(keep_vars=True).items()} == before and loaded.up is up
    assert values is None or same(values, loaded)


def test_a_tensor_that_cannot_be_written(tmp_path):
    """The last of the model's tensors: what was written before is taken back."""
    write(tmp_path / "model.safetensors", tensors_of())
    loaded = model()
    loaded.steps = torch.zeros(1, dtype=torch.int64).expand(1)
    loaded.norm.bias = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16).expand(K), requires_grad=False)
    before, up = state(loaded), loaded.up
    with pytest.raises(ingot.Error, match='"norm.bias": cannot be written into the model\'s tensor: unsupported operation'):
        load_float8_checkpoint(loaded, tmp_path)
    assert same(before, loaded) and loaded.up is up


def test_a_weight_that_an_embedding_shares(tmp_path):
    """The tie stays where the file has one tensor for both, and the layer becomes FP8 where it has two."""

    def tied():
        torch.manual_seed(0)
        made = torch.nn.ModuleDict({"embed": torch.nn.Embedding(N, K), "head": torch.nn.Linear(K, N, bias=False)})
        made["head"].weight = made["embed"].weight
        return made

    codes, scale_inv = codes_of(torch.randn(N, K), 1)
    of_head = {"head.weight": codes, "head.weight_scale": scale_inv}
    write(tmp_path / "one.safetensors", of_head)
    loaded = tied()
    report = load_float8_checkpoint(loaded, tmp_path / "one.safetensors")
    assert report.layers == report.missing == () and report.decoded == ("head.weight",)
    assert loaded["head"].weight is loaded["embed"].weight
    assert torch.equal(loaded["embed"].weight, codes.float() * scale_inv)
    write(tmp_path / "two.safetensors", {**of_head, "embed.weight": torch.ones(N, K)})
    loaded = tied()
    assert load_float8_checkpoint(loaded, tmp_path / "two.safetensors").layers == ("head",)
    assert torch.equal(loaded["embed"].weight, torch.ones(N, K))
    assert torch.equal(loaded["head"].dequantize(), codes.float() * scale_inv)


# ---- a tensor of several names ----

E4M3, HIGH = torch.float8_e4m3fn, torch.bfloat16


def shared_layer():
    """A layer of two names, with a bias."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(K, N, dtype=torch.bfloat16)
    return torch.nn.ModuleDict({"a": layer, "b": layer, "c": torch.nn.Linear(K, N, dtype=torch.bfloat16)})


def of_names(names):
    """A checkpoint of shared_layer(). names: which of the two it has, and the dtype there."""
    weight, bias = torch.randn(N, K, dtype=HIGH), torch.randn(N, dtype=HIGH)
    tensors = {"c.weight": weight, "c.bias": bias}
    for name, dtype in names.items():
        tensors[f"{name}.bias"] = bias.clone()
        if dtype is HIGH:
            tensors[f"{name}.weight"] = weight.clone()
        else:
            tensors[f"{name}.weight"] = weight.to(dtype)
            tensors[f"{name}.weight_scale"] = torch.full((1, 1), 0.5)
    return tensors


@pytest.mark.parametrize("layers", ["weight_only", "frozen"])
@pytest.mark.parametrize("dtype", [E4M3, HIGH], ids=str)
@pytest.mark.parametrize("names", ["a", "b", "ab"])
def test_a_layer_of_two_names_loads_by_either(tmp_path, names, dtype, layers):
    tensors = of_names(dict.fromkeys(names, dtype))
    write(tmp_path / "m.safetensors", tensors)
    loaded = shared_layer()
    report = load_float8_checkpoint(loaded, tmp_path / "m.safetensors", layers=layers)
    assert not report.missing and loaded["a"] is loaded["b"] and len(report.layers) == (dtype is not HIGH)
    expected = tensors[f"{names[0]}.weight"].float() * (1 if dtype is HIGH else 0.5)
    found = loaded["a"].weight.float() if dtype is HIGH else loaded["a"].dequantize().float()
    assert torch.equal(found, expected) and torch.equal(loaded["a"].bias, tensors["c.bias"])


DIFFERENT = {
    "codes": ({"a": E4M3, "b": E4M3}, "b.weight", "a.weight"),
    "scale_inv": ({"a": E4M3, "b": E4M3}, "b.weight_scale", "a.weight"),
    "bias of codes": ({"a": E4M3, "b": E4M3}, "b.bias", "a.bias"),
    "values": ({"a": HIGH, "b": HIGH}, "b.weight", "a.weight"),
    "bias": ({"a": HIGH, "b": HIGH}, "b.bias", "a.bias"),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("what", [*DIFFERENT])
def test_different_values_of_one_layer_of_two_names_are_refused(tmp_path, what, device):
    names, other, first = DIFFERENT[what]
    tensors = of_names(names)
    tensors[other] = (tensors[other].float() + 1).to(tensors[other].dtype)
    write(tmp_path / "m.safetensors", tensors)
    loaded = shared_layer().to(device)
    before, a = state(loaded), loaded["a"]
    says = f'tensor "{other.removesuffix("_scale")}": has other values than "{first}", but the model has one tensor for both: untie them'
    with pytest.raises(ingot.Error, match=says):
        load_float8_checkpoint(loaded, tmp_path / "m.safetensors", strict=False)
    assert loaded["a"] is loaded["b"] is a and (device == "meta" or same(before, loaded))


@pytest.mark.parametrize("high", ["a", "b"])
@pytest.mark.parametrize("strict", [True, False])
def test_codes_and_values_of_one_layer_are_refused(tmp_path, high, strict):
    tensors = of_names({"a": HIGH if high == "a" else E4M3, "b": HIGH if high == "b" else E4M3})
    write(tmp_path / "m.safetensors", tensors)
    loaded = shared_layer()
    before = state(loaded)
    says = f'tensor "{high}.weight": is bfloat16, but the file has codes of "{"b" if high == "a" else "a"}.weight", and both are the weight'
    with pytest.raises(ingot.Error, match=says):
        load_float8_checkpoint(loaded, tmp_path / "m.safetensors", strict=strict)
    assert same(before, loaded)


@pytest.mark.parametrize("equal", [True, False])
def test_tied_weights(tmp_path, equal):
    """Of an embedding and a layer that share a weight in high precision: NaN equals NaN of the same bits."""
    torch.manual_seed(0)
    tied = torch.nn.ModuleDict({"embed": torch.nn.Embedding(N, K), "head": torch.nn.Linear(K, N, bias=False)})
    tied["head"].weight = tied["embed"].weight
    before = tied["embed"].weight
    values = torch.randn(N, K).index_fill(0, torch.tensor(2), torch.nan)
    write(tmp_path / "m.safetensors", {"embed.weight": values, "head.weight": values if equal else values + 1})
    if equal:
        load_float8_checkpoint(tied, tmp_path / "m.safetensors")
        assert torch.equal(before.nan_to_num(7), values.nan_to_num(7)) and tied["head"].weight is tied["embed"].weight is before
    else:
        with pytest.raises(ingot.Error, match='"head.weight": has other values than "embed.weight", but the model has one tensor'):
            load_float8_checkpoint(tied, tmp_path / "m.safetensors")


def test_buffers_of_a_block_of_two_names(tmp_path):
    """Integers are compared as they are: 2 ** 24 + 1 is no float32."""
    made = torch.nn.Module()
    made.a = made.b = torch.nn.Module()
    made.a.register_buffer("at", torch.zeros(1, dtype=torch.int64))
    at = torch.tensor([2**24])
    write(tmp_path / "m.safetensors", {"a.at": at, "b.at": at + 1})
    with pytest.raises(ingot.Error, match='"b.at": has other values than "a.at"'):
        load_float8_checkpoint(made, tmp_path / "m.safetensors")
    write(tmp_path / "m.safetensors", {"a.at": at, "b.at": at})
    load_float8_checkpoint(made, tmp_path / "m.safetensors")
    assert torch.equal(made.b.at, at)


@pytest.mark.parametrize("given", [True, False])
def test_a_scale_of_the_models_own_is_no_scale_inv(tmp_path, given):
    made = torch.nn.ModuleDict({"p": torch.nn.Module(), "q": torch.nn.Embedding(N, K)})
    made["p"].weight = torch.nn.Parameter(torch.zeros(N, K))
    made["p"].scale = torch.nn.Parameter(torch.zeros(1))
    codes = torch.randn(N, K).to(E4M3)
    tensors = {"p.weight": codes, "p.scale": torch.full((1,), 3.0), "q.weight": codes, "q.scale": torch.full((1, 1), 0.5)}
    write(tmp_path / "m.safetensors", tensors)
    with pytest.raises(ingot.Error, match='"p.weight": comes without scale_inv: .* load with unscaled=True'):
        load_float8_checkpoint(made, tmp_path / "m.safetensors")
    if given:
        tensors["p.weight_scale"] = torch.full((1, 1), 0.25)
        write(tmp_path / "m.safetensors", tensors)
    load_float8_checkpoint(made, tmp_path / "m.safetensors", unscaled=not given)
    assert torch.equal(made["p"].weight, codes.float() * (0.25 if given else 1)) and made["p"].scale.item() == 3
    assert torch.equal(made["q"].weight, codes.float() * 0.5)


def test_layers_that_compute_more_keep_their_weight(tmp_path):
    """An activation, or attention that reads the weight itself: what stands in the file is decoded into it."""
    torch.manual_seed(0)
    made = torch.nn.ModuleDict(
        {
            "act": Float8Linear(K, K, bias=False, activation="relu", dtype=torch.bfloat16),
            "attention": torch.nn.MultiheadAttention(K, 2, dtype=torch.bfloat16),
        }
    )
    names = ("act.weight", "attention.out_proj.weight")
    tensors = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    for name in names:
        tensors[name], tensors[f"{name}_scale"] = codes_of(torch.randn(K, K), 1)
    write(tmp_path / "m.safetensors", tensors)
    report = load_float8_checkpoint(made, tmp_path / "m.safetensors")
    assert report.layers == () and report.decoded == names
    for name in names:
        assert torch.equal(made.state_dict()[name], (tensors[name].float() * tensors[f"{name}_scale"]).bfloat16())


def test_quantized_layers_take_codes_only(tmp_path):
    quantized = model()
    quantize_(quantized, FrozenFloat8Config())
    write(tmp_path / "high.safetensors", model(1).state_dict())
    before = state(quantized)
    with pytest.raises(ingot.Error, match='"up.weight": is bfloat16, but the model\'s layer is a FrozenFloat8Linear: load'):
        load_float8_checkpoint(quantized, tmp_path / "high.safetensors", strict=False)
    assert same(before, quantized)
    write(tmp_path / "m.safetensors", tensors_of())
    load_float8_checkpoint(quantized, tmp_path / "m.safetensors", layers="frozen")
    assert torch.equal(quantized.up.codes().view(torch.uint8), tensors_of()["up.weight"].view(torch.uint8))


def test_buffers_that_no_file_has(tmp_path):
    """They are named, and delayed scales begin anew, also of a model on meta."""

    def made(device=None):
        torch.manual_seed(0)
        mlp = GatedMlp(K, N, recipe="delayed", device=device, dtype=torch.bfloat16)
        mlp.register_buffer("table", torch.ones(3, device=device), persistent=False)
        return torch.nn.Sequential(mlp)

    saved = made()
    saved[0](torch.randn(4, K, dtype=torch.bfloat16)).sum().backward()
    save_float8_checkpoint(saved, tmp_path)
    assert not any("fp8_" in name for name in Reader(str(tmp_path)).names)
    loaded = made("meta")
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.missing == ("0.table",) and str(report).endswith("and they are on meta: make them: 0.table")
    assert report.decoded == ("0.gate_up_proj.weight", "0.down_proj.weight")
    loaded[0].table = torch.ones(3)
    loaded[0](torch.randn(4, K, dtype=torch.bfloat16)).sum().backward()
    started = copy.deepcopy(saved)
    started[0].fp8_amax_history.fill_(3.0)
    load_float8_checkpoint(started, tmp_path)
    assert not started[0].fp8_amax_history.any()


def test_hooks_stay(tmp_path):
    write(tmp_path / "m.safetensors", tensors_of())
    loaded, seen = model(), []
    handle = loaded.up.register_forward_hook(lambda *_: seen.append(1))
    load_float8_checkpoint(loaded, tmp_path / "m.safetensors")
    loaded.up(torch.ones(1, K, dtype=torch.bfloat16))
    handle.remove()
    loaded.up(torch.ones(1, K, dtype=torch.bfloat16))
    assert seen == [1]


# ---- config.json and the index -------------------------------------------------------------------------------------

CONFIGS = {
    "cut short": ('{\n "a": 1,\n}', r"config.json: is not JSON \(line 3, column 1\)"),
    "list": ("[1]", "config.json: holds a list, expected an object"),
    "null": ("null", "config.json: holds null, expected an object"),
    "deep": ("[" * 200_000 + "]" * 200_000, "config.json: is nested too deeply"),
    "no text": (b'{"a": "\xff\xfe"}', "config.json: is not JSON: it is no text in UTF-8"),
    "endless number": ('{"a": ' + "9" * 5000 + "}", "config.json: is not JSON that can be read"),
    "a list as quantization_config": ('{"quantization_config": [1]}', r"quantization_config: is '\[1\]', expected an object"),
    "odd method": ('{"quantization_config": {"quant_method": {}}}', r"quant_method: '\{\}' is not one of fp8"),
    "escapes": ('{"quantization_config": {"quant_method": "\\u001b[2J' + "x" * 999 + '"}}', r"quant_method: '\?\[2Jx{156}\.\.\.' is"),
    "odd blocks": ('{"quantization_config": {"weight_block_size": 3}}', "weight_block_size: is 3, but blocks are"),
    "blocks of texts": ('{"quantization_config": {"weight_block_size": ["128", 128]}}', r"is \['128', 128\], but blocks"),
    "ModelOpt's NVFP4": (
        '{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}',
        "quant_algo: is 'NVFP4', but of ModelOpt's layouts these are read: FP8, FP8_PER",
    ),
    "weights elsewhere": ('{"transformers_weights": "../m.safetensors"}', "expected the name of a file in this folder"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_configs(tmp_path, kind):
    text, message = CONFIGS[kind]
    write(tmp_path / "model.safetensors", tensors_of())
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    loaded = model()
    before = state(loaded)
    with pytest.raises(ingot.Error, match=message):
        load_float8_checkpoint(loaded, tmp_path)
    assert same(before, loaded)


def test_configs_that_are_no_files(tmp_path):
    write(tmp_path / "model.safetensors", tensors_of())
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ingot.Error, match="config.json: is not a regular file"):
        load_float8_checkpoint(model(), tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ingot.Error, match="config.json: is not a regular file"):
        load_float8_checkpoint(model(), tmp_path)
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}')
    assert load_float8_checkpoint(model(), tmp_path).layers == ("up",)


def test_indices(tmp_path):
    write(tmp_path / "m.safetensors", tensors_of())
    index = tmp_path / "model.safetensors.index.json"
    for files_of, message in (
        ({"up.weight": "../m.safetensors"}, "not the name of a file in its folder"),
        ({"up.weight": "gone.safetensors"}, "gone.safetensors: cannot be opened: .*index.json lists it: bring the missing"),
        ({"a\x1b[2J": "m.safetensors"}, r'lacks tensor "a\?\[2J"'),
    ):
        index.write_text(json.dumps({"weight_map": files_of}))
        with pytest.raises(ingot.Error, match=message):
            load_float8_checkpoint(model(), tmp_path)


def test_names_are_shown_in_letters(tmp_path):
    write(tmp_path / "m.safetensors", {**tensors_of(), "a\x1b]0;x\x07\n" + "y" * 500: torch.ones(1)})
    with pytest.raises(ingot.Error, match=r"for a\?\]0;x\?\?y{152}\.\.\.: give the model") as found:
        load_float8_checkpoint(model(), tmp_path / "m.safetensors")
    assert str(found.value).isprintable()


# ---- saving --------------------------------------------------------------------------------------------------------


def frozen(seed, scale="row"):
    made = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16))
    torch.manual_seed(seed)
    torch.nn.init.normal_(made[0].weight)
    quantize_(made, FrozenFloat8Config(scale=scale))
    return made


def loaded_from(folder):
    """What transformers would read of the folder, by its own rules: config.json's weights, the file, the index."""
    config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").exists() else {}
    layout = config.get("quantization_config", {}).get("quant_method")
    made = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16))
    load_float8_checkpoint(made, folder, layers="frozen")
    return layout, made[0].dequantize()


def shards(folder, made):
    """A checkpoint in two files and an index, as it was once downloaded."""
    layer = made[0]
    parts = {"0.weight": layer.codes(), "0.weight_scale": layer.weight_scale}
    names = {name: f"model-{at:05}-of-00002.safetensors" for at, name in enumerate(parts, 1)}
    for name, file in names.items():
        write(folder / file, {name: parts[name]})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))


STEPS = [(os, name) for name in ("replace", "link", "fsync", "unlink")]
STEPS += [(files, name) for name in ("_put", "_flush", "write_tensors")]


def in_a_child(work):
    """The exit status of work() in a forked process."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work() or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(step, work):
    """Runs work() in a process that ends, without any clearing up, in front of its step-th call that changes the disk.
    False if it has no such step."""

    def run():
        calls = 0

        def watched(original):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls > step:
                    os._exit(9)
                return original(*args, **kwargs)

            return call

        for module, name in STEPS:
            setattr(module, name, watched(getattr(module, name)))
        files.pathlib.Path.unlink = watched(files.pathlib.Path.unlink)
        work()

    return in_a_child(run) == 9


@pytest.mark.parametrize("old", ["one file", "shards"])
def test_a_save_that_is_killed(tmp_path, old):
    """At each step: config.json and weights are those of the old checkpoint, or those of the new one."""
    new = frozen(1, "128x128")
    values = {"fp8": new[0].dequantize(), "compressed-tensors": frozen(0)[0].dequantize()}
    seen = []
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        shards(folder, frozen(0)) if old == "shards" else save_float8_checkpoint(frozen(0), folder)
        (folder / "tokenizer.json").write_text("{}")
        if not killed_at(step, lambda: save_float8_checkpoint(new, folder)):
            break
        layout, found = loaded_from(folder)
        assert torch.equal(found, values[layout]), (step, layout, os.listdir(folder))
        seen.append(layout)
        if step % 4 == 0:  # the next one clears up
            save_float8_checkpoint(new, folder)
            assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert 10 < step < 99 and seen[0] == "compressed-tensors" and seen[-1] == "fp8" and seen == sorted(seen)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert "transformers_weights" not in json.loads((folder / "config.json").read_text())
    assert loaded_from(folder)[0] == "fp8"


def test_a_full_disk(tmp_path):
    """A limit on the size of files stands for it: the old checkpoint is there, and no other file."""
    save_float8_checkpoint(frozen(0), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def work(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            save_float8_checkpoint(frozen(1, "128x128"), tmp_path)
        except ingot.Error as error:
            return 3 if "cannot be written: File too large" in str(error) else 4
        return 5

    big = (tmp_path / "model.safetensors").stat().st_size
    assert [in_a_child(lambda: work(limit)) for limit in (0, 100, big // 2)] == [3, 3, 3]
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    os.chmod(tmp_path / "config.json", 0o640)
    save_float8_checkpoint(frozen(1, "128x128"), tmp_path)
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o640


def test_two_savers(tmp_path, monkeypatch):
    """The second gets one error, and the folder the first one's checkpoint."""
    status = []

    def write_while_another_saves(*args, original=files.write_tensors):
        def other():
            try:
                save_float8_checkpoint(frozen(2), tmp_path)
            except ingot.Error as error:
                return 3 if "another process is saving into this folder" in str(error) else 4
            return 5

        status.append(in_a_child(other))
        return original(*args)

    monkeypatch.setattr(files, "write_tensors", write_while_another_saves)
    save_float8_checkpoint(frozen(1), tmp_path)
    assert status == [3]
    assert torch.equal(loaded_from(tmp_path)[1], frozen(1)[0].dequantize())


def test_weights_that_are_not_finite(tmp_path):
    for value in (float("inf"), float("nan")):
        made = torch.nn.Sequential(Float8Linear(K, N))
        with torch.no_grad():
            made[0].weight[3, 5] = value
        with pytest.raises(ingot.Error, match='"0.weight": has values that are Inf or NaN, which would spoil all that share'):
            save_float8_checkpoint(made, tmp_path)
    assert os.listdir(tmp_path) == []


def test_fsdp_of_flat_parameters(tmp_path):
    """FullyShardedDataParallel's own way to whole parameters serves a save."""
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("PyTorch was built without torch.distributed")
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        plain = torch.nn.Sequential(Float8Linear(K, N), torch.nn.LayerNorm(N))
        save_float8_checkpoint(plain, tmp_path / "plain.safetensors")
        for flat in (False, True):
            wrapped = FullyShardedDataParallel(copy.deepcopy(plain), device_id=torch.device("cpu"), use_orig_params=not flat)
            for call in (save_float8_checkpoint, load_float8_checkpoint):
                with pytest.raises(ingot.Error, match=r"keeps its parameters in one flat tensor: call this within Fully"):
                    call(wrapped, tmp_path / "plain.safetensors")
            with FullyShardedDataParallel.summon_full_params(wrapped):
                save_float8_checkpoint(wrapped, tmp_path / "m.safetensors")
            assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()
    finally:
        dist.destroy_process_group()


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ingot.Error, match="file: cannot be written: File exists"):
        save_float8_checkpoint(frozen(0), tmp_path / "file")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ingot.Error, match="names nothing"):
        save_float8_checkpoint(frozen(0), "a\0b")
    with pytest.raises(ingot.Error, match="model: is a dict, expected a torch.nn.Module"):
        save_float8_checkpoint({}, tmp_path)
    with pytest.raises(ingot.Error, match="config.json: holds a list"):
        save_float8_checkpoint(frozen(0), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "file"]


@pytest.mark.parametrize(
    "path, message",
    [
        ("", "path: '' names nothing"),
        ("a\0b", "names nothing"),
        (None, "path: expected a path, got NoneType"),
        (os.fsdecode(b"\xff"), "is not UTF-8; rename it"),
    ],
    ids=["empty", "nul", "none", "bytes"],
)
def test_paths_that_name_nothing(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    first = model()
    quantize_(first, FrozenFloat8Config())
    with pytest.raises(ingot.Error, match="save_float8_checkpoint " + ".*" + message):
        save_float8_checkpoint(first, path)
    with pytest.raises(ingot.Error, match="load_float8_checkpoint " + ".*" + message):
        load_float8_checkpoint(first, path)
    assert os.listdir(tmp_path) == []
    save_float8_checkpoint(first, os.fsencode(tmp_path / "out"))
    (tmp_path / "out" / "config.json").write_text('{"transformers_weights": "\\ud800"}')
    with pytest.raises(ingot.Error, match="transformers_weights: is .*, expected the name of a file"):
        load_float8_checkpoint(first, os.fsencode(tmp_path / "out"))
