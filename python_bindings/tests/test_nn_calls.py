"""How the layers of ingot.nn and ingot.float8 are called: under activation checkpointing and torch.func transforms, and
with inputs that they refuse, by which sentence."""

import copy
import itertools

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
import numpy as np
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import ingot
import ingot.torch
from ingot import float8
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
)
from ingot.torch import GatedLinearOptions, gated_linear
from torch_module_cases import equal

K, N = 32, 48


def _float8(config):
    def make(bias=True, dtype=torch.bfloat16, n_in=K, n_out=N):
        plain = torch.nn.Linear(n_in, n_out, bias, dtype=dtype)
        model = float8.convert_to_float8_training(torch.nn.Sequential(plain), config=config)
        model[0].layer_name = "fc"
        return model[0]

    return make


def _gated_of_two(bias=True, dtype=torch.bfloat16, n_in=K, n_out=N, recipe="tensorwise"):
    sizes = ((n_in, n_out), (n_in, n_out), (n_out, n_in))
    gate, up, down = (torch.nn.Linear(*size, bias, dtype=dtype) for size in sizes)
    return GatedMlp.from_parts((gate, up), down, recipe=recipe, layer_name="fc")


def _of(kind, **fixed):
    def make(bias=True, dtype=torch.bfloat16, n_in=K, n_out=N, recipe="tensorwise"):
        return kind(n_in, n_out, bias, dtype=dtype, recipe=recipe, layer_name="fc", **fixed)

    return make


def _shared(bias=True, dtype=torch.bfloat16, n_in=K, n_out=N, recipe="tensorwise"):
    return SharedInputLinears(n_in, {"q": n_out, "k": n_out}, bias, dtype=dtype, recipe=recipe, layer_name="fc")


NN = {
    "Float8Linear": _of(Float8Linear),
    "Float8Linear silu": _of(Float8Linear, activation="silu"),
    "RMSNormLinear": _of(RMSNormLinear),
    "LayerNormLinear": _of(LayerNormLinear),
    "Mlp": _of(Mlp),
    "GatedMlp": _of(GatedMlp, norm="rms"),
    "GatedMlp of two": _gated_of_two,
    "SharedInputLinears": _shared,
}
CAST = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
FLOAT8 = {
    "float8 tensorwise": _float8(float8.Float8LinearConfig()),
    "float8 rowwise": _float8(float8.Float8LinearConfig.from_recipe_name("rowwise")),
    "float8 emulated": _float8(float8.Float8LinearConfig(emulate=True)),
    "float8 delayed": _float8(
        float8.Float8LinearConfig(cast_config_input=CAST, cast_config_weight=CAST, cast_config_grad_output=CAST)
    ),
}
ALL = NN | FLOAT8


RECIPES = (*ingot.torch.RECIPES, "delayed")


def layers(which):
    """One of each recipe, and of each choice whether weight codes are kept."""
    torch.manual_seed(0)
    if which in FLOAT8:
        yield FLOAT8[which]()
        return
    keeps = (None, True, False) if which == "Float8Linear" else (None, False)
    for recipe, keep in itertools.product(RECIPES, keeps):
        layer = NN[which](recipe=recipe)
        layer.keep_weight_codes(keep)
        yield layer


def step(layer, needs_input=True, call=None):
    """Outputs and all gradients of a step, forward by call(layer, x)."""
    layer.zero_grad()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, K, generator=generator).bfloat16().requires_grad_(needs_input)
    outputs = layer(x) if call is None else call(layer, x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, [torch.randn(y.shape, generator=generator).bfloat16() for y in outputs])
    grads = [x.grad] if needs_input else []
    return [*(y.detach() for y in outputs), *grads, *(p.grad.clone() for p in layer.parameters())]


CHECKPOINTS = {
    "reentrant": {"use_reentrant": True},
    "early stop": {"use_reentrant": False},
    "no early stop": {"use_reentrant": False},
    "determinism unchecked": {"use_reentrant": False, "determinism_check": "none"},
}


