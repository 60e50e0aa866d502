"""ingot.torch.linear: values against float64, autograd, memory that is kept, and messages."""

import functools
import threading
import time

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import ingot
import ingot.torch
from ingot import _core
from ingot.torch import LinearError, LinearOptions, linear
from ingot.torch import _operators as operators
from torch_module_cases import sqnr

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FLOAT8 = [recipe for recipe in ingot.torch.RECIPES if recipe != "high_precision"]


def tensors(dtype, bias_dtype=None, weight_dtype=None, rows=(3, 50), seed=0):
    torch.manual_seed(seed)
    return (
        torch.randn(*rows, 96, dtype=dtype, requires_grad=True),
        torch.randn(80, 96, dtype=weight_dtype or dtype, requires_grad=True),
        torch.randn(80, dtype=bias_dtype or dtype, requires_grad=True),
    )


def gradients(y, grad_output, *of):
    return [y.detach(), *torch.autograd.grad(y, of, grad_output)]


def in_float64(x, w, b, grad_output):
    of = [t.detach().double().requires_grad_() for t in (x, w, b)]
    return gradients(torch.nn.functional.linear(*of), grad_output.double(), *of)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_values_and_gradients(recipe, dtype):
    x, w, b = tensors(dtype)
    y = linear(x, w, b, LinearOptions(recipe))
    grad_output = torch.randn_like(y)
    least = 50 if recipe == "high_precision" else 24
    for expected, actual in zip(in_float64(x, w, b, grad_output), gradients(y, grad_output, x, w, b), strict=True):
        assert actual.shape == expected.shape
        assert actual.dtype == dtype
        assert sqnr(expected, actual) > least


@pytest.mark.parametrize("recipe", FLOAT8)
def test_float32_weights_beside_bfloat16_inputs(recipe):
    x, w, b = tensors(torch.bfloat16, bias_dtype=torch.float32, weight_dtype=torch.float32)
    y = linear(x, w, b, LinearOptions(recipe))
    assert y.dtype == torch.bfloat16
    grad_output = torch.randn_like(y)
    got = gradients(y, grad_output, x, w, b)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert all(sqnr(e, a) > 24 for e, a in zip(in_float64(x, w, b, grad_output), got, strict=True))


def test_codes_are_torchaos_casts():
    """The product of the operands as ingot.float8 casts them, in float64: only the sum's rounding is left."""
    from ingot.float8.config import ScalingGranularity
    from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from ingot.float8.float8_training_tensor import LinearMMConfig

    x, w, _ = tensors(torch.bfloat16, rows=(40,))
    y = linear(x, w, None, LinearOptions("tensorwise"))
    cast = functools.partial(
        hp_tensor_to_float8_dynamic,
        float8_dtype=torch.float8_e4m3fn,
        linear_mm_config=LinearMMConfig(),
        scaling_granularity=ScalingGranularity.TENSORWISE,
    )
    a, b = cast(x.detach()), cast(w.detach())
    values = [t._data.double() / t._scale.double() for t in (a, b)]
    expected = values[0] @ values[1].t()
    assert ((y - expected).abs() <= expected.abs() * 2**-8 + 1e-4).all()


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_any_rank_and_stride(recipe):
    options = LinearOptions(recipe)
    x, w, b = tensors(torch.float32, rows=(2, 3, 4))
    expected = linear(x.detach().reshape(24, 96), w, b, options).reshape(2, 3, 4, 80)
    assert torch.equal(linear(x, w, b, options), expected)
    assert linear(x[0, 0, 0], w, b, options).shape == (80,)
    turned = x.detach().permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)
    assert not turned.is_contiguous()
    assert torch.equal(linear(turned, w, b, options), expected)
    wide = torch.randn(24, 200)
    wide[:, :96] = x.detach().reshape(24, 96)
    assert torch.equal(linear(wide[:, :96], w, b, options), expected.reshape(24, 80))
    assert torch.equal(linear(x, w.detach().t().contiguous().t(), b, options), expected)


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_strides_of_zero(recipe):
    """The gradient of a sum is one element, seen as a whole matrix."""
    x, w, b = tensors(torch.float32)
    y = linear(x, w, b, LinearOptions(recipe))
    dense = gradients(y, torch.ones_like(y), x, w, b)
    y = linear(x, w, b, LinearOptions(recipe))
    assert all(
        torch.equal(a, e)
        for a, e in zip(gradients(y, torch.ones(()).expand(y.shape), x, w, b), dense, strict=True)
    )


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_only_the_gradients_that_are_wanted(recipe):
    options = LinearOptions(recipe)
    x, w, b = tensors(torch.float32)
    y = linear(x, w, b, options)
    grad_output = torch.randn_like(y)
    everything = dict(zip("xwb", torch.autograd.grad(y, (x, w, b), grad_output)))
    for wanted in ("x", "w", "b", "xw", "xb", "wb"):
        given = {"x": x.detach(), "w": w.detach(), "b": b.detach()}
        for name in wanted:
            given[name].requires_grad_()
        y = linear(given["x"], given["w"], given["b"], options)
        grads = torch.autograd.grad(y, [given[name] for name in wanted], grad_output)
        for name, grad in zip(wanted, grads, strict=True):
            if name == "b":  # summed by the cast for the other gradients, whose order depends on what it writes
                torch.testing.assert_close(grad, everything[name])
            else:
                assert torch.equal(grad, everything[name]), (wanted, name)


