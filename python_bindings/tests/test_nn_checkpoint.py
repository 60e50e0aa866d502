"""FP8 checkpoints in public layouts: files that the safetensors package or the core wrote, loaded and written back."""

import json

import pytest

torch = pytest.importorskip("torch")

import ingot
from ingot import _core, float8
from ingot.nn import (
    Float8Linear,
    Float8WeightOnlyConfig,
    FrozenFloat8Config,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    MXWeightOnlyConfig,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    convert,
    dequantize_,
    float8_quantization_config,
    load_float8_checkpoint,
    quantize_,
    save_float8_checkpoint,
)
from ingot.nn._checkpoint_files import Reader

K, HIDDEN = 96, 200
NAMES = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}


class Model(torch.nn.Module):
    """A name for each kind of tensor: linear layers with and without a bias, a norm, an embedding tied to the head."""

    def __init__(self, device=None):
        super().__init__()
        kind = {"dtype": torch.bfloat16, "device": device}
        self.embed = torch.nn.Embedding(40, K, **kind)
        self.norm = torch.nn.LayerNorm(K, **kind)
        self.up = torch.nn.Linear(K, HIDDEN, **kind)
        self.down = torch.nn.Linear(HIDDEN, K, bias=False, **kind)
        self.head = torch.nn.Linear(K, 40, bias=False, **kind)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return torch.nn.functional.linear(x, self.embed.weight)


def model(device=None):
    torch.manual_seed(0)
    return Model(device)


def write(file, tensors):
    """By the safetensors package where it is installed, else by the core."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        names = {dtype: name for name, dtype in NAMES.items()}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        _core.write_safetensors(
            str(file),
            [
                (name, names[t.dtype], list(t.shape), t.data_ptr(), t.numel() * t.element_size())
                for name, t in tensors.items()
            ],
            {"format": "pt"},
        )
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def public_layout(scale, scale_name="weight_scale", scale_dtype=torch.float32):
    """The model's tensors, as a public checkpoint has them: codes by PyTorch's own cast."""
    found = {name: tensor.clone() for name, tensor in model().state_dict().items() if name != "head.weight"}
    for name in ("up", "down"):
        weight = found[f"{name}.weight"].float()
        n, k = weight.shape
        if scale == "tensor":
            scale_inv = weight.abs().max().reshape(()) / 448
            spread = scale_inv
        elif scale == "row":
            scale_inv = spread = weight.abs().amax(1, keepdim=True) / 448
        elif scale == "1x128":
            padded = torch.nn.functional.pad(weight, (0, -k % 128)).reshape(n, -1, 128)
            scale_inv = padded.abs().amax(2) / 448
            spread = scale_inv.repeat_interleave(128, 1)[:, :k]
        else:
            padded = torch.nn.functional.pad(weight, (0, -k % 128, 0, -n % 128))
            blocks = padded.reshape(padded.shape[0] // 128, 128, -1, 128)
            scale_inv = blocks.abs().amax((1, 3)) / 448
            spread = scale_inv.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        scale_inv = scale_inv.to(scale_dtype)
        found[f"{name}.weight"] = (weight / spread.clamp(min=1e-12)).to(torch.float8_e4m3fn)
        found[f"{name}.{scale_name}"] = scale_inv
    return found


LAYOUTS = [
    ("tensor", "weight_scale"),
    ("row", "weight_scale"),
    ("128x128", "weight_scale_inv"),
    ("1x128", "weight_scale"),
]
TOKENS = torch.arange(30).reshape(2, 15)


@pytest.mark.parametrize("device", [None, "meta"])
@pytest.mark.parametrize("kind", ["weight_only", "frozen"])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_loads(tmp_path, layout, kind, device):
    """Each bit of codes and scale_inv, and every other tensor."""
    scale, scale_name = layout
    if kind == "frozen" and scale == "1x128":
        pytest.skip("scale_inv of groups do not serve the gradient of the input")
    tensors = public_layout(scale, scale_name)
    write(tmp_path / "model.safetensors", tensors)
    loaded = model(device)
    report = load_float8_checkpoint(loaded, tmp_path, layers=kind)
    assert report.layers == ("up", "down") and report.missing == report.unexpected == ()
    for name in ("up", "down"):
        layer = getattr(loaded, name)
        assert type(layer) is (WeightOnlyLinear if kind == "weight_only" else FrozenFloat8Linear)
        one_group = scale == "1x128" and layer.in_features <= 128  # then groups and rows are the same
        assert layer.scale == ("row" if one_group else scale)
        codes = layer.codes().view(torch.uint8)
        assert torch.equal(codes, tensors[f"{name}.weight"].view(torch.uint8))
        assert torch.equal(layer.weight_scale.flatten(), tensors[f"{name}.{scale_name}"].flatten())
    assert torch.equal(loaded.up.bias, tensors["up.bias"])
    assert loaded.head.weight is loaded.embed.weight
    assert torch.equal(loaded.embed.weight, tensors["embed.weight"])
    expected = model()(TOKENS).double()
    assert (loaded(TOKENS).double() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_scales_of_other_dtypes(tmp_path, scale_dtype):
    tensors = public_layout("row", scale_dtype=scale_dtype)
    write(tmp_path / "a.safetensors", tensors)
    loaded = model()
    load_float8_checkpoint(loaded, tmp_path / "a.safetensors")
    assert torch.equal(loaded.up.weight_scale, tensors["up.weight_scale"].float())


@pytest.mark.parametrize("scale", ["tensor", "row", "128x128"])
@pytest.mark.parametrize("kind", ["weight_only", "frozen"])
def test_round_trip(tmp_path, kind, scale):
    first = model()
    config = Float8WeightOnlyConfig(scale=scale) if kind == "weight_only" else FrozenFloat8Config(scale=scale)
    quantize_(first, config, filter_fn=lambda _, name: name != "head")
    save_float8_checkpoint(first, tmp_path / "out")
    second = model("meta")
    load_float8_checkpoint(second, tmp_path / "out", layers=kind)
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, tensor in first.state_dict().items():
        other = second.state_dict()[name]
        assert tensor.dtype == other.dtype and torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), name
    assert torch.equal(first(TOKENS), second(TOKENS))


def test_loads_under_other_defaults(tmp_path):
    """As within transformers' contexts; what inference_mode() has loaded passes gradients on."""
    saved = model()
    quantize_(saved, FrozenFloat8Config())
    save_float8_checkpoint(saved, tmp_path)
    loaded, tokens = model(), torch.arange(6)
    with torch.device("meta"), torch.inference_mode():
        load_float8_checkpoint(loaded, tmp_path, layers="frozen")
    assert torch.equal(loaded(tokens), saved(tokens))
    loaded(tokens).sum().backward()
    assert loaded.embed.weight.grad.isfinite().all() and not loaded.down.weight.codes.is_inference()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_folded", "blockwise"])
