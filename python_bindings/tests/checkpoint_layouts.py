"""Checkpoints in public layouts of FP8 and MX, written byte by byte from their documentation, with the values that float64
arithmetic decodes from the bits. Nothing here is Ingot's own."""

import json

import numpy as np
import torch

N, K = 160, 192
RNG = np.random.default_rng(0)
E8M0 = 127


# ---- a writer, and decoders in float64 -------------------------------------------------------------------------------


def write(file, tensors, metadata=None):
    """A safetensors file of {name: (type, array)}."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (kind, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def save(folder, tensors, config=None, **options):
    write(folder / "model.safetensors", tensors, **options)
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))


def float_of_bits(bits, exponent, mantissa, bias):
    """The value of codes with this many bits of exponent and mantissa. None of the tests' codes is NaN or Inf."""
    bits = bits.astype(np.int64)
    m, e = bits % 2**mantissa, bits >> mantissa & (2**exponent - 1)
    sign = 1.0 - 2.0 * (bits >> (exponent + mantissa))
    return sign * np.where(e == 0, m * 2.0 ** (1 - bias - mantissa), (1 + m / 2**mantissa) * 2.0 ** (e - bias))


def e4m3(bits):
    return float_of_bits(bits, 4, 3, 7)


def e5m2(bits):
    return float_of_bits(bits, 5, 2, 15)


def fp8(*shape, most=127):
    """Codes of every sign and exponent, without NaN and Inf."""
    return (RNG.integers(0, most, shape) + 128 * RNG.integers(0, 2, shape)).astype(np.uint8)


def exponents(*shape):
    return RNG.integers(E8M0 - 12, E8M0 + 5, shape).astype(np.uint8)


def of_32(scales, columns=K):
    return np.repeat(2.0 ** (scales.astype(np.float64) - E8M0), 32, -1)[..., :columns]


def f32(*shape):
    return RNG.uniform(0.01, 0.02, shape).astype(np.float32)


def pairs(singles):
    """Two codes of FP4 to a byte, the first in the low half."""
    return (singles[..., 0::2] | singles[..., 1::2] << 4).astype(np.uint8)


def triples(singles):
    """Four codes of FP6 to three bytes, the lowest bits first."""
    of = singles.reshape(*singles.shape[:-1], -1, 4).astype(np.uint32)
    word = of[..., 0] | of[..., 1] << 6 | of[..., 2] << 12 | of[..., 3] << 18
    return np.stack([word >> 8 * each & 255 for each in range(3)], -1).reshape(*singles.shape[:-1], -1).astype(np.uint8)


def blocks(scales):
    return np.repeat(np.repeat(scales.astype(np.float64), 128, -2), 128, -1)[..., :N, :K]


# ---- layouts of a linear layer: tensors without their prefix, config, values ----------------------------------------


def group(strategy, kind="float-quantized", **weights):
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, **weights}
    inputs = {"num_bits": 8, "type": "float", "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        "ignore": ["head"],
    }


def scaled(shape, name, spread, config, kind="F8_E4M3", **others):
    codes, scales = fp8(N, K, most=124 if kind == "F8_E5M2" else 127), f32(*shape)
    values = (e5m2 if kind == "F8_E5M2" else e4m3)(codes) * spread(scales.astype(np.float64))
    return {"weight": (kind, codes), name: ("F32", scales), **others}, config, values