def test_forwards_before_backwards_in_any_order():
    x, w, b = tensors(torch.float32)
    options = LinearOptions("rowwise")
    inputs = [(torch.randn(n, 96) * n).requires_grad_() for n in (7, 150, 64)]
    alone = []
    for each in inputs:
        y = linear(each, w, b, options)
        alone.append(torch.autograd.grad(y, (each, w, b), torch.ones_like(y)))
    outputs = [linear(each, w, b, options) for each in inputs]
    for at in (1, 2, 0):
        got = torch.autograd.grad(outputs[at], (inputs[at], w, b), torch.ones_like(outputs[at]))
        assert all(torch.equal(a, e) for a, e in zip(got, alone[at], strict=True))


def test_threads_share_a_layer():
    x, w, b = tensors(torch.float32)
    options = LinearOptions("tensorwise")

    def step(seed):
        generator = torch.Generator().manual_seed(seed)
        mine = torch.randn(20, 96, generator=generator).requires_grad_()
        y = linear(mine, w, b, options)
        return torch.autograd.grad(y, (mine, w, b), torch.ones_like(y))

    expected = [step(seed) for seed in range(4)]
    wrong = []

    def work(seed):
        for _ in range(30):
            if not all(torch.equal(a, e) for a, e in zip(step(seed), expected[seed], strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_checkpointing(recipe):
    x, w, b = tensors(torch.float32)
    options = LinearOptions(recipe)

    def block(x):
        return torch.tanh(linear(torch.sigmoid(x), w, b, options))

    expected = torch.autograd.grad(block(x).sum(), (x, w, b))
    again = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), (x, w, b))
    assert all(torch.equal(a, e) for a, e in zip(again, expected, strict=True))
    seen = set()

    def policy(ctx, operator, *args, **kwargs):
        seen.add(operator)
        ours = operator is operators.linear_forward
        return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    selective = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    grads = torch.autograd.grad(selective.sum(), (x, w, b))
    assert all(torch.equal(a, e) for a, e in zip(grads, expected, strict=True))
    assert operators.linear_forward in seen


def test_autocast():
    x, w, b = tensors(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x, w, b, LinearOptions("rowwise"))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == w.grad.dtype == b.grad.dtype == torch.float32


