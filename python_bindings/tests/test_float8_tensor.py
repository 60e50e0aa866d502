"""Float8TrainingTensor: what PyTorch's operations do to it."""

import copy
import functools
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import ingot
import ingot.float8 as float8
from ingot.float8 import Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig, ScalingGranularity
from ingot.float8.float8_ops import FLOAT8_OPS_TABLE, addmm_float8_unwrapped, implements, scaled_product
from ingot.float8.float8_scaling_utils import get_maybe_axiswise_dim, hp_tensor_to_float8_dynamic
from ingot.float8.float8_training_tensor import choose_scaled_mm_config, hp_tensor_and_scale_to_float8
from ingot.float8.float8_utils import FP8_TYPES, compute_error, tensor_to_scale
from torch._dynamo import testing

E4M3 = torch.float8_e4m3fn
EMULATED = LinearMMConfig(*[ScaledMMConfig(emulate=True)] * 3)
EXACT = LinearMMConfig(*[ScaledMMConfig()] * 3)


def cast(shape=(4, 6), axis=None, role=GemmInputRole.INPUT, config=None, seed=0, dtype=torch.bfloat16):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    granularity = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
    return hp_tensor_to_float8_dynamic(
        x, E4M3, config or LinearMMConfig(), gemm_input_role=role, scaling_granularity=granularity, axiswise_dim=axis
    )


def assert_same(one, other):
    """Same values, and the same codes."""
    assert isinstance(one, Float8TrainingTensor)
    assert torch.equal(one.to_original_precision(), other)


VIEWS = {
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 2:5],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(3, dim=1)[2],
    "split with sizes": lambda x: torch.split(x, [1, 3])[1],
    "same view": lambda x: x.view(4, 6),
}


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, axis):
    x = cast(axis=axis)
    assert_same(VIEWS[name](x), VIEWS[name](x.to_original_precision()))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_reshapes_keep_the_scaled_dimension(axis):
    x = cast((3, 5, 8), axis)
    plain = x.to_original_precision()
    if axis != 0:
        assert_same(x.reshape(15, 8), plain.reshape(15, 8))
        assert_same(x.reshape(5, 3, 1, 8), plain.reshape(5, 3, 1, 8))
    if axis != -1:
        assert_same(x.reshape(3, -1), plain.reshape(3, -1))
    assert x.reshape(-1, 8).t()._axiswise_dim == {None: None, -1: 0}.get(axis) if axis != 0 else True
    if axis is not None:
        with pytest.raises(RuntimeError, match="would mix elements of different scales") as caught:
            x.reshape(3, -1) if axis == -1 else x.reshape(-1, 8)
        assert isinstance(caught.value, ingot.Error)


def test_tensorwise_only():
    x = cast((3, 5, 8))
    plain = x.to_original_precision()
    assert_same(torch.cat(x.split(1)), plain)
    assert_same(x.as_strided((5, 8), (8, 1)), plain[0])
    assert_same(torch.nn.functional.pad(x, (0, 2)), torch.nn.functional.pad(plain, (0, 2)))
    rows = cast((3, 8), -1)
    for operation in (lambda: rows.as_strided((1, 8), (8, 1)), lambda: torch.cat([rows, rows])):
        with pytest.raises(AssertionError, match="with axiswise scaling is not supported yet"):
            operation()
    with pytest.raises(AssertionError, match="bring the scaled dimension to 1 of 3"):
        cast((3, 5, 8), 0).transpose(0, 1)


def test_writes():
    x = cast()
    target = torch.empty(4, 6, dtype=torch.bfloat16)
    assert torch.equal(target.copy_(x), x.to_original_precision())
    same = x.clone()
    same.fill_(0)
    assert (same.to_original_precision() == 0).all()
    assert same.copy_(x) is same
    assert_same(same, x.to_original_precision())
    index = torch.tensor([2, 0])
    same[index] = x[1:3]
    expected = x.to_original_precision()
    expected[index] = expected[1:3].clone()
    assert_same(same, expected)


def other_scale():
    return cast(seed=1)


