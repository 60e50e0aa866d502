"""ingot.torch.linear in eager mode after its first call, which skips the checks: bits, messages, and how little Python
runs."""

import re
import sys

import pytest

torch = pytest.importorskip("torch")

import ingot.torch
from ingot import float8
from ingot.float8 import GemmInputRole
from ingot.float8.float8_training_tensor import hp_tensor_and_scale_to_float8
from ingot.float8.float8_utils import tensor_to_scale
from ingot.nn import Float8Linear, LayerNormLinear, sync_amax_history
from ingot.torch import LinearError, LinearOptions, _linear, linear
from ingot.torch._eager_linear import run_eager
from ingot.torch._gathered_weight import GatheredWeight


def tensors(dtype=torch.bfloat16, rows=(3, 20)):
    torch.manual_seed(0)
    return (
        torch.randn(*rows, 48, dtype=dtype, requires_grad=True),
        torch.randn(32, 48, dtype=dtype, requires_grad=True),
        torch.randn(32, dtype=dtype, requires_grad=True),
    )


def result(options, x, w, b, grad_output):
    """Output and the gradients that are wanted."""
    leaves = [t for t in (x, w, b) if t is not None and t.requires_grad]
    y = linear(x, w, b, options)
    return [y.detach(), *(torch.autograd.grad(y, leaves, grad_output) if leaves else ())]


@pytest.fixture
def checked(monkeypatch):
    """How often linear() made its checks."""
    calls = []
    make = _linear.check_layer
    monkeypatch.setattr(_linear, "check_layer", lambda *arguments: calls.append(1) or make(*arguments))
    return calls


@pytest.mark.parametrize("keep", [None, False, True])
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_later_calls_have_the_bits_of_the_first(recipe, keep, checked):
    options = LinearOptions(recipe, keep_weight_codes=keep)
    for wanted in range(8):
        for with_bias in (False, True):
            x, w, b = (t.detach().requires_grad_(bool(wanted >> at & 1)) for at, t in enumerate(tensors()))
            grad_output = torch.randn(3, 20, 32, dtype=torch.bfloat16)
            arguments = (options, x, w, b if with_bias else None, grad_output)
            options._eager_plans.clear()
            first = result(*arguments)
            checked.clear()
            later = result(*arguments)
            assert checked == []
            for expected, actual in zip(first, later, strict=True):
                assert torch.equal(expected, actual)


def test_what_the_checks_look_at_is_looked_at_again(checked):
    x, w, b = tensors()
    options = LinearOptions("rowwise")
    linear(x, w, b, options)
    checked.clear()
    linear(x[:2, :5], w, b, options)  # fewer tokens, and other strides
    assert checked == []
    for other in ((x.float(), w, b), (x, w.float(), b), (x, w, b.float()), (x, w, None), (x.detach(), w, b)):
        checked.clear()
        linear(*other, options)
        assert checked == [1]
    w.main_grad = torch.zeros(32, 48)
    linear(x, w, b, options).sum().backward()
    assert checked == [1, 1]
    assert w.grad is None
    assert w.main_grad.abs().sum() > 0


def test_autocast_after_a_call_without():
    x, w, b = tensors(torch.float32)
    options = LinearOptions("rowwise")
    assert linear(x, w, b, options).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, w, b, options).dtype == torch.bfloat16
    assert linear(x, w, b, options).dtype == torch.float32


def test_many_tokens_after_few(checked):
    """Their plan is another one."""
    x, w, b = tensors(rows=(4,))
    options = LinearOptions("tensorwise")
    linear(x, w, b, options)
    checked.clear()
    many = torch.randn(4096, 48, dtype=torch.bfloat16, requires_grad=True)
    expected = linear(many, w, b, LinearOptions("tensorwise", keep_weight_codes=True))
    checked.clear()
    assert torch.equal(linear(many, w, b, options), expected)
    assert checked == [1]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_weights_that_fsdp_has_gathered_are_read_without_their_class(recipe, monkeypatch):
    """Only where the codes of the other direction are there is it asked, as selective checkpointing counts on it."""
    x, weight, _ = tensors()
    casts = [ingot.cast(weight.detach(), "e4m3fn", scale=scale, pow2=recipe == "rowwise") for scale in ("row", "col", "tensor")]
    if recipe == "rowwise":
        given = (casts[0].codes, casts[0].scale_inv.view(-1), casts[1].scale_inv.view(-1), casts[1].codes)
    else:
        given = (casts[2].codes, casts[2].scale_inv.view(-1), None, None)
    gathered = torch.nn.Parameter(GatheredWeight(*given, None, weight.dtype))
    options, grad_output = LinearOptions(recipe), torch.randn(3, 20, 32, dtype=torch.bfloat16)
    expected = result(LinearOptions(recipe), x, weight, None, grad_output)
    asked = []
    dispatch = GatheredWeight.__torch_dispatch__.__func__
    noted = lambda cls, func, *rest: asked.append(func.namespace) or dispatch(cls, func, *rest)
    monkeypatch.setattr(GatheredWeight, "__torch_dispatch__", classmethod(noted))
    for count in (2, 0):  # of the first call, and of later ones
        asked.clear()
        for ours, theirs in zip(result(options, x, gathered, None, grad_output), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert asked.count("ingot") == count, asked
    if recipe == "rowwise":
        asked.clear()
        gathered.turn.holds, gathered.turn.again = True, lambda backward: (given[0], given[1])
        linear(x, gathered, None, options)
        assert asked.count("ingot") == 1


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_gathered_weights_without_grad(recipe, checked):
    """linear()'s checks do not run again."""
    x, weight, _ = tensors()
    cast = ingot.cast(weight.detach(), "e4m3fn", scale="row" if recipe == "rowwise" else "tensor", pow2=recipe == "rowwise")
    of_backward = torch.ones(48) if recipe == "rowwise" else None
    gathered = GatheredWeight(cast.codes, cast.scale_inv.view(-1), of_backward, None, None, weight.dtype)
    options = LinearOptions(recipe)
    with torch.no_grad():
        expected = linear(x, weight, None, LinearOptions(recipe))
        assert torch.equal(linear(x, gathered, None, options), expected)
        checked.clear()
        asked = []
        dispatch = GatheredWeight.__torch_dispatch__
        noted = lambda cls, func, *rest: asked.append(func) or dispatch(func, *rest)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GatheredWeight, "__torch_dispatch__", classmethod(noted))
            output = run_eager(options._eager_plans, x, gathered, None)
    assert output is not None and torch.equal(output, expected)
    assert checked == [] and asked == []