def test_trained_weights_are_saved_as_they_were_multiplied(tmp_path, recipe):
    """Without a bias, forward of the loaded layer is that of the trained one, to the bit."""
    trained = torch.nn.Sequential(Float8Linear(K, HIDDEN, bias=False, dtype=torch.bfloat16, recipe=recipe))
    x = torch.randn(7, K, dtype=torch.bfloat16)
    save_float8_checkpoint(trained, tmp_path / "m.safetensors")
    loaded = torch.nn.Sequential(torch.nn.Linear(K, HIDDEN, bias=False, dtype=torch.bfloat16))
    load_float8_checkpoint(loaded, tmp_path / "m.safetensors", layers="frozen")
    assert torch.equal(loaded(x), trained(x))


def test_codes_take_the_place_of_layers_that_train(tmp_path):
    """The report says that they train no more, and how to train on."""
    made = lambda kind: torch.nn.Sequential(kind(K, K, dtype=torch.bfloat16), torch.nn.SiLU(), kind(K, K, dtype=torch.bfloat16))
    trained = made(Float8Linear)
    save_float8_checkpoint(trained, tmp_path)
    report = load_float8_checkpoint(trained, tmp_path)
    assert report.layers == ("0", "2") and report.note == (
        "2 of these layers trained and have frozen weights now: to train on, load before convert(), and call dequantize_() and "
        "requires_grad_(True) between the two"
    )
    model = made(torch.nn.Linear)
    assert load_float8_checkpoint(model, tmp_path).note == ""
    assert dequantize_(model) == 2 and convert(model.requires_grad_(True), "rowwise").converted.keys() == {"0", "2"}
    model(torch.ones(4, K, dtype=torch.bfloat16)).sum().backward()
    assert all(each.grad.isfinite().all() and each.grad.any() for each in model.parameters())


