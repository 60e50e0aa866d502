"""Checkpoints whose names are not the model's: what transformers' save_pretrained() writes of mixtures of experts, and files of
Mixtral in FP8."""

import copy
import json
import re

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
transformers = pytest.importorskip("transformers", minversion="5")
safetensors = pytest.importorskip("safetensors.torch")

import ingot
from checkpoint_layouts import E8M0, e4m3, exponents, f32, fine, float_of_bits, fp8, group, of_32, pairs, write
from conftest import in_ci
from expert_families import FAMILIES, model_of, same_bits
from ingot.integrations.experts import convert_experts_, quantize_experts_
from ingot.nn import FrozenFloat8Config, load_float8_checkpoint, quantize_, save_float8_checkpoint
from ingot.torch._stored_experts import stored

HIDDEN, INNER, EXPERTS = 160, 192, 3  # no multiples of 128: the last blocks are not whole
@torch.no_grad()
@pytest.mark.parametrize(
    "family", in_ci(lambda name: name in ("mixtral", "phimoe", "granitemoe", "nemotron_h", "hy_v3", "hy_v4", "kimi_linear", "laguna", "deepseek_v4"), FAMILIES)
)
def test_what_transformers_saves(tmp_path, family):
    saved_and_loaded(tmp_path, model_of(family))


@torch.no_grad()
@pytest.mark.parametrize("family, count", [("mixtral", "num_local_experts"), ("nemotron_h", "n_routed_experts")])
def test_what_transformers_saves_of_a_single_expert(tmp_path, family, count):
    saved_and_loaded(tmp_path, model_of(family, num_experts_per_tok=1, **{count: 1}))


def saved_and_loaded(tmp_path, model):
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    loaded = copy.deepcopy(model)
    for each in loaded.parameters():
        each.zero_()
    report = load_float8_checkpoint(loaded, tmp_path)
    assert not report.missing and not report.unexpected and (tmp_path / "model.safetensors.index.json").exists()
    same_bits(loaded.state_dict(), model.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("strict, kind", [(True, "values"), (False, "values"), (False, "codes"), (False, "quantized"), (False, "e2m1fn")])
def test_experts_of_one_rank(tmp_path, strict, kind):
    """As expert parallelism leaves them without DTensors, numbered from 0 on each rank: the file's first would be all ranks'."""
    model = model_of("mixtral").bfloat16()
    if kind in ("values", "e2m1fn"):
        model.save_pretrained(tmp_path)
    else:
        whole = copy.deepcopy(model)
        quantize_experts_(whole)
        save_float8_checkpoint(whole, tmp_path)
    for layer in model.model.layers:
        for key in ("gate_up_proj", "down_proj"):
            setattr(layer.mlp.experts, key, torch.nn.Parameter(getattr(layer.mlp.experts, key)[2:].clone()))
    if kind in ("quantized", "e2m1fn"):
        quantize_experts_(model, "e2m1fn" if kind == "e2m1fn" else "float8")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wants = (
        '"model.layers.0.mlp.experts": has fewer experts than the file ("model.layers.0.block_sparse_moe.experts.2.w1.weight"), which does '
        "not say which of its own they are: load all experts on each rank, and divide them after that"
    )
    with pytest.raises(ingot.Error, match=re.escape(wants)):
        load_float8_checkpoint(model, tmp_path, strict=strict)
    same_bits(model.state_dict(), before)


@torch.no_grad()
@pytest.mark.parametrize("strict", [True, False])
def test_a_list_of_the_experts_of_one_rank(tmp_path, strict):
    """As modules of their own. Those that a rank lacks may be None: the numbers are the file's then."""

    def of(names, count):
        experts = torch.nn.ModuleList([torch.nn.Linear(16, 16) if expert in names else None for expert in range(count)])
        return torch.nn.ModuleDict({"experts": experts, "gate": torch.nn.Linear(16, 4)})

    file = of(range(4), 4)
    write(tmp_path / "model.safetensors", {name: ("F32", value.numpy()) for name, value in file.state_dict().items()})
    wants = re.escape('"experts": has fewer experts than the file ("experts.2.')
    with pytest.raises(ingot.Error, match=wants):
        load_float8_checkpoint(of(range(2), 2), tmp_path, strict=strict)
    own = of((2, 3), 4)
    load_float8_checkpoint(own, tmp_path, strict=False)
    same_bits(own.state_dict(), {name: value for name, value in file.state_dict().items() if name in own.state_dict()})


@torch.no_grad()
def test_layers_one_after_the_other_are_no_experts(tmp_path):
    """By whatever name: of a longer file strict=False takes the first ones."""
    of = lambda *more: torch.nn.ModuleDict({"experts": torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), *more)})
    file, model = of(torch.nn.Linear(16, 16)), of()
    write(tmp_path / "model.safetensors", {name: ("F32", value.numpy()) for name, value in file.state_dict().items()})
    with pytest.raises(ingot.Error, match="has no place in the model for experts.2.bias, experts.2.weight: give the model"):
        load_float8_checkpoint(model, tmp_path)
    report = load_float8_checkpoint(model, tmp_path, strict=False)
    assert report.unexpected == ("experts.2.bias", "experts.2.weight")
    same_bits(model["experts"][0].state_dict(), file["experts"][0].state_dict())