@pytest.mark.parametrize("which", ALL)
def test_checkpointing_from_the_first_step_on(which):
    """The first call of a layer and its recompute take two ways, which have to save the same."""
    for layer in layers(which):
        for needs_input in (True, False):
            plain = copy.deepcopy(layer)
            expected = [step(plain, needs_input) for _ in range(2)]
            for how, options in CHECKPOINTS.items():
                if options["use_reentrant"] and not needs_input:
                    continue  # PyTorch gives no gradients then
                of = copy.deepcopy(layer)
                with set_checkpoint_early_stop(how != "no early stop"):
                    call = lambda module, x: checkpoint(module, x, **options)
                    got = [step(of, needs_input, call) for _ in range(2)]
                assert all(map(equal, expected, got)), (how, needs_input)


def _quantized(kind):
    return lambda: kind.from_float(torch.nn.Linear(K, N, dtype=torch.bfloat16), layer_name="fc")


def _dual(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def _total(f):
    return lambda x: f(x).float().sum()


func, functional = torch.func, torch.autograd.functional
TRANSFORMS = {
    "forward_ad": _dual,
    "jvp": lambda f, x: func.jvp(f, (x,), (torch.ones_like(x),)),
    "jacfwd": lambda f, x: func.jacfwd(_total(f))(x),
    "linearize": lambda f, x: func.linearize(f, x)[1](torch.ones_like(x)),
    "grad": lambda f, x: func.grad(_total(f))(x),
    "vjp": lambda f, x: func.vjp(f, x),
    "jacrev": lambda f, x: func.jacrev(_total(f))(x),
    "hessian": lambda f, x: func.hessian(_total(f))(x),
    "jacobian": lambda f, x: functional.jacobian(_total(f), x, strategy="forward-mode", vectorize=True),
}


@pytest.mark.parametrize("which", [*ALL, "FrozenFloat8Linear", "WeightOnlyLinear"])
def test_transforms(which):
    """What operators know nothing of is refused; gradients were 0 in forward mode and where gradients are off."""
    kinds = {"FrozenFloat8Linear": FrozenFloat8Linear, "WeightOnlyLinear": WeightOnlyLinear}
    layer, x = (ALL[which] if which in ALL else _quantized(kinds[which]))(), torch.randn(4, K).bfloat16()

    def f(x):
        y = layer(x)
        return y[0] if isinstance(y, tuple) else y

    f(x)
    for grads, (name, transform) in itertools.product((True, False), TRANSFORMS.items()):
        with torch.set_grad_enabled(grads):
            text = message(lambda: transform(f, x))
            assert "cannot run under torch.func transforms (vmap, grad, jvp) and in forward mode: give it" in text, name
    if which in ("float8 emulated", "float8 delayed"):
        assert "cannot run under" in message(lambda: torch.vmap(f)(x))
    else:  # vmap alone runs an operator for each part
        with torch.no_grad():
            assert torch.equal(torch.vmap(f)(x), torch.stack([f(row) for row in x]))
    if which != "WeightOnlyLinear":  # which is linear in x, and computes its gradient by PyTorch's operations
        assert "create_graph=True" in message(lambda: functional.hessian(_total(f), x))


@pytest.mark.parametrize("which", ["Float8Linear", "Mlp", "float8 rowwise"])
def test_transforms_that_are_compiled(which):
    torch._dynamo.reset()
    layer, x = ALL[which](), torch.randn(4, K).bfloat16()
    compiled = torch.compile(lambda x: func.grad(_total(layer))(x), backend="aot_eager")
    assert "cannot run under torch.func transforms" in message(lambda: compiled(x))
    with torch.no_grad():
        assert "and in forward mode" in message(lambda: _dual(torch.compile(layer, backend="aot_eager"), x))


@pytest.mark.parametrize("which", ["RMSNormLinear", "Mlp", "SharedInputLinears"])
def test_batched_gradients(which):
    """Those of torch.autograd.functional.jacobian(vectorize=True)."""
    for recipe in ("rowwise", "delayed"):
        layer, x = NN[which](recipe=recipe), torch.randn(4, K).bfloat16().requires_grad_()
        y = layer(x)
        y = y[0] if isinstance(y, tuple) else y
        of = torch.randn(2, *y.shape).bfloat16()
        grads = lambda of, **options: torch.autograd.grad(y, x, of, retain_graph=True, **options)[0]
        if recipe == "delayed":
            assert "takes one gradient of the output at a time" in message(lambda: grads(of, is_grads_batched=True))
        else:
            assert torch.equal(grads(of, is_grads_batched=True), torch.stack([grads(each) for each in of]))


def _misaligned(tensor):
    """The same values, one element after an aligned address, as a slice of a fused bias is."""
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


def _strided(tensor):
    return torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)[..., ::2].copy_(tensor)


