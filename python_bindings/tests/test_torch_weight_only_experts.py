"""ingot.torch.grouped_weight_only_linear against each expert's product of the decoded weights in float64."""

import itertools

import pytest

torch = pytest.importorskip("torch")
from ingot.torch import ExpertWeights, LinearError, grouped_weight_only_linear
from torch.utils.flop_counter import FlopCounterMode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
ENDS = {"ragged": [0, 3, 3, 20, 21, 40], "one expert has all": [0, 0, 40, 40, 40, 40], "none at all": [0] * 6}
EXPERTS, TOKENS, N, K = 6, 40, 96, 160
FORMATS = [
    ("e2m1fn", "mx"),
    ("e4m3fn", "row"),
    ("e4m3fn", "128x128"),
    ("e4m3fn", "mx"),
    ("e5m2", "tensor"),
    ("e3m2fn", "mx"),
    ("e4m3fnuz", "1x64"),
]


def values(seed=0, dtype=torch.float32):
    return torch.randn(EXPERTS, N, K, generator=torch.Generator().manual_seed(seed), dtype=dtype) / K**0.5


def rows(dtype, device="cpu", seed=1):
    return torch.randn(TOKENS, K, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def expected(x, weight, ends, bias=None):
    out, begin = torch.zeros(TOKENS, N, dtype=torch.float64), 0
    for e, end in enumerate(ends):
        out[begin:end] = x[begin:end].double().cpu() @ weight[e].double().cpu().T
        if bias is not None:
            out[begin:end] += bias[e].double().cpu()
        begin = end
    return out


def check(found, exact, count):
    found = found[:count].double().cpu()
    assert torch.isfinite(found).all()
    assert (found - exact[:count]).norm() <= 0.003 * exact[:count].norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["packed", "packed_f16", "row_major"])
@pytest.mark.parametrize("of", FORMATS, ids=" ".join)
def test_values(of, layout, dtype, device):
    weight = ExpertWeights.quantize(values().to(device), *of, layout)
    decoded = weight.dequantize()
    assert weight.format.scale == of[1] and decoded.shape == (EXPERTS, N, K)
    assert (decoded.cpu() - values()).norm() <= 0.25 * values().norm()
    x, bias = rows(dtype, device), torch.randn(EXPERTS, N, device=device, dtype=dtype)
    for name, given in itertools.product(ENDS, (None, bias)):
        found = grouped_weight_only_linear(x, weight, int32(ENDS[name], device), bias=given)
        assert found.dtype == dtype and found.shape == (TOKENS, N)
        check(found, expected(x, decoded, ENDS[name], given), ENDS[name][-1])


@pytest.mark.parametrize("device", DEVICES)
def test_masked_rows_have_the_values_of_contiguous_ones(device):
    weight = ExpertWeights.quantize(values().to(device))
    capacity, counts = 8, [0, 8, 3, 1, 0, 5]
    masked = torch.full((EXPERTS, capacity, K), torch.nan, dtype=torch.bfloat16, device=device)
    x = rows(torch.bfloat16, device)
    ends, at = [], 0
    for e, count in enumerate(counts):
        masked[e, :count] = x[at : at + count]
        at += count
        ends.append(at)
    found = grouped_weight_only_linear(masked, weight, counts=int32(counts, device))
    apart = grouped_weight_only_linear(x, weight, int32(ends, device))
    assert found.shape == (EXPERTS, capacity, N)
    exact, at = expected(x, weight.dequantize(), ends), 0
    for e, count in enumerate(counts):
        check(found[e], exact[at : at + count], count)
        if device == "cpu":
            assert torch.equal(found[e, :count], apart[at : at + count])
        at += count


