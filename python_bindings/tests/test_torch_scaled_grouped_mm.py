"""ingot.torch.scaled_grouped_mm, by torch.nn.functional's arguments, against products of the decoded operands in float64."""

import inspect

import pytest

torch = pytest.importorskip("torch")
import ingot
from conftest import devices_of_grouped_gemm
from ingot.torch import LinearError, scaled_grouped_mm
from ingot.torch._prepare import recording_of_call
from ingot.torch._quantize_operators import OUTPUTS
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
M, N, K, EXPERTS = 96, 80, 112, 5
ROWS = getattr(getattr(torch.nn.functional, "ScalingType", None), "RowWise", "RowWise")
ENDS = {"ragged": [0, 3, 40, 41, 90], "one has all": [0, 80, 80, 80, 80], "none at all": [0] * 5}


def drawn(*shape, seed=0, dtype=E4M3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype), torch.rand(shape[:-1], generator=generator) + 0.5


def value(codes, scale):
    return codes.double() * scale.double()[..., None]


def check(found, exact):
    assert found.isfinite().all() and (found.double().cpu() - exact).norm() <= 0.004 * exact.norm()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_rows_of_experts(ends, dtype, device):
    (a, scale_a), (b, scale_b) = drawn(M, K, dtype=dtype), drawn(EXPERTS, N, K, seed=1)
    offs = torch.tensor(ENDS[ends], dtype=torch.int32)
    given = (each.to(device) for each in (a, b.transpose(1, 2), scale_a))
    a8, b8, scales = given
    call = lambda b8, **others: scaled_grouped_mm(a8, b8, [scales], [ROWS], scale_b.to(device), ROWS, offs=offs.to(device), **others)
    found = call(b8)
    assert found.dtype == torch.bfloat16 and found.shape == (M, N)
    begin = 0
    for e, end in enumerate(ENDS[ends]):
        check(found[begin:end], value(a, scale_a)[begin:end] @ value(b, scale_b)[e].T)
        begin = end
    # A mat_b by rows is copied; sums in the tensor core throughout are the same on the CPU.
    again = call(b8.contiguous(), use_fast_accum=device == "cpu", output_dtype=torch.float32)
    assert torch.equal(again[:begin].bfloat16(), found[:begin])


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("ends", ENDS)
def test_along_k(ends, device):
    """Gradients of weights: (M, K) by (K, N), with each expert's part of K."""
    (a, _), (b, _) = drawn(M, K), drawn(N, K, seed=1, dtype=E5M2)
    scale_a, scale_b = torch.rand(EXPERTS, M) + 0.5, torch.rand(EXPERTS, N) + 0.5
    offs = torch.tensor(ENDS[ends], dtype=torch.int32, device=device)
    found = scaled_grouped_mm(
        a.to(device), b.t().to(device), scale_a.flatten().to(device), ROWS, scale_b.flatten().to(device), ROWS, offs=offs
    )  # fmt: skip
    assert found.dtype == torch.bfloat16 and found.shape == (EXPERTS, M, N)
    begin = 0
    for e, end in enumerate(ENDS[ends]):
        check(found[e], value(a[:, begin:end], scale_a[e]) @ value(b[:, begin:end], scale_b[e]).T)
        begin = end


def test_pytorchs_arguments_compiled_and_counted():
    theirs = getattr(torch.nn.functional, "scaled_grouped_mm", None)
    if theirs is not None:
        ours = inspect.signature(scaled_grouped_mm).parameters
        assert {name: each.default for name, each in inspect.signature(theirs).parameters.items()} == {
            name: each.default for name, each in ours.items()
        }
        assert list(inspect.signature(theirs).parameters) == list(ours)
    offs = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    (a, scale_a), (b, scale_b) = drawn(M, K), drawn(EXPERTS, N, K)
    compiled = torch.compile(scaled_grouped_mm, backend="aot_eager", fullgraph=True)
    of_rows = (a, b.transpose(1, 2), scale_a, "RowWise", scale_b, "RowWise", None, None, None, offs)
    along_k = (a, b[0].t(), torch.rand(EXPERTS * M), "RowWise", torch.rand(EXPERTS * N), "RowWise", None, None, None, offs)
    for arguments in (of_rows, along_k):
        with FlopCounterMode(display=False) as counter:
            found = scaled_grouped_mm(*arguments)
        assert counter.get_total_flops() == 2 * M * N * K
        again = compiled(*arguments)
        assert again.shape == found.shape and torch.equal(again[:90], found[:90])