def _turned(tensor):
    return tensor.t().contiguous().t() if tensor.dim() == 2 else _strided(tensor)


@pytest.mark.parametrize(
    ("place", "which"),
    in_ci(
        lambda place, which: place is _strided or which == "Float8Linear",
        [_misaligned, _strided, _turned],
        ["Float8Linear", "LayerNormLinear", "Mlp", "GatedMlp of two", "float8 rowwise"],
    ),
)
def test_views_compiled(which, place):
    """The bits of contiguous parameters and inputs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = ALL[which](**({"recipe": "rowwise"} if which in NN else {}))
    twin = copy.deepcopy(layer)
    for parameter in twin.parameters():
        parameter.data = place(parameter.detach())
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    views = step(twin, call=lambda _, x: compiled(place(x.detach()).requires_grad_()), needs_input=False)
    assert equal(step(layer, needs_input=False), views)


@pytest.mark.parametrize("which", ALL)
def test_hooks_run(which):
    """Once in each step, as in the same module of PyTorch's."""
    layer, seen = ALL[which](), []
    layer.register_forward_pre_hook(lambda *_: seen.append("before forward"))
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_full_backward_pre_hook(lambda *_: seen.append("before backward"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    count = 0
    for parameter in layer.parameters():
        count += 1
        parameter.register_hook(lambda grad: seen.append("gradient"))
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
    once = ["accumulated"] * count + ["backward", "before backward", "before forward", "forward"] + ["gradient"] * count
    for _ in range(2):
        seen.clear()
        step(layer)
        assert sorted(seen) == once


@pytest.mark.parametrize("which", ALL)
def test_values_that_are_not_finite(which):
    """Spoil the results that they enter, from the first step on."""
    for recipe, value in itertools.product(RECIPES if which in NN else (None,), (float("inf"), float("nan"))):
        for where in ("input", "weight", "gradient"):
            layer = ALL[which](**({} if recipe is None else {"recipe": recipe}))
            weight = next(parameter for parameter in layer.parameters() if parameter.dim() == 2)
            x = torch.randn(12, K).bfloat16()
            (x if where == "input" else weight.data)[1, 2] = 1.0 if where == "gradient" else value
            x.requires_grad_()
            outputs = layer(x)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            grads = [torch.randn(y.shape).bfloat16() for y in outputs]
            if where == "gradient":
                grads[0][2, 1] = value
            torch.autograd.backward(outputs, grads)
            spoiled = {
                "input": (outputs[0][1], weight.grad),
                "weight": (outputs[0], x.grad),
                "gradient": (x.grad[2], *(p.grad for p in layer.parameters() if p.dim() == 2)),
            }[where]
            assert not all(tensor.isfinite().all() for tensor in spoiled), (recipe, value, where)


SIZES = ((0, 8, 3), (8, 0, 3), (0, 0, 3), (8, 16, 0), (0, 8, 0))  # in_features, out_features, tokens


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("which", ALL)
def test_sizes_of_zero(which):
    """Outputs are zeros or the bias, gradients zeros, but the last bias's: the number of tokens."""
    for n_in, n_out, tokens in SIZES:
        for recipe in RECIPES if which in NN else (None,):
            layer = ALL[which](n_in=n_in, n_out=n_out, **({} if recipe is None else {"recipe": recipe}))
            for at in range(2):  # the first call and later ones
                layer.zero_grad()
                x = torch.randn(tokens, n_in).bfloat16().requires_grad_()
                outputs = layer(x)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
                assert x.grad.shape == x.shape and x.grad.isfinite().all(), recipe
                sizes = [n_in if "mlp" in type(layer).__name__.lower() else n_out] * len(outputs)
                assert [y.shape for y in outputs] == [(tokens, size) for size in sizes]
                for name, parameter in layer.named_parameters():
                    assert parameter.grad.shape == parameter.shape and parameter.grad.isfinite().all(), (recipe, name)
                if type(layer).__name__ in ("Float8Linear", "RMSNormLinear") and "silu" not in which and n_in == 0:
                    assert torch.equal(outputs[0], layer.bias.detach().expand(tokens, n_out))
                    assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, tokens))
            with torch.no_grad():
                layer(x)
            layer(x.detach())


