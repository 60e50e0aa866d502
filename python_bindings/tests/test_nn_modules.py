"""ingot.nn's modules of several parts: made of PyTorch's modules, with their parameters, checkpoints and modes."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch.nn.utils import prune

import ingot.torch
from ingot.nn import (
    Float8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    shared_input,
)
from ingot.torch import LinearError
from torch_module_cases import equal, sqnr

X = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))


def step(module, x, names=None):
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(y.square().sum() for y in outputs).backward()
    parameters = dict(module.named_parameters())
    grads = [parameters[name].grad.clone() for name in names or parameters]
    return [*(y.detach() for y in outputs), x.grad, *grads]


def test_weights_that_hooks_of_parts_would_compute():
    """Parts are never called, so their hooks do not run: the weight would stay as it was, in silence."""
    computes = (
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
        lambda part: prune.random_unstructured(part, "weight", 0.5),
    )
    makers = {
        "up_proj": lambda: Mlp(24, 40),
        "gate_up_proj": lambda: GatedMlp(24, 40),
        "q": lambda: SharedInputLinears(24, {"q": 24, "k": 24}),
        "norm": lambda: RMSNormLinear(24, 40),
    }
    for name, make in makers.items():
        for compute in computes if name == "up_proj" else computes[2:]:
            module = make()
            part = getattr(module, name)
            compute(part)
            with pytest.raises(LinearError, match=rf"weight: a hook of the {type(part).__name__} computes it \(\w+\)"):
                module(X)
    layers = [Float8Linear(24, 40), Float8Linear(24, 40)]
    torch.nn.utils.spectral_norm(layers[1])
    with pytest.raises(LinearError, match="a hook of the Float8Linear computes it .SpectralNorm"):
        shared_input(X, *layers)
    module = Mlp(24, 40)
    torch.nn.utils.parametrizations.spectral_norm(module.up_proj)
    before = module.up_proj.weight.clone()
    step(module, X, names=[])
    assert not torch.equal(module.up_proj.weight, before)  # its power iteration goes on


class Gated(torch.nn.Module):
    """Llama's MLP after its norm."""

    def __init__(self, bias=False):
        super().__init__()
        self.norm = torch.nn.RMSNorm(24, eps=1e-6)
        self.gate_proj = torch.nn.Linear(24, 40, bias)
        self.up_proj = torch.nn.Linear(24, 40, bias)
        self.down_proj = torch.nn.Linear(40, 24, bias)

    def forward(self, x):
        x = self.norm(x)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Qkv(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.q = torch.nn.Linear(24, 40)
        self.k = torch.nn.Linear(24, 16)
        self.v = torch.nn.Linear(24, 16, bias=False)

    def forward(self, x):
        x = x if self.norm is None else self.norm(x)
        return self.q(x), self.k(x), self.v(x)


def plain_and_ours(which, recipe):
    """A module of PyTorch's parts, and ours of the same parameters, whose names differ by `renamed`."""
    torch.manual_seed(0)
    if which in ("layer", "rms", "layer without bias"):
        kinds = {
            "layer": torch.nn.LayerNorm(24),
            "rms": torch.nn.RMSNorm(24),
            "layer without bias": torch.nn.LayerNorm(24, bias=False),
        }
        plain = torch.nn.Sequential()
        plain.add_module("norm", kinds[which])
        plain.add_module("linear", torch.nn.Linear(24, 40))
        made = (RMSNormLinear if which == "rms" else LayerNormLinear).from_parts(*plain, recipe=recipe, layer_name="fc")
        return plain, made, lambda name: name.replace("linear.", "")
    if which == "mlp":
        plain = torch.nn.Sequential(
            torch.nn.LayerNorm(24), torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 24)
        )
        made = Mlp.from_parts(plain[1], plain[3], plain[0], recipe=recipe)
        renames = {"0": "norm", "1": "up_proj", "3": "down_proj"}
        return plain, made, lambda name: renames[name[0]] + name[1:]
    if which == "gated mlp":
        plain = Gated(bias=True)
        made = GatedMlp.from_parts(
            (plain.gate_proj, plain.up_proj), plain.down_proj, plain.norm, recipe=recipe
        )
        return plain, made, lambda name: name
    plain = Qkv(torch.nn.LayerNorm(24) if which == "qkv after a norm" else None)
    made = SharedInputLinears.from_parts({"q": plain.q, "k": plain.k, "v": plain.v}, plain.norm, recipe=recipe)
    return plain, made, lambda name: name


WHICH = ["layer", "rms", "layer without bias", "mlp", "gated mlp", "qkv", "qkv after a norm"]


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_from_parts_computes_what_the_parts_do(recipe, which):
    plain, made, renamed = plain_and_ours(which, recipe)
    mine = dict(made.named_parameters())
    names = [name for name, _ in plain.named_parameters()]
    for name, parameter in plain.named_parameters():
        assert mine[renamed(name)] is parameter
    assert len(mine) == len(names)
    x = torch.randn(64, 24)
    got = step(made, x, [renamed(name) for name in names])
    expected = step(copy.deepcopy(plain).double(), x.double())
    decibels = [sqnr(e, a) for e, a in zip(expected, got, strict=True)]
    assert all(each >= 17 for each in decibels), decibels