WRITES_REFUSED = {
    "Unsupported semantics for copy_ in Float8TrainingTensor": (
        RuntimeError,
        lambda: cast().copy_(torch.ones(4, 6, dtype=torch.bfloat16)),
    ),
    "copy_.default of FP8 tensors with different scales": (AssertionError, lambda: cast().copy_(other_scale())),
    "copy_.default of FP8 tensors with different dtype": (
        AssertionError,
        lambda: cast().copy_(cast(dtype=torch.float16)),
    ),
    "index_put_.default writes FP8 tensors into FP8 tensors only, got a Tensor": (
        AssertionError,
        lambda: cast().__setitem__(torch.tensor([0]), torch.ones(1, 6, dtype=torch.bfloat16)),
    ),
    "index_put_.default of FP8 tensors with different scales": (
        AssertionError,
        lambda: cast().__setitem__(torch.tensor([0]), other_scale()[:1]),
    ),
    "cat joins FP8 tensors with each other only": (AssertionError, lambda: torch.cat([cast(), torch.ones(4, 6)])),
    "cat.default of FP8 tensors with different gemm_input_role": (
        AssertionError,
        lambda: torch.cat([cast(), cast(role=GemmInputRole.WEIGHT)]),
    ),
    "pads FP8 tensors with zeros only, got 1": (
        NotImplementedError,
        lambda: torch.nn.functional.pad(cast(), (0, 2), value=1.0),
    ),
    "can stand for float16, bfloat16 or float32, not torch.float64": (AssertionError, lambda: cast().double()),
    "attempting to run aten.sin.default, this is not supported": (NotImplementedError, lambda: cast().sin()),
    "unsupported axiswise_dim 1": (
        AssertionError,
        lambda: Float8TrainingTensor(torch.zeros(2, 2).to(E4M3), torch.ones(()), torch.float32, None, axiswise_dim=1),
    ),
}


@pytest.mark.parametrize("message", WRITES_REFUSED)
def test_refused(message):
    kind, call = WRITES_REFUSED[message]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, ingot.Error)


def test_other_dtypes_and_devices():
    x = cast(axis=-1)
    half = x.half()
    assert half.dtype == torch.float16 and half._axiswise_dim == -1
    assert torch.equal(half._data.view(torch.uint8), x._data.view(torch.uint8))
    assert x.to("meta").device.type == "meta"


def test_sums_and_shapes():
    x = cast()
    assert_same(torch.ops.aten._unsafe_view(x, [24]), x.to_original_precision().reshape(24))
    assert torch.equal(x.sum(0), x.to_original_precision().sum(0))
    assert torch.ops.aten.is_same_size(x, x.clone())


def test_flatten_repr_and_saving():
    x = cast(axis=-1, role=GemmInputRole.WEIGHT, config=EMULATED)
    names, metadata = x.__tensor_flatten__()
    inner = {name: getattr(x, name) for name in names}
    again = Float8TrainingTensor.__tensor_unflatten__(inner, metadata, x.shape, x.stride())
    for each in (again, saved_and_loaded(x)):
        assert_same(each, x.to_original_precision())
        assert (each._linear_mm_config, each._gemm_input_role, each._axiswise_dim) == (
            EMULATED,
            GemmInputRole.WEIGHT,
            -1,
        )
    assert "float8_e4m3fn" in repr(x) and "GemmInputRole.WEIGHT" in repr(x)


def test_what_is_known_of_one_over_the_scale_goes_with_the_scale():
    x = cast()
    inverse = x._scale_inv = x._scale.reciprocal()
    for same in (x.detach(), x.view(-1), x.clone(), torch.as_strided(x, (4, 6), (6, 1)), torch.nn.Parameter(x)):
        assert torch.equal(same._scale_inv, inverse)
    assert x._like(x._data, x._scale * 2)._scale_inv is None and cast()._scale_inv is None
    names, options = x.__tensor_flatten__()
    assert names == ["_data", "_scale", "_scale_inv"]
    back = Float8TrainingTensor.__tensor_unflatten__({name: getattr(x, name) for name in names}, options, None, None)
    assert back._scale_inv is inverse
    assert x.read_by(False)[1] is inverse and torch.equal(cast().read_by(True)[1], inverse)


def test_a_copy_keeps_its_values_when_the_scale_is_written():
    """As precompute_float8_dynamic_scale_for_fsdp() writes that of a gathered weight; an alias sees it."""
    x = cast()
    x._scale_inv = x._scale.reciprocal()
    alias, copy, before = x.detach(), x.clone(), x.to_original_precision()
    x._scale.mul_(2)
    x._scale_inv.mul_(0.5)
    assert torch.equal(copy.to_original_precision(), before) and torch.equal(copy._scale_inv, copy._scale.reciprocal())
    assert torch.equal(alias.to_original_precision(), before / 2) and torch.equal(alias._scale_inv, x._scale_inv)


