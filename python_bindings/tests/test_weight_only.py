"""WeightOnlyLinear against PyTorch: F.linear with the weight as PyTorch decodes it. On the CPU, and on a GPU if there is
one."""

import ml_dtypes
import numpy as np
import pytest

import ingot
from conftest import in_ci

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
FP8 = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
SUB_BYTE = {
    "e3m2fn": (6, ml_dtypes.float6_e3m2fn),
    "e2m3fn": (6, ml_dtypes.float6_e2m3fn),
    "e2m1fn": (4, ml_dtypes.float4_e2m1fn),
}
GROUPS = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, 128), "1x64": (1, 64), "1x32": (1, 32), "128x128": (128, 128)}
LAYOUTS = ["packed", "packed_f16", "row_major"]
N, K = 150, 256


def spread(scales: "torch.Tensor", scale: str, rows: int, cols: int) -> "torch.Tensor":
    """Expands the scales to one per element."""
    down, across = GROUPS[scale]
    scales = scales.double().reshape(-(-rows // down) if down else 1, -(-cols // across) if across else 1)
    return scales.repeat_interleave(down or rows, 0)[:rows].repeat_interleave(across or cols, 1)[:, :cols]


def random_scales(scale: str, rows: int, cols: int) -> "torch.Tensor":
    down, across = GROUPS[scale]
    shape = (-(-rows // down) if down else 1, -(-cols // across) if across else 1)
    return torch.rand(shape) * 0.01 + 0.001


def pack_rows(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs uint8 codes into rows of bytes, lowest bits first."""
    planes = (codes[..., None] >> np.arange(bits)) & 1
    return np.packbits(planes.reshape(codes.shape[0], -1).astype(np.uint8), axis=1, bitorder="little")


def assert_linear(layer, x, weight, bias=None):
    """Compares with float64, within the bound of a float32 sum and one rounding. `weight` is float64."""
    want = torch.nn.functional.linear(x.double(), weight, None if bias is None else bias.double())
    magnitude = torch.nn.functional.linear(x.double().abs(), weight.abs(), None if bias is None else bias.double().abs())
    sums = (x.shape[-1] + 24) * 2.0**-24 * magnitude
    for out_dtype, roundoff in ((None, torch.finfo(x.dtype).eps / 2), ("f32", 2.0**-24)):
        y = layer(x, bias, out_dtype=out_dtype)
        assert y.dtype == (torch.float32 if out_dtype else x.dtype)
        assert y.device == x.device
        assert ((y.double() - want).abs() <= sums + roundoff * (want.abs() + sums) + 1e-30).all()  # False for NaN


def _a_third(dtype, scale, layout):
    """Each dtype with each kind of scale, in one of the layouts."""
    return (list(FP8).index(dtype) + list(GROUPS).index(scale)) % 3 == LAYOUTS.index(layout)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "scale", "layout"), in_ci(_a_third, FP8, GROUPS, LAYOUTS))
def test_codes_and_scales_of_fp8(dtype, scale, layout, device):
    torch.manual_seed(1)
    codes, scales = torch.randn(N, K).clamp(-6, 6).to(FP8[dtype]), random_scales(scale, N, K)
    weight = (codes.double() * spread(scales, scale, N, K)).to(device)
    layer = ingot.WeightOnlyLinear.from_codes(codes.to(device), scales.to(device), scale=scale, layout=layout)
    assert (layer.in_features, layer.out_features, layer.dtype, layer.scale, layer.layout) == (K, N, dtype, scale, layout)
    for of in (torch.bfloat16, torch.float16):
        assert_linear(layer, torch.randn(3, K).to(device, of), weight, torch.randn(N).to(device, of))
    inverse = ingot.WeightOnlyLinear.from_codes(
        codes.to(device), (1 / scales).to(device), scale=scale, layout=layout, convention="quantize"
    )
    again = codes.double() * spread(1 / (1 / scales), scale, N, K)
    assert_linear(inverse, torch.randn(3, K).to(device, torch.bfloat16), again.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FP8, *SUB_BYTE])
def test_codes_and_scales_of_mx(dtype, layout, device):
    rng = np.random.default_rng(2)
    powers = torch.from_numpy(rng.integers(120, 130, (N, K // 32), np.uint8))
    if dtype in FP8:
        codes = torch.randn(N, K).to(FP8[dtype])
        values, stored = codes.double(), codes
    else:
        bits, of = SUB_BYTE[dtype]
        raw = rng.integers(0, 1 << bits, (N, K), np.uint8)
        values, stored = torch.from_numpy(raw.view(of).astype(np.float64)), torch.from_numpy(pack_rows(raw, bits))
    weight = values * spread(2.0 ** (powers.double() - 127), "1x32", N, K)
    for scales in (powers, powers.view(torch.float8_e8m0fnu)):
        layer = ingot.WeightOnlyLinear.from_codes(
            stored.to(device), scales.to(device), dtype, scale="mx", layout=layout
        )
        assert (layer.scale, layer.in_features) == ("mx", K)
        assert_linear(layer, torch.randn(5, K).to(device, torch.bfloat16), weight.to(device))


@pytest.mark.parametrize("dtype", ["e4m3fn", "e5m2", *SUB_BYTE])
def test_an_mx_array_is_what_quantize_makes(dtype):
    for rows, cols in ((40, 96), (7, 33), (1, 31)):
        w, x = torch.randn(rows, cols), torch.randn(3, cols).to(torch.bfloat16)
        mx = ingot.quantize_mx(w, dtype)
        made = ingot.WeightOnlyLinear.from_codes(mx.codes, mx.scales, mx.dtype, scale="mx", in_features=cols)
        assert torch.equal(made(x), ingot.WeightOnlyLinear.quantize(w, dtype, scale="mx")(x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", GROUPS)
@pytest.mark.parametrize("dtype", FP8)
def test_quantize_makes_the_codes_of_torch(dtype, scale, device):
    torch.manual_seed(3)
    w = torch.randn(N, K).to(torch.bfloat16)
    down, across = GROUPS[scale]
    tiles = torch.zeros(-(-N // (down or N)) * (down or N), K)
    tiles[:N] = w.float()
    tiles = tiles.reshape(tiles.shape[0] // (down or N), down or N, K // (across or K), across or K)
    largest = torch.finfo(FP8[dtype]).max
    scales = (largest / tiles.abs().amax((1, 3)).double().clamp(min=1e-12)).float()
    each = spread(scales, scale, N, K).float()
    codes = (w.float() * each).clamp(-largest, largest).to(FP8[dtype])
    layer = ingot.WeightOnlyLinear.quantize(w.to(device), dtype, scale=scale)
    weight = codes.double() * spread(1 / scales, scale, N, K)
    assert_linear(layer, torch.randn(4, K).to(device, torch.bfloat16), weight.to(device))


@pytest.mark.parametrize(
    ("dtype", "scale", "decibels"),
    [("e4m3fn", "row", 31.0), ("e5m2", "row", 25.0), ("e2m3fn", "mx", 30.0), ("e3m2fn", "mx", 25.0), ("e2m1fn", "mx", 18.0)],
)
def test_quality_of_quantized_weights(dtype, scale, decibels):
    torch.manual_seed(4)
    w, x = torch.randn(256, 512).to(torch.bfloat16) * 0.02, torch.randn(64, 512).to(torch.bfloat16)
    exact = torch.nn.functional.linear(x.double(), w.double())
    layer = ingot.WeightOnlyLinear.quantize(w, dtype, scale=scale)
    error = layer(x, out_dtype="f32").double() - exact
    assert 20 * torch.log10(exact.norm() / error.norm()) > decibels


def test_an_epilogue_leading_dimensions_and_an_output_of_ones_own():
    torch.manual_seed(5)
    w, x = torch.randn(48, 64).to(torch.bfloat16), torch.randn(2, 3, 64).to(torch.bfloat16)
    gate, bias = torch.randn(6, 48).to(torch.bfloat16), torch.randn(48).to(torch.bfloat16)
    plain = ingot.WeightOnlyLinear.quantize(w)
    gated = ingot.WeightOnlyLinear.quantize(w, epilogue="silu(x) * gate")
    preactivation = plain(x, bias, out_dtype="f32")
    assert preactivation.shape == (2, 3, 48)
    want = torch.nn.functional.silu(preactivation.double()) * gate.double().reshape(2, 3, 48)
    got = gated(x, bias, inputs={"gate": gate})
    assert torch.allclose(got.double(), want, rtol=2.0**-7, atol=1e-4)
    out = torch.empty(6, 48, dtype=torch.float32)
    assert plain(x.reshape(6, 64), bias, out=out) is out
    assert torch.equal(out, preactivation.reshape(6, 48))


def test_numpy_arrays():
    rng = np.random.default_rng(6)
    w, x = rng.standard_normal((32, 64), np.float32), rng.standard_normal((5, 64)).astype(np.float16)
    layer = ingot.WeightOnlyLinear.quantize(w)
    y = layer(x)
    assert y.dtype == np.float16
    want = x.astype(np.float64) @ w.T
    assert np.linalg.norm(y - want) < 0.03 * np.linalg.norm(want)
    of_bf16 = layer(x.astype(ml_dtypes.bfloat16), out_dtype="f32")
    assert of_bf16.dtype == np.float32


@pytest.mark.parametrize("layout", ["packed", "packed_f16", "row_major"])
def test_files_give_back_the_same_bits(tmp_path, layout):
    torch.manual_seed(7)
    x = torch.randn(3, 96).to(torch.bfloat16)
    for dtype, scale in (("e4m3fn", "row"), ("e5m2", "128x128"), ("e2m3fn", "mx"), ("e2m1fn", "mx")):
        layer = ingot.WeightOnlyLinear.quantize(torch.randn(40, 96), dtype, scale=scale, layout=layout)
        layer.save(tmp_path / "layer.safetensors", "a.")
        again = ingot.WeightOnlyLinear.load(tmp_path / "layer.safetensors", "a.", device="cpu")
        assert (again.dtype, again.scale, again.layout) == (dtype, scale, layout)
        assert again.weight_bytes == layer.weight_bytes
        assert torch.equal(layer(x), again(x))
    assert repr(again) == f"WeightOnlyLinear(96 -> 40, e2m1fn, scale='mx', layout={layout!r}, cpu)"


@pytest.mark.parametrize("layout", ["packed", "packed_f16", "row_major"])
def test_layouts_are_changed(tmp_path, layout):
    x, w = torch.randn(3, 96).to(torch.float16), torch.randn(40, 96)
    for dtype in ("e4m3fn", "e5m2"):
        layer = ingot.WeightOnlyLinear.quantize(w, dtype, layout=layout)
        for other in ("packed", "packed_f16", "row_major"):
            changed = layer.with_layout(other)
            assert changed.layout == other
            changed.save(tmp_path / "changed.safetensors")
            ingot.WeightOnlyLinear.quantize(w, dtype, layout=other).save(tmp_path / "made.safetensors")
            assert (tmp_path / "changed.safetensors").read_bytes() == (tmp_path / "made.safetensors").read_bytes()
            assert torch.equal(changed(x), layer(x))
    with pytest.raises(ingot.Error, match='unknown layout "woven"'):
        layer.with_layout("woven")


def test_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "layer.safetensors"
    ingot.WeightOnlyLinear.quantize(torch.randn(40, 96)).save(file, "a.")
    stored = bytearray(file.read_bytes())
    at = stored.rindex(np.ones(64, np.float32).tobytes())  # the rows' NaN flags, after the codes
    stored[at : at + 4] = np.float32(2).tobytes()
    file.write_bytes(stored)
    with pytest.raises(ingot.Error, match=r'layer.safetensors: the layer "a.": WeightOnlyState weight: has 2 after'):
        ingot.WeightOnlyLinear.load(file, "a.", device="cpu")


def test_a_row_does_not_depend_on_the_others():
    x = torch.randn(17, 256).to(torch.bfloat16)
    layer = ingot.WeightOnlyLinear.quantize(torch.randn(64, 256), batch_invariant=True)
    assert layer.batch_invariant
    all_rows = layer(x)
    for m in range(1, 17):
        assert torch.equal(layer(x[:m]), all_rows[:m])


def small():
    return ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32))


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), "e9m9"), "'e9m9' is not one of"),
        (
            lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), layout="woven"),
            'WeightOnlyLinear layout: unknown layout "woven"; expected "packed", "packed_f16" or "row_major"',
        ),
        (
            lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), scale="1x16"),
            'unknown scale "1x16"; expected "tensor", "row", "1x128", "1x64", "1x32", "128x128" or "mx"',
        ),
        (lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), scale="knight"), 'unknown scale "knight"; expected'),
        (
            lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), "e2m1fn"),
            "e2m1fn is made only with MX scales: set scale=\"mx\"",
        ),
        (lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4)), "WeightOnlyLinear weight: has 1 dimensions"),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32).to(FP8["e4m3fn"]), torch.ones(3)),
            "WeightOnlyLinear scales: is f32\\[1, 3\\] on cpu; a weight \\[4, 32\\] has 4 of them with scale row",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32).to(FP8["e4m3fn"]), np.ones(4, np.float32)),
            "scales: is a ndarray; all arrays of a call must be of one framework",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(
                torch.zeros(4, 32).to(FP8["e4m3fn"]), torch.ones(4), convention="inverse"
            ),
            'expected "dequantize" \\(value = code \\* scale\\) or "quantize"',
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32).to(FP8["e5m2"]), torch.ones(4), "e4m3fn"),
            r"codes: is e5m2\[4, 32\] on cpu; the options say e4m3fn: set dtype to what the codes are",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32, dtype=torch.int8), torch.ones(4), "e4m3fn"),
            r"codes: is int8\[4, 32\] on cpu; the options say e4m3fn: set dtype .* or give their bits in uint8",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(np.zeros((4, 32), np.int16), np.ones(4, np.float32), "e2m1fn"),
            r"codes: is int16\[4, 32\] on cpu; the options say e2m1fn: set dtype",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32), torch.ones(4), "e4m3fn"),
            r"codes: is f32\[4, 32\] on cpu; the options say e4m3fn",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(torch.zeros(4, 32).to(FP8["e4m3fn"]), torch.ones(4), in_features=9),
            "in_features: is 9, but codes have 32 columns",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(
                torch.zeros(4, 24, dtype=torch.uint8), torch.ones(4), "e2m3fn", in_features=40
            ),
            "has rows of 24 bytes, but 40 codes of e2m3fn take 30",
        ),
        (
            lambda: ingot.WeightOnlyLinear.from_codes(
                torch.zeros(4, 25, dtype=torch.uint8), torch.ones(4), "e2m3fn", in_features=33
            ),
            "has 25 bytes from row to row, but rows of e2m3fn must begin a multiple of 3 bytes apart",
        ),
        (lambda: small()(torch.zeros(2, 32)), "WeightOnlyLinear x: is f32\\[2, 32\\] on cpu; it must be of bf16 or f16"),
        (lambda: small()(torch.zeros(2, 31, dtype=BF16)), "it must have 32 columns = in_features"),
        (lambda: small()(torch.zeros(2, 32, dtype=BF16), torch.zeros(5, dtype=BF16)), "bias"),
        (lambda: small()(torch.zeros(2, 32, dtype=BF16), [0.0] * 4), "bias: is a list; all arrays"),
        (lambda: small()(torch.zeros(2, 32, dtype=BF16), np.zeros(4, np.float16)), "bias: is a ndarray; all arrays"),
        (lambda: small()(torch.zeros(2, 32, dtype=BF16), out_dtype="f16"), "it must be of x's dtype, bf16, or f32"),
        (lambda: small()(torch.zeros(2, 32, dtype=BF16), out=torch.zeros(4, 2).T), "must have contiguous rows"),
        (
            lambda: ingot.WeightOnlyLinear.quantize(torch.zeros(4, 32), epilogue="x * gate")(torch.zeros(2, 32, dtype=BF16)),
            r"the epilogue reads \['gate'\], but given are \[\]",
        ),
        (
            lambda: small()(torch.zeros(2, 32, dtype=BF16), inputs={"gate": torch.zeros(2, 4, dtype=BF16)}),
            r"inputs: \['gate'\] are not among the epilogue's, which are \[\]",
        ),
        (lambda: ingot.WeightOnlyLinear.load("/nowhere/w.safetensors", device="cpu"), "w.safetensors"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ingot.Error, match=message):
        call()


def test_codes_a_byte_each_are_refused_where_bytes_hold_several():
    codes = np.zeros((4, 32), pytest.importorskip("ml_dtypes").float4_e2m1fn)
    with pytest.raises(ingot.Error, match=r"codes: is e2m1fn\[4, 32\] on cpu, a code to a byte; .* pack_codes\(\)"):
        ingot.WeightOnlyLinear.from_codes(codes, np.ones(4, np.float32))
    if hasattr(torch, "float4_e2m1fn_x2"):
        pairs = torch.zeros(4, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        assert ingot.WeightOnlyLinear.from_codes(pairs, torch.ones(4), "e2m1fn").in_features == 32