def test_torchaos_layers_are_saved(tmp_path):
    from ingot import float8

    trained = torch.nn.Sequential(torch.nn.Linear(K, HIDDEN, bias=False, dtype=torch.bfloat16))
    float8.convert_to_float8_training(trained, config=float8.Float8LinearConfig.from_recipe_name("rowwise"))
    config = save_float8_checkpoint(trained, tmp_path / "m.safetensors")
    assert config["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    loaded = torch.nn.Sequential(torch.nn.Linear(K, HIDDEN, bias=False, dtype=torch.bfloat16))
    load_float8_checkpoint(loaded, tmp_path / "m.safetensors")
    scale = loaded[0].weight_scale
    assert torch.equal(scale, torch.exp2(torch.log2(scale).round()))  # this recipe's scales are powers of two


def parts(recipe):
    """Each module of several parts, and what a plain layer of the same weight would be."""
    torch.manual_seed(0)
    kind = {"recipe": recipe, "dtype": torch.float32}
    linear = lambda n, k: torch.nn.Linear(k, n, bias=False)
    separate = GatedMlp.from_parts((linear(HIDDEN, K), linear(HIDDEN, K)), linear(K, HIDDEN), recipe=recipe)
    made = torch.nn.ModuleDict(
        {
            "gated": GatedMlp(K, HIDDEN, norm="rms", bias=True, **kind),
            "separate": separate,
            "mlp": Mlp(K, HIDDEN, norm="layer", **kind),
            "rms": RMSNormLinear(K, HIDDEN, **kind),
            "layer": LayerNormLinear(K, HIDDEN, bias=False, **kind),
            "shared": SharedInputLinears(K, {"q": K, "k": 32}, norm="rms", **kind),
        }
    )
    weights = [name for name, each in made.named_parameters() if each.dim() == 2]
    assert len(weights) == 11
    return made, weights


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "blockwise", "delayed"])
def test_modules_of_several_parts_are_saved_in_float8(tmp_path, recipe):
    """Their weights have the codes of a Float8Linear of that weight, and load into the same modules as values, and into
    plain layers as FP8."""
    made, weights = parts(recipe)
    config = save_float8_checkpoint(made, tmp_path / "m.safetensors")
    assert config.get("ignore", config.get("modules_to_not_convert")) == []
    reader = Reader(str(tmp_path / "m.safetensors"))
    assert not any("fp8_" in name for name in reader.names)
    values = {}
    for name in weights:
        plain = torch.nn.Sequential(Float8Linear(*made.get_parameter(name).shape[::-1], bias=False, recipe=recipe))
        plain[0].weight = made.get_parameter(name)
        save_float8_checkpoint(plain, tmp_path / "plain.safetensors")
        expected = Reader(str(tmp_path / "plain.safetensors"))
        scale = next(each for each in expected.names if "scale" in each).removeprefix("0.weight")
        assert torch.equal(reader.read(name).view(torch.uint8), expected.read("0.weight").view(torch.uint8))
        assert torch.equal(reader.read(name + scale), expected.read("0.weight" + scale))
        layer = FrozenFloat8Linear.from_codes(
            reader.read(name), reader.read(name + scale), scale={"_scale_inv": "128x128"}.get(scale) or
            ("row" if recipe == "rowwise" else "tensor")
        )  # fmt: skip
        values[name] = layer.dequantize()
        assert (values[name] - made.get_parameter(name)).norm() < 0.05 * made.get_parameter(name).norm()
    again, _ = parts(recipe)
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    report = load_float8_checkpoint(again, tmp_path / "m.safetensors")
    assert report.layers == () and sorted(report.decoded) == sorted(weights)
    for name, tensor in again.named_parameters():
        assert torch.equal(tensor, values.get(name, made.get_parameter(name))), name
    inner = made["separate"]
    sizes = {key: (each.in_features, each.out_features) for key, each in inner.named_children()}
    plain = torch.nn.ModuleDict({key: torch.nn.Linear(*each, bias=False) for key, each in sizes.items()})
    whole = torch.nn.ModuleDict({"separate": plain})
    report = load_float8_checkpoint(whole, tmp_path / "m.safetensors", layers="frozen", strict=False)
    assert report.layers == ("separate.gate_proj", "separate.up_proj", "separate.down_proj")
    joined = torch.nn.ModuleDict({"separate": GatedMlp(K, HIDDEN, dtype=torch.float32)})
    load_float8_checkpoint(joined, tmp_path / "m.safetensors", strict=False)
    both = torch.cat([values[f"separate.{key}_proj.weight"] for key in ("gate", "up")])
    assert torch.equal(joined["separate"].gate_up_proj.weight, both)


