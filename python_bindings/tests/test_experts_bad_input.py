"""What a mixture of experts does with wrong numbers of experts, with INGOT_CHECK_EXPERTS and without, with a token that names an
expert twice, with values and router's weights that are NaN or Inf, and with indices that change between forward and backward."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from conftest import devices_of_grouped_gemm
from ingot.torch import (
    ExpertWeights, LinearError, LinearOptions, _checked_index, experts_mlp, grouped_linear, grouped_weight_only_linear
)

RECIPES = ("tensorwise", "rowwise", "blockwise")
EXPERTS, TOKENS, HIDDEN, INTERMEDIATE = 5, 12, 64, 48
USED = 4  # experts that have tokens


def operands(device, dtype=torch.float32):
    """x, index, weights, gate_up, down, grad: tokens of experts 0 to 3, each of two."""
    generator = torch.Generator().manual_seed(0)
    drawn = lambda *sizes: torch.randn(*sizes, generator=generator).to(device, dtype)
    index = torch.stack([torch.arange(TOKENS) % USED, (torch.arange(TOKENS) + 1) % USED], 1).to(device)
    weights = torch.rand(TOKENS, 2, generator=generator).to(device) + 0.25
    gate_up, down = drawn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 8, drawn(EXPERTS, HIDDEN, INTERMEDIATE) / 7
    return drawn(TOKENS, HIDDEN), index, weights, gate_up, down, drawn(TOKENS, HIDDEN)


def step(x, index, weights, gate_up, down, grad, options, between=lambda: None):
    """The output, and the gradients of x, the router's weights, gate_up and down."""
    given = [each.detach().clone().requires_grad_() for each in (x, weights, gate_up, down)]
    y = experts_mlp(given[0], index, *given[1:], options)
    between()
    return y.detach(), *torch.autograd.grad(y, given, grad)


def in_float64(x, index, weights, gate_up, down, grad):
    given = [each.detach().double().cpu().requires_grad_() for each in (x, weights, gate_up, down)]
    index = index.cpu()
    gate, up = torch.einsum("tk,tcnk->tcn", given[0], given[2][index]).chunk(2, -1)
    out = torch.einsum("tcn,tckn->tck", torch.nn.functional.silu(gate) * up, given[3][index])
    y = (out * given[1][..., None]).sum(1)
    return y.detach(), *torch.autograd.grad(y, given, grad.double().cpu())


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_token_that_names_an_expert_twice(recipe, device):
    """Both count, with their weights."""
    x, index, weights, gate_up, down, grad = operands(device)
    index[3], index[7] = 2, EXPERTS - 1  # expert 4 has no other rows
    weights[[3, 7]] = torch.tensor([0.75, 0.5], device=device)
    options = LinearOptions(recipe, name="moe")
    found = step(x, index, weights, gate_up, down, grad, options)
    exact = in_float64(x, index, weights, gate_up, down, grad)
    for ours, theirs in zip(found, exact):
        ours = ours.double().cpu()
        assert ours.isfinite().all() and (ours - theirs).norm() < 0.1 * theirs.norm()
    # Of these tokens alone, and of what only they reach: without one of the two it would be off by 0.4 at least.
    for ours, theirs in ((found[0][[3, 7]], exact[0][[3, 7]]), (found[3][4], exact[3][4]), (found[4][4], exact[4][4])):
        ours = ours.double().cpu()
        assert theirs.norm() > 0 and (ours - theirs).norm() < 0.2 * theirs.norm()
    assert ((found[2][[3, 7]].diff(dim=1)).abs() < 0.01 * found[2].abs().max()).all()  # one derivative, of two weights


def rows_of(tensor):
    """Which of the first dimension are not finite."""
    return {at for at, row in enumerate(tensor) if not row.isfinite().all()}


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("recipe", RECIPES)
def test_how_far_nan_and_inf_reach(recipe, value, device):
    """The table of docs/experts.md, of a token's value, of a router's weight, and of an output's gradient. Token 2 has the experts
    2 and 3; expert 4 has no rows, and so gradients of 0."""
    options = LinearOptions(recipe, name="moe")
    everyone, used = set(range(TOKENS)), set(range(USED))
    of_token = everyone if recipe == "tensorwise" else {2}
    of_weights = {2, 3} if recipe == "blockwise" else used
    for where in ("value", "router", "gradient"):
        x, index, weights, gate_up, down, grad = operands(device)
        if where == "router":
            weights[2, 0] = value
        else:
            (x if where == "value" else grad)[2, 5] = value
        y, of_x, of_router, of_gate_up, of_down = step(x, index, weights, gate_up, down, grad, options)
        assert rows_of(y) == (set() if where == "gradient" else of_token), where
        assert rows_of(of_x) == of_token, where
        assert rows_of(of_router) == (set() if where == "router" else of_token), where
        of_experts = {2} if where == "router" and recipe == "blockwise" else of_weights
        assert rows_of(of_gate_up) == rows_of(of_down) == of_experts, where
        assert not of_gate_up[USED:].any() and not of_down[USED:].any()
        if where == "gradient":
            continue
        assert y[2].isnan().all()  # never a finite value, nor an Inf that a sum could hide
        finite = step(*operands(device), options)
        others = sorted(everyone - of_token)
        assert torch.equal(y[others], finite[0][others])


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
def test_indices_that_change_between_forward_and_backward(device):
    """Of experts_mlp() the rows are its own, so that the router's index may change; ends are saved, and autograd tells."""
    given = operands(device)
    options = LinearOptions("rowwise", name="moe")
    plain = step(*given, options)
    index = given[1].clone()
    assert all(map(torch.equal, step(given[0], index, *given[2:], options, between=lambda: index.fill_(-1)), plain))
    x, _, _, gate_up, _, _ = given
    for weight in (gate_up.requires_grad_(), gate_up.detach().to(torch.float8_e4m3fn)):
        ends = torch.tensor([3, 3, 6, 9, TOKENS], dtype=torch.int32, device=device)
        codes = weight.dtype == torch.float8_e4m3fn
        scales = (torch.ones(EXPERTS, device=device),) if codes else ()
        y = grouped_linear(x.detach().requires_grad_(), weight, *scales, ends=ends)
        ends[0] = 2
        with pytest.raises(RuntimeError, match="modified by an inplace operation.*int32|modified by an inplace operation.*Int"):
            y.sum().backward()


