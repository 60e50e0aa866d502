"""What save_float8_checkpoint() writes of mixtures of experts is what readers of their published files look for. transformers is the
judge: its save_pretrained() of the same model in bfloat16, and its from_pretrained()."""

import copy
import json
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
safetensors = pytest.importorskip("safetensors.torch")

import ingot
from conftest import in_ci
from expert_families import FAMILIES, model_of, same_bits
from ingot.integrations.experts import convert_experts_, quantize_experts_
from ingot.nn import FrozenFloat8Config, convert, load_float8_checkpoint, quantize_, save_float8_checkpoint

WHOLE = ("gpt_oss", "llama4_text")  # files have stacks, as the model has them: (experts, K, N)
STACKS = ("granitemoe", "granitemoeshared", "granitemoehybrid", "hy_v4")  # files have stacks (experts, N, K)
WITHOUT_EXPERTS = ("llama4_text", "longcat_flash")  # which ingot.integrations.experts does not take
IN_CI = ("mixtral", "phimoe", "granitemoe", "nemotron_h", "hy_v3", "hy_v4", "kimi_linear", "laguna", "deepseek_v4", "qwen3_moe", "gpt_oss")


def read(folder):
    return safetensors.load_file(folder / "model.safetensors")


def is_scale(name):
    return name.endswith(("weight_scale", "_scale_inv"))


def scales_of(tensors, name):
    """scale_inv of a weight of a file, spread over it."""
    codes = tensors[name]
    scales = next(tensors[each] for each in (f"{name}_scale", f"{name}_scale_inv") if each in tensors)
    scales = scales.reshape(*scales.shape, *(1,) * (codes.dim() - scales.dim()))
    for dim, size in enumerate(codes.shape):
        if scales.shape[dim] not in (1, size):
            scales = scales.repeat_interleave(128, dim).narrow(dim, 0, size)
    return scales.double()


def check_rounded(found, expected, scale_inv=0.0, more=2.0**-6):
    """By FP8: a value's nearest one of three bits, or of subnormal ones. more: of the error, for later roundings."""
    most = torch.maximum(expected.double().abs() / 16, torch.as_tensor(scale_inv) * 2.0**-10) * (1 + more)
    assert found.shape == expected.shape and ((found.double() - expected.double()).abs() <= most).all()


def matches(entry, name):
    """As engines look names of layers up."""
    return bool(re.match(entry[3:], name)) if entry.startswith("re:") else name == entry or name.startswith(f"{entry}.")


def check_config(config, tensors):
    """Layers are in FP8, or listed as not converted, by the file's names."""
    ignored = config["modules_to_not_convert"] if config["quant_method"] == "fp8" else config["ignore"]
    targets = [each for group in config.get("config_groups", {}).values() for each in group["targets"]]
    for name, value in tensors.items():
        layer = name.removesuffix(".weight")
        if name.endswith(".weight") and value.dim() == 2 and "embed" not in name:
            is_codes = value.dtype == torch.float8_e4m3fn
            assert any(matches(each, layer) for each in ignored) == (not is_codes), layer
            if is_codes and targets not in ([], ["Linear"]):
                assert any(matches(each, layer) for each in targets), layer


def trained(family, recipe="rowwise", **others):
    model = model_of(family, **others).bfloat16()
    plain = copy.deepcopy(model)
    convert(model, recipe)
    if family in (*WITHOUT_EXPERTS, "llama"):
        return model, plain
    convert_experts_(model, recipe if recipe != "rowwise_folded" else "rowwise")
    return model, plain