def test_sums_in_the_tensor_core():
    """What the call asks of a GPU: fast sums if, and only if, it says so."""
    (a, scale_a), (b, scale_b) = drawn(M, K), drawn(EXPERTS, N, K)
    offs = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    for mat_b, scales in ((b.transpose(1, 2), (scale_a, scale_b)), (b[0].t(), (torch.ones(EXPERTS * M), torch.ones(EXPERTS * N)))):
        for fast in (None, False, True):
            others = {} if fast is None else {"use_fast_accum": fast}
            call = lambda: scaled_grouped_mm(a, mat_b, scales[0], "RowWise", scales[1], "RowWise", offs=offs, **others)
            (asked,) = recording_of_call(call, "h200").splitlines()[1:]
            assert asked.startswith("grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=row,row") and (" fast " in asked) is bool(fast)


def test_messages():
    (a, scale_a), (b, scale_b) = drawn(M, K), drawn(EXPERTS, N, K)
    b, offs = b.transpose(1, 2), torch.tensor(ENDS["ragged"], dtype=torch.int32)
    known = {"mat_a": a, "mat_b": b, "scale_a": scale_a, "scale_recipe_a": "RowWise", "scale_b": scale_b}
    known |= {"scale_recipe_b": "RowWise", "offs": offs}
    for others, message in (
        ({"scale_recipe_a": "TensorWise"}, r"scale_recipe_a: is 'TensorWise', expected ScalingType.RowWise: ingot.torch.grouped_linear\(\) takes"),
        ({"scale_recipe_b": ["RowWise", "TensorWise"]}, "scale_recipe_b: has 2 levels, expected one, of ScalingType.RowWise"),
        ({"swizzle_a": "SWIZZLE_32_4_4"}, "swizzle_a: is 'SWIZZLE_32_4_4', but scales of rows are not swizzled: leave it out"),
        ({"bias": scale_b}, "bias: is given, but there is none within this product: add it to the result"),
        ({"contraction_dim": [0, 1]}, r"contraction_dim: is \(0, 1\), expected \(\), which is mat_a's last and mat_b's last but one"),
        ({"contraction_dim": -1}, r"contraction_dim: is -1, expected \(\), which is mat_a's last and mat_b's last but one"),
        ({"contraction_dim": None}, r"contraction_dim: is None, expected \(\)"),
        ({"use_fast_accum": None}, "use_fast_accum: is None, expected True or False"),
        ({"mat_a": [1.0]}, "mat_a: is a list, expected a torch.Tensor"),
        ({"mat_a": a.float()}, "mat_a: is torch.float32, expected float8_e4m3fn or float8_e5m2: cast it first"),
        ({"mat_a": a.view(2, 48, K)}, r"have the shapes \(2, 48, 112\) and \(5, 112, 80\), expected \(M, K\) and \(experts, K, N\), or"),
        ({"mat_b": b.transpose(1, 2)}, r"mat_b: K is 80, but that of mat_a is 112: the shapes are \(96, 112\) and \(5, 80, 112\)"),
        ({"mat_b": b.to("meta")}, r"mat_b: is on meta and mat_a on cpu: move one with .to\(\)"),
        ({"offs": None}, r"offs: is missing, expected int32 \(experts,\): where each expert's rows end"),
        ({"offs": offs.long()}, r"offs: is torch.int64 of the shape \(5,\), expected int32 \(experts,\): convert it with .to\(torch.int32\)"),
        ({"offs": offs[:4]}, "offs: has 4 elements, but mat_b has 5 experts: give one for each"),
        ({"offs": offs.flip(0)}, "grouped_gemm ends: say that expert 1 ends at row 41, but the one before ends at row 90"),
        ({"scale_a": scale_a[:, None]}, r"scale_a: is torch.float32 of the shape \(96, 1\), expected float32 \(96,\): one for each row of mat_a"),
        ({"scale_b": scale_b.double()}, r"scale_b: is torch.float64 of the shape \(5, 80\), expected float32 \(5, 80\): one for each column"),
        ({"mat_b": b[0]}, r"scale_a: is torch.float32 of the shape \(96,\), expected float32 \(480,\): each expert's rows of mat_a"),
        ({"output_dtype": torch.float64}, "output_dtype: is torch.float64, expected bfloat16, float32 or float16"),
        ({"scale_a": scale_a.clone().requires_grad_()}, "scale_a: requires a gradient, but FP8 codes and their scales have none: detach"),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message) as caught:
            scaled_grouped_mm(**{**known, **others})
        assert isinstance(caught.value, ingot.Error)
    with pytest.raises(LinearError, match="^scaled_grouped_mm cannot run under torch.func transforms"):
        torch.func.grad(lambda scale: scaled_grouped_mm(**{**known, "scale_a": scale}).sum())(scale_a)
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        with forward_ad.dual_level(), pytest.raises(LinearError, match="^scaled_grouped_mm cannot run .* in forward mode"):
            scaled_grouped_mm(**{**known, name: [forward_ad.make_dual(scale, scale)]})