def test_codes_of_a_checkpoint_keep_their_values():
    """gpt-oss's blocks, DeepSeek's blocks of 128, and rows of FP8."""
    made = ExpertWeights.quantize(values(), "e2m1fn", layout="row_major")
    again = ExpertWeights.from_codes(made.codes.view(EXPERTS, N, K // 2), made.scale_inv, "e2m1fn")
    assert torch.equal(again.dequantize(), made.dequantize())
    as_e8m0 = made.scale_inv.view(torch.float8_e8m0fnu)
    assert torch.equal(ExpertWeights.from_codes(made.codes.view(EXPERTS, N, K // 2), as_e8m0, "e2m1fn").codes, again.codes)
    codes = values().to(torch.float8_e4m3fn)
    for scale, shape in (("row", (EXPERTS, N)), ("128x128", (EXPERTS, 1, 2)), ("tensor", (EXPERTS,))):
        scales = torch.rand(shape) + 0.5
        weight = ExpertWeights.from_codes(codes, scales, scale=scale)
        factors = scales.repeat_interleave(128, -1)[..., :K] if scale == "128x128" else scales.reshape(EXPERTS, -1, 1)
        assert torch.equal(weight.dequantize(), codes.float() * factors)


def test_layouts_have_the_same_bits():
    x, ends = rows(torch.float16), int32(ENDS["ragged"])
    for of in FORMATS[:2]:
        all_layouts = [ExpertWeights.quantize(values(), *of, layout) for layout in ("packed", "packed_f16", "row_major")]
        first, *others = [grouped_weight_only_linear(x, each, ends)[:40] for each in all_layouts]
        assert all(torch.equal(first, each) for each in others)


def test_compiled_counted_and_on_fake_tensors():
    weight, x, bias = ExpertWeights.quantize(values()), rows(torch.bfloat16), torch.randn(EXPERTS, N).bfloat16()
    ends = int32(ENDS["ragged"])

    def call(x, codes, scale_inv, ends, bias):
        return grouped_weight_only_linear(x, weight._replace(codes=codes, scale_inv=scale_inv), ends, bias=bias)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (40, 21):
        arguments = x[:count], weight.codes, weight.scale_inv, ends.clamp(max=count), bias
        assert torch.equal(compiled(*arguments), call(*arguments))
    with FlopCounterMode(display=False) as counter:
        grouped_weight_only_linear(x, weight, ends)
    assert counter.get_total_flops() == 2 * TOKENS * N * K
    sample = (x, weight.codes, weight.scale_inv, ends, bias, _plan(weight))
    torch.library.opcheck(torch.ops.ingot.weight_only_experts.default, sample, test_utils=["test_schema", "test_faketensor"])


def _plan(weight):
    from ingot.torch._weight_operators import weight_plan

    return weight_plan("experts", weight.format, weight.out_features, weight.in_features).number


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_graphs_take_other_ends():
    weight, x = ExpertWeights.quantize(values().cuda()), rows(torch.bfloat16, "cuda")
    ends = int32(ENDS["ragged"], "cuda")
    grouped_weight_only_linear(x, weight, ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = grouped_weight_only_linear(x, weight, ends)
    for other in ENDS.values():
        ends.copy_(int32(other))
        graph.replay()
        check(found, expected(x, weight.dequantize(), other), other[-1])


def message(call):
    with pytest.raises(LinearError) as error:
        call()
    return str(error.value)


def test_what_is_refused():
    weight, x, ends = ExpertWeights.quantize(values()), rows(torch.bfloat16), int32(ENDS["ragged"])
    run = lambda x=x, weight=weight, ends=ends, **named: message(lambda: grouped_weight_only_linear(x, weight, ends, **named))
    caller = "grouped_weight_only_linear "
    assert run(weight=weight.codes) == (
        caller + "weight: is a Tensor, expected ExpertWeights: make them by ExpertWeights.quantize() or from_codes()"
    )
    assert run(x.float()) == caller + "input: is torch.float32, expected bfloat16 or float16: convert it with .to()"
    assert run(x[:, 1:]) == caller + "input: has the shape (40, 159), expected (M, 160)"
    assert run(x[0]) == caller + "input: has the shape (160,), expected (M, 160)"
    assert run(ends=None).endswith("input: has the shape (40, 160): give ends, the row at which each expert's rows end")
    assert run(ends=ends[1:].clone()) == caller + "ends: has the shape (5,), expected (6,): one for each expert"
    assert run(ends=ends.long()) == caller + "ends: is torch.int64, expected int32: convert it with .to()"
    assert run(bias=torch.zeros(N)) == caller + "bias: has the shape (96,), expected (6, 96)"
    assert run(ends=int32([5, 3, 40, 40, 40, 40])).endswith(
        "dequant_matmul ends: say that expert 1 ends at row 3, but the one before ends at row 5: ends must not decrease"
    )
    assert run(ends=int32([41] * 6)).endswith("dequant_matmul ends: say that expert 0 ends at row 41, but x has 40 rows")
    masked = torch.zeros(EXPERTS, 4, K, dtype=torch.bfloat16)
    assert message(lambda: grouped_weight_only_linear(masked, weight, counts=int32([5] * 6))).endswith(
        "dequant_matmul counts: say that expert 0 has 5 rows, but it has room for 0 to 4"
    )
    assert message(lambda: grouped_weight_only_linear(masked[1:], weight, counts=ends)) == (
        caller + "input: has the shape (5, 4, 160), but there are weights of 6 experts"
    )
    assert run(x.clone().requires_grad_()) == (
        "grouped_weight_only_linear: has no gradients: call it under torch.no_grad(), or use grouped_linear(), whose FP8 weights pass "
        "gradients on"
    )


def test_what_makes_no_weights():
    of = ExpertWeights
    assert message(lambda: of.quantize(values()[0])).startswith(
        "ExpertWeights.quantize weight: is torch.float32 of the shape (96, 160), expected (experts, out_features, in_features)"
    )
    assert message(lambda: of.quantize(values(), "e2m1fn", "row")).endswith('e2m1fn is made only with MX scales: set scale="mx"')
    assert message(lambda: of.quantize(values(), "e9m9")).startswith("ExpertWeights weight_dtype: 'e9m9' is not one of ")
    codes = torch.zeros(EXPERTS, N, K, dtype=torch.float8_e4m3fn)
    assert message(lambda: of.from_codes(codes, torch.ones(5, N))) == (
        "ExpertWeights.from_codes scales: has the shape (5, 96), expected (6, 96, 1), one for each row of each expert's weight (96, 160)"
    )
    assert message(lambda: of.from_codes(codes[0], torch.ones(N))).startswith("ExpertWeights.from_codes codes: has the shape (96, 160)")
    assert message(lambda: of.from_codes(codes, torch.ones(EXPERTS, N), "e2m1fn")).startswith(
        "ExpertWeights.from_codes codes: is torch.float8_e4m3fn, but weight_dtype says e2m1fn"
    )
