"""ingot.torch.grouped_linear against each expert's product of the decoded operands in float64."""

import pytest

torch = pytest.importorskip("torch")
import ingot
from conftest import devices_of_grouped_gemm
from ingot.torch import LinearError, grouped_linear
from ingot.torch._quantize_operators import FORMATS, quantize_rows
from torch.utils.flop_counter import FlopCounterMode

E4M3 = torch.float8_e4m3fn
ENDS = {
    "ragged": [0, 3, 3, 40, 41, 90],
    "one expert has all": [0, 0, 90, 90, 90, 90],
    "even": [15, 30, 45, 60, 75, 90],
    "rows beyond the last": [1, 2, 3, 4, 5, 64],
    "none at all": [0] * 6,
}
EXPERTS, TOKENS, N, K = 6, 90, 144, 272
SCALES = {"experts": (EXPERTS,), "rows": (EXPERTS, N), "blocks": (EXPERTS, 2, 3), "groups": (EXPERTS, N, 3)}


def operands(scale, device="cpu", seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, K, generator=generator) * torch.rand(TOKENS, 1, generator=generator)
    codes = torch.randn(EXPERTS, N, K, generator=generator).to(E4M3)
    scale_inv = torch.rand(SCALES[scale], generator=generator) + 0.5
    return x.to(device, dtype), codes.to(device), scale_inv.to(device)


def spread(scale_inv, shape):
    """To each element of (..., N, K)."""
    while scale_inv.dim() < len(shape):
        scale_inv = scale_inv[..., None]
    for dim in (-2, -1):
        times = 1 if scale_inv.shape[dim] == 1 else 128 if scale_inv.shape[dim] < shape[dim] else 1
        scale_inv = scale_inv.repeat_interleave(times, dim)
    return scale_inv[..., : shape[-2], : shape[-1]].double().cpu()


def cast(x, by_groups):
    """As the operator casts an input, in float64: its values, codes and scale_inv."""
    groups = torch.nn.functional.pad(x.float(), (0, -K % 128)).reshape(TOKENS, -1, 128) if by_groups else x.float()[:, None]
    amax = groups.abs().amax(-1, keepdim=True).double().clamp(min=1e-12)
    scale = (448 / amax).float()
    codes = (groups * scale).clamp(-448, 448).to(E4M3)
    scale_inv = scale.double().reciprocal().float()
    return (codes.double() * scale_inv.double()).reshape(TOKENS, -1)[:, :K], codes.reshape(TOKENS, -1)[:, :K], scale_inv[..., 0]


def expected(values, codes, scale_inv, ends):
    weights = codes.double().cpu() * spread(scale_inv, codes.shape)
    out, begin = torch.zeros(TOKENS, N, dtype=torch.float64), 0
    for weight, end in zip(weights, ends):
        out[begin:end] = values[begin:end] @ weight.T
        begin = end
    return out


def check(found, exact, rows):
    found = found[:rows].double().cpu()
    assert torch.isfinite(found).all()
    assert (found - exact[:rows]).norm() <= 0.004 * exact[:rows].norm()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ends", ENDS)