def test_high_precision_stays_and_is_listed(tmp_path):
    made, _ = parts("high_precision")
    made["last"] = Float8Linear(K, K)
    config = save_float8_checkpoint(made, tmp_path / "m.safetensors")
    assert sorted(config["ignore"]) == sorted(
        ["gated.gate_up_proj", "gated.down_proj", "separate.gate_proj", "separate.up_proj", "separate.down_proj"]
        + ["mlp.up_proj", "mlp.down_proj", "rms", "layer", "shared.q", "shared.k"]
    )
    tied = torch.nn.ModuleDict({"embed": torch.nn.Embedding(8, K), "head": Float8Linear(K, 8), "x": Float8Linear(K, K)})
    tied["head"].weight = tied["embed"].weight
    assert save_float8_checkpoint(tied, tmp_path / "tied.safetensors")["ignore"] == ["head"]
    reader = Reader(str(tmp_path / "tied.safetensors"))
    assert torch.equal(reader.read("embed.weight"), tied["embed"].weight) and "head.weight" not in reader.names


@pytest.mark.parametrize("count", [0, 1, 2])
def test_extra_state_is_not_written(tmp_path, caplog, count):
    """It may be any object; the file of one that has none says nothing."""

    class Counted(torch.nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

        def set_extra_state(self, state):
            raise AssertionError

    made = torch.nn.Sequential(*[torch.compile(Counted(K, K)) for _ in range(count)], Float8Linear(K, K))
    with caplog.at_level("INFO", "ingot"):
        save_float8_checkpoint(made, tmp_path / "m.safetensors", scale="row")
    says = [each.getMessage() for each in caplog.records if "extra" in each.getMessage()]
    modules = {1: "1 module has (0)", 2: "2 modules have (0, 1)"}
    assert says == ([f"save_float8_checkpoint: the extra state that {modules[count]} is not written: save the model's state_dict()"] if count else [])
    fresh = torch.nn.Sequential(*[Counted(K, K) for _ in range(count)], torch.nn.Linear(K, K))
    assert load_float8_checkpoint(fresh, tmp_path / "m.safetensors").layers == (str(count),)


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("stored", [1, 2])
def test_a_layer_of_two_names(tmp_path, names, stored):
    """It is written by the first one. Whichever of them the file has, both are the new layer, and a hook's handle is of it."""

    def shared(order):
        layer = torch.nn.Linear(K, K, dtype=torch.bfloat16)
        return torch.nn.ModuleDict({**dict.fromkeys(order, layer), "c": torch.nn.Linear(K, K, dtype=torch.bfloat16)})

    saved = shared("ab")
    quantize_(saved, FrozenFloat8Config())
    save_float8_checkpoint(saved, tmp_path / "model.safetensors")
    if stored == 2:
        safetensors = pytest.importorskip("safetensors.torch")
        tensors = safetensors.load_file(tmp_path / "model.safetensors")
        tensors |= {name.replace("a.", "b."): value.clone() for name, value in tensors.items() if name.startswith("a.")}
        safetensors.save_file(tensors, tmp_path / "model.safetensors")
    loaded, calls = shared(names), []
    handle = loaded["a"].register_forward_hook(lambda *_: calls.append(1))
    report = load_float8_checkpoint(loaded, tmp_path / "model.safetensors", layers="frozen")
    assert report.layers == ("a" if stored == 1 else names[0], "c") and not report.missing
    x = torch.randn(3, K, dtype=torch.bfloat16)
    assert loaded["a"] is loaded["b"] and torch.equal(loaded["b"](x), saved["a"](x)) and calls == [1]
    handle.remove()
    loaded["a"](x)
    assert calls == [1]


@pytest.mark.parametrize("wrapper", ["checkpoint_wrapper", "compile", "compiled_model", "DataParallel"])
def test_wrappers_have_no_names(tmp_path, wrapper):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def made(kind):
        inner = torch.nn.Sequential(kind(K, K, dtype=torch.bfloat16), torch.nn.LayerNorm(K, dtype=torch.bfloat16))
        return torch.nn.Sequential(inner, kind(K, 8, dtype=torch.bfloat16))

    def wrapped(kind):
        whole = made(kind)
        if wrapper == "checkpoint_wrapper":
            whole[0] = checkpoint_wrapper(whole[0])
        elif wrapper == "compile":
            whole[0][0] = torch.compile(whole[0][0], backend="eager")
        else:
            whole = torch.compile(whole, backend="eager") if wrapper == "compiled_model" else torch.nn.DataParallel(whole)
        return whole

    x = torch.randn(3, K, dtype=torch.bfloat16)
    plain, saved = tmp_path / "plain.safetensors", tmp_path / "saved.safetensors"
    trained = wrapped(Float8Linear)
    save_float8_checkpoint(trained, saved)
    names = {name for name in Reader(str(saved)).names if not name.endswith("_scale")}
    assert names == set(made(torch.nn.Linear).state_dict())
    loaded, expected = wrapped(torch.nn.Linear), made(torch.nn.Linear)
    save_float8_checkpoint(made(Float8Linear), plain)
    for each in (loaded, expected):
        each(x)  # compiled for the layer that will be replaced
        assert load_float8_checkpoint(each, plain).layers == ("0.0", "1")
    assert torch.equal(loaded(x), expected(x))


def test_adapters_of_peft(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.o = (torch.nn.Linear(K, K, dtype=torch.bfloat16) for _ in range(2))

        def forward(self, x):
            return self.o(self.q(x))

    def adapted(**options):
        torch.manual_seed(0)
        return peft.get_peft_model(Two(), peft.LoraConfig(r=2, target_modules=["q"], init_lora_weights=False, **options))

    base = Two()
    quantize_(base, FrozenFloat8Config())
    save_float8_checkpoint(base, tmp_path / "base.safetensors")
    loaded = adapted()
    lora = loaded.base_model.model.q.lora_A["default"].weight.clone()
    report = load_float8_checkpoint(loaded, tmp_path / "base.safetensors", layers="frozen")
    assert report.layers == ("q", "o") and report.missing == ()
    layer = loaded.base_model.model.q
    assert isinstance(layer.base_layer, FrozenFloat8Linear) and torch.equal(layer.lora_A["default"].weight, lora)
    assert torch.equal(layer.base_layer.codes().view(torch.uint8), base.q.codes().view(torch.uint8))
    with pytest.raises(ingot.Error, match='"q": has adapters of PEFT, which such a checkpoint has no place for: save them by'):
        save_float8_checkpoint(loaded, tmp_path / "m.safetensors")
    save_float8_checkpoint(loaded.unload(), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "base.safetensors").read_bytes()
    with pytest.raises(ingot.Error, match='"o": PEFT trains a copy of this module, which would keep its values: load before'):
        load_float8_checkpoint(adapted(modules_to_save=["o"]), tmp_path / "base.safetensors")


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("layout", ["packed", "row_major"])
def test_tensors_of_files_begin_anywhere(layout, assign):
    """safetensors' load_file() aligns to 8 bytes or less."""

    def shifted(tensor):
        values = tensor.detach().contiguous().view(-1).view(torch.uint8)
        memory = torch.empty(values.numel() + 32, dtype=torch.uint8)
        begin = -memory.data_ptr() % 16 + max(tensor.element_size(), 1)
        memory = memory[begin : begin + values.numel()]
        return memory.copy_(values).view(tensor.dtype).view(tensor.shape)

    linear = torch.nn.Linear(K, HIDDEN, dtype=torch.bfloat16)
    x = torch.randn(3, K, dtype=torch.bfloat16)
    for first in (WeightOnlyLinear.from_float(linear, layout="packed"), FrozenFloat8Linear.from_float(linear)):
        frozen = isinstance(first, FrozenFloat8Linear)
        options = {} if frozen else {"layout": layout}
        second = type(first)(K, HIDDEN, dtype=torch.bfloat16, **options)
        second.load_state_dict({name: shifted(each) for name, each in first.state_dict().items()}, assign=assign)
        assert torch.equal(second.dequantize(), first.dequantize())
        assert torch.equal(second(x), first(x))
        codes = first.codes() if frozen else first.codes().view(torch.float8_e4m3fn)
        third = type(first).from_codes(shifted(codes), shifted(first.weight_scale), shifted(linear.bias), **options)
        assert torch.equal(third(x), first(x))


def test_other_programs_read_what_is_written(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    first = model()
    quantize_(first, FrozenFloat8Config(scale="128x128"), filter_fn=lambda _, name: name != "head")
    first.up.input_scale = torch.tensor([0.25])
    config = save_float8_checkpoint(first, tmp_path)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    assert tensors["up.weight"].dtype == torch.float8_e4m3fn
    assert torch.equal(tensors["up.weight"].view(torch.uint8), first.up.codes().view(torch.uint8))
    assert tensors["up.weight_scale_inv"].shape == (2, 1)
    assert tensors["up.input_scale"].item() == 0.25
    assert "head.weight" not in tensors
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"] == config
    assert config == {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["head"],
    }


def test_transformers_reads_the_config():
    quantizers = pytest.importorskip("transformers.utils.quantization_config", reason="transformers is not installed")
    written = float8_quantization_config("128x128", ["head"])
    assert written.pop("quant_method") == "fp8"
    config = quantizers.FineGrainedFP8Config(**written)
    assert tuple(config.weight_block_size) == (128, 128) and config.modules_to_not_convert == ["head"]


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors", "fbgemm_fp8"])
def test_kinds_of_config(tmp_path, method):
    write(tmp_path / "model.safetensors", public_layout("row"))
    config = {"quant_method": method, "format": "float-quantized"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    assert load_float8_checkpoint(model(), tmp_path).layers == ("up", "down")


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"strategy": "channel"}}},
}


