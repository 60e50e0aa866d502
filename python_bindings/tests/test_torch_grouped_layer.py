"""Training with ingot.torch.grouped_linear: each expert against float64 products of operands that are quantized here."""

import pytest

torch = pytest.importorskip("torch")
from conftest import devices_of_grouped_gemm
import ingot.torch
from ingot._pytorch import is_older
from ingot.torch import LinearError, LinearOptions, _grouped_layer, experts_mlp, grouped_linear, linear
from ingot.torch._experts import mlp_of_rows, routed
from torch.utils.checkpoint import checkpoint

ENDS = {"ragged": [0, 3, 3, 40, 41, 90], "one expert has all": [0, 0, 90, 90, 90, 90], "rows beyond": [1, 2, 3, 4, 5, 64]}
EXPERTS, TOKENS, N, K = 6, 90, 48, 80
RECIPES = ("tensorwise", "rowwise", "blockwise")
LIMITS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def operands(device, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, K, generator=generator) * torch.rand(TOKENS, 1, generator=generator)
    weight = torch.randn(EXPERTS, N, K, generator=generator) * torch.rand(EXPERTS, 1, 1, generator=generator)
    grad = torch.randn(TOKENS, N, generator=generator)
    return [each.to(device, dtype).requires_grad_() for each in (x, weight)] + [grad.to(device, dtype)]


def quantized(x, recipe, format=torch.float8_e4m3fn):
    """In float64, with a scale for each row, for all of a matrix, or for blocks: (rows, columns) of them."""
    x = x.detach().double().cpu()
    if x.numel() == 0:
        return x
    if isinstance(recipe, tuple):
        return torch.cat([torch.cat([quantized(part, "tensorwise") for part in rows.split(recipe[1], 1)], 1) for rows in x.split(recipe[0])])
    amax = x.abs().amax(-1, keepdim=True) if recipe == "rowwise" else x.abs().amax((-2, -1), keepdim=True)
    scale = (LIMITS[format] / amax.clamp(min=1e-12)).float()
    if recipe == "rowwise":
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    limit = LIMITS[format]
    codes = (x.float() * scale).clamp(-limit, limit).to(format)
    return codes.double() * scale.reciprocal().double()


def check(found, exact):
    found, exact = found.detach().double().cpu(), exact.detach()
    assert torch.isfinite(found).all()
    assert (found - exact).norm() <= 0.004 * exact.norm()


def ends_on(device, name="ragged"):
    return torch.tensor(ENDS[name], dtype=torch.int32, device=device)


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("ends", ENDS)
def test_values_and_gradients(ends, recipe, again, device):
    x, weight, grad = operands(device)
    options = LinearOptions(recipe, name="moe", keep_weight_codes=not again)
    y = grouped_linear(x, weight, ends=ends_on(device, ends), options=options)
    assert y.dtype == torch.bfloat16 and y.shape == (TOKENS, N)
    y.backward(grad)
    gradients = torch.float8_e5m2 if recipe == "tensorwise" else torch.float8_e4m3fn
    groups, of_weight = ((1, 128), (128, 128)) if recipe == "blockwise" else (recipe, recipe)
    rows, row_grads = quantized(x, groups), quantized(grad, groups, gradients)
    part = lambda each, format: (
        lambda begin, end: quantized(each[begin:end].T, groups)  # groups of 128 begin with an expert's first row
        if recipe == "blockwise"
        else quantized(each.T, recipe, format)[:, begin:end]
    )
    columns, column_grads = part(x, torch.float8_e4m3fn), part(grad, gradients)
    begin = 0
    for e, end in enumerate(ENDS[ends]):
        check(y[begin:end], rows[begin:end] @ quantized(weight[e], of_weight).T)
        check(x.grad[begin:end], row_grads[begin:end] @ quantized(weight[e].T, of_weight).T)
        check(weight.grad[e], column_grads(begin, end) @ columns(begin, end).T)
        begin = end


def test_one_expert_has_the_bits_of_a_linear_layer():
    for recipe in RECIPES:
        for again in (False, True):
            options = LinearOptions(recipe, keep_weight_codes=not again)
            results = []
            for grouped in (True, False):
                x, weight, grad = operands("cpu")
                one = weight.detach()[:1].clone().requires_grad_()
                y = (
                    grouped_linear(x, one, ends=torch.tensor([TOKENS], dtype=torch.int32), options=options)
                    if grouped
                    else linear(x, one[0], options=options)
                )
                y.backward(grad)
                results.append((y.detach(), x.grad, one.grad))
            assert all(torch.equal(*each) for each in zip(*results))


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_expert_has_the_bits_of_an_mlp(recipe):
    """Where its tokens count once; a token that another rank's expert has gets zeros."""
    generator = torch.Generator().manual_seed(0)
    x, gate_up, down = (torch.randn(*each, generator=generator) / 8 for each in ((TOKENS, K), (1, 2 * N, K), (1, K, N)))
    index, results = torch.zeros(TOKENS, 1, dtype=torch.int64), []
    for of_experts in (True, False):
        given = [each.clone().requires_grad_() for each in (x, gate_up, down)]
        if of_experts:
            y = experts_mlp(given[0], index, torch.ones(TOKENS, 1), *given[1:], LinearOptions(recipe))
        else:
            y = ingot.torch.mlp(given[0], given[1][0], given[2][0], options=ingot.torch.MlpOptions(recipe, activation="silu(x) * up"))
        y.backward(x)
        results.append((y.detach(), *(each.grad for each in given)))
    assert all(torch.equal(*each) for each in zip(*results)), [(a - b).abs().max() for a, b in zip(*results)]
    index[::2] = 1
    assert not experts_mlp(x, index, torch.ones(TOKENS, 1), gate_up, down, LinearOptions(recipe))[::2].any()