def test_a_family_of_unknown_names(tmp_path):
    model = model_of("mixtral")
    model.save_pretrained(tmp_path)
    model.config.model_type = "other_moe"
    model.model.layers[1].other_experts = model.model.layers[1].mlp
    del model.model.layers[1].mlp
    wants = (
        r"lacks model.layers.1.other_experts.gate.weight, .*: give the model it was made for, or strict=False; the model has no place for "
        r"model.layers.1.block_sparse_moe.experts.0.w1.weight, .*: files of 'other_moe' that have other names than its modules are "
        r"from_pretrained\(\)'s to read$"
    )
    with pytest.raises(ingot.Error, match=wants):
        load_float8_checkpoint(model, tmp_path)


# ---- DeepSeek-V4 in FP8 ----------------------------------------------------------------------------------------------


def test_files_of_deepseek_v4(tmp_path):
    """As the hub has them: without "model.", and scale_inv of blocks, powers of two, as proj.scale."""
    plain = model_of("deepseek_v4").bfloat16()
    plain.save_pretrained(tmp_path / "saved")
    tensors = {}
    for name, value in safetensors.load_file(tmp_path / "saved" / "model.safetensors").items():
        name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
        kind = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}[value.dtype]
        tensors[name] = (kind, value.view(torch.int16).numpy() if kind == "BF16" else value.numpy())
    expected = {}
    for layer in range(2):
        for file, name in {"attn.wq_a": "self_attn.q_a_proj", "ffn.shared_experts.w2": "mlp.shared_experts.down_proj"}.items():
            shape = tensors[f"layers.{layer}.{file}.weight"][1].shape
            codes, scales = fp8(*shape), exponents(1, 1)
            tensors |= {f"layers.{layer}.{file}.weight": ("F8_E4M3", codes), f"layers.{layer}.{file}.scale": ("F8_E8M0", scales)}
            expected[f"model.layers.{layer}.{name}"] = e4m3(codes) * 2.0 ** (int(scales[0, 0]) - E8M0)
    write(tmp_path / "model.safetensors", tensors)
    loaded = model_of("deepseek_v4").bfloat16()
    report = load_float8_checkpoint(loaded, tmp_path / "model.safetensors")
    assert {*report.layers} == expected.keys() and not report.missing and not report.unexpected and not report.ignored
    for name, values in expected.items():
        layer = loaded.get_submodule(name)
        assert layer.scale == "tensor" and np.array_equal(layer.dequantize().double().numpy(), values)
    others = [name for name in plain.state_dict() if name.rpartition(".")[0] not in expected]
    same_bits({name: loaded.state_dict()[name] for name in others}, {name: plain.state_dict()[name] for name in others})
    more = {"mtp.0.attn.wq_a.weight": ("F8_E4M3", fp8(16, 16)), "mtp.0.attn.wq_a.scale": ("F8_E8M0", exponents(1, 1))}
    write(tmp_path / "model.safetensors", tensors | more)
    again = model_of("deepseek_v4").bfloat16()
    with pytest.raises(ingot.Error, match="has no place in the model for mtp.0.attn.wq_a.scale, mtp.0.attn.wq_a.weight: give"):
        load_float8_checkpoint(again, tmp_path / "model.safetensors")
    report = load_float8_checkpoint(again, tmp_path / "model.safetensors", strict=False)
    assert {*report.layers} == expected.keys() and {*report.unexpected} == more.keys() and not report.missing
    same_bits(again.state_dict(), loaded.state_dict())
    expert = "layers.0.ffn.experts.0.w1"
    n, k = tensors[f"{expert}.weight"][1].shape
    more = {f"{expert}.weight": ("I8", np.zeros((n, k // 2), np.int8)), f"{expert}.scale": ("F8_E8M0", exponents(n, k // 32))}
    write(tmp_path / "model.safetensors", tensors | more)
    with pytest.raises(ingot.Error, match=f'"{expert}.weight": is int8, but the model has bfloat16, to which that is not converted'):
        load_float8_checkpoint(model_of("deepseek_v4").bfloat16(), tmp_path / "model.safetensors", strict=False)


# ---- Mixtral in FP8 --------------------------------------------------------------------------------------------------


def mixtral():
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS, "num_hidden_layers": 1, "head_dim": 40}
    return model_of("mixtral", **sizes).bfloat16()


SHAPES = {"w1": (INNER, HIDDEN), "w2": (HIDDEN, INNER), "w3": (INNER, HIDDEN)}
EXPERT = "model.layers.0.block_sparse_moe.experts.{}.{}.weight"


def over_blocks(scales, n, k):
    return np.repeat(np.repeat(scales, 128, 0), 128, 1)[:n, :k]


KINDS = {  # the tensor's suffix, its shape, and its values over the codes
    "blocks": ("_scale_inv", lambda n, k: (-(-n // 128), -(-k // 128)), over_blocks),
    "rows": ("_scale", lambda n, k: (n, 1), lambda scales, n, k: scales),
    "tensor": ("_scale", lambda n, k: (), lambda scales, n, k: scales),
}


def write_sharded(folder, model, experts, quantization):
    """Two files and their index: the model's tensors in 16 bits but for those of its experts, and these as the hub calls them."""
    own = {
        name.replace(".mlp.", ".block_sparse_moe."): ("BF16", value.view(torch.int16).numpy())
        for name, value in model.state_dict().items()
        if ".experts." not in name
    }
    files = {"model-00001-of-00002.safetensors": own, "model-00002-of-00002.safetensors": experts}
    for file, tensors in files.items():
        write(folder / file, tensors)
    index = {"metadata": {}, "weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))


def float8_experts(kind):
    """The file's tensors, and codes, scale_inv and float64 values by (expert, part)."""
    suffix, shape, over = KINDS[kind]
    tensors, codes, scales, values = {}, {}, {}, {}
    for at in ((expert, part) for expert in range(EXPERTS) for part in SHAPES):
        codes[at], scales[at] = fp8(*SHAPES[at[1]]), f32(*shape(*SHAPES[at[1]]))
        values[at] = e4m3(codes[at]) * over(np.asarray(scales[at], dtype=np.float64), *SHAPES[at[1]])
        name = EXPERT.format(*at)
        tensors[name], tensors[name + suffix] = ("F8_E4M3", codes[at]), ("F32", np.asarray(scales[at]))
        tensors[name.removesuffix("weight") + "input_scale"] = ("F32", f32(1))
    return tensors, codes, scales, values


def stacks(of):
    """gate_up_proj and down_proj of what each expert has as w1, w3 and w2."""
    both = [np.concatenate([of[expert, "w1"], of[expert, "w3"]]) for expert in range(EXPERTS)]
    return {"gate_up_proj": np.stack(both), "down_proj": np.stack([of[expert, "w2"] for expert in range(EXPERTS)])}


def emptied(model, on_meta):
    if on_meta:
        with torch.device("meta"):
            return type(model)(model.config).bfloat16()
    for parameter in (empty := copy.deepcopy(model)).parameters():
        parameter.data.zero_()
    return empty


@torch.no_grad()
@pytest.mark.parametrize(
    "kind, converted, on_meta", in_ci(lambda kind, *others: others == (kind != "tensor", kind == "blocks"), KINDS, [False, True], [False, True])
)
def test_mixtral_in_float8(tmp_path, kind, converted, on_meta):
    model = mixtral()
    tensors, _, _, values = float8_experts(kind)
    write_sharded(tmp_path, model, tensors, fine([128, 128]))
    loaded = emptied(model, on_meta)
    if converted:
        convert_experts_(loaded)
    report = load_float8_checkpoint(loaded, tmp_path)
    names = {EXPERT.format(expert, part) for expert in range(EXPERTS) for part in SHAPES}
    assert set(report.decoded) == set(report.stacked) == names and not report.unexpected
    assert len(report.ignored) == len(names) and all(".block_sparse_moe." in each for each in report.ignored)
    module = loaded.model.layers[0].mlp
    assert torch.equal(module.gate.weight, model.model.layers[0].mlp.gate.weight)
    for name, expected in stacks(values).items():
        assert torch.equal(getattr(module.experts, name), torch.from_numpy(expected.astype(np.float32)).bfloat16())


@torch.no_grad()
@pytest.mark.parametrize(
    "format, kind, on_meta",
    in_ci(lambda format, kind, on_meta: on_meta == (kind == "tensor"), ["float8", "e4m3fn"], ["rows", "tensor"], [False, True]),
)
def test_codes_go_into_quantized_experts(tmp_path, format, kind, on_meta):
    model = mixtral()
    tensors, codes, scales, _ = float8_experts(kind)
    write_sharded(tmp_path, model, tensors, group("channel"))
    loaded = emptied(model, on_meta)
    names = quantize_experts_(loaded, format)
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.experts == tuple(names) and not report.decoded and not report.unexpected
    module = loaded.get_submodule(names[0])
    of_rows = stacks({at: np.broadcast_to(each, (SHAPES[at[1]][0], 1)) for at, each in scales.items()})
    for name, expected in stacks(codes).items():
        scale_inv = torch.from_numpy(of_rows[name][..., 0].copy())
        assert torch.equal(getattr(module, f"{name}_scale_inv").reshape(scale_inv.shape), scale_inv)
        if format == "float8":
            assert torch.equal(getattr(module, name).view(torch.uint8), torch.from_numpy(expected))
        else:
            values = torch.from_numpy(e4m3(expected) * of_rows[name]).float()
            assert torch.equal(stored(module, name).dequantize(torch.float32), values)


@torch.no_grad()
def test_mxfp4_goes_into_quantized_experts(tmp_path):
    model = mixtral()
    tensors, values = {}, {}
    for at in ((expert, part) for expert in range(EXPERTS) for part in SHAPES):
        n, k = SHAPES[at[1]]
        codes, scales = np.random.default_rng(sum(map(ord, at[1]))).integers(0, 16, (n, k)).astype(np.uint8), exponents(n, k // 32)
        values[at] = float_of_bits(codes, 2, 1, 1) * of_32(scales, k)
        name = EXPERT.format(*at)
        tensors[f"{name}_packed"], tensors[f"{name}_scale"] = ("U8", pairs(codes)), ("U8", scales)
    write_sharded(tmp_path, model, tensors, group("group", "mxfp4-pack-quantized"))
    quantize_experts_(model, "e2m1fn")
    load_float8_checkpoint(model, tmp_path)
    for name, expected in stacks(values).items():
        found = stored(model.model.layers[0].mlp.experts, name).dequantize(torch.float32)
        assert torch.equal(found, torch.from_numpy(expected.astype(np.float32)))


FAULTS = {
    "blocks": ({}, "float8", r'w1.weight": is e4m3fn with scale_inv of shape \(2, 2\), but quantize_experts_\(\) made e4m3fn with one for each row: load first'),
    "blocks in 16 bits": ({}, "e4m3fn", r'w1.weight": is e4m3fn of \(192, 160\) with scale_inv of shape \(2, 2\), but quantize_experts_\(\) made e4m3fn'),
    "shape of codes": (
        {EXPERT.format(0, "w1"): ("F8_E4M3", fp8(INNER - 1, HIDDEN))}, "float8",
        r'experts.0.w1.weight": has shape \(191, 160\), but the model\'s stack asks for \(192, 160\)',
    ),
    "shape": (
        {EXPERT.format(1, "w2"): ("F8_E4M3", fp8(HIDDEN, INNER - 1))}, None,
        r'experts.1.w2.weight": has shape \(160, 191\), but the model\'s stack asks for \(160, 192\)',
    ),
    "no scale": ({EXPERT.format(2, "w3") + "_scale_inv": None}, None, 'block_sparse_moe.experts.2.w3.weight": comes without scale_inv'),
    "no expert": (
        {EXPERT.format(2, "w3") + each: None for each in ("", "_scale_inv")}, None,
        "lacks model.layers.0.mlp.experts.gate_up_proj: .*; the model has no place for model.layers.0.block_sparse_moe.experts.0.w1.weight, ",
    ),
    "both names": (
        {"model.layers.0.mlp.experts.0.gate_proj.weight": ("BF16", fp8(INNER, HIDDEN).astype(np.uint16))}, None,
        "has no place in the model for model.layers.0.block_sparse_moe.experts.0.w1.weight",
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_stacks_of_granite_in_float8(tmp_path, suffix):
    """One weight of all experts, and its scales, become a stack without a layer."""
    made = model_of("granitemoe", num_hidden_layers=1).bfloat16().model.layers[0].block_sparse_moe
    tensors, values = {"router.layer.weight": ("BF16", made.router.weight.view(torch.int16).numpy())}, {}
    for part, name in (("input_linear", "gate_up_proj"), ("output_linear", "down_proj")):
        experts, n, k = getattr(made.experts, name).shape
        codes, scales = fp8(experts, n, k), f32(experts, n, 1)
        tensors[f"{part}.weight"], tensors[f"{part}.weight{suffix}"] = ("F8_E4M3", codes), ("F32", scales)
        values[name] = torch.from_numpy((e4m3(codes) * scales).astype(np.float32)).bfloat16()
    write(tmp_path / "model.safetensors", tensors)
    assert sorted(load_float8_checkpoint(made, tmp_path).stacked) == ["input_linear.weight", "output_linear.weight"]
    assert all(torch.equal(getattr(made.experts, name), value) for name, value in values.items())


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_files_tensor(tmp_path, fault):
    changes, format, message = FAULTS[fault]
    model = mixtral()
    tensors = {**float8_experts("blocks")[0], **changes}
    write_sharded(tmp_path, model, {name: each for name, each in tensors.items() if each is not None}, fine([128, 128]))
    if format:
        quantize_experts_(model, format)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ingot.Error, match=message):
        load_float8_checkpoint(model, tmp_path)
    same_bits(model.state_dict(), before)


@pytest.mark.parametrize("format", ["float8", "e2m1fn"])
def test_quantized_experts_refuse_values_of_mixtral(tmp_path, format):
    model = mixtral()
    model.save_pretrained(tmp_path)
    quantize_experts_(model, format)
    with pytest.raises(ingot.Error, match=r'block_sparse_moe.experts.0.w1.weight": is bfloat16, but .*quantize_experts_\(\)'):
        load_float8_checkpoint(model, tmp_path)


@torch.no_grad()
def test_saved_again(tmp_path):
    model = mixtral()
    convert_experts_(model)
    quantize_(model, FrozenFloat8Config(scale="row"))
    save_float8_checkpoint(model, tmp_path / "trained")
    config = json.loads((tmp_path / "trained" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    (tmp_path / "plain" / "model.safetensors").symlink_to(tmp_path / "trained" / "model.safetensors")
    theirs, info = type(model).from_pretrained(tmp_path / "plain", output_loading_info=True, dtype=torch.bfloat16)
    assert not info["missing_keys"] and all(re.search(r"(self_attn.\w+|lm_head).weight_scale$", each) for each in info["unexpected_keys"])
    same_bits(theirs.model.layers[0].mlp.state_dict(), model.model.layers[0].mlp.state_dict())
    quantize_experts_(model)
    save_float8_checkpoint(model, tmp_path / "quantized")
    for folder in ("trained", "quantized"):
        loaded = mixtral()
        if folder == "quantized":
            quantize_experts_(loaded)
        load_float8_checkpoint(loaded, tmp_path / folder, layers="frozen")
        if folder == "quantized":
            same_bits(loaded.state_dict(), model.state_dict())


def test_a_model_of_the_files_names_is_read_as_it_is(tmp_path):
    """transformers 4 has Mixtral's layers as the hub has them."""
    experts = torch.nn.ModuleList(torch.nn.ModuleDict({part: torch.nn.Linear(64, 64, bias=False) for part in SHAPES}) for _ in range(2))
    model = torch.nn.ModuleDict({"block_sparse_moe": torch.nn.ModuleDict({"experts": experts}), "mlp": torch.nn.Linear(64, 64, bias=False)})
    write(tmp_path / "model.safetensors", {name: ("F32", f32(64, 64)) for name in model.state_dict()})
    assert not load_float8_checkpoint(model, tmp_path).unexpected