def mx8(name, kind, config):
    codes, scales = fp8(N, K), exponents(N, K // 32)
    return {"weight": ("F8_E4M3", codes), name: (kind, scales)}, config, e4m3(codes) * of_32(scales)


def mx_packed(codes_name, bits, config, kind="U8"):
    codes, scales = RNG.integers(0, 2**bits, (N, K)).astype(np.uint8), exponents(N, K // 32)
    values = float_of_bits(codes, 2, 1, 1) if bits == 4 else float_of_bits(codes, 2, 3, 1)
    packed = pairs(codes) if bits == 4 else triples(codes)
    return {codes_name: ("U8", packed), "weight_scale": (kind, scales)}, config, values * of_32(scales)


def gpt_oss():
    codes, scales = RNG.integers(0, 16, (N, K)).astype(np.uint8), exponents(N, K // 32)
    tensors = {"weight_blocks": ("U8", pairs(codes).reshape(N, K // 32, 16)), "weight_scales": ("U8", scales)}
    return tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["head"]}, float_of_bits(codes, 2, 1, 1) * of_32(scales)


same = lambda scales: scales
one = {"input_scale": ("F32", f32(1))}
modelopt = lambda algorithm: {"quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["head"]}
quark = lambda dtype, scheme: {  # as amd-quark 0.13 writes it, and what is of no matter left out
    "quant_method": "quark", "exclude": ["head"], "algo_config": None, "layer_quant_config": {}, "layer_type_quant_config": {},
    "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
    "global_quant_config": {"bias": None, "input_tensors": None, "weight": {"dtype": dtype, "qscheme": scheme, "is_dynamic": False}},
}  # fmt: skip
fine = lambda block: {"quant_method": "fp8", "weight_block_size": block, "modules_to_not_convert": ["head"]}
comfy = lambda **found: ("U8", np.frombuffer(json.dumps(found).encode(), np.uint8))
LAYOUTS = {
    "compressed tensor": lambda: scaled((1,), "weight_scale", same, group("tensor"), **one),
    "compressed channel": lambda: scaled((N, 1), "weight_scale", same, group("channel")),
    "compressed block": lambda: scaled((2, 2), "weight_scale", blocks, group("block", block_structure=[128, 128])),
    "compressed group": lambda: scaled((N, 3), "weight_scale", lambda s: np.repeat(s, 64, 1), group("group", group_size=64)),
    "compressed naive": lambda: scaled((N, 1), "weight_scale", same, group("channel", "naive-quantized")),
    "compressed zero points": lambda: scaled(
        (N, 1), "weight_scale", same, group("channel", "naive-quantized"),
        weight_zero_point=("F8_E4M3", np.zeros((N, 1), np.uint8)),
    ),
    "compressed MXFP8": lambda: mx8("weight_scale", "U8", group("group", "mxfp8-quantized", group_size=32)),
    "compressed MXFP6": lambda: mx_packed("weight_packed", 6, group("group", "mxfp6-pack-quantized", group_size=32)),
    "compressed MXFP4": lambda: mx_packed("weight_packed", 4, group("group", "mxfp4-pack-quantized", group_size=32)),
    "fine-grained": lambda: scaled((2, 2), "weight_scale_inv", blocks, fine([128, 128])),
    "fine-grained MXFP8": lambda: mx8("weight_scale_inv", "F8_E8M0", fine([1, 32])),
    "fine-grained MXFP8 in bytes": lambda: mx8("weight_scale_inv", "U8", {"quant_method": "mxfp8"}),
    "groups of 32 in float32": lambda: scaled((N, 6), "weight_scale_inv", lambda s: np.repeat(s, 32, 1), fine([1, 32])),
    "FBGEMM": lambda: scaled(
        (N, 1), "weight_scale", same, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        input_scale_ub=("F32", f32(1)),
    ),
    "ModelOpt": lambda: scaled((), "weight_scale", same, modelopt("FP8"), **one),
    "ModelOpt channels": lambda: scaled((N,), "weight_scale", lambda s: s[:, None], modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
    "ModelOpt blocks": lambda: scaled((2, 1, 2, 1), "weight_scale", lambda s: blocks(s[:, 0, :, 0]), modelopt("FP8_PB_WO")),
    "ModelOpt MXFP8": lambda: mx8("weight_scale", "U8", modelopt("MXFP8")),
    "ModelOpt MXFP4": lambda: mx_packed("weight", 4, modelopt("W4A8_MXFP4_FP8")),
    "Quark": lambda: scaled((), "weight_scale", same, quark("fp8_e4m3", "per_tensor"), **one),
    "Quark channels": lambda: scaled((N,), "weight_scale", lambda s: s[:, None], quark("fp8_e4m3", "per_channel")),
    "Quark MXFP4": lambda: mx_packed("weight", 4, quark("fp4", "per_group")),
    "gpt-oss": gpt_oss,
    "diffusion": lambda: scaled((1,), "scale_weight", same, None, scale_input=("F32", f32(1))),
    "diffusion e5m2": lambda: scaled((), "scale_weight", same, None, "F8_E5M2"),
    "ComfyUI": lambda: scaled((), "weight_scale", same, None, comfy_quant=comfy(format="float8_e4m3fn"), **one),
}  # fmt: skip
OF_INPUT = ("input_scale", "input_scale_ub", "scale_input")


def model(device=None):
    kind = {"bias": False, "dtype": torch.bfloat16, "device": device}
    return torch.nn.ModuleDict({"proj": torch.nn.Linear(K, N, **kind), "head": torch.nn.Linear(K, 8, **kind)})


def whole(tensors):
    """A checkpoint of the model, with scales of a cache that the model has no place for."""
    cache = {f"proj.{name}": ("F32", f32(1)) for name in ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_output_scale")}
    rest = {"head.weight": ("BF16", np.zeros((8, K), np.uint16)), "scaled_fp8": ("F8_E4M3", np.zeros(2, np.uint8))}
    return {**{f"proj.{name}": each for name, each in tensors.items()}, **rest, **cache}


def equal(found, expected):
    """Values that were rounded to float32 once."""
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))
