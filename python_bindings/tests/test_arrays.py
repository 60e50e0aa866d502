"""Which arrays the functions take: byte orders, strides, masks, sparse and nested tensors, arrays to write to. Each
gives what the plain array of the same values gives, or one ingot.Error that names the argument, before anything is
written."""

import ml_dtypes
import numpy as np
import pytest

import ingot

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
X = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
FUNCTIONS = {
    "amax": lambda x: ingot.amax(x, "row"),
    "cast": lambda x: ingot.cast(x, scale="row").codes,
    "scale_inv": lambda x: ingot.cast(x, scale="row").scale_inv,
    "gemm a": lambda x: ingot.gemm(x, X.astype(x.dtype.newbyteorder("=")), out_dtype="f32"),
    "gemm b": lambda x: ingot.gemm(X.astype(x.dtype.newbyteorder("=")), x, out_dtype="f32"),
    "quantize_mx": lambda x: ingot.quantize_mx(x).codes,
    "float_quantize": lambda x: ingot.float_quantize(x, 4, 3),
    "weight": lambda x: ingot.WeightOnlyLinear.quantize(x)(X.astype(np.float16)),
    "expression": lambda x: ingot.cast(x, of="x * y", inputs={"y": x}).codes,
    "evaluate": lambda x: ingot.evaluate("x * 2", x),
    "encode": lambda x: ingot.encode(x, "e4m3fn"),
}


def bits(array) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def swapped(x: np.ndarray) -> np.ndarray:
    return x.byteswap().view(x.dtype.newbyteorder("S"))


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


def apart(x: np.ndarray) -> np.ndarray:
    """Rows that are no whole number of elements apart."""
    rows = np.zeros((x.shape[0], x.shape[1] * x.itemsize + 1), np.uint8)
    rows[:, :-1] = x.view(np.uint8)
    return np.lib.stride_tricks.as_strided(rows[:, :-1].view(x.dtype), x.shape, rows.strides[:1] + (x.itemsize,))