@pytest.mark.parametrize(
    "rows, name, shape, config, expected",
    [
        (96, "weight_scale_inv", (1, 1), None, "128x128"),
        (96, "weight_scale", (1, 1), BLOCKS, "128x128"),
        (96, "weight_scale_inv", (1, 1), {**CHANNELS, "config_groups": {"g": {"weights": {"strategy": "tensor"}}}}, "tensor"),
        (96, "weight_scale", (1, 1), None, "tensor"),
        (96, "weight_scale_inv", (), {"quant_method": "fp8"}, "tensor"),
        (200, "weight_scale_inv", (1, 1), BLOCKS, "tensor"),
        (1, "weight_scale", (1, 1), CHANNELS, "row"),
        (1, "weight_scale", (1,), {"quant_method": "fbgemm_fp8"}, "row"),
        (96, "weight_scale", (1,), {**CHANNELS, "config_groups": {"g": {"weights": {"strategy": []}}, "h": 3}}, "tensor"),
    ],
)
def test_one_scale_inv_of_a_small_weight(tmp_path, rows, name, shape, config, expected):
    """It is that of a block or a row where the model's other layers have these, and activations are cast accordingly."""
    codes = torch.randn(rows, 64).to(torch.float8_e4m3fn)
    write(tmp_path / "model.safetensors", {"0.weight": codes, f"0.{name}": torch.full(shape, 0.5)})
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    loaded = torch.nn.Sequential(torch.nn.Linear(64, rows, bias=False))
    load_float8_checkpoint(loaded, tmp_path, layers="frozen")
    assert loaded[0].scale == expected
    assert torch.equal(loaded[0].dequantize(), codes.float() / 2)