def step(x, weight, grad, ends, options, call=grouped_linear):
    x.grad = weight.grad = None
    y = call(x, weight, ends=ends, options=options)
    y.backward(grad)
    return y.detach(), x.grad.clone(), weight.grad.clone()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_situations(recipe, device):
    """Accumulation, main_grad, one gradient alone, checkpointing, autocast, a compiled graph: the bits of a plain step."""
    options = LinearOptions(recipe, name="moe")
    x, weight, grad = operands(device)
    ends = ends_on(device)
    plain = step(x, weight, grad, ends, options)
    y = grouped_linear(x, weight, ends=ends, options=options)
    y.backward(grad)
    assert torch.equal(weight.grad, plain[2] + plain[2])
    x.grad = None
    grouped_linear(x, weight.detach(), ends=ends, options=options).backward(grad)
    assert torch.equal(x.grad, plain[1])
    weight.grad = None
    grouped_linear(x.detach(), weight, ends=ends, options=options).backward(grad)
    assert torch.equal(weight.grad, plain[2])
    with torch.no_grad():
        assert torch.equal(grouped_linear(x, weight, ends=ends, options=options), plain[0])
    recompute = lambda *given, **named: checkpoint(grouped_linear, *given, use_reentrant=False, **named)
    assert all(torch.equal(*each) for each in zip(step(x, weight, grad, ends, options, recompute), plain))
    compiled = torch.compile(grouped_linear, backend="aot_eager", fullgraph=True)
    assert all(torch.equal(*each) for each in zip(step(x, weight, grad, ends, options, compiled), plain))
    with torch.autocast(device, torch.bfloat16):
        wide = x.detach().float().requires_grad_()
        y = grouped_linear(wide, weight, ends=ends, options=options)
    assert torch.equal(y, plain[0])

    weight.main_grad = torch.ones(EXPERTS, N, K, device=device)
    weight.grad = None
    grouped_linear(x, weight, ends=ends, options=options).backward(grad)
    assert weight.grad is None
    torch.testing.assert_close(weight.main_grad, plain[2].float() + 1, rtol=0.005, atol=0.01)
    x.grad = None
    (only,) = torch.autograd.grad(grouped_linear(x, weight, ends=ends, options=options), weight, grad)
    assert torch.equal(only, plain[2])