def test_float8_training_tensors_without_grad():
    x, weight, _ = tensors()
    layer = float8.Float8Linear(48, 32, bias=False, dtype=weight.dtype)
    scale = tensor_to_scale(weight.detach(), torch.float8_e4m3fn)
    layer.weight = torch.nn.Parameter(
        hp_tensor_and_scale_to_float8(
            weight.detach(), scale, torch.float8_e4m3fn, layer.linear_mm_config, GemmInputRole.WEIGHT
        )
    )
    with torch.no_grad():
        expected = layer(x)
        output = run_eager(layer.options._eager_plans, x, layer.weight, None)
        assert output is not None and torch.equal(output, expected)


def message(*arguments):
    with pytest.raises(LinearError) as caught:
        linear(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x, w, b: (x[..., :47], w, b),
        lambda x, w, b: (x[:0, :, :47], w, b),
        lambda x, w, b: (x[0, 0, 0], w, b),
        lambda x, w, b: (x.double(), w, b),
        lambda x, w, b: (x, w[0], b),
        lambda x, w, b: (x, w.double(), b),
        lambda x, w, b: (x, w, b[:7]),
        lambda x, w, b: (x, w, b.double()),
        lambda x, w, b: (x.to("meta"), w, b),
        lambda x, w, b: (x, w.to("meta"), b),
        lambda x, w, b: (x, w, b.to("meta")),
    ],
)
@pytest.mark.parametrize("grads", [False, True])
def test_messages_after_a_call_that_went_well(spoil, grads):
    options = LinearOptions("rowwise", "wq")
    x, w, b = tensors()
    with torch.set_grad_enabled(grads):
        expected = message(*spoil(x, w, b), LinearOptions("rowwise", "wq"))
        linear(x, w, b, options)
        assert expected.startswith('linear "wq" ')
        assert message(*spoil(x, w, b), options) == expected


def test_transforms_and_second_derivatives_after_a_call_that_went_well():
    options = LinearOptions("rowwise", "wq")
    x, w, b = tensors()
    linear(x, w, b, options)
    with pytest.raises(LinearError, match='linear "wq" cannot run under torch.func transforms'):
        torch.vmap(lambda row: linear(row, w, b, options))(x)
    with pytest.raises(LinearError, match="has no gradient itself"):
        torch.autograd.grad(linear(x, w, b, options).sum(), x, create_graph=True)


def ingots_functions(call):
    """(file, name) of Ingot's Python functions that it enters in this thread, as does a backward on the CPU."""
    found = []

    def note(frame, event, _):
        if event == "call" and "/ingot/" in frame.f_code.co_filename:
            found.append((frame.f_code.co_filename.rpartition("/ingot/")[2], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES + ("delayed",))
def test_no_code_of_experts_runs(recipe):
    """scripts/performance/ages.py counts no commit of it for figures of layers: _NOT_DENSE_PYTHON."""
    norm = torch.nn.LayerNorm(48, elementwise_affine=False)
    made = [
        lambda linear: Float8Linear.from_float(linear, recipe),
        lambda linear: LayerNormLinear.from_parts(norm, linear, recipe=recipe, activation="sigmoid", fast_math=True),
    ]
    x = torch.randn(20, 48, dtype=torch.bfloat16, requires_grad=True)
    for make in made:
        module = make(torch.nn.Linear(48, 32, bias=False, dtype=torch.bfloat16))

        def step():
            sync_amax_history(module)  # of delayed scales
            module(x).backward(torch.ones(20, 32, dtype=torch.bfloat16))

        files = {file for file, _ in ingots_functions(step) + ingots_functions(step)}
        assert files and not [file for file in files if re.search("expert|grouped|^integrations/", file)], files


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "blockwise"])
def test_a_small_layer_enters_few_python_functions(recipe, bias):
    """A GPU waits for each of them."""
    layer = Float8Linear.from_float(torch.nn.Linear(48, 32, bias=bias, dtype=torch.bfloat16), recipe)
    x = torch.randn(20, 48, dtype=torch.bfloat16, requires_grad=True)
    grad_output = torch.randn(20, 32, dtype=torch.bfloat16)
    for _ in range(3):
        layer(x).backward(grad_output)
    entered = [name for _, name in ingots_functions(lambda: layer(x).backward(grad_output))]
    assert entered[0] == "forward"
    assert "backward" in entered
    assert len(entered) <= 6