def test_a_model_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(0)
    first = transformers.LlamaForCausalLM(config).bfloat16().eval()
    tokens = torch.arange(12).reshape(1, 12)
    expected = first(tokens).logits.double()
    names = {name for name, each in first.named_modules() if isinstance(each, torch.nn.Linear)}
    mlp = first.model.layers[0].mlp
    mlp = GatedMlp.from_parts((mlp.gate_proj, mlp.up_proj), mlp.down_proj, recipe="blockwise")
    first.model.layers[0].mlp = mlp
    quantize_(first, FrozenFloat8Config(scale="128x128"), filter_fn=lambda _, name: name != "lm_head")
    first.generation_config.update(max_new_tokens=7, do_sample=True, temperature=0.5)
    ignored = save_float8_checkpoint(first, tmp_path)["modules_to_not_convert"]
    first.generation_config.save_pretrained(tmp_path / "own")  # what generate() does by default, as save_pretrained() keeps
    written, own = (json.loads((folder / "generation_config.json").read_text()) for folder in (tmp_path, tmp_path / "own"))
    assert written == own and written["max_new_tokens"] == 7 and written["temperature"] == 0.5
    assert not list(tmp_path.glob("generation_config.json.*"))
    reader = Reader(str(tmp_path))  # each layer that transformers has is FP8, or is listed as not
    in_float8 = {name for name in names if reader.dtype(f"{name}.weight") == torch.float8_e4m3fn}
    assert in_float8 | set(ignored) == names and not in_float8 & set(ignored)
    assert all(f"{name}.weight_scale_inv" in reader.names for name in in_float8)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["hidden_size"] == 128 and saved["architectures"] == ["LlamaForCausalLM"] and saved["quantization_config"]["quant_method"] == "fp8"
    assert saved["dtype"] == "bfloat16"  # what the model is, not what it was made as
    second = transformers.LlamaForCausalLM(config).bfloat16().eval()
    assert len(load_float8_checkpoint(second, tmp_path).layers) == 7
    with torch.no_grad():
        logits = second(tokens).logits.double()
    assert (logits - expected).norm() < 0.1 * expected.norm()