@pytest.mark.parametrize("compiled", [False, True])
def test_main_grad_stays_where_the_engine_does_not_ask_for_it(compiled):
    """A backward of the input alone, as pipelines have it, and then one of the rest."""
    if compiled and is_older(torch.__version__, (2, 8)):
        pytest.skip("PyTorch 2.7 refuses a second backward of a graph that has written main_grad")
    x, weight, grad = operands("cpu")
    ends, options = ends_on("cpu"), LinearOptions("rowwise", name="moe")
    call = lambda x, weight: grouped_linear(x, weight, ends=ends, options=options)
    exact = torch.autograd.grad(call(x, weight), (x, weight), grad)
    weight.main_grad = torch.zeros(EXPERTS, N, K)
    y = (torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call)(x, weight)
    (found,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    assert torch.equal(found, exact[0]) and not weight.main_grad.any()
    x.grad = None
    y.backward(grad)
    assert torch.equal(x.grad, exact[0]) and weight.grad is None
    torch.testing.assert_close(weight.main_grad.bfloat16(), exact[1])


def test_nothing_and_master_weights():
    x, weight, grad = operands("cpu")
    none = torch.zeros(EXPERTS, dtype=torch.int32)
    empty = x.detach()[:0].requires_grad_()
    y = grouped_linear(empty, weight, ends=none)
    y.sum().backward()
    assert y.shape == (0, N) and empty.grad.shape == (0, K) and not weight.grad.any()
    master = weight.detach().float().requires_grad_()
    results = [step(x, each, grad, ends_on("cpu"), LinearOptions("rowwise")) for each in (weight, master)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert results[1][2].dtype == torch.float32 and torch.equal(results[1][2].bfloat16(), results[0][2])
    x = torch.cat([x.detach()] * 2, 1).requires_grad_()
    gated = lambda *given, **named: grouped_linear(*given, activation="silu(x) * up", **named)
    results = [step(x, each, grad, ends_on("cpu"), LinearOptions("rowwise"), gated) for each in (weight, master)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("keep", [None, False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_without_elements(recipe, keep):
    for n, k in ((0, 0), (N, 0), (0, K)):
        x, weight = torch.randn(TOKENS, k, requires_grad=True), torch.randn(EXPERTS, n, k, requires_grad=True)
        bias = torch.randn(EXPERTS, n, requires_grad=True)
        options = LinearOptions(recipe, "moe", keep_weight_codes=keep)
        y = grouped_linear(x, weight, ends=ends_on("cpu"), options=options, bias=bias)
        y.backward(torch.ones_like(y))
        of_rows = torch.repeat_interleave(torch.tensor([0, 3, 0, 37, 1, 49]))
        expected = bias.detach().bfloat16().float()[of_rows] if k == 0 else torch.zeros(TOKENS, 0)
        assert torch.equal(y, expected) and not x.grad.any() and weight.grad.shape == weight.shape
        assert torch.equal(bias.grad, torch.bincount(of_rows, minlength=EXPERTS)[:, None].expand(EXPERTS, n).to(bias.grad))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", RECIPES)
def test_biases(recipe, device):
    """The output's rows have their expert's, and the gradient is each expert's sum over its rows; all else has the bits without."""
    x, weight, grad = operands(device)
    options, ends = LinearOptions(recipe, name="moe"), ends_on(device)
    bias = torch.randn(EXPERTS, N, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()
    plain = step(x, weight, grad, ends, options)
    call = lambda *given, **named: grouped_linear(*given, bias=bias, **named)
    y, *gradients = step(x, weight, grad, ends, options, call)
    of_row = torch.searchsorted(ends.long(), torch.arange(TOKENS, device=device), right=True)
    check(y, plain[0].double().cpu() + bias.detach().bfloat16().double().cpu()[of_row.cpu()])
    assert all(map(torch.equal, gradients, plain[1:]))
    sums = torch.zeros(EXPERTS, N, dtype=torch.float64).index_add_(0, of_row.cpu(), grad.double().cpu())
    assert bias.grad.dtype == torch.float32 and not bias.grad[0].any() and not bias.grad[2].any()
    check(bias.grad, sums)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    first, bias.grad = bias.grad, None
    assert all(map(torch.equal, step(x, weight, grad, ends, options, compiled), (y, *gradients))) and torch.equal(bias.grad, first)
    (alone,) = torch.autograd.grad(grouped_linear(x.detach(), weight.detach(), ends=ends, options=options, bias=bias), bias, grad)
    assert torch.equal(alone, first)
    with torch.no_grad():
        assert torch.equal(grouped_linear(x, weight, ends=ends, options=options, bias=bias), y)
        with torch.autograd.forward_ad.dual_level(), pytest.raises(LinearError, match='^grouped linear "moe" cannot run .* in forward mode'):
            grouped_linear(x, weight, ends=ends, options=options, bias=torch.autograd.forward_ad.make_dual(bias.detach(), bias.detach()))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", RECIPES)
def test_experts_mlp_with_biases(recipe, device):
    """gpt-oss's experts, against each token's in high precision, each gradient alone, and an exported program. Rows are a multiple of
    the 128 by which memory is given, so that it has nothing to spare."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 64, 64, device=device)
    index, weights = torch.rand(64, 5, device=device).argsort(1)[:, :2], torch.rand(64, 2, device=device)
    gate_up, down = torch.randn(5, 96, 64, device=device) / 4, torch.randn(5, 64, 48, device=device)
    of_up, of_down = torch.randn(5, 96, device=device), torch.randn(5, 64, device=device)
    given = [each.requires_grad_() for each in (x, weights, gate_up, down, of_up, of_down)]
    activation = "min(x, 5) * sigmoid(1.702 * min(x, 5)) * (max(min(up, 5), -5) + 1)"

    class Mlp(torch.nn.Module):
        def forward(self, x, weights, gate_up, down, of_up, of_down):
            options = LinearOptions(recipe, name="moe")
            return experts_mlp(
                x, index, weights, gate_up, down, options, gate_up_bias=of_up, down_bias=of_down, activation=activation
            )

    def exact(x, weights, gate_up, down, of_up, of_down):
        gate, up = (torch.einsum("tk,tcnk->tcn", x, gate_up[index]) + of_up[index]).chunk(2, -1)
        gate, up = gate.clamp(max=5), up.clamp(-5, 5)
        out = torch.einsum("tcn,tckn->tck", gate * torch.sigmoid(1.702 * gate) * (up + 1), down[index]) + of_down[index]
        return (out * weights[..., None]).sum(1)

    found, right = Mlp()(*given), exact(*given)
    of_found = torch.autograd.grad(found, given, grad)
    for ours, theirs in zip((found, *of_found), (right, *torch.autograd.grad(right, given, grad))):
        assert ours.shape == theirs.shape and (ours - theirs).norm() < 0.12 * theirs.norm()
    for at in range(len(given)):
        only = [each if each is given[at] else each.detach() for each in given]
        assert torch.equal(torch.autograd.grad(Mlp()(*only), given[at], grad)[0], of_found[at]), at
    if device == "cpu":
        program = torch.export.export(Mlp(), tuple(given)).module()
        assert (program(*given) - found).norm() < 0.1 * found.norm()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(of_up.detach(), of_up.detach())
        with pytest.raises(LinearError, match='^experts "moe" cannot run .* in forward mode'):
            Mlp()(*given[:4], dual, of_down)
    with torch.no_grad(), pytest.raises(LinearError, match=r'^experts "moe" cannot run under torch.func transforms \(vmap'):
        torch.vmap(Mlp(), in_dims=(0, *(None,) * 5))(x[None], *given[1:])
    options = LinearOptions(recipe, name="moe")
    call = lambda **named: lambda: experts_mlp(x, index, weights, gate_up, down, options, **named)
    for act, message in (
        (call(gate_up_bias=of_down), r"^experts_mlp gate_up_bias: has the shape \(5, 64\), expected \(5, 96\), a row for each expert$"),
        (call(down_bias=of_down.long()), "^experts_mlp down_bias: is torch.int64, expected float32, bfloat16 or float16$"),
        (call(down_bias=[1.0]), "^experts_mlp down_bias: is a list, expected a torch.Tensor: torch.as_tensor"),
        (call(gate_up_bias=of_up.to_sparse()), "^experts_mlp gate_up_bias: is torch.sparse_coo, expected a dense tensor"),
        (call(gate_up_bias=of_up.to("meta")), "^experts_mlp gate_up_bias: is on meta and the weight on .*: move one with .to"),
        (call(activation=None), "^experts_mlp activation: is None, expected an expression of x and up, such as 'silu"),
        (call(activation="gelu(x)"), r"^experts_mlp activation: is 'gelu\(x\)', expected an expression of x and up, such as 'silu"),
        (call(activation="silu(x) * gate * up"), '^experts "moe" activation: "silu\\(x\\) \\* gate \\* up" must be an expression of x'),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message):
            act()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("activation", ["silu(x) * up", "relu(x)"])
def test_activation(activation, device):
    """Within the cast, against a pass before it: values may differ by a rounding, and so by a code."""
    for recipe in RECIPES:
        x, weight, grad = operands(device)
        if "up" in activation:
            x = torch.cat([x.detach(), x.detach().flip(0)], 1).requires_grad_()
        options, ends = LinearOptions(recipe, "moe"), ends_on(device)
        y = grouped_linear(x, weight, ends=ends, options=options, activation=activation)
        found = y, *torch.autograd.grad(y, (x, weight), grad)
        before = x.float()
        values = torch.nn.functional.silu(before[:, :K]) * before[:, K:] if "up" in activation else before.relu()
        y = grouped_linear(values.to(x.dtype), weight, ends=ends, options=options)
        for ours, exact in zip(found, (y, *torch.autograd.grad(y, (x, weight), grad))):
            assert ours.shape == exact.shape and (ours - exact).norm() <= 0.01 * exact.norm()
        with torch.no_grad():
            assert torch.equal(grouped_linear(x, weight, ends=ends, options=options, activation=activation), found[0])


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_experts_mlp(recipe, device):
    """Against each token's experts one by one, in high precision."""
    torch.manual_seed(0)
    options = LinearOptions(recipe, name="moe")
    x, grad = torch.randn(2, 40, 64, device=device)
    index, weights = torch.rand(40, 5, device=device).argsort(1)[:, :2], torch.rand(40, 2, device=device)
    gate_up, down = torch.randn(5, 96, 64, device=device), torch.randn(5, 64, 48, device=device)
    given = [each.requires_grad_() for each in (x, weights, gate_up, down)]

    def exact(x, weights, gate_up, down):
        gate, up = torch.einsum("tk,tcnk->tcn", x, gate_up[index]).chunk(2, -1)
        out = torch.einsum("tcn,tckn->tck", torch.nn.functional.silu(gate) * up, down[index])
        return (out * weights[..., None]).sum(1)

    found = experts_mlp(x, index, weights, gate_up, down, options)
    of_found = torch.autograd.grad(found, given, grad)
    right = exact(*given)
    for ours, theirs in zip((found, *of_found), (right, *torch.autograd.grad(right, given, grad))):
        assert (ours - theirs).norm() < 0.1 * theirs.norm()
    again = experts_mlp(x, index, weights, gate_up, down, options)
    assert torch.equal(again, found) and all(map(torch.equal, torch.autograd.grad(again, given, grad), of_found))
    none = experts_mlp(x[:0], index[:0], weights[:0], gate_up, down, options)
    assert none.shape == (0, 64) and not any(each.any() for each in torch.autograd.grad(none.sum(), given))
    # An index that no expert has counts as none, whatever memory holds.
    odd = index.clone()
    odd[3, 0], odd[5, 1], odd[7] = 5, -1, 10**9
    without = weights.detach().clone()
    without[3, 0] = without[5, 1] = 0
    without[7] = 0
    for given_index, given_weights in ((odd, weights), (odd, without)):
        y = experts_mlp(x, given_index, given_weights, gate_up, down, options)
        assert torch.equal(y, experts_mlp(x, odd.clamp(0, 4), without, gate_up, down, options)) and not y[7].any()
        assert all(each.isfinite().all() for each in torch.autograd.grad(y, (x, gate_up, down), grad))
    call = lambda *given: lambda: experts_mlp(*given, options)
    for act, message in (
        (call(x, index.float(), weights, gate_up, down), "experts_mlp top_k_index: is torch.float32, expected integers"),
        (call(x, index > 0, weights, gate_up, down), "experts_mlp top_k_index: is torch.bool, expected integers"),
        (call(x, index.tolist(), weights, gate_up, down), "experts_mlp top_k_index: is a list, expected a torch.Tensor"),
        (call(x, index, weights, gate_up.tolist(), down), "experts_mlp gate_up_weight: is a list, expected a torch.Tensor"),
        (call(x, index, weights, gate_up, None), "experts_mlp down_weight: is a NoneType, expected a torch.Tensor"),
        (call(x, index, weights, gate_up[:, 1:], down), r"experts_mlp gate_up_weight: has the shape \(5, 95, 64\), expected an even "
         r"number of rows, \(experts, 2 \* intermediate, hidden\): those of gate, then of up$"),
        (lambda: experts_mlp(x, index, weights, gate_up, down, "rowwise"), r"^experts_mlp options: is 'rowwise', expected LinearOptions\('rowwise'\)$"),
        (lambda: experts_mlp(x, index, weights, gate_up, down, options=True), "^experts_mlp options: is a bool, expected LinearOptions$"),
        (call(x[:, :32], index, weights, gate_up, down), r"gate_up_weight: has the shape \(5, 96, 64\) for hidden_states \(40, 32\)"),
        (call(x[None], index, weights, gate_up, down), r"gate_up_weight: has the shape \(5, 96, 64\) for hidden_states \(1, 40, 64\)"),
        (call(x, index, weights, gate_up, down[:4]), r"down_weight: has the shape \(4, 64, 48\) for gate_up_weight \(5, 96, 64\)"),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message):
            act()
    for name in REFUSED:
        with pytest.raises(LinearError, match=f"^experts \"moe\" recipe: '{name}' is not one of {TAKEN}$"):
            experts_mlp(x, index, weights, gate_up, down, LinearOptions(name, name="moe"))
    for act, message in (
        (call(x, index.to("meta"), weights, gate_up, down), "experts_mlp top_k_index: is on meta and hidden_states on .*: load its values"),
        (call(x, index, weights, gate_up, down.bfloat16()), "experts_mlp down_weight: is torch.bfloat16, but gate_up_weight is torch.float32"),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message):
            act()
    with pytest.raises(LinearError, match=r"experts_mlp top_k_index: has the shape \(40, 2\) for hidden_states \(39, 64\) and "):
        experts_mlp(x[:39], index, weights, gate_up, down)


@pytest.mark.parametrize("has_all", [True, False])
def test_indices_of_every_dtype(has_all):
    """Of more experts than 8 bits have numbers, and some that count as none; as int64 has them, and outputs of each token's experts."""
    dtypes = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
    experts, x, weights = 260, torch.randn(3, 16), torch.rand(3, 2)
    gate_up, down = torch.randn(experts, 32, 16), torch.randn(experts, 16, 16)
    biases = torch.randn(experts, 32), torch.randn(experts, 16)
    operands = gate_up, down, LinearOptions("rowwise", name="moe"), False, has_all, biases
    gate, up = (torch.einsum("tk,enk->ten", x, gate_up) + biases[0]).chunk(2, -1)
    of_all = torch.einsum("ten,ekn->tek", torch.nn.functional.silu(gate) * up, down) + biases[1]
    for dtype in dtypes:
        numbers = [0, 100, 127 if dtype == torch.int8 else 200, 3, 1, 2]
        if torch.iinfo(dtype).max > 255:
            numbers[3:] = 259, 260, 300
        if torch.iinfo(dtype).min < 0:
            numbers[5] = -1
        index = torch.tensor(numbers).view(3, 2)
        found = mlp_of_rows(x, index.to(dtype), weights, *operands)
        assert torch.equal(found, mlp_of_rows(x, index, weights, *operands)), dtype
        known = (index >= 0) & (index < experts)
        each = of_all[torch.arange(3)[:, None], index.clamp(0, experts - 1)] * (weights * known)[..., None]
        assert (found - each.sum(1)).norm() < 0.1 * each.norm(), dtype
        product = lambda weight: lambda rows, of_rows, ends: grouped_linear(rows, weight, ends=ends, options=operands[2])
        second = lambda hidden, of_rows, ends: product(down)(hidden[:, :16], of_rows, ends)
        two = [routed(x, each, weights, experts, product(gate_up), second, has_all) for each in (index.to(dtype), index)]
        assert torch.equal(*two) and two[0].isfinite().all(), dtype


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", RECIPES)
def test_situations_of_experts_mlp(recipe, device):
    """Codes kept and made again, no gradient, each gradient alone, checkpointing, a compiled graph, autocast, main_grad, rows of
    other ranks: the bits of a plain step."""
    generator = torch.Generator().manual_seed(0)
    values = lambda *sizes: torch.randn(*sizes, generator=generator).to(device, torch.bfloat16)
    x, grad, gate_up, down = values(40, 64), values(40, 64), values(5, 96, 64) / 8, values(5, 64, 48) / 8
    index, weights = torch.rand(40, 5, generator=generator).argsort(1)[:, :2].to(device), torch.rand(40, 2, generator=generator).to(device)
    given = [each.requires_grad_() for each in (x, weights, gate_up, down)]
    options = LinearOptions(recipe, name="moe", keep_weight_codes=False)

    def step(call=experts_mlp, wanted=(0, 1, 2, 3), options=options, x=x):
        arguments = [each if at in wanted else each.detach() for at, each in enumerate((x, *given[1:]))]
        y = call(arguments[0], index, *arguments[1:], options)
        return [y.detach(), *torch.autograd.grad(y, [arguments[at] for at in wanted], grad)]

    plain = step()
    assert all(map(torch.equal, step(options=LinearOptions(recipe, name="moe", keep_weight_codes=True)), plain))
    with torch.no_grad():
        assert torch.equal(experts_mlp(x, index, *given[1:], options), plain[0])
    for at in range(4):
        assert all(map(torch.equal, step(wanted=(at,)), (plain[0], plain[1 + at])))
    assert all(map(torch.equal, step(lambda *each: checkpoint(experts_mlp, *each, use_reentrant=False)), plain))
    compiled = torch.compile(experts_mlp, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, step(compiled), plain))
    with torch.autocast(device, torch.bfloat16):
        wide = step(x=x.detach().float().requires_grad_())
    assert torch.equal(wide[0].bfloat16(), plain[0]) and torch.equal(wide[3], plain[3])
    for weight in (gate_up, down):
        weight.main_grad = torch.zeros(weight.shape, device=device)
    experts_mlp(x, index, *given[1:], options).backward(grad)
    assert gate_up.grad is None and torch.equal(x.grad, plain[1])
    for weight, its in ((gate_up, plain[3]), (down, plain[4])):
        assert torch.equal(weight.main_grad.bfloat16(), its)
    assert torch.equal(step()[3], plain[3]) and torch.equal(gate_up.main_grad.bfloat16(), plain[3])  # of torch.autograd.grad()
    with pytest.raises(LinearError, match='^experts "moe" backward: the gradient of an FP8 GEMM .*: multiply by torch._grouped_mm, or call set_exp'):
        torch.autograd.grad(experts_mlp(x, index, *given[1:], options).sum(), x, create_graph=True)
    gate_up.main_grad = gate_up.main_grad.bfloat16()
    with pytest.raises(LinearError, match='^experts "moe" main_grad: is torch.bfloat16, but the gradients of experts are added to float32'):
        experts_mlp(x, index, *given[1:], options)
    del gate_up.main_grad, down.main_grad
    # Halves of the experts on two ranks: their sum is the whole.
    parts = []
    for begin in (0, 3):
        part = slice(begin, begin + 3)
        arguments = x, index - begin, weights, gate_up[part], down[part], options
        parts.append(mlp_of_rows(*arguments, has_all=False))
    parts = [*parts, *torch.autograd.grad(parts, given[:2], (grad, grad))]
    assert (parts[0] + parts[1] - plain[0]).norm() < 0.05 * plain[0].norm()
    assert all((ours - theirs).norm() < 0.05 * theirs.norm() for ours, theirs in zip(parts[2:], plain[1:3]))
    fast_gradients = LinearOptions(recipe, name="moe", fast_gradients=True)
    if recipe == "blockwise":
        with pytest.raises(LinearError, match='^experts "moe" fast_gradients: is set, but blockwise sums each 128 of a product separately'):
            experts_mlp(x, index, *given[1:], fast_gradients)
        fast_gradients = options
    fast = step(lambda *each: experts_mlp(*each, fast_math=True), options=fast_gradients)
    assert all((ours - theirs).norm() < 0.01 * theirs.norm() for ours, theirs in zip(fast, plain))
    with pytest.raises(LinearError, match='linear "moe" fast_gradients: is for experts: a linear layer has it by ingot.float8'):
        linear(x, gate_up[0], options=LinearOptions(recipe, name="moe", fast_gradients=True))


def test_forward_makes_transposed_codes_for_a_backward_only(monkeypatch):
    made, plan = [], _grouped_layer._PLANS.plan
    monkeypatch.setattr(_grouped_layer._PLANS, "plan", lambda *key: made.append(key[6]) or plan(*key))
    x, weight, _ = operands("cpu")
    ends, options = ends_on("cpu"), LinearOptions("rowwise", name="moe", keep_weight_codes=True)
    y = grouped_linear(x, weight, ends=ends, options=options)
    assert torch.equal(grouped_linear(x.detach(), weight, ends=ends, options=options), y)
    with torch.no_grad():
        assert torch.equal(grouped_linear(x, weight, ends=ends, options=options), y)
    assert made == [False, True, True]  # is the weight left to a cast in backward?


def test_exported_programs():
    """The layers are in the program, not the numbers of this process's plans; bits and gradients are the module's."""

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Parameter(operands("cpu")[1].detach())
            self.down = torch.nn.Parameter(torch.randn(EXPERTS, 32, N // 2, generator=torch.Generator().manual_seed(1)).bfloat16())

        def forward(self, x, ends):
            hidden = grouped_linear(x, self.up, ends=ends, options=LinearOptions("rowwise"))
            return grouped_linear(hidden, self.down, ends=ends, activation="silu(x) * up")

    module, (x, _, _), ends = Mlp(), operands("cpu"), ends_on("cpu")
    program = torch.export.export(module, (x, ends))
    assert [str(node.target) for node in program.graph.nodes if "ingot" in str(node.target)] == ["ingot.layer.default"] * 2
    results = []
    for call in (module, program.module()):
        y = call(x, ends)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, *call.parameters()))))
    assert all(map(torch.equal, *results))


def test_exported_experts_mlp():
    """Two grouped layers: near the module's results, all gradients too."""

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.gate_up, self.down = (torch.nn.Parameter(torch.randn(5, *sizes, generator=generator) / 8) for sizes in ((96, 64), (64, 48)))

        def forward(self, x, index, weights):
            return experts_mlp(x, index, weights, self.gate_up, self.down, LinearOptions("rowwise", "moe"))

    torch.manual_seed(1)
    module, x, weights = Mlp(), torch.randn(40, 64).requires_grad_(), torch.rand(40, 2).requires_grad_()
    index = torch.rand(40, 5).argsort(1)[:, :2]
    program = torch.export.export(module, (x, index, weights))
    assert [str(node.target) for node in program.graph.nodes if "ingot" in str(node.target)] == ["ingot.layer.default"] * 2
    results = []
    for call in (module, program.module()):
        y = call(x, index, weights)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, weights, *call.parameters()))))
    assert all((ours - exact).norm() < 0.1 * exact.norm() for exact, ours in zip(*results))