def weight_of_fsdp(seed=0):
    """A parameter that FSDP2 would gather in FP8, with its scale."""
    torch.manual_seed(seed)
    weight = float8.WeightWithDynamicFloat8CastTensor(torch.randn(8, 4), LinearMMConfig(), E4M3)
    return with_scale(torch.nn.Parameter(weight))


def with_scale(weight):
    weight._precomputed_scale = tensor_to_scale(weight._tensor, E4M3)
    return weight


ALIASES = {
    "itself": lambda weight: weight,
    "data": lambda weight: weight.data,
    "detach": lambda weight: weight.detach(),
    "view": lambda weight: weight.view(-1),
    "slice": lambda weight: weight[2:],
    "row": lambda weight: weight[0],
    "t": lambda weight: weight.t(),
    "permute": lambda weight: weight.permute(1, 0),
    "split": lambda weight: weight.split(2)[1],
    "unbind": lambda weight: weight.unbind()[1],
    "copy": copy.copy,
    "bytes": lambda weight: weight.view(torch.int32).view(torch.float32),
    "its tensor": lambda weight: weight._tensor,
}
WRITES = {
    "mul_": lambda each: each.mul_(2),
    "copy_": lambda each: each.copy_(torch.ones(each.shape)),
    "foreach": lambda each: torch._foreach_mul_([each], 2.0),
    "out": lambda each: torch.mul(each, 2, out=each.detach()),
    "compiled": lambda each: torch.compile(torch.Tensor.mul_, backend="aot_eager")(each, 2),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_a_write_through_any_alias_drops_the_scale(alias):
    for name, write in WRITES.items():
        if name == "compiled" and alias not in ("itself", "detach"):
            continue
        weight = weight_of_fsdp()
        others = [make(weight) for make in (ALIASES["data"], ALIASES["slice"], ALIASES["t"])]
        each = ALIASES[alias](weight)
        assert weight._precomputed_scale is not None
        with torch.no_grad():
            write(each)
        found = [one._precomputed_scale for one in (weight, *others)]
        assert found == [None] * 4, (name, found)
        with_scale(weight)
        assert all(one._precomputed_scale is weight._precomputed_scale for one in others), name


def test_compiled_code_takes_a_weight_with_and_without_its_scale():
    """A write drops the scale before its graph runs, which PyTorch 2.11 then asks for what it was traced with."""
    compiler = testing.CompileCounterWithBackend("aot_eager")
    write = torch.compile(torch.Tensor.mul_, backend=compiler)
    weight = weight_of_fsdp()
    expected = weight._tensor * 8
    with torch.no_grad():
        for _ in range(3):
            write(weight, 2)
            assert weight._precomputed_scale is None
    assert torch.equal(weight._tensor, expected) and compiler.frame_count == 1


def test_a_scale_goes_with_its_values():
    """A copy of a whole weight takes it along, and what is copied into zeros, as FSDP pads; all else does not."""
    weight = weight_of_fsdp()
    scale = weight._precomputed_scale
    copies = (weight.clone(), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight)), saved_and_loaded(weight))
    assert all(each._precomputed_scale == scale and each.requires_grad for each in copies)
    assert all(each._known is not weight._known for each in copies)
    with torch.no_grad():
        padded = weight.new_zeros(9, 4)
        padded[:8].copy_(weight)
        assert padded._precomputed_scale == scale
        padded[8:].copy_(weight[:1])
        assert padded._precomputed_scale is None
        whole = torch.empty_like(weight)
        assert whole._precomputed_scale is None and whole.copy_(weight)._precomputed_scale is None
        assert torch.empty_like(weight)[:8].copy_(weight.bfloat16())._precomputed_scale is None
    module = torch.nn.Module()
    module.weight = weight_of_fsdp()
    for change in (module.bfloat16, module.half, module.double):
        module.weight = weight_of_fsdp()
        assert change().weight._precomputed_scale is None
    module.weight = weight_of_fsdp()
    float8.weights_changed(module)
    assert module.weight._precomputed_scale is None