def test_a_config_whose_codes_the_files_lack(tmp_path):
    """As of a model that was trained after its codes were decoded, and saved with the config that it had."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": float8_quantization_config("128x128", [])}))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    report = load_float8_checkpoint(model, tmp_path)
    assert report.note == (
        "the config has a quantization_config, but the files have no codes: if the model was trained since, save it again after "
        "`del model.config.quantization_config`"
    )
    assert str(report) == f"no layer has FP8 weights now: all values were loaded as they are\n{report.note}"
    model.register_buffer("mask", torch.ones(4, dtype=torch.bool))  # these bytes are no codes
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert load_float8_checkpoint(model, tmp_path).note == report.note
    del model.mask
    codes = {"0.weight": torch.zeros(16, 16, dtype=torch.float8_e4m3fn), "0.weight_scale_inv": torch.ones(1, 1)}
    save_file({"1.weight": model[1].weight.detach(), **codes}, tmp_path / "model.safetensors")
    assert "quantization_config" not in load_float8_checkpoint(model, tmp_path).note
    (tmp_path / "config.json").write_text("{}")
    save_file({f"{at}.weight": torch.zeros(16, 16) for at in (0, 1)}, tmp_path / "model.safetensors")
    plain = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    assert load_float8_checkpoint(plain, tmp_path).note == ""


def test_messages(tmp_path):
    file = tmp_path / "model.safetensors"
    tensors = public_layout("row")
    bad = lambda **changes: write(file, {**tensors, **{key.replace("_DOT_", "."): v for key, v in changes.items()}})
    bad()
    with pytest.raises(ingot.Error, match="layers: 'w8a8' is not one of weight_only, frozen"):
        load_float8_checkpoint(model(), file, layers="w8a8")
    bad(up_DOT_weight_scale=torch.ones(3))
    with pytest.raises(ingot.Error, match=r'tensor "up.weight_scale": has shape \(3,\), but a weight \(200, 96\) has'):
        load_float8_checkpoint(model(), file)
    bad(up_DOT_weight_scale_inv=torch.ones(1))
    with pytest.raises(ingot.Error, match='"up.weight_scale_inv" is there too: leave one of them'):
        load_float8_checkpoint(model(), file)
    write(file, {key: value for key, value in tensors.items() if key != "up.weight_scale"})
    with pytest.raises(ingot.Error, match='tensor "up.weight": comes without scale_inv: neither weight_scale nor'):
        load_float8_checkpoint(model(), file)
    write(file, {key: value for key, value in tensors.items() if key != "norm.weight"})
    with pytest.raises(ingot.Error, match="lacks norm.weight: give the model it was made for, or strict=False"):
        load_float8_checkpoint(model(), file)
    assert load_float8_checkpoint(model(), file, strict=False).missing == ("norm.weight",)
    bad(other=torch.ones(1))
    with pytest.raises(ingot.Error, match="has no place in the model for other: give the model"):
        load_float8_checkpoint(model(), file)
    bad(norm_DOT_weight=torch.ones(3))
    with pytest.raises(ingot.Error, match=r'tensor "norm.weight": has shape \(3,\), but the model has \(96,\)'):
        load_float8_checkpoint(model(), file)
    bad(up_DOT_weight=torch.zeros(4, 96).to(torch.float8_e4m3fn))
    with pytest.raises(ingot.Error, match=r'"up.weight": has shape \(4, 96\), but the model\'s layer has \(200, 96\)'):
        load_float8_checkpoint(model(), file)
    write(file, public_layout("1x128"))
    with pytest.raises(ingot.Error, match="scale: '1x128' is not one of tensor, row, 128x128"):
        load_float8_checkpoint(model(), file, layers="frozen")
    bad()
    for config, message in (
        ({"quant_method": "gptq"}, "quant_method: 'gptq' is not one of fp8, mxfp8, mxfp4, compressed-tensors, modelopt, "),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size: is \[64, 64\], but blocks are"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "format: is 'pack-quantized', but"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        with pytest.raises(ingot.Error, match=message):
            load_float8_checkpoint(model(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ingot.Error, match=r"config.json: is not JSON \(line 1, column 2\)"):
        load_float8_checkpoint(model(), tmp_path)
    with pytest.raises(ingot.Error, match="nothing.safetensors"):
        load_float8_checkpoint(model(), tmp_path / "nothing.safetensors")


def mixed():
    """Of three recipes, and a layer in high precision."""
    torch.manual_seed(0)
    sizes = {"width": (256, 128), "up": (128, 256), "down": (256, 128), "head": (128, 64)}
    layers = {name: torch.nn.Linear(*size, dtype=torch.bfloat16) for name, size in sizes.items()}
    recipes = {"width": "tensorwise", "up": "rowwise", "down": "blockwise"}
    for name, recipe in recipes.items():
        layers[name] = Float8Linear.from_float(layers[name], recipe, name)
    return torch.nn.ModuleDict(layers)


def test_recipes_of_several_kinds(tmp_path):
    trained = mixed()
    written = save_float8_checkpoint(trained, tmp_path)
    groups = {group["weights"]["strategy"]: group for group in written["config_groups"].values()}
    assert {kind: group["targets"] for kind, group in groups.items()} == {"tensor": ["width"], "channel": ["up"], "block": ["down"]}
    assert groups["block"]["weights"]["block_structure"] == [128, 128] and written["ignore"] == ["head"]
    assert {kind: group["input_activations"]["strategy"] for kind, group in groups.items()} == {
        "tensor": "tensor", "channel": "token", "block": "group",
    }  # fmt: skip
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"] == written
    fresh = mixed()
    for name, layer in list(fresh.items()):
        fresh[name] = torch.nn.Linear(layer.in_features, layer.out_features, dtype=torch.bfloat16)
    load_float8_checkpoint(fresh, tmp_path)
    for name, kind in {"width": "tensor", "up": "row", "down": "128x128"}.items():
        assert fresh[name].scale == kind
        cast = FrozenFloat8Linear.from_float(trained[name], scale=kind, pow2=kind == "row")
        assert torch.equal(fresh[name].dequantize(), cast.dequantize())
    assert torch.equal(fresh["head"].weight, trained["head"].weight)


@pytest.mark.nightly
def test_recipes_of_several_kinds_in_transformers(tmp_path):
    """Their own code reads what was written."""
    pytest.importorskip("compressed_tensors")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).bfloat16()

    for recipe, part in {"tensorwise": "v_proj", "blockwise": "o_proj", "rowwise": "_proj"}.items():
        convert(model, recipe, filter_fn=lambda _, name: part in name, fuse=False)
    written = save_float8_checkpoint(model, tmp_path)
    assert len(written["config_groups"]) == 3
    ids = torch.arange(16)[None]
    expected = model(input_ids=ids).logits
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    found = loaded(input_ids=ids).logits
    assert ((found - expected).norm() <= 0.05 * expected.norm()).item()


def test_messages_of_saving(tmp_path):
    file = tmp_path / "m.safetensors"
    with pytest.raises(ingot.Error, match="has no layer that is stored in FP8: quantize_"):
        save_float8_checkpoint(model(), file)
    small = model()
    quantize_(small, MXWeightOnlyConfig(), filter_fn=lambda _, name: name != "head")
    with pytest.raises(ingot.Error, match='"up": has e2m1fn weights with scale=mx, which this does not write: save its'):
        save_float8_checkpoint(small, file)
    with pytest.raises(ingot.Error, match="scale: '1x32' is not one of tensor, row, 128x128"):
        save_float8_checkpoint(model(), file, scale="1x32")
    odd = torch.nn.Sequential(FrozenFloat8Linear.from_float(torch.nn.Linear(4, 4)))
    odd.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ingot.Error, match='"phase": is torch.complex64, which safetensors files lack'):
        save_float8_checkpoint(odd, file)


def test_a_weight_on_meta_that_fsdp_gathers_in_float8(tmp_path):
    """Becomes such a weight, not a plain one that FSDP would gather in high precision."""
    values = torch.randn(8, 16)
    write(tmp_path / "a.safetensors", {"0.weight": values})
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=False))
        config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=True)
        float8.convert_to_float8_training(model, config=config)
    load_float8_checkpoint(model, tmp_path / "a.safetensors")
    assert isinstance(model[0].weight, float8.WeightWithDynamicFloat8CastTensor)
    assert torch.equal(model[0].weight._tensor, values)