def test_a_monitor_sees_the_weights():
    """Those of all experts as one tensor, and no values of casts that gather tokens' rows."""
    torch.manual_seed(0)
    gate_up, down = torch.randn(5, 96, 64).requires_grad_(), torch.randn(5, 64, 48).requires_grad_()
    index = torch.rand(40, 5).argsort(1)[:, :2]
    for recipe in ("tensorwise", "rowwise"):
        with ingot.torch.monitor(device="cpu") as monitor:
            experts_mlp(torch.randn(40, 64), index, torch.rand(40, 2), gate_up, down, LinearOptions(recipe, "moe")).sum().backward()
            monitor.step()
            records = monitor.records()
        seen = [(each["layer"], each["tensor"], each["transposed"]) for each in records]
        assert seen == [
            ("moe.gate_up", "weight", False), ("moe.down", "weight", False), ("moe.down", "input", False), ("moe.down", "input", True),
            ("moe.gate_up", "grad_output", True),
        ]  # fmt: skip
        for record, weight in zip(records, (gate_up, down)):
            assert record["elements"] == weight.numel() and record["amax"] == weight.abs().max() and record["sqnr_db"] > 25
            assert record["scale"] == "row"


REFUSED = ("high_precision", "rowwise_folded", "rowwise_with_gw_hp")
TAKEN = "tensorwise, delayed, rowwise, blockwise, which grouped GEMMs take"