def test_data_is_replaced():
    """As an exchange of weights with their averages does."""
    weight, other = weight_of_fsdp(), weight_of_fsdp(1)
    weight.data = torch.ones(8, 4)
    assert torch.equal(weight._tensor, torch.ones(8, 4)) and weight._precomputed_scale is None
    weight.data = other.data
    assert weight._precomputed_scale is other._precomputed_scale is not None
    weight.data.mul_(2)
    assert other._precomputed_scale is None
    with pytest.raises(RuntimeError, match=r"cannot become torch.float32 of shape \(4, 4\) on cpu: make a new"):
        weight.data = torch.ones(4, 4)
    one, two = cast(), cast(seed=1)
    one.data = two
    assert_same(one, two.to_original_precision())
    with pytest.raises(RuntimeError, match="can only become another such tensor's, got a Tensor of shape") as caught:
        one.data = torch.ones(4, 6)
    assert isinstance(caught.value, ingot.Error)


def saved_and_loaded(tensor):
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    "make", [cast, lambda: cast(axis=0).t(), weight_of_fsdp, lambda: torch.nn.Parameter(cast(), False)]
)
def test_copies_pickles_and_shared_memory(make):
    tensor = make()
    for way in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), saved_and_loaded):
        other = way(tensor)
        assert type(other) is type(tensor) and repr(other) == repr(tensor)
        assert isinstance(other, torch.nn.Parameter) == isinstance(tensor, torch.nn.Parameter)
        assert other.requires_grad == tensor.requires_grad
    assert not tensor.is_shared() and tensor.share_memory_() is tensor and tensor.is_shared()


@pytest.mark.parametrize("sizes", [(4, 6, 3), (16, 32, 48), (1, 1, 1), (0, 5, 3), (3, 0, 2), (17, 41, 29)], ids=str)
@pytest.mark.parametrize("a_axis, b_axis", [(None, None), (-1, -1), (-1, None), (None, -1)])
@pytest.mark.parametrize("config", [EXACT, EMULATED], ids=["product", "emulated"])
def test_products_of_any_size(sizes, a_axis, b_axis, config):
    m, k, n = sizes
    a = cast((m, k), a_axis, GemmInputRole.INPUT, config, dtype=torch.float32)
    b = cast((n, k), b_axis, GemmInputRole.WEIGHT, config, seed=1, dtype=torch.float32).t()
    exact = a.to_original_precision().double() @ b.to_original_precision().double()
    for product in (a @ b, torch.mm(a, b)):
        assert product.dtype == torch.float32 and not isinstance(product, Float8TrainingTensor)
        torch.testing.assert_close(product.double(), exact, atol=1e-5, rtol=1e-5)
    bias = torch.arange(n, dtype=torch.float32)
    torch.testing.assert_close(torch.addmm(bias, a, b).double(), exact + bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("b_dtype", sorted(FP8_TYPES, key=str), ids=str)
@pytest.mark.parametrize("a_dtype", sorted(FP8_TYPES, key=str), ids=str)
@pytest.mark.parametrize("layouts", [(a, b) for a in ("rows", "columns", "apart") for b in ("rows", "columns", "apart")])
def test_products_of_any_format_and_layout(layouts, a_dtype, b_dtype):
    def laid(codes, layout):
        if layout == "rows":
            return codes
        if layout == "columns":
            return codes.t().contiguous().t()
        return codes.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2]

    torch.manual_seed(0)
    a, b = torch.randn(17, 41).to(a_dtype), torch.randn(41, 29).to(b_dtype)
    a_scale, b_scale = torch.rand(17, 1) + 0.5, torch.rand(1, 29) + 0.5
    exact = (a.double() / a_scale.double()) @ (b.double() / b_scale.double())
    operands = (laid(a, layouts[0]), a_scale, laid(b, layouts[1]), b_scale)
    torch.testing.assert_close(
        scaled_product(*operands, torch.float32, False).double(), exact, atol=1e-4, rtol=1e-5
    )
    assert compute_error(exact, scaled_product(*operands, torch.bfloat16, True).double()) > 40


@pytest.mark.parametrize("sizes", [(0, 8, 3), (5, 0, 3), (5, 8, 0)], ids=str)
def test_products_without_elements(sizes):
    m, k, n = sizes
    a, b = torch.ones(m, k).to(E4M3), torch.ones(k, n).to(E4M3)
    one = torch.ones(())
    assert torch.equal(scaled_product(a, one, b, one, torch.float32, False), torch.zeros(m, n))