@pytest.mark.parametrize("which", WHICH)
def test_copies_and_checkpoints(which):
    _, made, _ = plain_and_ours(which, "rowwise")
    expected = step(made, X)
    assert equal(step(copy.deepcopy(made), X), expected)
    assert equal(step(pickle.loads(pickle.dumps(made)), X), expected)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    _, other, _ = plain_and_ours(which, "rowwise")
    for parameter in other.parameters():
        torch.nn.init.constant_(parameter, 3)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert equal(step(other, X), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_gated_mlp_loads_checkpoints_of_two_layers(bias):
    torch.manual_seed(0)
    plain = torch.nn.ModuleDict({"mlp": Gated(bias)})
    parts = plain["mlp"]
    # With a scale for each row two weights have the codes of one; with one for a tensor they have not.
    recipe = {"recipe": "rowwise"}
    apart = GatedMlp.from_parts((parts.gate_proj, parts.up_proj), parts.down_proj, parts.norm, **recipe)
    joined = torch.nn.ModuleDict({"mlp": GatedMlp(24, 40, bias, norm="rms", eps=1e-6, **recipe)})
    joined.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(joined["mlp"](X), apart(X))
    again = torch.nn.ModuleDict({"mlp": GatedMlp(24, 40, bias, norm="rms", eps=1e-6, **recipe)})
    again.load_state_dict(joined.state_dict(), strict=True)
    assert torch.equal(again["mlp"](X), apart(X))
    both = torch.nn.Linear(24, 80, bias)
    both.weight = joined["mlp"].gate_up_proj.weight
    both.bias = joined["mlp"].gate_up_proj.bias
    assert torch.equal(GatedMlp.from_parts(both, plain["mlp"].down_proj, plain["mlp"].norm, **recipe)(X), apart(X))


def modules(**options):
    return [
        LayerNormLinear(24, 40, **options),
        RMSNormLinear(24, 40, bias=False, activation="relu", **options),
        Mlp(24, 40, norm="layer", **options),
        GatedMlp(24, 40, norm="rms", **options),
        SharedInputLinears(24, {"q": 40, "k": 16}, norm="rms", **options),
        Float8Linear(24, 40, activation="silu", **options),
    ]


def test_what_is_made_anew():
    names = [sorted(name for name, _ in module.named_parameters()) for module in modules()]
    assert names == [
        ["bias", "norm.bias", "norm.weight", "weight"],
        ["norm.weight", "weight"],
        ["down_proj.bias", "down_proj.weight", "norm.bias", "norm.weight", "up_proj.bias", "up_proj.weight"],
        ["down_proj.weight", "gate_up_proj.weight", "norm.weight"],
        ["k.bias", "k.weight", "norm.weight", "q.bias", "q.weight"],
        ["bias", "weight"],
    ]
    torch.manual_seed(4)
    plain = torch.nn.Linear(24, 40)
    torch.manual_seed(4)
    assert torch.equal(LayerNormLinear(24, 40).weight, plain.weight)
    for module in modules(dtype=torch.bfloat16, recipe="rowwise"):
        outputs = module(X.bfloat16())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert all(y.dtype == torch.bfloat16 and y.isfinite().all() for y in outputs)
        assert "recipe=rowwise" in repr(module)


def test_zero_centred_gamma_begins_at_zero():
    for module in modules()[:1]:
        made = type(module)(24, 40, zero_centred=True, recipe="rowwise")
        assert torch.count_nonzero(made.norm.weight) == 0
        same = LayerNormLinear(24, 40, recipe="rowwise")
        same.weight, same.bias = made.weight, made.bias
        assert sqnr(same(X).double().detach(), made(X).detach()) > 40
        made.reset_parameters()
        assert torch.count_nonzero(made.norm.weight) == 0


def test_meta_then_memory():
    for module in modules(device="meta"):
        outputs = module(torch.empty(3, 24, device="meta"))
        assert (outputs[0] if isinstance(outputs, tuple) else outputs).shape[0] == 3
        module = module.to_empty(device="cpu")
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        outputs = module(X)
        assert (outputs[0] if isinstance(outputs, tuple) else outputs).isfinite().all()


def test_float8_linear_with_an_activation():
    torch.manual_seed(0)
    plain = torch.nn.Linear(24, 40)
    layer = Float8Linear.from_float(plain, "rowwise", "fc", activation="gelu")
    expected = F.gelu(F.linear(X.double(), plain.weight.double(), plain.bias.double()))
    assert sqnr(expected, layer(X)) >= 18
    assert layer.weight is plain.weight
    assert "activation='gelu'" in repr(layer)
    expression = Float8Linear.from_float(plain, "rowwise", activation="x * sigmoid(1.702 * x)")
    torch.testing.assert_close(expression(X), Float8Linear.from_float(plain, "rowwise", activation="quick_gelu")(X))


def test_shared_input_of_layers():
    torch.manual_seed(0)
    layers = [Float8Linear(24, 40, recipe="rowwise", layer_name=name) for name in ("q", "k", "v")]
    together = shared_input(X, *layers)
    assert equal(together, [layer(X) for layer in layers])
    assert equal(shared_input(X, *layers[:2]), together[:2])


@pytest.mark.parametrize("module", modules(recipe="rowwise"), ids=lambda module: type(module).__name__)
def test_trains(module):
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    x = torch.randn(64, 24)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        outputs = module(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum((y - torch.relu(x[:, :1])).square().mean() for y in outputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def message(call):
    with pytest.raises(LinearError) as caught:
        call()
    return str(caught.value)


def test_messages():
    norm, linear = torch.nn.LayerNorm(24), torch.nn.Linear(24, 40)
    subject = 'LayerNormLinear "fc" from_parts: '
    make = lambda *parts: message(lambda: LayerNormLinear.from_parts(*parts, layer_name="fc"))
    assert make(torch.nn.RMSNorm(24), linear) == subject + "takes a torch.nn.LayerNorm, got a RMSNorm"
    assert make(torch.nn.ReLU(), linear) == (
        subject + "takes a torch.nn.LayerNorm or torch.nn.RMSNorm as norm, or a module with a parameter `weight` and a "
        "number `eps` or `variance_epsilon` that computes the same, got a ReLU"
    )
    assert make(norm, torch.nn.ReLU()) == subject + "takes a torch.nn.Linear, got a ReLU"
    assert make(torch.nn.LayerNorm(23), linear) == subject + "the norm is over (23,), expected (24,), the layer's input"
    assert make(None, linear) == subject + "takes a torch.nn.LayerNorm, got a NoneType"
    hooked = torch.nn.Linear(24, 40)
    hooked.register_forward_hook(lambda *_: None)
    assert make(norm, hooked) == subject + "the Linear has hooks, which would not run any more: remove them"
    bound = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(24, 40))
    assert make(norm, bound) == subject + "its weight is no parameter: a hook or parametrization computes it"
    bare = torch.nn.LayerNorm(24, elementwise_affine=False)
    assert message(lambda: LayerNormLinear.from_parts(bare, linear, layer_name="fc", zero_centred=True)) == (
        'LayerNormLinear "fc" zero_centred: is set, but the norm has no weight: give it one with '
        "elementwise_affine=True"
    )
    assert message(lambda: LayerNormLinear(24, 40, layer_name="fc")(X[:, :9])) == (
        'LayerNorm linear "fc" input: has shape (5, 9), expected (..., 24)'
    )
    assert "recipe: 'rowwize' is not one of" in message(lambda: RMSNormLinear(24, 40, recipe="rowwize"))
    assert message(lambda: Float8Linear(24, 40, layer_name="fc", activation="sillu")).startswith(
        'linear "fc" activation: "sillu" is no function'
    )


def test_messages_of_mlps():
    assert message(lambda: Mlp(24, 40, norm="batch")) == (
        "norm 'batch' is not one of \"layer\", \"rms\": give one of them, or None"
    )
    gate, up, down = torch.nn.Linear(24, 40), torch.nn.Linear(24, 32), torch.nn.Linear(40, 24)
    assert message(lambda: GatedMlp.from_parts((gate, up), down)) == (
        'MLP "mlp" from_parts: gate is Linear(in_features=24, out_features=40, bias=True) and up is '
        "Linear(in_features=24, out_features=32, bias=True), expected two layers of one size, both with a bias or both "
        "without"
    )
    made = GatedMlp(24, 40, layer_name="mlp")
    assert message(lambda: made(X[:, :9])) == 'MLP "mlp" input: has shape (5, 9), expected (..., 24)'
    assert message(lambda: made.down_proj(X)) == (
        "LinearParameters has no forward: call the module that contains it, or leave it apart by fuse=False of ingot.nn.convert()"
    )


def test_messages_of_shared_inputs():
    layer = Float8Linear(24, 40, layer_name="q")
    assert message(lambda: shared_input(X, layer)) == (
        "shared_input got 1 layer, but two or three can share an input: call it several times"
    )
    assert message(lambda: shared_input(X, layer, torch.nn.Linear(24, 40))) == (
        "shared_input takes ingot.nn.Float8Linear, got a Linear: convert it by from_float()"
    )
    active = Float8Linear(24, 40, layer_name="k", activation="silu")
    assert message(lambda: shared_input(X, layer, active)) == (
        'shared_input takes layers without an activation, "k" has one: call that layer itself'
    )
    rowwise = Float8Linear(24, 40, layer_name="v", recipe="rowwise")
    assert message(lambda: shared_input(X, layer, rowwise)) == (
        'shared_input takes layers of one recipe, "q" has tensorwise and "v" rowwise'
    )
    assert message(lambda: SharedInputLinears(24, {"q": 40}, layer_name="attention")) == (
        'SharedInputLinears "attention.q" has 1 layer, but two or three can share an input: make several modules'
    )
