"""Every public layout of FP8 and MX weights in a linear layer, written byte by byte (checkpoint_layouts.py) or by its own
library, and compared with values that float64 arithmetic decodes from the bits."""

import importlib.util
import json
import math

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import ingot
from checkpoint_layouts import (
    K, LAYOUTS, N, OF_INPUT, comfy, e4m3, e5m2, equal, exponents, f32, fine, float_of_bits, fp8, group, model,
    of_32, quark, save, whole,
)  # fmt: skip
from ingot.nn import FrozenFloat8Linear, WeightOnlyLinear, load_float8_checkpoint
from ingot.nn._checkpoint_files import Reader


@pytest.mark.parametrize("layers", ["weight_only", "frozen"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout(tmp_path, layout, layers):
    tensors, config, values = LAYOUTS[layout]()
    save(tmp_path, whole(tensors), config)
    loaded = model("meta")
    is_mx = any(each in layout for each in ("MX", "gpt-oss"))
    if layers == "frozen" and is_mx:
        with pytest.raises(ingot.Error, match=r'tensor "proj.weight.*has MX scales, .* load with layers="weight_only"'):
            load_float8_checkpoint(loaded, tmp_path, layers=layers)
        return
    if layers == "frozen" and "group" in layout:
        with pytest.raises(ingot.Error, match="is not one of tensor, row, 128x128"):
            load_float8_checkpoint(loaded, tmp_path, layers=layers)
        return
    report = load_float8_checkpoint(loaded, tmp_path, layers=layers)
    layer = loaded["proj"]
    assert type(layer) is (WeightOnlyLinear if layers == "weight_only" else FrozenFloat8Linear)
    assert report.layers == ("proj",) and report.missing == report.unexpected == report.decoded == ()
    assert layer.scale == "mx" if is_mx else layer.scale != "mx"
    equal(layer.dequantize(), values)
    assert type(loaded["head"]) is torch.nn.Linear
    kept = layers == "frozen" and "input_scale" in tensors
    assert kept == (getattr(layer, "input_scale", None) is not None)
    ignored = 5 + sum(name in tensors for name in OF_INPUT) - kept
    assert len(report.ignored) == ignored
    assert f"{ignored} scales of activations, the KV cache and delayed scaling ignored: " in str(report)
    x = torch.randn(3, K, dtype=torch.bfloat16)
    expected = x.double() @ torch.tensor(values).T
    assert (layer(x).double() - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_keep_values(tmp_path, layout):
    """The same weight, decoded: an embedding has no layer of codes."""
    tensors, config, values = LAYOUTS[layout]()
    save(tmp_path, whole(tensors), config)
    loaded = torch.nn.ModuleDict({"proj": torch.nn.Embedding(N, K), "head": torch.nn.Linear(K, 8, bias=False)})
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.decoded == ("proj.weight",) and report.layers == report.stacked == ()
    equal(loaded["proj"].weight.detach(), values)


def test_hf_quant_config(tmp_path):
    """ModelOpt says there what config.json does not."""
    tensors, _, values = LAYOUTS["ModelOpt blocks"]()
    save(tmp_path, whole(tensors))
    (tmp_path / "config.json").write_text('{"hidden_size": 192}')
    found = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8_PB_WO", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(found))
    loaded = model()
    load_float8_checkpoint(loaded, tmp_path)
    equal(loaded["proj"].dequantize(), values)
    found["quantization"]["quant_algo"] = "NVFP4"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(found))
    with pytest.raises(ingot.Error, match="quant_algo: is 'NVFP4', but of ModelOpt's layouts these are read: FP8, "):
        load_float8_checkpoint(model(), tmp_path)


def test_scales_of_the_cache_that_the_model_has(tmp_path):
    tensors, config, _ = LAYOUTS["compressed tensor"]()
    save(tmp_path, whole(tensors), config)
    loaded = model()
    for name in ("k_scale", "v_scale"):
        loaded[name] = torch.nn.Module()
    loaded["proj"].register_buffer("k_scale", torch.zeros(1))
    names = ("proj.v_scale", "proj.q_scale", "proj.kv_scale", "proj.prob_output_scale", "proj.input_scale")
    kept = torch.nn.ModuleDict({"proj": torch.nn.Module(), "head": torch.nn.Linear(K, 8, bias=False)})
    kept["proj"].register_buffer("k_scale", torch.zeros(1))
    report = load_float8_checkpoint(kept, tmp_path, strict=False)
    assert sorted(report.ignored) == sorted(names) and report.unexpected == ("proj.weight", "proj.weight_scale")
    assert kept["proj"].k_scale.item() == Reader(str(tmp_path)).read("proj.k_scale").item()


# ---- codes that are values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["weight_only", "frozen"])
def test_codes_without_scales(tmp_path, layers):
    """Everything in float8, norms and biases too, as diffusion models come."""
    codes, bias, norm, table = fp8(N, K), fp8(N), fp8(K), fp8(5, K, most=124)
    tensors = {"0.weight": ("F8_E4M3", norm), "1.weight": ("F8_E4M3", codes), "1.bias": ("F8_E4M3", bias)}
    save(tmp_path, {**tensors, "2.weight": ("F8_E5M2", table)})
    kind = {"dtype": torch.bfloat16}
    made = lambda: torch.nn.Sequential(torch.nn.RMSNorm(K, **kind), torch.nn.Linear(K, N, **kind), torch.nn.Embedding(5, K))
    with pytest.raises(ingot.Error, match='"1.weight": comes without scale_inv: .* values themselves, load with unscaled=True'):
        load_float8_checkpoint(made(), tmp_path, layers=layers)
    loaded = made()
    report = load_float8_checkpoint(loaded, tmp_path, layers=layers, unscaled=True)
    assert report.layers == ("1",) and set(report.decoded) == {"0.weight", "1.bias", "2.weight"}
    equal(loaded[1].dequantize(), e4m3(codes))
    for found, expected in ((loaded[1].bias, e4m3(bias)), (loaded[0].weight, e4m3(norm)), (loaded[2].weight, e5m2(table))):
        equal(found.detach().float(), expected)


def test_a_bias_with_a_scale(tmp_path):
    tensors, config, _ = LAYOUTS["compressed tensor"]()
    bias = fp8(N)
    scales = {"bias": ("F8_E4M3", bias), "bias_scale": ("F32", np.float32([0.5]))}
    save(tmp_path, whole({**tensors, **scales}), config)
    loaded = model()
    loaded["proj"] = torch.nn.Linear(K, N, dtype=torch.float16)
    load_float8_checkpoint(loaded, tmp_path)
    equal(loaded["proj"].bias.detach().float(), e4m3(bias) / 2)


@pytest.mark.parametrize("columns", [32, 33, 100, 130])
def test_rows_that_end_within_a_group(tmp_path, columns):
    codes, scales = fp8(5, columns), exponents(5, -(-columns // 32))
    save(tmp_path, {"0.weight": ("F8_E4M3", codes), "0.weight_scale_inv": ("U8", scales)}, fine([1, 32]))
    loaded = torch.nn.Sequential(torch.nn.Linear(columns, 5, bias=False))
    load_float8_checkpoint(loaded, tmp_path)
    assert loaded[0].scale == "mx"
    equal(loaded[0].dequantize(), e4m3(codes) * of_32(scales, columns))


# ---- files by the layouts' own libraries ----------------------------------------------------------------------------

SCHEMES = {
    "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "MXFP8": "mxfp8-quantized",
    "MXFP4": "mxfp4-pack-quantized",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_compressed_tensors_writes(tmp_path, scheme):
    library = pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme

    assert library and SCHEMES[scheme]
    preset = preset_name_to_scheme(scheme, ["Linear"])
    torch.manual_seed(0)
    weight = torch.randn(N, K)
    groups = {"FP8_DYNAMIC": (N, 1), "FP8_BLOCK": (2, 2)}.get(scheme, (N, K // 32))
    scales = torch.exp2(torch.randint(-9, -5, groups).float()) * (1.3 if scheme.startswith("FP8") else 256.0)
    compressor = BaseCompressor.get_value_from_registry(SCHEMES[scheme])
    stored = compressor.compress({"weight": weight, "weight_scale": scales}, preset)
    values = compressor.decompress(stored, preset)["weight"].double()
    kinds = {torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8", torch.float32: "F32"}
    tensors = {}
    for name, each in stored.items():
        raw = each.contiguous() if each.dtype == torch.float32 else each.contiguous().view(torch.uint8)
        tensors[name] = (kinds[each.dtype], raw.numpy())
    save(tmp_path, whole(tensors), group(str(preset.weights.strategy), SCHEMES[scheme]))
    loaded = model()
    load_float8_checkpoint(loaded, tmp_path)
    equal(loaded["proj"].dequantize(), values.numpy())


@pytest.mark.parametrize("what", ["float8 row", "float8 tensor", "mxfp8", "mxfp8 swizzled", "mxfp4", "mxfp4 swizzled"])
def test_torchao_writes(tmp_path, what):
    pytest.importorskip("torchao.prototype.safetensors", reason="torchao is not installed")
    from safetensors.torch import save_file
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8Tensor, PerRow, PerTensor

    torch.manual_seed(0)
    weight = torch.randn(N, K, dtype=torch.bfloat16)
    if what.startswith("mx"):
        kind = torch.float8_e4m3fn if "8" in what else torch.float4_e2m1fn_x2
        stored = MXTensor.to_mx(weight, kind, 32, is_swizzled_scales="swizzled" in what)
    else:
        stored = Float8Tensor.from_hp(weight, granularity=PerRow() if "row" in what else PerTensor())
    tensors, metadata = flatten_tensor_state_dict({"proj.weight": stored, "head.weight": torch.zeros(8, K).bfloat16()})
    save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
    loaded = model()
    assert load_float8_checkpoint(loaded, tmp_path).unexpected == ()
    equal(loaded["proj"].dequantize(), stored.dequantize(torch.float32).double().numpy())
    del metadata["proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
    with pytest.raises(ingot.Error, match='"proj._weight_qdata": has no entry of torchao in the file\'s metadata'):
        load_float8_checkpoint(model(), tmp_path)


@pytest.mark.parametrize("what", ["mxfp8", "mxfp4"])
def test_modelopt_writes(tmp_path, what):
    written = pytest.importorskip("modelopt.torch.quantization.qtensor", reason="ModelOpt is not installed")
    torch.manual_seed(0)
    weight = torch.randn(N, K)
    kind = written.MXFP8QTensor if what == "mxfp8" else written.MXFP4QTensor
    codes, scales = kind.quantize(weight, 32) if what == "mxfp4" else kind.quantize(weight)
    values = codes.dequantize(torch.float32, scale=scales, block_sizes={-1: 32}).reshape(N, K)
    tensors = {
        "weight": ("F8_E4M3" if what == "mxfp8" else "U8", codes._quantized_data.view(torch.uint8).numpy()),
        "weight_scale": ("U8", scales.reshape(N, K // 32).numpy()),
    }
    save(tmp_path, whole(tensors), {"quant_method": "modelopt", "quant_algo": what})
    loaded = model()
    load_float8_checkpoint(loaded, tmp_path)
    equal(loaded["proj"].dequantize(), values.double().numpy())


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["FP8E4M3PerTensorSpec", "FP8E4M3PerChannelSpec", "OCP_MXFP4Spec"])
def test_quark_writes(tmp_path, what):
    """A model's folder by its exporter; it keeps the values that the codes stand for in the model, in bfloat16."""
    if importlib.util.find_spec("quark") is None:
        pytest.skip("amd-quark is not installed")
    import transformers
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config import config as kinds

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    made = lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).bfloat16()
    options = {"is_dynamic": False, **({} if "Tensor" in what else {"ch_axis": -1 if "MX" in what else 0})}
    if "Tensor" in what:
        options["observer_method"] = "min_max"
    spec = getattr(kinds, what)(**options).to_quantization_spec()
    config = kinds.QConfig(global_quant_config=kinds.QLayerConfig(weight=spec), exclude=["lm_head"])
    quantizer = ModelQuantizer(config)
    written = quantizer.freeze(quantizer.quantize_model(made(), torch.utils.data.DataLoader([torch.arange(16)], batch_size=1)))
    expected = {name: each.detach().clone() for name, each in written.named_parameters() if each.dim() == 2}
    with torch.no_grad():
        export_safetensors(written, str(tmp_path))
    loaded = made()
    report = load_float8_checkpoint(loaded, tmp_path)
    assert len(report.layers) == 7 and report.unexpected == report.missing == ()
    for name in report.layers:
        assert torch.equal(loaded.get_submodule(name).dequantize().bfloat16(), expected[f"{name}.weight"]), name


class Scaled(torch.nn.Linear):
    """A layer with a tensor of its own that has the name of DeepSeek-V4's scale_inv."""

    def __init__(self):
        super().__init__(K, N, bias=False)
        self.scale = torch.nn.Parameter(torch.zeros(N))

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("layout", ["FBGEMM", "diffusion", "ModelOpt MXFP4"])
def test_a_scale_of_the_models_own(tmp_path, layout):
    """By the side of one that has another name."""
    tensors, config, values = LAYOUTS[layout]()
    own = f32(N)
    save(tmp_path, whole({**tensors, "scale": ("F32", own)}), config)
    loaded = torch.nn.ModuleDict({"proj": Scaled(), "head": torch.nn.Linear(K, 8, bias=False)})
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.decoded == ("proj.weight",) and report.missing == report.unexpected == ()
    equal(loaded["proj"].weight.detach(), values)
    equal(loaded["proj"].scale.detach(), own)


# ---- what does not fit ----------------------------------------------------------------------------------------------


def changed(layout, **changes):
    tensors = dict(LAYOUTS[layout]()[0])
    tensors.update(changes)
    return {name: each for name, each in tensors.items() if each is not None}


nan = exponents(N, K // 32)
nan[3, 1] = 255
negative = f32(N, 1)
negative[5] = -1
FAULTS = {
    "e8m0 of NaN": (lambda: changed("ModelOpt MXFP8", weight_scale=("U8", nan)), '"proj.weight_scale": has scale_inv that are NaN'),
    "blocks with NaN": (lambda: changed("gpt-oss", weight_scales=("U8", nan)), '"proj.weight_scales": has scale_inv that are NaN'),
    "negative": (lambda: changed("FBGEMM", weight_scale=("F32", negative)), "NaN, Inf or negative, but a scale_inv is finite"),
    "blocks without scales": (lambda: changed("gpt-oss", weight_scales=None), 'comes without its scales: "proj.weight_scales" is'),
    "scales without blocks": (lambda: changed("gpt-oss", weight_blocks=None), 'comes without its blocks: "proj.weight_blocks" is'),
    "packed without scales": (lambda: changed("compressed MXFP4", weight_scale=None), '_packed": comes without scale_inv: no weight_scale'),
    "scales without packed": (lambda: changed("compressed MXFP4", weight_packed=None), "lacks proj.weight: give the model"),
    "shape of blocks' scales": (lambda: changed("gpt-oss", weight_scales=("U8", exponents(N, 5))), r"shape \(160, 5\), but MX codes of"),
    "shape of packed scales": (lambda: changed("compressed MXFP4", weight_scale=("U8", exponents(N, 7))), "one scale_inv for each 32 of a"),
    "shape of MXFP8's scales": (lambda: changed("ModelOpt MXFP8", weight_scale=("U8", exponents(N, 5))), "has one scale_inv, one for each row"),
    "shape of blocks": (lambda: changed("gpt-oss", weight_blocks=("U8", exponents(N, 96))), r"but blocks of MXFP4 are uint8 \(..., N, K / 32, 16\)"),
    "rows": (lambda: changed("gpt-oss", weight_blocks=("U8", exponents(9, 6, 16)), weight_scales=("U8", exponents(9, 6))), r"has shape \(9, 192\), but the model's layer"),
    "FP6 by another library": (lambda: changed("ModelOpt MXFP4", weight=("U8", exponents(N, 144))), r"but MX codes of shape \(160, 288\) have"),
    "MX scales in float32": (lambda: changed("compressed MXFP4", weight_scale=("F32", f32(N, 6))), "is float32, but MX scales are F8_E8M0"),
    "NVFP4": (lambda: changed("compressed MXFP4", weight_scale=("F8_E4M3", fp8(N, 12))), "this is NVFP4, which no layer of Ingot has"),
    "NVFP4 of ModelOpt": (lambda: changed("ModelOpt MXFP4", weight_scale=("F8_E4M3", fp8(N, 12))), "this is NVFP4, which no layer"),
    "packed integers": (lambda: changed("compressed MXFP4", weight_packed=("I32", np.zeros((N, 24), np.int32))), "is int32, but packed codes"),
    "scaled inputs": (lambda: changed("ModelOpt", pre_quant_scale=("F32", f32(K))), '"proj.pre_quant_scale": multiplies the layer'),
    "zero points": (lambda: changed("compressed naive", weight_zero_point=("F32", f32(N, 1))), "values other than 0, but codes of floats"),
    "ComfyUI's others": (lambda: changed("ComfyUI", comfy_quant=comfy(format="nvfp4")), "but of ComfyUI's formats float8_e4m3fn, float8_e5m2 are"),
    "ComfyUI's no JSON": (lambda: changed("ComfyUI", comfy_quant=("U8", exponents(4))), "says 'None', but of ComfyUI's formats"),
    "two scales": (lambda: changed("diffusion", weight_scale=("F32", f32(1))), '"proj.scale_weight" is there too: leave one of them'),
    "scales of integers": (lambda: changed("diffusion", scale_weight=("I32", np.ones(1, np.int32))), "is int32, but scale_inv are F32"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_change_nothing(tmp_path, fault):
    """One sentence, and the model is as it was."""
    make, message = FAULTS[fault]
    save(tmp_path, whole(make()))
    loaded = model()
    before = {name: (id(each), each.detach().clone()) for name, each in loaded.named_parameters()}
    with pytest.raises(ingot.Error, match=message) as found:
        load_float8_checkpoint(loaded, tmp_path)
    assert "\n" not in str(found.value)
    assert {name: id(each) for name, each in loaded.named_parameters()} == {name: each for name, (each, _) in before.items()}
    assert all(torch.equal(each, before[name][1]) for name, each in loaded.named_parameters())


CONFIGS = {
    "integers": (group("channel", "naive-quantized", type="int"), "group_0: its weights are of type 'int', but only float is read"),
    "a group's format": (
        {**group("channel", "mixed-precision"), "config_groups": {"g": {"format": "nvfp4-pack-quantized"}}},
        "config_groups g format: is 'nvfp4-pack-quantized', but of compressed-tensors these are read: float-quantized, ",
    ),
    "sparse": (
        {**group("channel"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config: weights are stored as 'sparse-24-bitmask', but only dense ones",
    ),
    "rotated": ({**group("channel"), "transform_config": {"config_groups": {"u": {}}}}, "transform_config: the layers' inputs are to be"),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_configs_that_are_refused(tmp_path, what):
    config, message = CONFIGS[what]
    save(tmp_path, whole(LAYOUTS["compressed channel"]()[0]), config)
    with pytest.raises(ingot.Error, match=message):
        load_float8_checkpoint(model(), tmp_path)
    config.update(sparsity_config={"format": "dense"}, transform_config={}, format="float-quantized", config_groups=None)
    save(tmp_path, whole(LAYOUTS["compressed channel"]()[0]), config)
    assert load_float8_checkpoint(model(), tmp_path).layers == ("proj",)


def test_what_quark_may_say(tmp_path):
    tensors = whole(LAYOUTS["Quark"]()[0])
    of = lambda weight, **more: {**quark("fp8_e4m3", "per_tensor"), "layer_quant_config": {"*.k_proj": {"weight": weight}}, **more}
    for config, message in (
        (quark("int4", "per_group"), "global_quant_config: its weights have 'int4 per_group', but of Quark's layouts these are read:"),
        (of({"dtype": "fp6_e2m3", "qscheme": "per_group"}), r"layer_quant_config \*.k_proj: its weights have 'fp6_e2m3 per_group'"),
        (of([{"dtype": "fp4"}, {"dtype": "fp8_e4m3"}]), "its weights have 'more than one quantization', but of Quark's"),
        (of(None, algo_config=[{"name": "rotation"}]), "algo_config: 'rotation' may rotate the layers' inputs"),
        (of(None, algo_config=[{"name": "gptq"}, {"name": "svdquant"}]), "algo_config: 'svdquant' scales .* inputs and adds .*: use a"),
    ):
        save(tmp_path, tensors, config)
        with pytest.raises(ingot.Error, match=message):
            load_float8_checkpoint(model(), tmp_path)
    save(tmp_path, tensors, {**of(None), "global_quant_config": None, "layer_type_quant_config": 5})
    assert load_float8_checkpoint(model(), tmp_path).layers == ("proj",)


def test_every_code(tmp_path):
    """All bytes of FP4 and FP6 with all exponents that MX scales have: the smallest values are subnormal."""
    codes = np.tile(np.arange(256, dtype=np.uint8), (255, 1))
    scales = np.repeat(np.arange(255, dtype=np.uint8)[:, None], 16, 1)
    save(tmp_path, {"0.weight_packed": ("U8", codes), "0.weight_scale": ("U8", scales)})
    singles = np.stack([codes & 15, codes >> 4], -1).reshape(255, 512)
    with np.errstate(over="ignore"):
        expected = (float_of_bits(singles, 2, 1, 1) * of_32(scales, 512)).astype(np.float32)
    for make in (torch.nn.Embedding, lambda n, k: torch.nn.Linear(k, n, bias=False)):
        loaded = torch.nn.Sequential(make(255, 512))
        load_float8_checkpoint(loaded, tmp_path)
        found = loaded[0].dequantize() if hasattr(loaded[0], "dequantize") else loaded[0].weight.detach()
        np.testing.assert_array_equal(found.numpy(), expected)
    assert math.isinf(expected.max()) and 0 < expected[expected > 0].min() < 2.0**-126