def test_messages_of_the_gemm():
    codes, one = torch.ones(4, 4).to(E4M3), torch.ones(())
    for message, arguments in (
        ("gemm a: is not FP8: cast it first", (torch.ones(4, 4), one, codes, one)),
        ("gemm b: has 3 rows, but a has 4 columns", (codes, one, codes[:3], one)),
        ("gemm a: has 1 dimensions, expected a matrix", (codes[0], one, codes, one)),
        ("gemm scale_inv_a: has 3 elements, expected 1 or 4", (codes, torch.ones(3), codes, one)),
        ("gemm scale_inv_b: must be float32: convert it with .to()", (codes, one, codes, one.double())),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.ingot.gemm(*arguments, 0, 0)
    for message, arguments in (
        ("quantize input: must be float32, bfloat16 or float16", (torch.ones(4).double(), one)),
        ("quantize scale: has 3 elements, expected 1, one for each of 4 rows, or one for each of 5 columns",
         (torch.ones(4, 5), torch.ones(3))),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.ingot.quantize(*arguments, 0)


def test_opcheck():
    # Without test_schema, which compares tensors in a way that PyTorch's CPU lacks for FP8.
    check = functools.partial(torch.library.opcheck, test_utils=("test_autograd_registration", "test_faketensor"))
    torch.manual_seed(0)
    for scale in (torch.tensor(2.0), torch.rand(4, 1) + 1, torch.rand(1, 6) + 1):
        check(torch.ops.ingot.quantize.default, (torch.randn(4, 6), scale, 0))
    codes = torch.randn(4, 6).to(E4M3)
    scale_inv = (torch.rand(4, 1), torch.rand(1, 5))
    other = torch.randn(6, 5).to(E4M3)
    check(torch.ops.ingot.gemm.default, (codes, scale_inv[0], other, scale_inv[1], 1, 0))


def test_product_with_an_output_scale():
    a, b = cast((4, 8)), cast((8, 4), seed=1)
    arguments = (a._data, a._scale, b._data, b._scale)
    exact = a.to_original_precision().double() @ b.to_original_precision().double()
    codes = addmm_float8_unwrapped(*arguments, E4M3, output_scale=torch.tensor(16.0))
    assert codes.dtype == E4M3
    assert compute_error(exact, codes.double() / 16) > 25
    half = addmm_float8_unwrapped(*arguments, torch.float16, bias=torch.ones(4))
    assert half.dtype == torch.float16 and compute_error(exact + 1, half.double()) > 40


INPUT, WEIGHT, GRAD_OUTPUT = GemmInputRole.INPUT, GemmInputRole.WEIGHT, GemmInputRole.GRAD_OUTPUT


def test_roles_choose_the_gemm():
    config = LinearMMConfig(*(ScaledMMConfig(use_fast_accum=fast) for fast in (True, False, True)))
    other = LinearMMConfig(*(ScaledMMConfig(emulate=True) for _ in range(3)))
    pairs = {(INPUT, WEIGHT): "output", (GRAD_OUTPUT, WEIGHT): "grad_input", (GRAD_OUTPUT, INPUT): "grad_weight"}
    for (a, b), gemm in pairs.items():
        assert choose_scaled_mm_config(a, config, b, config) == getattr(config, gemm)
        with pytest.raises(AssertionError, match=f"linear_mm_config.{gemm} mismatch"):
            choose_scaled_mm_config(a, config, b, other)
    with pytest.raises(AssertionError, match="unexpected a_role GemmInputRole.WEIGHT and b_role GemmInputRole.INPUT"):
        choose_scaled_mm_config(WEIGHT, config, INPUT, config)


def test_product_errors():
    x = cast((4, 4))
    with pytest.raises(AssertionError, match="expecting both operands in FP8, found Float8TrainingTensor and Tensor"):
        torch.mm(x, torch.ones(4, 4, dtype=torch.bfloat16))
    with pytest.raises(AssertionError, match="the bias is torch.float32, and the product torch.bfloat16"):
        torch.addmm(torch.ones(4), x, cast((4, 4), role=WEIGHT))


def test_casts_pass_gradients():
    x = torch.randn(5, requires_grad=True)
    y = hp_tensor_and_scale_to_float8(x, torch.tensor(2.0), E4M3).to_original_precision()
    gradient = torch.randn(5)
    y.backward(gradient)
    assert torch.equal(x.grad, gradient)


def test_an_operation_is_entered_once():
    with pytest.raises(RuntimeError, match="aten.mm.default has a function already, float8_mm"):
        implements([torch.ops.aten.mm.default])(lambda: None)
    assert torch.ops.aten.mm.default in FLOAT8_OPS_TABLE
    assert get_maybe_axiswise_dim(0, ScalingGranularity.TENSORWISE) is None
