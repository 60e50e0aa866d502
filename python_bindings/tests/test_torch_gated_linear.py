"""ingot.torch.gated_linear and MLPs whose gate and up are two weights: values against float64, the bits of separate
layers, no copy of a weight, and messages."""

import copy
import pickle

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import ingot
import ingot.torch
from ingot.nn import GatedMlp
from ingot.torch import GatedLinearOptions, LinearOptions, MlpOptions, NormOptions, gated_linear, linear, mlp
from ingot.torch import _module_operators as operators
from ingot.torch import mlp_of_gate_and_up, shared_linear, SharedLinearOptions
from torch_module_cases import FLOAT8, H, K, equal, in_float64, randn, sqnr, step

SILU = operators.Activation("silu(x) * up")

RECIPES = ingot.torch.RECIPES


def of_gate(dtype=torch.bfloat16, master=None, rows=(3, 50), bias=True):
    torch.manual_seed(4)
    master = master or dtype
    return {
        "gate": randn(*rows, H, dtype=dtype),
        "up": randn(*rows, H, dtype=dtype),
        "w": randn(K, H, scale=H**-0.5, dtype=master),
        "b": randn(K, scale=0.3, dtype=master) if bias else None,
    }


def of_mlp(dtype=torch.bfloat16, norm=False, bias=True):
    torch.manual_seed(5)
    return {
        "x": randn(3, 50, K, dtype=dtype),
        "gamma": randn(K, scale=0.2, dtype=dtype, offset=1) if norm else None,
        "gate": randn(H, K, scale=K**-0.5, dtype=dtype),
        "up": randn(H, K, scale=K**-0.5, dtype=dtype),
        "down": randn(K, H, scale=H**-0.5, dtype=dtype),
        "gate_bias": randn(H, scale=0.3, dtype=dtype) if bias else None,
        "up_bias": randn(H, scale=0.3, dtype=dtype) if bias else None,
        "down_bias": randn(K, scale=0.3, dtype=dtype) if bias else None,
    }


def ours(options):
    def run(x, gamma, gate, up, down, gate_bias, up_bias, down_bias):
        return mlp_of_gate_and_up(x, (gate, up), down, (gate_bias, up_bias), down_bias, gamma, None, options)

    return run


@pytest.mark.parametrize("master", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, dtype, master):
    tensors = of_gate(dtype, master)
    options = GatedLinearOptions(recipe)
    got, grads = step(lambda gate, up, w, b: gated_linear(gate, up, w, b, options), tensors)
    expected = in_float64(lambda gate, up, w, b: F.linear(F.silu(gate) * up, w, b), tensors, grads)
    assert [each.dtype for each in got[1:]] == [each.dtype for each in tensors.values()]
    for e, g in zip(expected, got, strict=True):
        assert g.shape == e.shape and sqnr(e, g) > (40 if recipe == "high_precision" else 22)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_of_layers_apart(recipe, keep):
    """With an activation whose value and derivatives are rounded once, as PyTorch's are."""
    tensors = of_gate()
    options = GatedLinearOptions(recipe, "fc", "relu", keep)
    got, grads = step(lambda gate, up, w, b: gated_linear(gate, up, w, b, options), tensors)

    def apart(gate, up, w, b):
        return linear(F.relu(gate) * up, w, b, LinearOptions(recipe, "fc", keep))

    expected, _ = step(apart, tensors, grads)
    assert equal(got, expected)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("activation", ["silu(x) * up", "x * up", "x + up^2", "max(x, 0) * up"])