def test_values(ends, scale, device):
    x, codes, scale_inv = operands(scale, device)
    at = torch.tensor(ENDS[ends], dtype=torch.int32, device=device)
    values, given, of_given = cast(x.cpu(), scale in ("blocks", "groups"))
    exact = expected(values, codes, scale_inv, ENDS[ends])
    found = grouped_linear(x, codes, scale_inv, at)
    assert found.dtype == torch.bfloat16 and found.shape == (TOKENS, N)
    check(found, exact, ENDS[ends][-1])
    # The same codes, given: the same bits.
    again = grouped_linear(
        given.contiguous().to(device), codes, scale_inv, at, input_scale_inv=of_given.contiguous().to(device), out_dtype=torch.bfloat16
    )
    assert torch.equal(found[: ENDS[ends][-1]], again[: ENDS[ends][-1]])


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
def test_dtypes_strides_and_shapes_of_scales(device):
    x, codes, scale_inv = operands("rows", device, dtype=torch.float32)
    at = torch.tensor(ENDS["ragged"], dtype=torch.int32, device=device)
    of_f32 = grouped_linear(x, codes, scale_inv, at)
    assert of_f32.dtype == torch.float32
    wide = torch.zeros(TOKENS, 2 * K, device=device)
    wide[:, ::2] = x
    assert torch.equal(grouped_linear(wide[:, ::2], codes, scale_inv[..., None], at), of_f32)
    assert torch.equal(grouped_linear(x, codes, scale_inv, at, out_dtype=torch.float16), of_f32.half())
    one = operands("experts", device)[2]
    by_row = one[:, None].expand(EXPERTS, N).contiguous()
    of_one = grouped_linear(x, codes, one, at)
    for other in (one[:, None], one[:, None, None]):
        assert torch.equal(grouped_linear(x, codes, other, at), of_one)
    # A GPU multiplies one scale_inv of an expert into those of the input's rows first.
    torch.testing.assert_close(grouped_linear(x, codes, by_row, at), of_one, rtol=1e-6, atol=0)
    # One scale_inv of the whole input.
    given, of_given = quantize_rows(x, FORMATS.index(E4M3), 0)
    tensorwise = grouped_linear(given, codes, one, at, input_scale_inv=of_given[:1])
    rows = grouped_linear(given, codes, one, at, input_scale_inv=of_given[:1].expand(TOKENS).contiguous())
    assert tensorwise.dtype == torch.bfloat16 and torch.equal(tensorwise, rows)
    assert grouped_linear(x[:0], codes, scale_inv, torch.zeros_like(at)).shape == (0, N)


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("scale", SCALES)
def test_masked(scale, device):
    """Room for 15 rows of each expert: those that it has are right, to the bits of contiguous rows."""
    x, codes, scale_inv = operands(scale, device)
    counts, capacity = [0, 15, 3, 1, 0, 9], TOKENS // EXPERTS
    masked = x.reshape(EXPERTS, capacity, K).clone()
    for e, count in enumerate(counts):
        masked[e, count:] = torch.nan  # what a dispatcher's memory holds there
    found = grouped_linear(masked, codes, scale_inv, counts=torch.tensor(counts, dtype=torch.int32, device=device))
    assert found.shape == (EXPERTS, capacity, N)
    rows = torch.cat([masked[e, :count] for e, count in enumerate(counts)])
    ends = torch.tensor(counts).cumsum(0).to(device, torch.int32)
    contiguous = grouped_linear(rows, codes, scale_inv, ends)
    assert torch.equal(torch.cat([found[e, :count] for e, count in enumerate(counts)]), contiguous)
    values, given, of_given = cast(x.cpu(), scale in ("blocks", "groups"))
    for e, count in enumerate(counts):
        check(found[e], values.reshape(EXPERTS, capacity, K)[e] @ (codes.double().cpu() * spread(scale_inv, codes.shape))[e].T, count)
    again = grouped_linear(
        given.reshape(EXPERTS, capacity, K).contiguous().to(device), codes, scale_inv,
        counts=torch.tensor(counts, dtype=torch.int32, device=device),
        input_scale_inv=of_given.reshape(EXPERTS, capacity, -1).contiguous().to(device),
    )  # fmt: skip
    assert all(torch.equal(found[e, :count], again[e, :count]) for e, count in enumerate(counts))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", ["experts", "rows", "blocks"])
