"""Modules of several parts as functions of named tensors, in PyTorch and in ingot.torch, for the tests of both
devices."""

import copy
import functools

import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import ingot.torch
from ingot._pytorch import is_older
from ingot.nn import sync_amax_history
from ingot.torch import _module_operators as operators
from ingot.torch import (
    MlpOptions,
    NormLinearOptions,
    NormOptions,
    SharedLinearOptions,
    mlp,
    mlp_of_gate_and_up,
    norm_linear,
    shared_linear,
)

# Its compiler guards more, and shares less, than later ones.
PYTORCH_2_7 = is_older(torch.__version__, (2, 8))
FLOAT8 = [recipe for recipe in ingot.torch.RECIPES if recipe != "high_precision"]
K, N, H = 96, 80, 112


def sqnr(expected, actual):
    """In decibels; a NaN in either is a NaN here, which no bound holds for."""
    expected = expected.double()
    error = (expected - actual.to(expected)).norm().clamp(min=1e-30)
    return float(20 * torch.log10(expected.norm().clamp(min=1e-25) / error))


def randn(*shape, scale=1.0, dtype=torch.float32, offset=0.0):
    return (torch.randn(*shape) * scale + offset).to(dtype).requires_grad_()


def normalise(x, gamma, beta, norm):
    if norm is None:
        return x
    if gamma is not None and norm.zero_centred:
        gamma = gamma + 1
    if norm.kind == "layer":
        return F.layer_norm(x, x.shape[-1:], gamma, beta, norm.eps)
    return F.rms_norm(x, x.shape[-1:], gamma, norm.eps)


def in_float64(function, tensors, grad_outputs):
    """Outputs and gradients of `function` of the tensors, which may be None."""
    of = {name: t.detach().double().requires_grad_() for name, t in tensors.items() if t is not None}
    outputs = function(**{name: of.get(name) for name in tensors})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = torch.autograd.grad(outputs, list(of.values()), [grad.double() for grad in grad_outputs])
    return [*(y.detach() for y in outputs), *grads]