def test_nothing_is_kept_without_gradients():
    kept = []
    x, w, b = tensors(torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        with torch.no_grad():
            assert not linear(x, w, b).requires_grad
        assert kept == []
        linear(x.detach(), w.detach(), b.detach())
        assert kept == []
        linear(x, w, b, LinearOptions("tensorwise"))
    # Codes of a byte each in place of the tensors, with room for 128 tokens at a time.
    assert sum(t.numel() * t.element_size() for t in kept) <= 256 * 96 + 2 * 80 * 96 + 2048


def test_meta():
    y = linear(torch.empty(2, 7, 16, device="meta"), torch.empty(8, 16, device="meta"))
    assert (y.shape, y.device.type) == ((2, 7, 8), "meta")


@pytest.mark.parametrize(
    ("recipe", "bias"), in_ci(lambda recipe, bias: bias or recipe == "rowwise", ingot.torch.RECIPES, [False, True])
)
def test_opcheck(recipe, bias):
    x, w, b = (t.detach() for t in tensors(torch.float32, rows=(20,)))
    facts = operators.add_plan(recipe, "checked", 96, 80, *(torch.float32,) * 2, torch.float32 if bias else None, True)
    arguments = (x, w, b if bias else None, facts.number)
    for keep in (0, 3):
        torch.library.opcheck(operators.linear_forward, (*arguments, keep))
    _, saved, codes, amaxes = operators.linear_forward(*arguments, 3)
    assert amaxes is None
    arguments = (torch.randn(20, 80), x, w, saved, codes, facts.number, 7 if bias else 3)
    torch.library.opcheck(operators.linear_backward, arguments)


def test_equal_plans_have_one_number():
    def number(*changes):
        return operators.add_plan("rowwise", *(changes or ("wq",)), 32, 16, torch.float32, torch.float32, None, True)[0]

    assert number() == number()
    assert number() != number("wk")


def message(call):
    with pytest.raises(LinearError) as caught:
        call()
    assert isinstance(caught.value, ingot.Error)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def test_messages():
    x, w, b = tensors(torch.float32)
    named = LinearOptions("rowwise", name="layers.0.wq")
    prefix = 'linear "layers.0.wq" '
    assert message(lambda: linear(x[..., :95], w, b, named)) == (
        prefix + "input: has shape (3, 50, 95), expected (..., 96)"
    )
    assert message(lambda: linear(x, w[0], b, named)) == (
        prefix + "weight: has shape (96,), expected (out_features, in_features)"
    )
    assert message(lambda: linear(x, w, b[:7], named)) == prefix + "bias: has shape (7,), expected (80,)"
    assert message(lambda: linear(x.double(), w, b, named)) == (
        prefix + "input: is torch.float64, expected float32, float16 or bfloat16: convert it with .to()"
    )
    assert message(lambda: linear(x, w.to("meta"), b, named)).startswith(
        prefix + "weight: is on meta and the input on cpu: load its values, after to_empty(); where accelerate offloads"
    )
    for _ in range(2):  # the second call takes the way of tensors that have been checked
        assert message(lambda: torch.autograd.grad(linear(x, w, b, named).sum(), x, create_graph=True)).startswith(
            prefix + "backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True)"
        )
    assert message(lambda: linear([1.0], w, b, named)) == (
        prefix + "input: is a list, expected a torch.Tensor: torch.as_tensor() makes one"
    )
    assert message(lambda: torch.vmap(lambda row: linear(row, w, b, named))(x)) == (
        prefix + "cannot run under torch.func transforms (vmap, grad, jvp) and in forward mode: give it the whole batch, "
        "which may have any rank, and take its gradients by backward() or torch.autograd.grad()"
    )
    text = message(lambda: LinearOptions("later", name="wq"))
    assert text.startswith("linear \"wq\" recipe: 'later' is not one of high_precision, tensorwise, rowwise")
    assert message(lambda: linear(x, w, b, LinearOptions("delayed", name="layers.0.wq"))) == (
        prefix + 'recipe: is "delayed", whose scales have a state, which a linear layer has in the modules of ingot.nn'
    )


def test_messages_of_operators():
    x, w, _ = (t.detach() for t in tensors(torch.float32, rows=(20,)))
    facts = operators.add_plan("rowwise", "wq", 96, 80, torch.float32, torch.float32, None, True)
    _, saved, codes, _ = operators.linear_forward(x, w, None, facts.number, 3)
    with pytest.raises(RuntimeError, match="this process has no plan of this number"):
        operators.linear_forward(x, w, None, 12345, 3)
    with pytest.raises(RuntimeError, match='linear "wq" saved: has 7 bytes, but a forward of this plan'):
        operators.linear_backward(torch.randn(20, 80), x, w, saved[:7].clone(), codes, facts.number, 2)
    with pytest.raises(RuntimeError, match='linear "wq" codes: has 0 bytes'):
        operators.linear_backward(torch.randn(20, 80), x, w, saved, codes[:0].clone(), facts.number, 1)
    with pytest.raises(RuntimeError, match='linear "wq" saved: has 0 bytes'):
        operators.linear_backward(torch.randn(20, 80), x, w, None, codes, facts.number, 2)
    with_bias = operators.add_plan("rowwise", "wq", 96, 80, *(torch.float32,) * 3, True)
    with pytest.raises(RuntimeError, match='linear "wq" bias: is not given, but this call reads it: give a tensor'):
        operators.linear_forward(x, w, None, with_bias.number, 3)
    with pytest.raises(RuntimeError, match='linear "wq" input: must be float32, bfloat16 or float16'):
        operators.linear_forward(x.double(), w, None, facts.number, 3)
    with pytest.raises(RuntimeError, match='linear "wq" input: has no dimensions'):
        operators.linear_forward(torch.tensor(1.0), w, None, facts.number, 3)


def test_threads_that_have_ended_keep_no_stream():
    x, w, _ = (t.detach() for t in tensors(torch.float32, rows=(20,)))
    linear(x, w)
    gates = [threading.Event(), threading.Event()]

    def work():
        linear(x, w)
        if gates[0].is_set():  # all threads at once
            gates[1].wait(60)

    def run(count):
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def until(wanted):
        """Python joins a thread shortly before what it kept goes."""
        end = time.monotonic() + 60
        while _core.torch_stream_count() != wanted and time.monotonic() < end:
            time.sleep(0.01)
        return _core.torch_stream_count()

    before = 1  # this thread's; those of other tests have ended
    assert until(before) == before
    for thread in run(20):
        thread.join()
    assert until(before) == before
    gates[0].set()
    threads = run(5)
    assert until(before + 5) == before + 5
    gates[1].set()
    for thread in threads:
        thread.join()
    assert until(before) == before


def test_memory_of_pytorch_is_aligned():
    """PyTorch aligns the CPU's memory to 64 bytes, and operations take it at multiples of 256."""
    addresses = _core.torch_allocator_addresses([1, 7, 64, 100, 255, 256, 257, 5000, 1 << 20] * 8)
    assert len(set(addresses)) == len(addresses)
    assert all(address % 256 == 0 for address in addresses)


def test_an_allocator_keeps_one_small_block():
    """The next call's, which then waits for no allocator; a larger one takes its place, and a large one goes back."""
    small = 1 << 20
    assert _core.torch_allocator_keeps([100, 50, 200, 150, small + 1, small]) == [100, 100, 200, 200, 200, small]


def test_out_of_memory():
    rows = torch.zeros(1, 96).expand(2**44, 96)  # a copy by rows would take 6 PB
    with pytest.raises(LinearError, match="out of memory: memory for a tensor: failed in PyTorch") as caught:
        linear(rows, torch.zeros(80, 96))
    assert isinstance(caught.value, torch.OutOfMemoryError)  # what trainers catch to take a smaller batch


def test_old_versions_of_pytorch():
    operators.require_torch("2.7.0+cu128")
    operators.require_torch("2.13.0a0+git1234")
    with pytest.raises(ingot.Error, match=r"ingot.torch: needs PyTorch 2.7 or later, this is 2.6.1: upgrade it"):
        operators.require_torch("2.6.1")