def test_gradient_of_rows(scale, masked, device):
    """Against float64 with the decoded weights: what is left is the cast of grad_output, of 3 bits."""
    x, codes, scale_inv = operands(scale, device)
    ends = [15, 30, 30, 40, 41, 80]
    counts = torch.tensor(ends).diff(prepend=torch.zeros(1, dtype=torch.int64))
    grad = torch.randn(TOKENS, N, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(3)).to(device)
    weights, exact, begin = codes.double().cpu() * spread(scale_inv, codes.shape), [], 0
    for e, count in enumerate(counts.clamp(max=15).tolist() if masked else counts.tolist()):
        begin = e * 15 if masked else begin
        exact.append((slice(begin, begin + count), grad[begin : begin + count].double().cpu() @ weights[e]))
        begin += count
    if masked:
        rows = {"counts": counts.clamp(max=15).to(device, torch.int32)}
        x, grad = x.reshape(EXPERTS, 15, K), grad.reshape(EXPERTS, 15, N)
    else:
        rows = {"ends": torch.tensor(ends, dtype=torch.int32, device=device)}
    input = x.clone().requires_grad_()
    output = grouped_linear(input, codes, scale_inv, **rows)
    found = torch.autograd.grad(output, input, grad)[0]
    assert found.dtype == torch.bfloat16 and found.shape == x.shape
    plain = grouped_linear(x, codes, scale_inv, **rows)
    for at, values in exact:
        ours = found.reshape(TOKENS, K)[at].double().cpu()
        assert ours.isfinite().all() and (ours - values).norm() <= 0.035 * values.norm()
        assert torch.equal(output.reshape(TOKENS, N)[at], plain.reshape(TOKENS, N)[at])


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", ["experts", "rows", "blocks"])
def test_gradient_of_rows_that_no_expert_has(scale, masked, device):
    """Zeros, by a loss of the rows that they have; and a batch of gradients is each of them."""
    x, codes, scale_inv = operands(scale, device)
    counts = torch.tensor([15, 0, 3, 1, 9, 4], dtype=torch.int32, device=device)
    rows, ends = torch.arange(15, device=device), counts.cumsum(0, dtype=torch.int32)
    has = rows < counts[:, None] if masked else torch.arange(TOKENS, device=device) < ends[-1]
    input = (x.reshape(EXPERTS, 15, K) if masked else x).clone().requires_grad_()
    output = grouped_linear(input, codes, scale_inv, **({"counts": counts} if masked else {"ends": ends}))
    held = torch.full((*input.shape,), torch.nan, device=device)  # what the allocator may give again
    del held
    grads = torch.zeros(2, *output.shape, dtype=output.dtype, device=device)
    grads[0, has], grads[1, has] = 1, torch.randn(int(has.sum()), N, device=device).to(output.dtype)
    each = [torch.autograd.grad(output, input, grad, retain_graph=True)[0] for grad in grads]
    assert all(not found[~has].any() and found[has].abs().sum(1).all() for found in each)
    found = torch.autograd.grad(output, input, grads, is_grads_batched=True)[0]
    assert torch.equal(found, torch.stack(each))


@pytest.mark.nightly
def test_gradient_of_rows_compiled():
    x, codes, scale_inv = operands("rows")
    x.requires_grad_()
    ends = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    torch._dynamo.reset()  # it stops compiling one function for more than eight kinds of arguments
    outputs = [call(x, codes, scale_inv, ends) for call in (grouped_linear, torch.compile(grouped_linear, backend="aot_eager", fullgraph=True))]
    assert torch.equal(*(torch.autograd.grad(each, x, torch.ones_like(each))[0] for each in outputs))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("exponents", [False, True])
def test_codes_of_a_dispatcher_with_room_for_each_expert(exponents, device):
    """DeepEP's low-latency layout: codes, scales of 1 x 128 that lie by columns, float32 or exponents in int32, and counts."""
    _, codes, scale_inv = operands("blocks", device)
    counts, capacity, groups = [0, 15, 3, 1, 0, 9], 15, -(-K // 128)
    given = torch.randn(EXPERTS, capacity, K).to(E4M3)
    powers = torch.randint(120, 130, (EXPERTS, capacity, groups), dtype=torch.uint8)
    of_given = torch.exp2(powers.double() - 127) if exponents else torch.rand(EXPERTS, capacity, groups).double()
    sent = of_given.float()
    if exponents:
        sent = torch.nn.functional.pad(powers, (0, -groups % 4)).view(torch.int32)
    sent = sent.to(device).transpose(1, 2).contiguous().transpose(1, 2)
    for e, count in enumerate(counts):
        given[e, count:].view(torch.uint8).fill_(0x7F)  # NaN
    number = torch.tensor(counts, dtype=torch.int32, device=device)
    found = grouped_linear(given.to(device), codes, scale_inv, counts=number, input_scale_inv=sent)
    values = given.double() * of_given.repeat_interleave(128, -1)[..., :K]
    weights = codes.double().cpu() * spread(scale_inv, codes.shape)
    assert found.dtype == torch.bfloat16
    for e, count in enumerate(counts):
        check(found[e], values[e] @ weights[e].T, count)


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
def test_codes_of_a_dispatcher_with_rows_of_tokens(device):
    """DeepEP's other layout: each token once, with its local experts or -1; the whole MLP as docs/pytorch_inference.md has it."""
    tokens, k, hidden = 40, 3, 128
    generator = torch.Generator().manual_seed(0)
    index = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :k]
    index[torch.rand(tokens, k, generator=generator) < 0.4] = -1
    weights = torch.rand(tokens, k, generator=generator)
    codes, scales = torch.randn(tokens, K, generator=generator).to(E4M3), torch.rand(tokens, 3, generator=generator) + 0.5
    up, of_up = torch.randn(EXPERTS, 2 * hidden, K, generator=generator).to(E4M3), torch.rand(EXPERTS, 2, 3, generator=generator) / 16
    down, of_down = torch.randn(EXPERTS, K, hidden, generator=generator).to(E4M3), torch.rand(EXPERTS, 3, 1, generator=generator) / 12
    exact, x = torch.zeros(tokens, K, dtype=torch.float64), codes.double() * scales.double().repeat_interleave(128, 1)[:, :K]
    up_values, down_values = (each.double() * spread(of, each.shape) for each, of in ((up, of_up), (down, of_down)))
    for token, choice in (index >= 0).nonzero().tolist():
        gate, value = (up_values[index[token, choice]] @ x[token]).chunk(2)
        exact[token] += weights[token, choice] * (down_values[index[token, choice]] @ (torch.nn.functional.silu(gate) * value))
    index, weights, codes, scales, up, of_up, down, of_down = (
        each.to(device) for each in (index, weights, codes, scales, up, of_up, down, of_down)
    )
    of_rows, order = index.masked_fill(index < 0, EXPERTS).flatten().sort(stable=True)
    ends = torch.searchsorted(of_rows, torch.arange(EXPERTS, device=device), right=True, out_int32=True)
    rows = order // k
    gate, value = grouped_linear(codes[rows], up, of_up, ends, input_scale_inv=scales[rows], out_dtype=torch.float32).chunk(2, -1)
    y = grouped_linear(torch.nn.functional.silu(gate) * value, down, of_down, ends)
    y = (y * weights.flatten()[order, None]).masked_fill(of_rows[:, None] == EXPERTS, 0)
    found = torch.zeros(tokens, K, device=device).index_add_(0, rows, y).double().cpu()
    assert found.isfinite().all() and (found - exact).norm() <= 0.04 * exact.norm()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("multiple", [1, 16])