def test_the_checking_mode_reads_the_index(monkeypatch):
    x, index, weights, gate_up, down, grad = operands("cpu")
    options = LinearOptions("rowwise", name="moe")
    wrong, none = index.clone(), index.clone()
    wrong[4, 1], none[4, 1] = 9, -1
    call = lambda index, call=experts_mlp: call(x, index, weights, gate_up, down, options)
    assert torch.equal(call(wrong), call(none))  # without the mode it counts as none
    monkeypatch.setattr(_checked_index, "_of_process", lambda: True)
    message = "top_k_index: says that token 4 has expert 9, but there are 5 experts: give 0 to 4, or a number below 0 for none$"
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16):
        with pytest.raises(LinearError, match=f'^experts "moe" {message}'):
            call(wrong.to(dtype))
    wrong[4, 1] = EXPERTS  # the first that is none
    with pytest.raises(LinearError, match="token 4 has expert 5, but there are 5 experts"):
        call(wrong)
    checked = step(x, none, weights, gate_up, down, grad, options)
    compiled = torch.compile(experts_mlp, backend="aot_eager", fullgraph=True)
    assert torch.equal(call(none, compiled), checked[0])
    with pytest.raises(LinearError, match="^experts top_k_index: says that token 4 has expert 5, but there are 5 experts"):
        call(wrong, compiled)
    monkeypatch.setattr(_checked_index, "_of_process", lambda: False)
    assert all(map(torch.equal, step(x, none, weights, gate_up, down, grad, options), checked))
    monkeypatch.setattr(_checked_index, "_of_process", lambda: True)
    monkeypatch.setattr(_checked_index, "_captures", lambda tensor: True)
    with pytest.raises(LinearError, match='^experts "moe" top_k_index: is to be read, as INGOT_CHECK_EXPERTS asks .*: check steps that are not captured$'):
        call(index)


@pytest.mark.parametrize("device", devices_of_grouped_gemm()[1:])
def test_ends_on_the_host(device):
    """Next to an input on a GPU, whose kernels read them there."""
    x, _, _, gate_up, _, _ = operands(device, torch.bfloat16)
    ends = torch.tensor([3, 3, 6, 9, TOKENS], dtype=torch.int32)
    codes, ones = gate_up.to(torch.float8_e4m3fn), torch.ones(EXPERTS, device=device)
    weight = ExpertWeights.quantize(gate_up)
    masked = x[:10].view(EXPERTS, 2, HIDDEN)
    for call, name in (
        (lambda: grouped_linear(x, gate_up, ends=ends), "ends"),
        (lambda: grouped_linear(x, codes, ones, ends), "ends"),
        (lambda: grouped_linear(masked, codes, ones, counts=ends), "counts"),
        (lambda: grouped_weight_only_linear(x, weight, ends), "ends"),
        (lambda: grouped_weight_only_linear(masked, weight, counts=ends), "counts"),
    ):
        with pytest.raises(LinearError, match=f"{name}: is on (cpu and the input on cuda:0|another device than the input): move one with"):
            call()


PROGRAM = """
import torch
from ingot.torch import experts_mlp, grouped_linear
x, gate_up, down = torch.randn(4, 32), torch.randn(3, 32, 32), torch.randn(3, 32, 16)
index = torch.tensor([[0], [1], [3], [-1]])
for call in (lambda: experts_mlp(x, index, torch.ones(4, 1), gate_up, down),
             lambda: grouped_linear(x, gate_up, ends=torch.tensor([1, 0, 4], dtype=torch.int32))):
    try:
        call()
        print("no error")
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.nightly  # a new interpreter for each; test_the_checking_mode_reads_the_index is CI's
@pytest.mark.parametrize("checks", ["1", "0"])
def test_the_variable_of_a_process(checks, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK_EXPERTS", checks)
    monkeypatch.setenv("INGOT_DEVICE", "cpu")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    of_index, of_ends = done.stdout.splitlines()
    expected = 'experts "experts" top_k_index: says that token 2 has expert 3, but there are 3 experts: give 0 to 2, or a number below 0 for none'
    assert of_index == (expected if checks == "1" else "no error")
    assert "grouped_gemm ends: say that expert 1 ends at row 0" in of_ends or "ends: say that expert 1 ends at row 0" in of_ends