def test_messages():
    x, weight, grad = operands("cpu")
    ends = ends_on("cpu")
    call = lambda *given, **named: lambda: grouped_linear(*given, **named)
    recipe = lambda name: LinearOptions(name, name="moe")
    for act, message in (
        (call(x, weight), "grouped_linear input: has the shape .* give ends"),
        (call(x, weight.tolist(), ends=ends), "grouped_linear weight: is a list, expected a torch.Tensor"),
        (call(x, weight, ends), "^grouped_linear weight_scale_inv: is torch.int32, expected float32: did you mean ends=\\?$"),
        (call(x, weight, counts=ends), r"^grouped_linear counts: are for an input \(experts, capacity, K\), and it has the shape \(90, 80\): give ends"),
        (call(x.view(6, 15, K), weight, ends=ends), r"input: has the shape \(6, 15, 80\): give counts"),
        (call(x, weight, ends=ends, options="rowwise"), r"^grouped_linear options: is 'rowwise', expected LinearOptions\('rowwise'\)$"),
        (call(x, weight, torch.ones(EXPERTS), ends), "weight_scale_inv: is given, but weights in high precision take none"),
        (call(x, weight, ends=ends, out_dtype=torch.float32), "out_dtype: is given, but weights in high precision take none"),
        (call(x[:, :64], weight, ends=ends), r"weight: has the shape \(6, 48, 80\), expected \(experts, N, 64\)"),
        (call(x, weight[0], ends=ends), r"weight: has the shape \(48, 80\), expected \(experts, N, 80\)"),
        (call(x.view(6, 15, K), weight, counts=ends), r"counts: is given, but weights in high precision take none: give an input \(M, K\) and ends"),
        (call(x[0], weight, ends=ends), r"input: has the shape \(80,\), expected \(M, K\) with weights in high precision"),
        (call(x.detach().to_sparse(), weight, ends=ends), r"grouped_linear input: is torch.sparse_coo, .* with .to_dense\(\)"),
        (call(x, weight.double(), ends=ends), "weight_scale_inv: is missing, but the weight is torch.float64: .*float32, bfloat16"),
        (lambda: torch.func.grad(lambda x: grouped_linear(x, weight, ends=ends).sum())(x.detach()), "^grouped linear \"experts\" cannot run under torch.func transforms"),
        (lambda: torch.vmap(lambda x: grouped_linear(x, weight, ends=ends))(x.detach()[None]), "under torch.func transforms"),
        (call(x.long(), weight, ends=ends), "input: is torch.int64, expected float32, float16 or bfloat16 with weights"),
        (call(x, weight, ends=ends.long(), options=recipe("rowwise")), 'grouped linear "moe" ends: must be int32'),
        (call(x, weight, ends=ends[:5], options=recipe("rowwise")), "ends: has 5 elements, expected one for each of 6 experts"),
        (call(x, weight, ends=ends.flip(0).contiguous()), "grouped_gemm ends: "),
        *((call(x, weight, ends=ends, options=recipe(name)), f"^grouped linear \"moe\" recipe: '{name}' is not one of {TAKEN}$") for name in REFUSED),
        (call(x, weight, ends=ends, activation=""), "^grouped_linear activation: is '', expected an expression of the input, such as"),
        (call(x, weight, ends=ends, activation=torch.relu), "^grouped_linear activation: is <built-in .*, or None$"),
        (call(x, weight, ends=ends, activation="silu(x) * up"), 'grouped linear "experts" input: has 80 columns, expected 160: gate and up'),
        (call(x, weight, ends=ends, activation="silu(x) * gate"), 'grouped linear "experts" activation: '),
        (call(x, weight, ends=ends, activation="silu("), 'grouped linear "experts" activation: '),
        (call(x, weight.to(torch.float8_e4m3fn), torch.ones(EXPERTS), ends, activation="relu(x)"), "activation: is given, but FP8"),
        (call(x, weight.repeat(100, 1, 1), ends=ends), "experts: is 600, but must be 1 to 512"),
        (call(x, weight, ends=ends, bias=weight[0]), r"^grouped_linear bias: has the shape \(48, 80\), expected \(6, 48\), a row for each expert$"),
        (call(x, weight.to(torch.float8_e4m3fn), torch.ones(EXPERTS), ends, bias=weight[..., 0]), "bias: is given, but FP8 weights take none: add"),
    ):  # fmt: skip
        with pytest.raises(LinearError, match=message):
            act()
    weight.main_grad = torch.zeros(EXPERTS, N, K, dtype=torch.bfloat16)
    with pytest.raises(LinearError, match='^grouped linear "moe" main_grad: is torch.bfloat16, but the gradients of experts'):
        grouped_linear(x, weight, ends=ends, options=recipe("rowwise"))
    del weight.main_grad
    y = grouped_linear(x, weight, ends=ends, options=recipe("rowwise"))
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=False)
    with pytest.raises(LinearError, match='^grouped linear "moe" backward: the gradient of an FP8 GEMM .*: multiply by torch._grouped_mm, or'):
        torch.autograd.grad(grouped_linear(x, weight, ends=ends, options=recipe("rowwise")).sum(), x, create_graph=True)