def test_each_gradient_alone_has_the_bits_of_both(activation, fast_math):
    """Both are computed in one pass, one alone in a pass of its own."""
    gate, up, w, _ = of_gate(bias=False).values()
    options = GatedLinearOptions("rowwise", "fc", activation, fast_math=fast_math)
    upstream = randn(3, 50, K, dtype=torch.bfloat16).detach()

    def gradients(*wanted):
        leaves = [each.detach().requires_grad_(name in wanted) for name, each in (("gate", gate), ("up", up))]
        gated_linear(*leaves, w, None, options).backward(upstream)
        return [leaf.grad for leaf in leaves]

    both = gradients("gate", "up")
    assert equal([gradients("gate")[0], gradients("up")[1]], both)
    assert gradients("gate")[1] is None and gradients("up")[0] is None


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_mlp_has_the_bits_of_its_layers(recipe, bias, norm):
    tensors = of_mlp(norm=norm, bias=bias)
    of_norm = NormOptions("rms") if norm else None
    got, grads = step(ours(MlpOptions(recipe, "mlp", True, "relu", of_norm)), tensors)
    shared = SharedLinearOptions(recipe, ("gate", "up"), of_norm)

    def apart(x, gamma, gate, up, down, gate_bias, up_bias, down_bias):
        values = shared_linear(x, (gate, up), (gate_bias, up_bias), gamma, None, shared)
        return linear(F.relu(values[0]) * values[1], down, down_bias, LinearOptions(recipe))

    expected, _ = step(apart, tensors, grads)
    assert equal(got, expected)


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_folded", "high_precision"])
def test_forward_has_the_bits_of_one_weight(recipe):
    """Where each row has its own scale, it does not matter which matrix the row belongs to."""
    tensors = of_mlp()
    options = MlpOptions(recipe, "mlp")
    joined = torch.cat((tensors["gate"], tensors["up"])), torch.cat((tensors["gate_bias"], tensors["up_bias"]))
    expected = mlp(tensors["x"], joined[0], tensors["down"], joined[1], tensors["down_bias"], options=options)
    assert torch.equal(ours(options)(**tensors), expected)


def layer_of(recipe="rowwise", bias=False, dtype=torch.bfloat16):
    torch.manual_seed(0)
    gate, up = (torch.nn.Linear(K, H, bias, dtype=dtype) for _ in range(2))
    return GatedMlp.from_parts(
        (gate, up), torch.nn.Linear(H, K, bias, dtype=dtype), torch.nn.RMSNorm(K, dtype=dtype), recipe=recipe
    )


class Allocations(TorchDispatchMode):
    """The operators that run, and the elements of what each returns."""

    def __enter__(self):
        super().__enter__()
        self.seen = []
        return self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor):
                self.seen.append((str(func), each.numel() * each.element_size()))
        return out


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_weight_is_copied(recipe):
    """Nothing is concatenated; only four operators of Ingot's, views and the gradients' accumulation run. Forward keeps
    what its two operators return."""
    layer = layer_of(recipe)
    x = torch.randn(40, K, dtype=torch.bfloat16, requires_grad=True)
    with Allocations() as of_forward:
        y = layer(x)
    names = [name for name, _ in of_forward.seen if name.startswith("ingot")]
    assert set(names) == {"ingot.shared_linear_forward.default", "ingot.gated_linear_forward.default"}
    others = [name for name, _ in of_forward.seen if not name.startswith("ingot")]
    assert not any("cat" in name or "copy" in name or "clone" in name for name in others)
    with Allocations() as of_backward:
        y.backward(torch.ones_like(y))
    weight_bytes = 2 * H * K
    copies = [name for name, count in of_backward.seen if not name.startswith("ingot") and count >= weight_bytes]
    assert not any("cat" in name or "copy" in name or "clone" in name for name in copies)


def test_memory_of_an_mlp():
    """What a forward of many tokens keeps: the input, gate and up in bf16, and codes of two inputs; no weight."""
    layer = layer_of("tensorwise")
    tokens = 4096
    x = torch.randn(tokens, K, dtype=torch.bfloat16, requires_grad=True)
    kept = {}

    def note(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(x)
    expected = tokens * (2 * K + K + 2 * 2 * H + H)
    assert expected <= sum(kept.values()) <= expected + 4 * tokens + 4096


# aot_eager compiles all that eager does, and more.
@pytest.mark.parametrize(
    "recipe, backend",
    in_ci(
        lambda recipe, backend: recipe == "rowwise" or (recipe, backend) == ("blockwise", "aot_eager"),
        FLOAT8,
        ["eager", "aot_eager"],
    ),
)
def test_compiled(recipe, backend):
    torch._dynamo.reset()
    layer = layer_of(recipe, True)
    compiled = copy.deepcopy(layer)
    x = torch.randn(3, 40, K, dtype=torch.bfloat16)

    def found(call, of):
        held = x.clone().requires_grad_()
        y = call(held)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (held, *of.parameters()))]

    call = torch.compile(compiled, backend=backend, fullgraph=True)
    assert equal(found(call, compiled), found(layer, layer))
    with torch.no_grad():
        assert torch.equal(call(x), layer(x))