def step(function, tensors, grad_outputs=None):
    """The same of ingot's function; makes grad_outputs where there are none."""
    outputs = function(**tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads_of = grad_outputs or [torch.randn_like(y) for y in outputs]
    grads = torch.autograd.grad(outputs, [t for t in tensors.values() if t is not None], grads_of)
    return [*(y.detach() for y in outputs), *grads], grads_of


def noted_calls(monkeypatch):
    """From now on a list of the operators of modules that are called, with their arguments."""
    calls = []

    def noting(operator):
        copied = lambda each: each.detach().clone() if isinstance(each, torch.Tensor) else each

        def noted(*arguments, **named):
            calls.append((operator, tuple(map(copied, arguments)), {name: copied(each) for name, each in named.items()}))
            return operator(*arguments, **named)

        return noted

    for name, family in operators.FAMILIES.items():
        noted = operators.Operators(*map(noting, family.operators))
        monkeypatch.setitem(operators.FAMILIES, name, family._replace(operators=noted))
    return calls


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def graphs_of_delayed_steps(eager, backend, inputs, step):
    """Compiles a copy of a module with delayed scales as one graph. Steps and the maxima that they note have eager's bits. Returns
    how many graphs there are after each step. step(module, x, call): one step by the call, without it by the module."""
    torch._dynamo.reset()
    module = copy.deepcopy(eager)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for x in inputs:
        assert equal(step(module, x, compiled), step(eager, x, None))
        for each in (module, eager):
            sync_amax_history(each)
        assert equal(module.buffers(), eager.buffers())
        counts.append(counter.frame_count)
    return counts


# ---- what is computed, as a function of named tensors, in PyTorch and in ingot --------------------------------------


def norm_linear_case(
    recipe,
    norm=NormOptions("rms"),
    activation="",
    dtype=torch.bfloat16,
    master=None,
    rows=(3, 50),
    keep_weight_codes=None,
    fast_math=False,
):
    torch.manual_seed(1)
    master = master or dtype
    gamma_at = 0.0 if norm is not None and norm.zero_centred else 1.0
    tensors = {
        "x": randn(*rows, K, scale=2, dtype=dtype, offset=0.3),
        "gamma": randn(K, scale=0.2, dtype=master, offset=gamma_at) if norm else None,
        "beta": randn(K, scale=0.2, dtype=master) if norm and norm.kind == "layer" else None,
        "w": randn(N, K, scale=K**-0.5, dtype=master),
        "b": randn(N, scale=0.3, dtype=master),
    }
    function = getattr(F, activation) if activation and activation != "gelu_tanh" else lambda y: y
    if activation == "gelu_tanh":
        function = functools.partial(F.gelu, approximate="tanh")
    options = NormLinearOptions(recipe, "case", norm, activation, keep_weight_codes, fast_math)

    def expected(x, gamma, beta, w, b):
        return function(F.linear(normalise(x, gamma, beta, norm), w, b))

    def ours(x, gamma, beta, w, b):
        return norm_linear(x, gamma, beta, w, b, options)

    return expected, ours, tensors


def mlp_case(
    recipe,
    norm=None,
    gated=True,
    bias=True,
    dtype=torch.bfloat16,
    master=None,
    rows=(3, 50),
    keep_weight_codes=None,
    fast_math=False,
):
    torch.manual_seed(2)
    master = master or dtype
    width = 2 * H if gated else H
    tensors = {
        "x": randn(*rows, K, dtype=dtype),
        "gamma": randn(K, scale=0.2, dtype=master, offset=1) if norm else None,
        "beta": randn(K, scale=0.2, dtype=master) if norm and norm.kind == "layer" else None,
        "up": randn(width, K, scale=K**-0.5, dtype=master),
        "up_bias": randn(width, scale=0.3, dtype=master) if bias else None,
        "down": randn(K, H, scale=H**-0.5, dtype=master),
        "down_bias": randn(K, scale=0.3, dtype=master) if bias else None,
    }
    options = MlpOptions(recipe, "case", gated, "", norm, keep_weight_codes, fast_math)

    def expected(x, gamma, beta, up, up_bias, down, down_bias):
        hidden = F.linear(normalise(x, gamma, beta, norm), up, up_bias)
        hidden = F.silu(hidden[..., :H]) * hidden[..., H:] if gated else F.gelu(hidden)
        return F.linear(hidden, down, down_bias)

    def ours(x, gamma, beta, up, up_bias, down, down_bias):
        return mlp(x, up, down, up_bias, down_bias, gamma, beta, options)

    return expected, ours, tensors


def shared_case(recipe, norm=None, count=3, dtype=torch.bfloat16, master=None, rows=(3, 50), keep_weight_codes=None):
    torch.manual_seed(3)
    master = master or dtype
    tensors = {
        "x": randn(*rows, K, dtype=dtype),
        "gamma": randn(K, scale=0.2, dtype=master, offset=1) if norm else None,
        "beta": randn(K, scale=0.2, dtype=master) if norm and norm.kind == "layer" else None,
        **{f"w{at}": randn(N + 16 * at, K, scale=K**-0.5, dtype=master) for at in range(count)},
        "b0": randn(N, scale=0.3, dtype=master),
    }
    options = SharedLinearOptions(recipe, ("q", "k", "v")[:count], norm, keep_weight_codes)

    def parts(of):
        weights = [of[f"w{at}"] for at in range(count)]
        return weights, [of["b0"], *[None] * (count - 1)]

    def expected(x, gamma, beta, **of):
        values = normalise(x, gamma, beta, norm)
        return tuple(F.linear(values, w, b) for w, b in zip(*parts(of)))

    def ours(x, gamma, beta, **of):
        return shared_linear(x, *parts(of), gamma, beta, options)

    return expected, ours, tensors


def gate_and_up_case(
    recipe, norm=None, dtype=torch.bfloat16, master=None, rows=(3, 50), keep_weight_codes=None, fast_math=False
):
    """An MLP whose gate and up are two weights."""
    expected_of_one, _, tensors = mlp_case(recipe, norm, True, True, dtype, master, rows, keep_weight_codes)
    up, up_bias = tensors.pop("up"), tensors.pop("up_bias")
    halves = {"gate": up[:H], "up": up[H:], "gate_bias": up_bias[:H], "up_bias": up_bias[H:]}
    tensors |= {name: half.detach().clone().requires_grad_() for name, half in halves.items()}
    options = MlpOptions(recipe, "case", True, "", norm, keep_weight_codes, fast_math)

    def expected(gate, up, gate_bias, up_bias, **of):
        return expected_of_one(up=torch.cat((gate, up)), up_bias=torch.cat((gate_bias, up_bias)), **of)

    def ours(x, gamma, beta, gate, up, gate_bias, up_bias, down, down_bias):
        weights, biases = (gate, up), (gate_bias, up_bias)
        return mlp_of_gate_and_up(x, weights, down, biases, down_bias, gamma, beta, options)

    return expected, ours, tensors


LAYER, RMS = NormOptions("layer"), NormOptions("rms", 1e-6)
CASES = {
    "layer_norm": functools.partial(norm_linear_case, norm=LAYER),
    "rms_norm": functools.partial(norm_linear_case, norm=RMS),
    "zero_centred": functools.partial(norm_linear_case, norm=NormOptions("layer", 1e-5, True)),
    "silu": functools.partial(norm_linear_case, norm=None, activation="silu"),
    "gelu_tanh": functools.partial(norm_linear_case, norm=None, activation="gelu_tanh"),
    "rms_norm_sigmoid": functools.partial(norm_linear_case, norm=RMS, activation="sigmoid"),
    "fast_sigmoid": functools.partial(norm_linear_case, norm=None, activation="sigmoid", fast_math=True),
    "gated_mlp": mlp_case,
    "rms_norm_gated_mlp": functools.partial(mlp_case, norm=RMS, bias=False),
    "fast_mlp": functools.partial(mlp_case, gated=False, fast_math=True),
    "gate_and_up": gate_and_up_case,
    "fast_gate_and_up": functools.partial(gate_and_up_case, fast_math=True),
    "rms_norm_gate_and_up": functools.partial(gate_and_up_case, norm=RMS),
    "layer_norm_mlp": functools.partial(mlp_case, norm=LAYER, gated=False),
    "shared": shared_case,
    "shared_by_two": functools.partial(shared_case, count=2),
    "rms_norm_shared": functools.partial(shared_case, norm=RMS),
    "layer_norm_shared_by_two": functools.partial(shared_case, norm=LAYER, count=2),
}
FEW = ["rms_norm_sigmoid", "layer_norm", "rms_norm_gated_mlp", "rms_norm_shared", "shared"]