@torch.no_grad()
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("family", in_ci(lambda name: name in IN_CI, FAMILIES))
def test_names_shapes_and_values(tmp_path, family, quantized):
    """quantized: experts in FP8 by rows; else they are cast in blocks from what was trained, where the file has layers of each."""
    model, plain = trained(family, "rowwise" if quantized else "blockwise")
    plain.save_pretrained(tmp_path / "theirs")
    expected = read(tmp_path / "theirs")
    if quantized and family not in (*WITHOUT_EXPERTS, "llama"):
        quantize_experts_(model)
    config = save_float8_checkpoint(model, tmp_path / "ours", scale=None if quantized else "128x128")
    found = read(tmp_path / "ours")
    assert {name for name in found if not is_scale(name)} == expected.keys()
    for name, value in expected.items():
        each = found[name]
        if each.dtype != torch.float8_e4m3fn:
            assert each.dtype == value.dtype and torch.equal(each, value), name
            continue
        scale_inv = scales_of(found, name)
        is_transposed = family in WHOLE and each.dim() == 3
        check_rounded(each.double() * scale_inv, value.transpose(1, 2) if is_transposed else value, scale_inv)
    of_experts = [name for name in expected if re.search(r"\.experts\.(\d+\.)?\w*(proj|w[123])(\.weight)?$|moe\.\w+put_linear", name)]
    in_float8 = family not in WITHOUT_EXPERTS and (quantized or family not in (*WHOLE, *STACKS))
    assert of_experts or family == "llama"
    assert all((found[name].dtype == torch.float8_e4m3fn) == in_float8 for name in of_experts)
    assert config["quant_method"] == ("compressed-tensors" if quantized else "fp8")
    check_config(config, found)


@torch.no_grad()
@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("family", in_ci(lambda name: name in ("mixtral", "granitemoe", "hy_v3", "gpt_oss"), FAMILIES))
def test_all_bits_come_back(tmp_path, family, published):
    """Of the model's own names too, which earlier versions wrote."""

    def quantized(model):
        if family not in (*WITHOUT_EXPERTS, "llama"):
            quantize_experts_(model)
        quantize_(model, FrozenFloat8Config(scale="row"))
        return model

    model = quantized(model_of(family).bfloat16())
    save_float8_checkpoint(model, tmp_path, published_names=published)
    if not published:
        names = {re.sub(r"weight_scale$|weight_codes$", "weight", name) for name in read(tmp_path)}
        assert names >= {name for name, _ in model.named_parameters()}
        assert all(name in names for name in model.state_dict() if ".experts." in name)
    loaded = model_of(family).bfloat16()
    for each in loaded.parameters():
        each.zero_()
    if family not in (*WITHOUT_EXPERTS, "llama"):
        quantize_experts_(loaded)
    report = load_float8_checkpoint(loaded, tmp_path, layers="frozen")
    assert not report.unexpected and not report.missing
    same_bits(loaded.state_dict(), model.state_dict())
    if family not in WHOLE:
        decoded = model_of(family).bfloat16()
        load_float8_checkpoint(decoded, tmp_path)
        state = decoded.state_dict()
        for name, value in model_of(family).bfloat16().state_dict().items():
            if name in state and state[name].dtype == value.dtype:
                check_rounded(state[name], value, value.abs().max() / 448)


READERS = {"128x128": "blockwise", "row": "rowwise", "tensor": "tensorwise", "quantized": "blockwise"}


