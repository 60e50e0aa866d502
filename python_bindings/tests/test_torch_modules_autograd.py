"""ingot.torch.norm_linear, mlp and shared_linear: autograd, checkpointing, and memory that is kept."""

import functools
import threading

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_module_cases import CASES, FEW, FLOAT8, K, equal, noted_calls, randn, shared_case, step

from ingot.torch import _module_operators as operators
from ingot.torch import mlp, norm_linear, shared_linear


@pytest.mark.parametrize("case", FEW)
def test_forwards_before_backwards_in_any_order(case):
    _, ours, tensors = CASES[case]("rowwise", dtype=torch.float32)
    names = [name for name, t in tensors.items() if t is not None]
    inputs = [randn(rows, K, scale=rows) for rows in (7, 150, 64)]

    def forward(x):
        outputs = ours(**{**tensors, "x": x})
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def backward(outputs, x):
        of = [x if name == "x" else tensors[name] for name in names]
        return torch.autograd.grad(outputs, of, [torch.ones_like(y) for y in outputs])

    alone = [backward(forward(x), x) for x in inputs]
    outputs = [forward(x) for x in inputs]
    for at in (1, 2, 0):
        assert equal(backward(outputs[at], inputs[at]), alone[at])


@pytest.mark.parametrize("case", FEW)
def test_threads_share_a_layer(case):
    _, ours, tensors = CASES[case]("tensorwise", dtype=torch.float32, rows=(20,))
    expected, grad_outputs = step(ours, tensors)
    wrong = []

    def work():
        for _ in range(10):
            if not equal(step(ours, tensors, grad_outputs)[0], expected):
                wrong.append(case)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("recipe", ["rowwise", "high_precision"])
def test_checkpointing(recipe, case):
    _, ours, tensors = CASES[case](recipe, dtype=torch.float32)
    of = [t for t in tensors.values() if t is not None]

    def block(x):
        outputs = ours(**{**tensors, "x": torch.sigmoid(x)})
        return torch.tanh(outputs[1] if isinstance(outputs, tuple) else outputs)

    grads = lambda y: torch.autograd.grad(y.sum(), of, allow_unused=True)
    same = lambda a, b: all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))
    expected = grads(block(tensors["x"]))
    assert same(grads(checkpoint(block, tensors["x"], use_reentrant=False)), expected)
    forwards = (operators.NORM_LINEAR.forward, operators.MLP.forward, operators.SHARED_LINEAR.forward)
    seen = set()

    def policy(ctx, operator, *args, **kwargs):
        seen.add(operator)
        return CheckpointPolicy.MUST_SAVE if operator in forwards else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    assert same(grads(checkpoint(block, tensors["x"], use_reentrant=False, context_fn=contexts)), expected)
    assert seen & set(forwards)


@pytest.mark.parametrize("case", FEW)
def test_autocast(case):
    _, ours, tensors = CASES[case]("rowwise", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, grad_outputs = step(ours, tensors)
    assert {t.dtype for t in got[: len(grad_outputs)]} == {torch.bfloat16}
    assert {t.dtype for t in got[len(grad_outputs) :]} == {torch.float32}


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("recipe", FLOAT8)
def test_what_is_kept(recipe, case):
    """One buffer, and of the operands what the plan reads again. Without gradients nothing."""
    _, ours, tensors = CASES[case](recipe, rows=(256,))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        with torch.no_grad():
            ours(**tensors)
        ours(**{name: t if t is None else t.detach() for name, t in tensors.items()})
        assert kept == []
        ours(**tensors)
    buffers = [t for t in kept if t.dtype == torch.uint8]
    others = {id(t) for t in kept if t.dtype != torch.uint8}
    assert len(buffers) == 1
    names = {"x", "gamma"} if tensors["gamma"] is not None else set()
    if recipe == "rowwise_with_gw_hp":  # the input of layers
        names |= {"x"}
    if case == "rms_norm_sigmoid":  # the output, whose derivative it has
        assert len(others) == len(names) + 1
    else:
        assert others == {id(tensors[name]) for name in names}


def test_shared_input_is_kept_once():
    """One byte for each element of the input, where three separate layers keep three."""
    kept = []
    _, ours, tensors = shared_case("tensorwise", rows=(1024,))
    tensors = {name: t if t is None or name != "x" else t.detach() for name, t in tensors.items()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ours(**tensors)
    assert sum(t.numel() * t.element_size() for t in kept) <= 1024 * K + 1024


@pytest.mark.parametrize("case", FEW)
def test_an_input_changed_in_place_is_noticed(case):
    _, ours, tensors = CASES[case]("rowwise_with_gw_hp")
    x = tensors["x"].detach().clone().requires_grad_()
    held = x * 1
    outputs = ours(**{**tensors, "x": held})
    with torch.no_grad():
        held.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outputs[0].sum(), [x])


def test_meta():
    meta = functools.partial(torch.empty, device="meta")
    y = norm_linear(meta(2, 7, 16), meta(16), None, meta(8, 16))
    assert (y.shape, y.device.type) == ((2, 7, 8), "meta")
    assert mlp(meta(3, 16), meta(24, 16), meta(16, 12)).shape == (3, 16)
    assert [y.shape[-1] for y in shared_linear(meta(3, 16), [meta(4, 16), meta(5, 16), meta(6, 16)])] == [4, 5, 6]


@pytest.mark.parametrize(
    ("recipe", "case"),
    in_ci(
        lambda recipe, case: recipe == "rowwise" or case == "shared",
        ["rowwise", "rowwise_with_gw_hp", "high_precision"],
        FEW,
    ),
)
def test_opcheck(monkeypatch, recipe, case):
    """Of every call of an operator that a step makes."""
    _, ours, tensors = CASES[case](recipe, dtype=torch.float32, rows=(20,))
    calls = noted_calls(monkeypatch)
    step(ours, tensors)
    assert len(calls) == 2
    for operator, arguments, named in calls:
        torch.library.opcheck(operator, arguments, named)