@pytest.mark.parametrize("which", in_ci(lambda which: which not in NN, ["Float8Linear", "GatedMlp of two", "float8 rowwise"]))
def test_no_tokens_compiled(which):
    for recipe in RECIPES if which in NN else (None,):
        torch._dynamo.reset()
        layer = ALL[which](**({} if recipe is None else {"recipe": recipe}))
        call = torch.compile(layer, backend="aot_eager", dynamic=True)
        for tokens in (16, 0):
            x = torch.randn(tokens, K).bfloat16().requires_grad_()
            call(x).sum().backward()
            assert x.grad.shape == x.shape
        with torch.no_grad():
            assert call(x).shape[0] == 0


def message(call):
    with pytest.raises(ingot.Error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("which", ALL)
def test_inputs_that_are_no_dense_tensors(which):
    layer, x = ALL[which](), torch.randn(4, K).bfloat16()
    layer(x)  # the first call and later ones take two ways
    jagged = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
    inputs = {
        "input: is a ndarray, expected a torch.Tensor: torch.as_tensor() makes one": np.zeros((4, K), np.float32),
        "input: is a list, expected a torch.Tensor: torch.as_tensor() makes one": [[0.0] * K],
        "input: is torch.sparse_coo, expected a dense tensor: convert it with .to_dense()": x.to_sparse(),
        "input: is a nested tensor, expected one size for each dimension: give its .values(), rows of all parts, or pad "
        "it with torch.nested.to_padded_tensor(); a torch.nn.TransformerEncoder that makes it of a padding mask makes none "
        "with use_nested_tensor = False, which ingot.nn's conversions of models set": jagged,
    }
    for grads in (False, True):
        with torch.set_grad_enabled(grads):
            for expected, value in inputs.items():
                text = message(lambda: layer(value))
                assert text.endswith(expected)
                assert '"fc"' in text or '"fc.gate"' in text or '"fc.q"' in text


def test_operands_that_are_no_dense_tensors():
    x, w = torch.randn(4, K), torch.randn(N, K)
    assert message(lambda: ingot.torch.linear(x, w.numpy())) == (
        'linear "linear" weight: is a ndarray, expected a torch.Tensor: torch.as_tensor() makes one'
    )
    assert message(lambda: ingot.torch.linear(x, w.to_sparse())) == (
        'linear "linear" weight: is torch.sparse_coo, expected a dense tensor: convert it with .to_dense()'
    )
    assert message(lambda: ingot.torch.linear(x, w, np.zeros(N))).startswith('linear "linear" bias: is a ndarray')
    assert message(lambda: gated_linear(x, x.numpy(), w, None, GatedLinearOptions(name="fc"))).startswith(
        'gated linear "fc" up: is a ndarray'
    )


def test_a_shared_input_has_one_size():
    layers = {"q": torch.nn.Linear(K, 8), "k": torch.nn.Linear(N, 8)}
    assert message(lambda: SharedInputLinears.from_parts(layers, layer_name="fc")) == (
        "SharedInputLinears \"fc.q\", \"fc.k\" has layers of different in_features, {'q': 32, 'k': 48}, expected one "
        "number: they share their input"
    )
