"""FP8 and MX weights of checkpoints in modules that keep values: stacks of experts, and layers of several parts."""

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import ingot
from checkpoint_layouts import (
    K, N, RNG, e4m3, equal, exponents, f32, fine, float_of_bits, fp8, group, model, of_32, pairs, save, whole,
    blocks, same,
)  # fmt: skip
from ingot.nn import Float8Linear, GatedMlp, load_float8_checkpoint


def experts(**shapes):
    made = torch.nn.Module()
    for name, shape in shapes.items():
        made.register_parameter(name, torch.nn.Parameter(torch.zeros(*shape, dtype=torch.bfloat16)))
    return torch.nn.ModuleDict({"experts": made})


def equal16(found, expected):
    """Values that were rounded to float32 and then to bfloat16."""
    expected = torch.tensor(expected.astype(np.float32)).bfloat16()
    assert torch.equal(found.detach(), expected)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("names", [("down_proj_blocks", "down_proj_scales"), ("down_proj.blocks", "down_proj.scales")])
@pytest.mark.parametrize("square", [False, True])
def test_experts_of_gpt_oss(tmp_path, transposed, names, square):
    """transformers has them transposed. A square one is as the other ones of the module are."""
    rows, columns = (64, 64) if square else (48, 64)
    stored, expected = {}, {}
    for name, (n, k) in {"down_proj": (rows, columns), "gate_up_proj": (96, 64)}.items():
        codes, scales = RNG.integers(0, 16, (3, n, k)).astype(np.uint8), exponents(3, n, k // 32)
        of = dict(zip(("blocks", "scales"), (each.replace("down_proj", name) for each in names)))
        stored[f"experts.{of['blocks']}"] = ("U8", pairs(codes).reshape(3, n, k // 32, 16))
        stored[f"experts.{of['scales']}"] = ("U8", scales)
        values = float_of_bits(codes, 2, 1, 1) * of_32(scales, k)
        expected[name] = values.swapaxes(1, 2) if transposed else values
    save(tmp_path, stored, {"quant_method": "mxfp4"})
    loaded = experts(**{name: values.shape for name, values in expected.items()})
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.stacked == report.decoded == ("experts.down_proj", "experts.gate_up_proj") and report.layers == ()
    assert "2 of these belong to stacks of experts, which ingot.integrations.experts has computed in FP8 by quant" in str(report)
    for name, values in expected.items():
        equal16(getattr(loaded["experts"], name), values)


@pytest.mark.parametrize(
    "suffix, shape, kind, spread",
    [
        ("_scale", (), "F32", same),
        ("_scale", (3, 1, K), "F32", same),
        ("_weight_scale", (3,), "F32", lambda s: s[:, None, None]),
        ("_weight_scale", (3, N), "F32", lambda s: s[:, :, None]),
        ("_weight_scale", (3, K), "F32", lambda s: s[:, None]),
        ("_scale_inv", (3, 2, 2), "F32", blocks),
        ("_scale_inv", (3, N, K // 32), "U8", lambda s: of_32(s)),
        ("_scale", (3, N, K // 32), "F8_E8M0", lambda s: of_32(s)),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_experts_in_float8(tmp_path, suffix, shape, kind, spread, transposed):
    """Files have (experts, N, K), which gpt-oss's modules have transposed; save_float8_checkpoint() writes such files."""
    codes = fp8(3, N, K)
    scales = f32(*shape) if kind == "F32" else exponents(*shape)
    name = "experts.gate_up_proj"
    tensors = {name: ("F8_E4M3", codes), f"{name}{suffix}": (kind, scales), f"{name}_input_scale": ("F32", f32(3))}
    save(tmp_path, tensors, fine([128, 128]))
    loaded = experts(gate_up_proj=(3, K, N) if transposed else (3, N, K))
    report = load_float8_checkpoint(loaded, tmp_path)
    assert report.stacked == (name,) and report.ignored == (f"{name}_input_scale",) and report.unexpected == ()
    values = e4m3(codes) * spread(scales.astype(np.float64))
    equal16(loaded["experts"].gate_up_proj, values.swapaxes(1, 2) if transposed else values)


@pytest.mark.parametrize("count", [3, 1])
def test_stacks_of_each_experts_layers(tmp_path, count):
    """transformers 5 has a stack where public files have a layer of each expert."""
    codes = {(e, part): fp8(N, K) for e in range(count) for part in ("gate_proj", "up_proj")}
    scales = {each: f32(2, 2) for each in codes}
    stored = {f"experts.{e}.{part}.weight": ("F8_E4M3", of) for (e, part), of in codes.items()}
    stored.update({f"experts.{e}.{part}.weight_scale_inv": ("F32", of) for (e, part), of in scales.items()})
    down = RNG.integers(0, 2**14, (count, K, N)).astype(np.uint16)
    stored.update({f"experts.{e}.down_proj.weight": ("BF16", down[e]) for e in range(count)})
    save(tmp_path, stored, fine([128, 128]))
    loaded = experts(gate_up_proj=(count, 2 * N, K), down_proj=(count, K, N))
    report = load_float8_checkpoint(loaded, tmp_path)
    assert len(report.stacked) == 2 * count and report.stacked == report.decoded and report.layers == ()
    assert "or convert_experts_() to train: experts.0.gate_proj.weight" in str(report)
    values = {each: e4m3(codes[each]) * blocks(scales[each].astype(np.float64)) for each in codes}
    expected = np.stack([np.concatenate([values[e, "gate_proj"], values[e, "up_proj"]]) for e in range(count)])
    equal16(loaded["experts"].gate_up_proj, expected)
    assert torch.equal(loaded["experts"].down_proj.detach(), torch.from_numpy(down.view(np.int16)).view(torch.bfloat16))
    with pytest.raises(ingot.Error, match=r"up_proj.weight\": has shape \(\d+, \d+\), but the model's stack asks for \("):
        stored[f"experts.{count - 1}.up_proj.weight"] = ("F8_E4M3", fp8(2 * N, K))
        stored[f"experts.{count - 1}.up_proj.weight_scale_inv"] = ("F32", f32(4, 2))
        save(tmp_path, stored, fine([128, 128]))
        load_float8_checkpoint(experts(gate_up_proj=(count, 2 * N, K), down_proj=(count, K, N)), tmp_path)
    lacks = {name: each for name, each in stored.items() if not name.startswith(f"experts.{count - 1}.up")}
    save(tmp_path, lacks, fine([128, 128]))
    with pytest.raises(ingot.Error, match="lacks experts.gate_up_proj: give the model it was made for"):
        load_float8_checkpoint(experts(gate_up_proj=(count, 2 * N, K), down_proj=(count, K, N)), tmp_path)
    values = {name: each for name, each in stored.items() if "down" in name} | {"experts.0.down_proj.weight": ("BF16", np.zeros((N, K), np.uint16))}
    save(tmp_path, values)
    with pytest.raises(ingot.Error, match=rf"0.down_proj.weight\": has shape \({N}, {K}\), but the model's stack asks for \({K}, {N}\)"):
        load_float8_checkpoint(experts(down_proj=(count, K, N)), tmp_path)


def test_experts_as_transformers_decodes_them(tmp_path):
    """A whole block of gpt-oss, by the names and shapes that transformers has."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    loaded = GptOssExperts(GptOssConfig(hidden_size=64, intermediate_size=64, num_local_experts=3)).bfloat16()
    stored, expected = {}, {}
    for name, n in (("gate_up_proj", 128), ("down_proj", 64)):
        codes, scales = RNG.integers(0, 256, (3, n, 2, 16)).astype(np.uint8), exponents(3, n, 2)
        stored.update({f"{name}_blocks": ("U8", codes), f"{name}_scales": ("U8", scales)})
        stored[f"{name}_bias"] = ("BF16", np.zeros((3, n), np.uint16))
        expected[name] = convert_moe_packed_tensors(torch.from_numpy(codes), torch.from_numpy(scales))
    save(tmp_path, stored, {"quant_method": "mxfp4"})
    assert load_float8_checkpoint(loaded, tmp_path).stacked == ("gate_up_proj", "down_proj")
    for name, values in expected.items():
        assert torch.equal(getattr(loaded, name).detach(), values.bfloat16())


def test_a_square_stack_alone(tmp_path):
    """Nothing says how it is; transformers has it transposed."""
    codes, scales = RNG.integers(0, 16, (2, 32, 32)).astype(np.uint8), exponents(2, 32, 1)
    packed = {"experts.w_blocks": ("U8", pairs(codes).reshape(2, 32, 1, 16)), "experts.w_scales": ("U8", scales)}
    save(tmp_path, packed)
    loaded = experts(w=(2, 32, 32))
    load_float8_checkpoint(loaded, tmp_path)
    equal16(loaded["experts"].w, (float_of_bits(codes, 2, 1, 1) * of_32(scales, 32)).swapaxes(1, 2))


STACKED = {
    "NaN": ({"w_scales": ("U8", np.full((3, 64, 2), 255, np.uint8))}, '"experts.w_scales": has scale_inv that are NaN'),
    "no scales": ({"w_scales": None}, 'comes without its scales: "experts.w_scales" is not there'),
    "no blocks": ({"w_blocks": None}, 'comes without its blocks: "experts.w_blocks" is not there'),
    "scales' shape": ({"w_scales": ("U8", exponents(3, 64, 1))}, r"shape \(3, 64, 1\), but MX codes of shape \(3, 64, 64\) have"),
    "other experts": (
        {"w_blocks": ("U8", exponents(2, 64, 2, 16)), "w_scales": ("U8", exponents(2, 64, 2))},
        r'"experts.w_blocks": has shape \(2, 64, 64\), but the model has \(3, 64, 64\)',
    ),
    "float8's scales": ({"v_scale": ("F32", f32(3, 5))}, r'"experts.v_scale": has shape \(3, 5\), but FP8 codes \(3, 64, 64\) have'),
    "negative": ({"v_scale": ("F32", -f32(3))}, '"experts.v_scale": has scale_inv that are NaN, Inf or negative'),
    "no scale": ({"v_scale": None}, '"experts.v": comes without scale_inv: neither v_scale nor v_scale_inv is there'),
}


@pytest.mark.parametrize("fault", STACKED)
def test_faults_of_stacks_change_nothing(tmp_path, fault):
    changes, message = STACKED[fault]
    tensors = {"w_blocks": ("U8", exponents(3, 64, 2, 16)), "w_scales": ("U8", exponents(3, 64, 2))}
    tensors.update({"v": ("F8_E4M3", fp8(3, 64, 64)), "v_scale": ("F32", f32(3)), **changes})
    save(tmp_path, {f"experts.{name}": each for name, each in tensors.items() if each is not None})
    loaded = experts(v=(3, 64, 64), w=(3, 64, 64))
    with pytest.raises(ingot.Error, match=message):
        load_float8_checkpoint(loaded, tmp_path)
    assert not any(each.any() for each in loaded.parameters())


def test_modules_that_keep_their_weights(tmp_path):
    """Trained layers of several parts and with an activation get the values of MXFP4."""
    made = {"gated": GatedMlp(64, 96, dtype=torch.bfloat16), "act": Float8Linear(64, 32, bias=False, activation="relu")}
    stored, values = {}, {}
    for name, (n, k) in {"gated.gate_proj": (96, 64), "gated.up_proj": (96, 64), "gated.down_proj": (64, 96), "act": (32, 64)}.items():
        codes, scales = RNG.integers(0, 16, (n, k)).astype(np.uint8), exponents(n, k // 32)
        stored.update({f"{name}.weight_packed": ("U8", pairs(codes)), f"{name}.weight_scale": ("U8", scales)})
        values[name] = float_of_bits(codes, 2, 1, 1) * of_32(scales, k)
    save(tmp_path, stored, group("group", "mxfp4-pack-quantized"))
    loaded = torch.nn.ModuleDict(made)
    report = load_float8_checkpoint(loaded, tmp_path)
    assert sorted(report.decoded) == sorted(f"{name}.weight" for name in values) and report.layers == ()
    equal16(made["gated"].gate_up_proj.weight, np.concatenate([values["gated.gate_proj"], values["gated.up_proj"]]))
    equal16(made["gated"].down_proj.weight, values["gated.down_proj"])
    equal(made["act"].weight.detach(), values["act"])
