"""What a mixture of experts does with wrong numbers of experts, with INGOT_CHECK_EXPERTS and without."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from ingot.torch import LinearError, LinearOptions, _checked_index, experts_mlp

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


@pytest.mark.parametrize("checks", ["1", pytest.param("0", marks=pytest.mark.nightly)])
def test_the_variable_of_a_process(checks, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK_EXPERTS", checks)
    monkeypatch.setenv("INGOT_DEVICE", "cpu")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    of_index, of_ends = done.stdout.splitlines()
    expected = 'experts "experts" top_k_index: says that token 2 has expert 3, but there are 3 experts: give 0 to 2, or a number below 0 for none'
    assert of_index == (expected if checks == "1" else "no error")
    assert "grouped_gemm ends: say that expert 1 ends at row 0" in of_ends or "ends: say that expert 1 ends at row 0" in of_ends