VIEWS = {
    "other byte order": swapped,
    "turned rows": lambda x: x[::-1].copy()[::-1],
    "turned columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
    "by columns": lambda x: np.asfortranarray(x),
    "unaligned": unaligned,
    "rows apart": apart,
    "matrix": np.asmatrix,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_gives_what_its_values_give(view, dtype):
    x = X.astype(dtype)
    if view == "other byte order" and dtype is ml_dtypes.bfloat16:
        pytest.skip("ml_dtypes has no bfloat16 of another byte order")
    seen = VIEWS[view](x)
    assert view == "other byte order" or np.array_equal(bits(seen), bits(x))
    for name, function in FUNCTIONS.items():
        assert np.array_equal(bits(function(seen)), bits(function(x))), name


def test_rows_of_one_memory_are_read():
    one_row = np.broadcast_to(X[:1], X.shape)
    assert np.array_equal(bits(ingot.cast(one_row).codes), bits(ingot.cast(one_row.copy()).codes))


def test_vectors_and_scales_of_the_other_byte_order():
    bias = np.arange(8, dtype=np.float32)
    assert np.array_equal(ingot.gemm(X, X, bias=swapped(bias)), ingot.gemm(X, X, bias=bias))
    scales = np.linspace(1, 2, 8).astype(np.float32)
    want = ingot.cast(X, scale="row", scales=scales)
    got = ingot.cast(X, scale="row", scales=swapped(scales))
    assert np.array_equal(bits(got.codes), bits(want.codes)) and np.array_equal(got.scale_inv, want.scale_inv)
    codes = ingot.encode(X, "e4m3fn")
    layers = [ingot.WeightOnlyLinear.from_codes(codes, s, "e4m3fn") for s in (scales, swapped(scales))]
    x = X.astype(np.float16)
    assert np.array_equal(layers[0](x), layers[1](swapped(x)))


def test_codes_are_bytes_or_their_own_dtype():
    assert ingot.decode(0x38, "e4m3fn") == 1 and ingot.encode(1.0, "e4m3fn").shape == ()
    assert ingot.decode([0x38, 0xB8], "e4m3fn").tolist() == [1, -1]
    assert ingot.decode(np.array([0x38]), "e4m3fn").tolist() == [1]
    assert ingot.decode(np.array([1], ml_dtypes.float8_e4m3fn), "e4m3fn").tolist() == [1]
    assert ingot.unpack_codes(ingot.pack_codes([[1, 2]], "e2m1fn"), "e2m1fn", 2).tolist() == [[1, 2]]
    if torch:
        assert ingot.decode(torch.ones(2).to(torch.float8_e4m3fn), "e4m3fn").tolist() == [1, 1]
        assert ingot.encode(torch.ones(2, dtype=torch.bfloat16), "e4m3fn").tolist() == [0x38, 0x38]


def test_no_tokens_and_no_features():
    layer = ingot.WeightOnlyLinear.quantize(X)
    assert layer(np.zeros((2, 0, 64), np.float16)).shape == (2, 0, 8)
    with pytest.raises(ingot.Error, match="WeightOnlyLinear x: .* 64 columns"):
        layer(np.zeros((2, 0, 0), np.float16))


def float8(codes=None, scale_inv=None, dtype="e4m3fn"):
    codes = np.zeros((8, 64), np.uint8) if codes is None else codes
    return ingot.Float8Array(codes, None, np.ones(1, np.float32) if scale_inv is None else scale_inv, dtype, "tensor")


REFUSED = {
    "amax input: float64 is not one of f32": lambda: ingot.amax(X.astype(np.float64)),
    "cast input: complex64 is not one of f32": lambda: ingot.cast(X.astype(np.complex64)),
    "cast input: bool is not one of f32": lambda: ingot.cast(X > 0),
    "cast input: uint8 is not one of .*give their dtype": lambda: ingot.cast(np.zeros((2, 2), np.uint8)),
    r"amax input: is a masked array.*array.filled\(0\)": lambda: ingot.amax(np.ma.masked_array(X, X > 0)),
    "evaluate x: is a masked array": lambda: ingot.evaluate("x", np.ma.masked_array(X, X > 0)),
    "amax input: expected a NumPy array or a PyTorch tensor, got NoneType": lambda: ingot.amax(None),
    "dtype: 'e4m3' is not one of .*did you mean e4m3fn": lambda: ingot.cast(X, "e4m3"),
    "dtype: .*float8_e4m3.* did you mean e4m3fn": lambda: ingot.cast(X, ml_dtypes.float8_e4m3),
    'scale: expected "tensor", "row" .* got NoneType': lambda: ingot.cast(X, scale=None),
    "context: expected an ingot.Context or None, got a str": lambda: ingot.cast(X, context="cpu"),
    'device: expected "auto", .* got a int': lambda: ingot.info(3),
    r"cast scales: is a float; all arrays .* here NumPy": lambda: ingot.cast(X, scales=1.0),
    "cast input y: is a int; all arrays": lambda: ingot.cast(X, of="x * y", inputs={"y": 3}),
    "inputs: must map names to arrays, but is a list": lambda: ingot.cast(X, of="x * y", inputs=["y"]),
    "gemm a scale_inv: int32 is not one of": lambda: ingot.gemm(float8(scale_inv=np.ones(1, np.int32)), float8()),
    "gemm b scale_inv: is a NoneType": lambda: ingot.gemm(float8(), ingot.Float8Array(X, None, None, "e4m3fn", "row")),
    "gemm a scale_inv: must be float32, but is f16": lambda: ingot.gemm(float8(scale_inv=np.ones(1, np.float16)), float8()),
    "gemm a codes: holds e5m2, but should hold e4m3fn": lambda: ingot.gemm(
        float8(np.zeros((8, 64), ml_dtypes.float8_e5m2)), float8()
    ),
    "gemm a codes: holds f32, but should hold e4m3fn": lambda: ingot.gemm(float8(X), float8()),
    "decode codes: is float64; give codes of e4m3fn": lambda: ingot.decode(1.0, "e4m3fn"),
    "decode codes: holds f32, but should hold e4m3fn": lambda: ingot.decode(X, "e4m3fn"),
    "decode codes: holds e5m2, but should": lambda: ingot.decode(np.ones(1, ml_dtypes.float8_e5m2), "e4m3fn"),
    "decode codes: has integers from -1 to 300": lambda: ingot.decode([-1, 300], "e4m3fn"),
    "decode codes: code 1 is 0x14, but those of e2m1fn have 4 bits: mask": lambda: ingot.decode([[1, 20]], "e2m1fn"),
    "decode codes: code 0 is 0x40, but those of e3m2fn have 6 bits": lambda: ingot.decode(0x40, "e3m2fn"),
    "encode x: is <U1; give real numbers|encode x: is str": lambda: ingot.encode("x", "e4m3fn"),
    "encode x: is complex128; give real numbers": lambda: ingot.encode([1j], "e4m3fn"),
    "encode x: is no array of numbers": lambda: ingot.encode([[1], [1, 2]], "e4m3fn"),
    r"evaluate: x and the inputs have the shapes \[2, 3\], \[4, 5\]": lambda: ingot.evaluate(
        "x + y", np.ones((2, 3)), y=np.ones((4, 5))
    ),
    "pack_codes codes: holds f32": lambda: ingot.pack_codes(X, "e2m1fn"),
    "unpack_codes cols: is -1, but": lambda: ingot.unpack_codes(np.zeros((2, 3), np.uint8), "e2m1fn", -1),
    "unpack_codes cols: expected a whole number, got a bool": lambda: ingot.unpack_codes([[1]], "e2m1fn", True),
    "unpack_codes cols: expected a whole number, got a float": lambda: ingot.unpack_codes([[1]], "e2m1fn", 2.0),
    "float_quantize mantissa_bits: expected a whole number, got a bool": lambda: ingot.float_quantize(X, 4, True),
    "cast fast: expected True or False, got a str": lambda: ingot.cast(X, fast="no"),
    "expression: expected a text, got a int": lambda: ingot.cast(X, of=3),
    "expression: expected a text, got a NoneType": lambda: ingot.derivative(None),
    "gemm fast_accumulation: expected True or False": lambda: ingot.gemm(X, X, fast_accumulation=None),
    "gemm a: has codes of e4m3fn without their scale_inv": lambda: ingot.gemm(ingot.cast(X).codes, X),
    "WeightOnlyLinear layout: expected a text": lambda: ingot.WeightOnlyLinear.quantize(X, layout=None),
    "WeightOnlyLinear scale: expected a text": lambda: ingot.WeightOnlyLinear.quantize(X, scale=None),
    "encode x: is object; give real numbers": lambda: ingot.encode(None, "e4m3fn"),
    "unpack_codes packed: is object; give bytes in uint8": lambda: ingot.unpack_codes(None, "e2m1fn", 2),
    "float_quantize exponent_bits: expected a whole number, got a str": lambda: ingot.float_quantize(X, "4", 3),
    "WeightOnlyLinear bias: is a list": lambda: ingot.WeightOnlyLinear.quantize(X)(X.astype(np.float16), [1.0]),
    "WeightOnlyLinear scales: is a NoneType": lambda: ingot.WeightOnlyLinear.from_codes(
        np.zeros((2, 3), np.uint8), None, "e4m3fn"
    ),
    "WeightOnlyLinear codes: has rows of 3 bytes": lambda: ingot.WeightOnlyLinear.from_codes(
        np.zeros((2, 3), np.uint8), np.ones((2, 1), np.uint8), "e3m2fn", scale="mx", in_features=2**61
    ),
    "WeightOnlyLinear file: expected a path, got NoneType": lambda: ingot.WeightOnlyLinear.load(None),
    "WeightOnlyLinear file: .* is not UTF-8; rename it": lambda: ingot.WeightOnlyLinear.load(b"/x\xff"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_one_error_names_the_argument(message):
    with pytest.raises(ingot.Error, match=message):
        REFUSED[message]()


@needs_torch
def test_tensors_that_are_no_plain_ones():
    t = torch.from_numpy(X)
    layer = ingot.WeightOnlyLinear.quantize(t)
    half = t.half()
    for message, call in {
        "amax input: is a tensor of the layout sparse_coo.*to_dense": lambda: ingot.amax(t.to_sparse()),
        "gemm b: is a tensor of the layout sparse_csr": lambda: ingot.gemm(t, t.to_sparse_csr()),
        "cast input: is a nested tensor.*to_padded": lambda: ingot.cast(
            torch.nested.nested_tensor([t[0], t[0, :3]])
        ),
        "amax input: float64 is not one of f32": lambda: ingot.amax(t.double()),
        "tensor: is on meta": lambda: ingot.amax(t.to("meta")),
        "expected a NumPy array or a PyTorch tensor, got Linear": lambda: ingot.amax(torch.nn.Linear(2, 2)),
        "gemm b: is a Tensor; .* here NumPy": lambda: ingot.gemm(X, t),
        "gemm b: is a ndarray; .* here PyTorch": lambda: ingot.gemm(t, X),
        "gemm bias: is a ndarray; .* here PyTorch": lambda: ingot.gemm(t, t, bias=X[:, 0]),
        "cast scales: is a ndarray": lambda: ingot.cast(t, scales=np.ones(1, np.float32)),
        "cast input y: is a ndarray": lambda: ingot.cast(t, of="x * y", inputs={"y": X}),
        "cast amax: is a ndarray": lambda: ingot.cast(t, scales=torch.ones(1), amax=np.zeros(1, np.float32)),
        "WeightOnlyLinear x: has 2|WeightOnlyLinear bias: is a ndarray": lambda: layer(half, X[:, 0]),
        "WeightOnlyLinear out: is a ndarray": lambda: layer(half, out=np.zeros((8, 8), np.float16)),
        "WeightOnlyLinear scales: is a ndarray": lambda: ingot.WeightOnlyLinear.from_codes(
            torch.zeros(8, 64, dtype=torch.uint8), np.ones(8, np.float32), "e4m3fn"
        ),
        "tensor of a torch.func transform": lambda: torch.func.vmap(lambda x: ingot.amax(x))(t[None]),
    }.items():
        with pytest.raises(ingot.Error, match=message):
            call()
    negated = torch.view_as_complex(torch.stack([t, t], -1)).conj().imag  # a lazy negation
    assert negated.is_neg() and torch.equal(ingot.cast(negated, "e5m2").codes.float(), ingot.cast(-t, "e5m2").codes.float())
    strange = torch.frombuffer(bytearray(b"\0" + X.tobytes()), dtype=torch.uint8)[1:].view(torch.uint8)
    assert torch.equal(ingot.amax(t.as_strided((8, 64), (0, 1))), t[0].abs().max()[None])
    assert ingot.decode(strange[:4], "e4m3fn").shape == (4,)


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_what_cannot_be_written_is_refused_before_anything_is(framework):
    make = (lambda a: a) if framework == "numpy" else torch.from_numpy
    x, half = make(X.copy()), make(X.astype(np.float16))
    layer = ingot.WeightOnlyLinear.quantize(x)
    ones = make(np.ones(1, np.float32))
    outs = {
        "cast amax": (lambda out: ingot.cast(x, scales=ones, amax=out), np.ones(1, np.float32)),
        "float_quantize out": (lambda out: ingot.float_quantize(x, 4, 3, out=out), np.ones((8, 64), np.float32)),
        "WeightOnlyLinear out": (lambda out: layer(half, out=out), np.ones((8, 8), np.float16)),
    }
    for what, (call, plain) in outs.items():
        integers = {2: np.int16, 4: np.int32}[plain.itemsize]
        wrong = {"int": make(plain.astype(integers)), "shape": make(np.ones((3,) * plain.ndim, plain.dtype))}
        if plain.ndim == 2:
            wrong["columns"] = make(np.ones(plain.shape[::-1], plain.dtype)).T
            wrong["one row"] = make(np.ones(plain.shape[1:], plain.dtype))[None]
            wrong["one row"] = (
                np.lib.stride_tricks.as_strided(wrong["one row"], plain.shape, (0, plain.itemsize))
                if framework == "numpy"
                else wrong["one row"].expand(plain.shape)
            )
        if framework == "numpy":
            wrong["read-only"] = plain.copy()
            wrong["read-only"].flags.writeable = False
            wrong["byte order"] = swapped(plain)
            wrong["unaligned"] = np.frombuffer(bytearray(b"\0" + plain.tobytes()), plain.dtype, offset=1).reshape(plain.shape)
        else:
            wrong["gradient"] = make(plain.copy()).requires_grad_()
        for how, out in wrong.items():
            before = bits(out.detach().numpy() if framework == "torch" else out).copy()
            with pytest.raises(ingot.Error, match=what if how != "shape" else what.split()[0]):
                call(out)
            assert np.array_equal(before, bits(out.detach().numpy() if framework == "torch" else out)), (what, how)
        call(make(plain))
    scales = make(np.ones(1, np.float32))
    with pytest.raises(ingot.Error, match="cast amax: .*overlaps"):
        ingot.cast(x, scales=scales, amax=scales)
    with pytest.raises(ingot.Error, match="overlaps"):
        ingot.float_quantize(x[:4], 4, 3, out=x[1:5])
    with pytest.raises(ingot.Error, match="overlaps"):
        layer(half, out=half[:, :8])


@needs_torch
def test_a_written_tensor_is_known_to_autograd():
    weight = torch.ones(8, 64, requires_grad=True)
    out = torch.zeros(8, 64)
    product = (weight * out).sum()
    ingot.float_quantize(torch.from_numpy(X), 4, 3, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_the_core_refuses_arrays_that_are_too_short():
    core = ingot._core
    four, three = np.zeros(4, np.float32), np.zeros(3, np.uint8)
    doubles = np.zeros(4, np.float64)
    for message, call in {
        "encode codes: has 3 elements, expected 4": lambda: core.encode(four, "e4m3fn", three),
        "decode values: has 4 elements, expected 3": lambda: core.decode(three, "e4m3fn", four),
        "evaluate x: has 4 elements, expected 3": lambda: core.evaluate("x", doubles, [], doubles[:3].copy()),
        "evaluate y: has 3 elements, expected 4": lambda: core.evaluate("x * y", doubles, [doubles[:3].copy()], doubles.copy()),
        "evaluate: the expression has 1 inputs, but 0 are given": lambda: core.evaluate("x * y", doubles, [], doubles.copy()),
        "evaluate: the expression has 0 inputs, but 1 are given": lambda: core.evaluate("x", doubles, [doubles], doubles.copy()),
        "scale_shape: rows are -1": lambda: core.scale_shape("row", -1, 3),
        "WeightOnlyLinear codes: has rows of 3 bytes": lambda: core.WeightOnlyLinear(
            core.Context("cpu"), np.zeros((2, 3), np.uint8), np.ones((2, 1), np.uint8), "e8m0fnu", "dequantize", 2**62,
            core.WeightOnlyOptions("e3m2fn", "mx", False, "packed", False, ""), 0,
        ),
    }.items():  # fmt: skip
        with pytest.raises(ingot.Error, match=message):
            call()