def test_codes_of_a_dispatcher_with_rows_of_experts(multiple, device):
    """HybridEP's layout after its permutation: rows of codes and of scales, each expert's after the other's and padded to a
    multiple, with how many each has. What the padding holds reaches no other row."""
    _, codes, scale_inv = operands("blocks", device)
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([0, 15, 3, 16, 1, 9])
    padded = (counts + multiple - 1) // multiple * multiple
    ends, rows = padded.cumsum(0), int(padded.sum())
    given, scales = torch.randn(rows, K, generator=generator).to(E4M3), torch.rand(rows, 3, generator=generator) + 0.5
    is_row = torch.cat([torch.arange(each) < count for each, count in zip(padded.tolist(), counts)])
    given = torch.where(is_row[:, None], given.float(), torch.nan).to(E4M3)
    scales[~is_row] = torch.nan
    found = grouped_linear(
        given.to(device), codes, scale_inv, padded.to(device).cumsum(0, dtype=torch.int32), input_scale_inv=scales.to(device)
    )
    values = given.double() * scales.double().repeat_interleave(128, 1)[:, :K]
    weights = codes.double().cpu() * spread(scale_inv, codes.shape)
    assert found.shape == (rows, N) and is_row.sum() == counts.sum()
    for e, (end, size, count) in enumerate(zip(ends.tolist(), padded.tolist(), counts.tolist())):
        check(found[end - size : end], values[end - size : end] @ weights[e].T, count)