def test_a_norms_name_and_copies():
    layer = layer_of()
    layer.layer_name = "blocks.0.mlp"
    assert [options.subject for options in layer.options._apart] == [
        'shared input of linear "blocks.0.mlp.gate", linear "blocks.0.mlp.up"',
        'gated linear "blocks.0.mlp.down"',
    ]
    options = GatedLinearOptions("rowwise", "fc", "relu", True)
    assert pickle.loads(pickle.dumps(options)) == options
    for keep in (True, False):
        layer.keep_weight_codes(keep)
        assert all(options.keep_weight_codes is keep for options in layer.options._apart)


@pytest.mark.parametrize("keep", [0, 3])
def test_opcheck(keep):
    tensors = of_gate(torch.float32, rows=(20,))
    gate, up, w, b = (each.detach() for each in tensors.values())
    layer = operators.Layer(K, H, torch.float32, torch.float32)
    arguments = ("gated_linear", "gated", ("fc",), "rowwise", SILU, None, False, torch.float32, True, (layer,))
    plan, _ = operators.add_plan(*arguments)
    torch.library.opcheck(operators.GATED_LINEAR.forward, (gate, up, w, b, plan, keep))
    if keep == 0:
        return
    y, saved = operators.GATED_LINEAR.forward(gate, up, w, b, plan, keep)
    all_of_them = operators.INPUT | operators.UP | operators.WEIGHT | operators.BIAS
    for wants in (operators.INPUT, operators.WEIGHT, operators.UP, all_of_them):
        torch.library.opcheck(operators.GATED_LINEAR.backward, (y, gate, up, w, saved, plan, wants))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments, written = (y, gate, up, w, saved, plan, all_of_them), {"main_grad": torch.zeros(K, H)}
    torch.library.opcheck(operators.GATED_LINEAR.backward_in_place, arguments, written, test_utils=checks)


def test_messages():
    tensors = of_gate()
    gate, up, w, b = tensors.values()
    options = GatedLinearOptions("rowwise", name="wo")
    with pytest.raises(ingot.Error, match=r'gated linear "wo" input: has shape \(3, 50, 112\), expected \(..., 96\)'):
        gated_linear(gate, up, w.t(), b, options)
    with pytest.raises(ingot.Error, match=r'gated linear "wo" up: is torch.bfloat16 of shape \(3, 49, 112\) on cpu, exp'):
        gated_linear(gate, up[:, :49], w, b, options)
    with pytest.raises(ingot.Error, match='gated linear "wo" up: is torch.float32 of shape'):
        gated_linear(gate, up.float(), w, b, options)
    with pytest.raises(ingot.Error, match='gated linear "wo" recipe: .delay. is not one of'):
        GatedLinearOptions("delay", "wo")
    with pytest.raises(ingot.Error, match="gated linear \"wo\" activation: 'relu\\(x\\)' has no `up`"):
        GatedLinearOptions("rowwise", "wo", "relu(x)")
    y = gated_linear(gate, up, w, b, options)
    with pytest.raises(ingot.Error, match='gated linear "wo" backward: the gradient of an FP8 GEMM has no gradient'):
        torch.autograd.grad(y.sum(), gate, create_graph=True)
    with pytest.raises(ingot.Error, match='gated linear "wo" main_grad: is torch.float32 of shape'):
        w.main_grad = torch.zeros(3)
        gated_linear(gate, up, w, b, options)
    plan, _ = operators.add_plan(
        "gated_linear", "gated", ("fc",), "rowwise", SILU, None, False, torch.bfloat16, True,
        (operators.Layer(K, H, torch.bfloat16, None),),
    )
    with pytest.raises(RuntimeError, match="up: must have the shape and dtype of the gate"):
        operators.GATED_LINEAR.forward(gate, up[:, :49], w, b, plan, 0)
    with pytest.raises(RuntimeError, match="saved: has 7 bytes, but a forward of this plan and size leaves"):
        saved = torch.zeros(7, dtype=torch.uint8)
        operators.GATED_LINEAR.backward(torch.randn(3, 50, K).bfloat16(), gate, up, w, saved, plan, operators.INPUT | operators.UP | operators.WEIGHT)