@torch.no_grad()
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("family", in_ci(lambda name: name in ("mixtral", "qwen3_moe"), FAMILIES))
def test_transformers_reads_the_folder(tmp_path, family, kind):
    """Its quantizers of fine-grained FP8 and of compressed-tensors, both decoding into bfloat16."""
    if kind == "quantized" and family in (*WHOLE, *STACKS):
        pytest.skip("it reads no stacks in FP8 by rows")
    if kind != "128x128" and family == "llama4_text":
        pytest.skip("its compressed-tensors wants layers of each expert of Llama 4, of which save_pretrained() writes stacks")
    model, plain = trained(family, READERS[kind])
    if kind == "quantized" and family not in (*WITHOUT_EXPERTS, "llama"):
        quantize_experts_(model)
    how = {}
    config = save_float8_checkpoint(model, tmp_path, scale=None if kind == "quantized" else kind)
    if config["quant_method"] == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
        how["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    theirs, info = type(plain).from_pretrained(tmp_path, output_loading_info=True, dtype=torch.bfloat16, **how)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    found = theirs.state_dict()
    for name, value in plain.state_dict().items():
        if kind == "128x128" and any(size > 128 and size % 128 for size in value.shape):
            continue  # it takes the rows over the number of blocks for a block's
        check_rounded(found[name], value, value.abs().max() / 224, more=2.0**-3)  # powers of two; products of bfloat16


@torch.no_grad()
@pytest.mark.parametrize("family, published", [("gpt_oss", True), ("hy_v4", True), ("mixtral", False), ("mixtral", True)])
def test_stacks_that_transformers_would_take_for_values(tmp_path, family, published):
    """What compressed-tensors knows no status by is an error, which shows it. Layers of each expert are read."""
    model = model_of(family).bfloat16()
    quantize_experts_(model)
    config = save_float8_checkpoint(model, tmp_path, published_names=published)
    says = "compressed" if family == "mixtral" and published else "for ingot.nn.load_float8_checkpoint() alone"
    assert config["quantization_status"] == says
    if says != "compressed":
        load_float8_checkpoint(model, tmp_path)
        pytest.importorskip("compressed_tensors")
        for how in ({}, {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}):
            with pytest.raises(ValueError, match=re.escape(says)):
                type(model).from_pretrained(tmp_path, dtype=torch.bfloat16, **how)


@torch.no_grad()
@pytest.mark.parametrize("scale", [None, "row"])
def test_layers_that_transformers_keeps_in_float32(tmp_path, scale):
    """Its fine-grained FP8, which does not convert them, would take their codes for values."""
    model, plain = trained("deepseek_v32", "blockwise")
    config = save_float8_checkpoint(model, tmp_path, scale=scale)
    layers = [f"model.layers.{layer}.self_attn.indexer.weights_proj" for layer in range(2)]
    assert {*layers} <= {*config["modules_to_not_convert" if scale is None else "ignore"]}
    for name in layers:
        assert torch.equal(read(tmp_path)[f"{name}.weight"], plain.get_submodule(name).weight)
    check_config(config, read(tmp_path))


@torch.no_grad()
def test_scales_of_several_kinds(tmp_path):
    """Experts are a group by a pattern, and layers by the file's names and the model's."""
    model, _ = trained("hy_v3", "blockwise")
    quantize_experts_(model)
    config = save_float8_checkpoint(model, tmp_path)
    groups = {group["weights"]["strategy"]: group["targets"] for group in config["config_groups"].values()}
    assert groups["channel"] == [r"re:model\.layers\.1\.mlp\.experts\..*"]  # the first layer has no experts
    assert {f"model.layers.1.mlp.{each}.up_proj" for each in ("shared_mlp", "shared_experts")} <= {*groups["block"]}
    assert config["ignore"] == ["model.layers.1.mlp.router.gate", "lm_head"]
    check_config(config, read(tmp_path))


@torch.no_grad()
def test_experts_in_high_precision_are_not_converted(tmp_path):
    model, _ = trained("mixtral")
    config = save_float8_checkpoint(model, tmp_path)
    assert config["ignore"][-2:] == [rf"re:model\.layers\.{layer}\.block_sparse_moe\.experts\..*" for layer in range(2)]
    check_config(config, read(tmp_path))


@torch.no_grad()
@pytest.mark.parametrize("family", in_ci(lambda name: name == "nemotron_h", [each for each in FAMILIES if each != "hy_v4"]))
def test_a_model_without_its_head(tmp_path, family):
    _, plain = trained(family)
    plain.model.save_pretrained(tmp_path / "theirs")
    model = copy.deepcopy(plain.model)
    quantize_(model, FrozenFloat8Config(scale="row"))
    save_float8_checkpoint(model, tmp_path / "ours")
    assert {name for name in read(tmp_path / "ours") if not is_scale(name)} == read(tmp_path / "theirs").keys()


@torch.no_grad()
def test_one_expert(tmp_path):
    model, plain = trained("qwen3_moe", num_experts=1, num_experts_per_tok=1)
    plain.save_pretrained(tmp_path / "theirs")
    loaded = copy.deepcopy(plain)
    for each in loaded.parameters():
        each.zero_()
    load_float8_checkpoint(loaded, tmp_path / "theirs")
    same_bits(loaded.state_dict(), plain.state_dict())
    quantize_experts_(model)
    quantize_experts_(loaded)
    save_float8_checkpoint(model, tmp_path / "ours")
    assert "model.layers.0.mlp.experts.0.down_proj.weight_scale" in read(tmp_path / "ours")
    load_float8_checkpoint(loaded, tmp_path / "ours")
    same_bits(loaded.model.layers[0].mlp.state_dict(), model.model.layers[0].mlp.state_dict())


@torch.no_grad()
def test_first_layers_without_experts(tmp_path):
    """Kimi Linear has them as mlp, of which transformers' save_pretrained() makes block_sparse_moe."""
    model = model_of("kimi_linear", mlp_layer_types=["dense", "sparse"])
    quantize_(model, FrozenFloat8Config(scale="row"))
    save_float8_checkpoint(model, tmp_path)
    names = read(tmp_path).keys()
    assert "model.layers.0.mlp.gate_proj.weight" in names and "model.layers.1.block_sparse_moe.gate.weight" in names
    assert not any("layers.0.block_sparse_moe" in name or "layers.1.mlp" in name for name in names)


@torch.no_grad()
def test_families_that_the_table_lacks_keep_the_models_names(tmp_path):
    model, _ = trained("mixtral")
    model.config.model_type = "other_moe"
    save_float8_checkpoint(model, tmp_path, scale="row")
    assert read(tmp_path)["model.layers.0.mlp.experts.gate_up_proj"].dtype == torch.bfloat16


@torch.no_grad()
def test_an_expert_that_cannot_be_cast(tmp_path):
    model, _ = trained("mixtral")
    model.model.layers[1].mlp.experts.down_proj[2, 3, 4] = float("nan")
    with pytest.raises(ingot.Error, match=r'"model.layers.1.mlp.experts.down_proj": has values that are Inf or NaN, .*: mend the weight'):
        save_float8_checkpoint(model, tmp_path, scale="row")


@torch.no_grad()
def test_nothing_to_write_in_float8(tmp_path):
    with pytest.raises(ingot.Error, match=r"or pass scale= for modules of ingot.nn in high precision and experts of convert_experts_\(\)$"):
        save_float8_checkpoint(model_of("mixtral"), tmp_path, scale="row")


@torch.no_grad()
def test_one_scale_for_each_row_of_stacks(tmp_path):
    """What quantized experts of GraniteMoe take from a stack by another name."""
    model, _ = trained("granitemoe")
    quantize_experts_(model)
    save_float8_checkpoint(model, tmp_path)
    tensors = read(tmp_path)
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    tensors[f"{name}_scale"] = tensors[f"{name}_scale"][:, :1].contiguous()
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    wants = r'input_linear.weight": is e4m3fn with scale_inv of shape \(4, 1\), but quantize_experts_\(\) made e4m3fn with one for each row'
    with pytest.raises(ingot.Error, match=wants):
        load_float8_checkpoint(model, tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("quantized", [True, False])
def test_experts_of_one_rank(tmp_path, quantized):
    """As expert parallelism leaves them without DTensors: by which numbers the model has them is not known here."""
    model, _ = trained("mixtral")
    for layer in model.model.layers:
        for key in ("gate_up_proj", "down_proj"):
            setattr(layer.mlp.experts, key, torch.nn.Parameter(getattr(layer.mlp.experts, key)[2:].clone()))
    if quantized:
        quantize_experts_(model)
    says = r'"model.layers.0.mlp.experts": has 2 of the 4 experts of its config: expert parallelism has divided them, .*: divide them as'
    with pytest.raises(ingot.Error, match=says):
        save_float8_checkpoint(model, tmp_path, scale=None if quantized else "row")


@torch.no_grad()
@pytest.mark.parametrize("format", [None, "float8", "e4m3fn"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("first", ["mlp", "scaled"])
def test_a_block_of_two_names(tmp_path, format, device, first):
    """Layers that share their experts, and a module with a buffer, are written by their first names, and loaded by these, also where
    they are not the first ones of the model that loads."""

    def shared(model):
        model.model.layers[1].mlp = model.model.layers[0].mlp
        for layer in model.model.layers:
            layer.scaled = model.model.layers[0].mlp
        model.model.layers[0].mlp.register_buffer("steps", torch.arange(3, device=next(model.parameters()).device))
        return model

    saved = shared(model_of("mixtral").bfloat16())
    quantize_experts_(saved)
    save_float8_checkpoint(saved, tmp_path)
    with torch.device(device):
        loaded = shared(transformers.AutoModelForCausalLM.from_config(saved.config).bfloat16())
    if first == "scaled":
        for layer in loaded.model.layers:
            layer._modules["mlp"] = layer._modules.pop("mlp")
    if format:
        quantize_experts_(loaded, format)
    report = load_float8_checkpoint(loaded, tmp_path, device="cpu")
    assert report.experts == ((f"model.layers.0.{first}.experts",) if format else ())
    assert not [name for name in report.missing if "rotary" not in name] and not report.unexpected
    if format == "float8":
        found, expected = loaded.state_dict(), saved.state_dict()
        same_bits({name: found[name] for name in expected}, expected)
    assert loaded.model.layers[1].mlp.experts.down_proj is loaded.model.layers[0].mlp.experts.down_proj
    assert not any(each.is_meta for each in loaded.state_dict().values())


@torch.no_grad()
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("format", ["float8", "e4m3fn"])
def test_codes_of_a_block_of_two_names(tmp_path, format, equal):
    """The file has the experts of one block for two layers."""

    def shared(model):
        model.model.layers[1].mlp = model.model.layers[0].mlp
        return model

    saved = shared(model_of("mixtral").bfloat16())
    quantize_experts_(saved)
    save_float8_checkpoint(saved, tmp_path)
    tensors = read(tmp_path)
    block, other = (f"model.layers.{layer}.block_sparse_moe." for layer in range(2))
    tensors |= {name.replace(block, other): each.clone() for name, each in tensors.items() if name.startswith(block)}
    scale = f"{other}experts.3.w2.weight_scale"
    tensors[scale] = tensors[scale] if equal else tensors[scale] * 2
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    loaded = shared(transformers.AutoModelForCausalLM.from_config(saved.config).bfloat16())
    quantize_experts_(loaded, format)
    if equal:
        load_float8_checkpoint(loaded, tmp_path)
        if format == "float8":
            same_bits(loaded.state_dict(), saved.state_dict())
    else:
        with pytest.raises(ingot.Error, match=f'"{other}experts.*": has other values than "{block}experts'):
            load_float8_checkpoint(loaded, tmp_path)


def test_config_of_the_folder(tmp_path):
    model, _ = trained("phimoe")
    with torch.no_grad():
        quantize_experts_(model)
    config = save_float8_checkpoint(model, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["quantization_config"] == config and written["model_type"] == "phimoe"
    names = [f"model.layers.{layer}.{each}" for layer in range(2) for each in ("block_sparse_moe.gate", "mlp.router")]
    assert config["ignore"] == [*names, "lm_head"]  # transformers looks for layers by its modules' names