def test_compiled_counted_and_checked():
    x, codes, scale_inv = operands("blocks")
    at = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    torch._dynamo.reset()
    compiled = torch.compile(grouped_linear, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(x, codes, scale_inv, at), grouped_linear(x, codes, scale_inv, at))
    with FlopCounterMode(display=False) as counter:
        grouped_linear(x, codes, scale_inv, at)
    assert counter.get_total_flops() == 2 * TOKENS * N * K
    masked, counts = x.reshape(EXPERTS, -1, K), torch.arange(EXPERTS, dtype=torch.int32)
    for room in (TOKENS // EXPERTS, 7):
        outputs = [call(masked[:, :room], codes, scale_inv, counts=counts) for call in (compiled, grouped_linear)]
        assert outputs[0].shape == (EXPERTS, room, N)
        assert all(torch.equal(*[each[e, :e] for each in outputs]) for e in range(EXPERTS))
    assert grouped_linear(masked[:, :0], codes, scale_inv, counts=torch.zeros_like(counts)).shape == (EXPERTS, 0, N)
    none = codes[:, :, :0].contiguous(), scale_inv[:, :, :0].contiguous()
    sums = grouped_linear(x[:, :0].to(E4M3).contiguous(), *none, at, input_scale_inv=torch.zeros(TOKENS, 0))
    assert torch.equal(sums[:90], torch.zeros(TOKENS, N, dtype=torch.bfloat16))
    with FlopCounterMode(display=False) as counter:
        grouped_linear(masked, codes, scale_inv, counts=counts)
    assert counter.get_total_flops() == 2 * TOKENS * N * K
    checks = ("test_faketensor", "test_aot_dispatch_dynamic")  # the others multiply FP8 tensors
    torch.library.opcheck(torch.ops.ingot.grouped_linear.default, (x, codes, scale_inv, at, 1), test_utils=checks)


def test_messages():
    x, codes, scale_inv = operands("rows")
    at = torch.tensor(ENDS["ragged"], dtype=torch.int32)
    given, of_given = quantize_rows(x, FORMATS.index(E4M3), 0)
    learns, masked = x.clone().requires_grad_(), x.reshape(EXPERTS, -1, K)
    call = lambda *given, **named: lambda: grouped_linear(*given, **named)

    def in_forward_mode(rows):
        with torch.autograd.forward_ad.dual_level():
            return grouped_linear(torch.autograd.forward_ad.make_dual(rows, rows), codes, scale_inv, at)

    for act, message in (
        (call(x, codes.view(torch.int8), scale_inv, at), "grouped_linear weight: is not FP8: cast it first"),
        (call(x, codes[0], scale_inv, at), r"weight: has the shape \(144, 272\), expected \(experts, N, K\)"),
        (call(x, codes.transpose(1, 2), scale_inv, at), "weight: is not contiguous: call .contiguous"),
        (call(x, codes, scale_inv.double(), at), "weight_scale_inv: must be float32"),
        (call(x, codes, scale_inv[:, :7].contiguous(), at), r"has the shape \(6, 7\), expected \(6,\): one for each expert; "
         r"\(6, 144\): for each row; \(6, 2, 3\): for blocks of 128 x 128; or \(6, 144, 3\): for groups of 128 of a row"),
        (call(x[0], codes, scale_inv, at), r"input: has the shape \(272\), expected \(M, K\) or \(experts, capacity, K\)"),
        (call(x, codes, scale_inv), r"input: has the shape \(90, 272\): give ends, the row at which each expert's rows end"),
        (call(x, codes, scale_inv, counts=at), r"counts: are for an input \(experts, capacity, K\), and it has the shape \(90, 272\): give ends, the"),
        (call(x, codes, at), r"^grouped_linear weight_scale_inv: is torch.int32, expected float32: did you mean ends=\?$"),
        (call(x, codes, scale_inv, at, options="rowwise"), r"^grouped_linear options: is 'rowwise', expected LinearOptions\('rowwise'\)$"),
        (call(x, codes, scale_inv, at, counts=at), r"ends and counts are given: give counts for an input \(experts, capacity, K\)"),
        (call(masked, codes, scale_inv, at), r"input: has the shape \(6, 15, 272\): give counts, how many rows each expert has"),
        (call([1.0], codes, scale_inv, counts=at), "input: is a list, expected a torch.Tensor"),
        (call(masked[:3], codes, scale_inv, counts=at), r"\(3, 15, 272\), but there are weights of 6 experts"),
        (call(masked, codes, scale_inv, counts=at), "grouped_gemm counts: say that expert 3 has 40 rows, but it has room for 0 to 15"),
        (call(masked, codes, scale_inv, counts=at.long()), "counts: must be int32"),
        (call(x[:, :256], codes, scale_inv, at), r"input: has the shape \(90, 256\), but the weights' K is 272"),
        (call(x.long(), codes, scale_inv, at), "input: must be float32, bfloat16 or float16"),
        (call(given, codes, scale_inv, at), "input_scale_inv: is missing: the input is FP8 codes"),
        (call(x, codes, scale_inv, at, input_scale_inv=of_given), "input_scale_inv: is given, but the input is no FP8 codes"),
        (call(given, codes, scale_inv, at, input_scale_inv=of_given[:5]), r"input_scale_inv: has the shape \(5\), expected one "
         r"element or \(90\): for each row"),
        (call(given, codes, scale_inv, at, input_scale_inv=of_given.reshape(2, 45)), r"has the shape \(2, 45\), expected one"),
        (call(given, codes, operands("blocks")[2], at, input_scale_inv=torch.rand(3, TOKENS)), r"input_scale_inv: has the shape "
         r"\(3, 90\), expected \(90, 3\): for groups of 128 of a row"),
        (call(given, codes, operands("blocks")[2], at, input_scale_inv=torch.ones(TOKENS, 3, dtype=torch.int32)), r"input_scale_inv: is int32 "
         r"of the shape \(90, 3\), expected \(90, 1\), with the exponents of four groups of 128 in each, or float32"),
        (call(x, codes, scale_inv, at.long()), "ends: must be int32"),
        (call(x, codes, scale_inv, at[:5]), "ends: has 5 elements, expected one for each of 6 experts"),
        (call(x, codes, scale_inv, at.flip(0).contiguous()), "grouped_gemm ends: "),
        (call(x, codes, scale_inv, at + 9), "grouped_gemm ends: "),
        (call(x, codes.to("meta"), scale_inv, at), "weight: is on meta and the input on cpu: load its values first"),
        (call(x, codes, scale_inv.to("meta"), at), "weight_scale_inv: is on meta and the input on cpu"),
        (call(x, codes, scale_inv, at.to("meta")), "ends: is on meta and the input on cpu"),
        (call(x.to("meta"), codes, scale_inv, at), "weight: is on cpu and the input on meta: move one"),
        (call(given, codes, scale_inv, at, input_scale_inv=of_given.to("meta")), "input_scale_inv: is on meta"),
        (call(x, codes, scale_inv, [1, 2]), "ends: is a list, expected a torch.Tensor"),
        (call(x, codes, [1.0], at), "weight_scale_inv: is a list, expected a torch.Tensor"),
        (call(x, codes, None, at), "weight_scale_inv: is missing, but the weight is torch.float8_e4m3fn"),
        (call(x, codes, scale_inv, at, out_dtype=torch.float64), "out_dtype: is torch.float64, expected float32"),
        (call(learns, codes, scale_inv, at, input_scale_inv=of_given), "input_scale_inv: is given, but the input is no FP8 codes"),
        (call(learns, codes, operands("groups")[2], at), r"^grouped_linear weight_scale_inv: has the shape \(6, 144, 3\), with which the "
         "input, that requires a gradient, can have none: give one for each expert, row or block of 128 x 128, call it under"),
        (call(x, codes, scale_inv.clone().requires_grad_(), at), "^grouped_linear weight_scale_inv: requires a gradient, and with FP8 "
         r"weights of experts only an input in high precision gets one: detach\(\) it, or give weights in high precision, which"),
        (call(given, codes, scale_inv, at, input_scale_inv=of_given.clone().requires_grad_()), "input_scale_inv: requires a gradient"),
        (call(given.clone().requires_grad_(), codes, scale_inv, at, input_scale_inv=of_given), "input: requires a gradient, and with FP8"),
        (lambda: torch.func.grad(lambda rows: grouped_linear(rows, codes, scale_inv, at).sum())(x), "under torch.func transforms"),
        (lambda: torch.func.jvp(lambda rows: grouped_linear(rows, codes, scale_inv, at), (x,), (x,)), "forward mode: give it the whole batch"),
        (lambda: torch.func.jvp(lambda scales: grouped_linear(x, codes, scales, at), (scale_inv,), (scale_inv,)), "forward mode"),
        (lambda: in_forward_mode(x), '^grouped linear "experts" cannot run under torch.func transforms'),
        (lambda: torch.no_grad()(in_forward_mode)(x), "forward mode"),
        (lambda: torch.autograd.grad(grouped_linear(learns, codes, scale_inv, at).sum(), learns, create_graph=True),
         '^grouped linear "experts" backward: the gradient of an FP8 GEMM has no gradient itself'),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message) as caught:
            act()
        assert isinstance(caught.value, ingot.Error)
    with torch.no_grad():
        assert torch.equal(grouped_linear(learns, codes, scale_inv, at), grouped_linear(x, codes, scale_inv, at))
    batched = torch.vmap(lambda rows: grouped_linear(rows, codes, scale_inv, at))(torch.stack([x, 2 * x]))
    assert torch.equal(batched[1][:90], grouped_linear(2 * x, codes, scale_inv, at)[:90])