def test_the_operators_own_messages_name_its_arguments():
    a, b = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.zeros(2, 16, 16).to(torch.float8_e4m3fn)
    ones, ends = torch.ones(16), torch.tensor([8, 16], dtype=torch.int32)
    call = lambda a=a, b=b, scale=torch.ones(2, 16), ends=ends: torch.ops.ingot.grouped_gemm.default(a, ones, b, scale, ends, 1, 0)
    assert call().shape == (16, 16)
    for given, message in (
        ({"b": b.float()}, "grouped_gemm b: is not FP8: cast it first"),
        ({"scale": torch.ones(3, 16)}, r"grouped_gemm scale_inv_b: has the shape \(3, 16\), expected \(2,\): one for each expert"),
        ({"ends": ends.long()}, "grouped_gemm ends: must be int32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call(**given)


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_of_16_bits(dtype, device):
    """The operator alone, which takes them as it takes codes, without scales."""
    a, b = (drawn(*shape, seed=seed, dtype=dtype)[0] for seed, shape in enumerate(((M, K), (EXPERTS, N, K))))
    multiply = lambda b, output: torch.ops.ingot.grouped_gemm(a.to(device), None, b.to(device), None, offs.to(device), output, 0).cpu()
    for ends in ENDS.values():
        offs = torch.tensor(ends, dtype=torch.int32)
        rows, along_k = multiply(b, OUTPUTS.index(dtype)), multiply(b[0], OUTPUTS.index(torch.float32))
        assert rows.dtype == dtype and rows.shape == (M, N) and along_k.dtype == torch.float32 and along_k.shape == (EXPERTS, M, N)
        for e, (begin, end) in enumerate(zip([0, *ends], ends)):
            part = slice(begin, end)
            check(rows[part], a[part].double() @ b[e].double().T)
            columns = slice(min(begin, K), min(end, K))
            check(along_k[e], a[:, columns].double() @ b[0][:, columns].double().T)


def test_messages_of_the_operator():
    (a, scale_a), (b, scale_b) = drawn(M, K), drawn(EXPERTS, N, K)
    offs = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    known = {"a": a, "scale_inv_a": scale_a, "b": b, "scale_inv_b": scale_b, "ends": offs, "output": 1, "fast_accumulation": 0}
    for others, message in (
        ({"a": a.float()}, "grouped_gemm a: is neither FP8 nor of 16 bits: cast it first"),
        ({"a": a[0]}, r"grouped_gemm a: has the shape \(112\), expected two dimensions"),
        ({"scale_inv_a": None}, "grouped_gemm scale_inv_a: is missing: FP8 codes have one"),
        ({"a": a.half()}, "grouped_gemm scale_inv_a: is given, but values of 16 bits have none"),
        ({"a": a.half(), "scale_inv_a": None, "output": 2}, "a is f16 and b is e4m3fn, but grouped GEMMs multiply"),
        ({"a": a.half(), "scale_inv_a": None, "b": b[0, 0].half()}, r"grouped_gemm b: has the shape \(112\), expected \(experts, N, K\)"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.ingot.grouped_gemm(**(known | others))
