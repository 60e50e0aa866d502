"""Float8Linear: outputs, gradients, and everything that PyTorch does with a layer."""

import copy
import functools
import io
import threading

import pytest

torch = pytest.importorskip("torch")
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import ingot
import ingot.float8 as float8
from ingot.float8 import Float8Linear, Float8LinearConfig
from ingot.float8.float8_linear import matmul_with_hp_or_float8_args
from ingot.float8.float8_utils import compute_error

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def config_of(recipe, emulate=False):
    config = Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", emulate)
    return config


def step(layer, x, gradient=None):
    """Returns output and gradients of one step."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.sum().backward() if gradient is None else y.backward(gradient)
    gradients = [parameter.grad.clone() for parameter in layer.parameters()]
    return [y.detach(), x.grad, *gradients]


@pytest.mark.parametrize("shape", [(16, 16), (2, 16, 16), (3, 2, 16, 16), (7, 16), (1, 16), (16,)], ids=str)
@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_close_to_linear(recipe, dtype, emulate, shape):
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 32, dtype=dtype)
    converted = Float8Linear.from_float(copy.deepcopy(layer), config_of(recipe, emulate))
    x = torch.randn(shape, dtype=dtype)
    for ours, exact, least in zip(step(converted, x), step(layer, x), (18, 18, 17, 100)):
        assert ours.shape == exact.shape and ours.dtype == exact.dtype
        assert compute_error(exact.double(), ours.double()) >= least


@pytest.mark.parametrize("sizes", [(5, 41, 29), (1, 1, 1), (0, 8, 8), (17, 3, 130)], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_any_size(recipe, sizes):
    torch.manual_seed(0)
    m, k, n = sizes
    layer = torch.nn.Linear(k, n)
    converted = Float8Linear.from_float(copy.deepcopy(layer), config_of(recipe))
    x = torch.randn(m, k)
    for ours, exact in zip(step(converted, x), step(layer, x)):
        assert ours.shape == exact.shape
        assert exact.numel() == 0 or (exact == 0).all() or compute_error(exact, ours) > 15


def test_mixed_dtypes():
    """f32 masters with bf16 inputs, and frozen weights or inputs."""
    for recipe in RECIPES:
        layer = Float8Linear(32, 16, config=config_of(recipe))
        x = torch.randn(4, 32, dtype=torch.bfloat16)
        y, grad_input, grad_weight, grad_bias = step(layer, x)
        assert (y.dtype, grad_input.dtype) == (torch.bfloat16,) * 2
        assert (grad_weight.dtype, grad_bias.dtype) == (torch.float32,) * 2
        layer.weight.requires_grad_(False)
        x.requires_grad_()
        layer(x).sum().backward()
        assert x.grad is not None
        layer(x.detach()).sum().backward()


@pytest.mark.parametrize("recipe", RECIPES)
def test_autocast(recipe):
    layer = Float8Linear(32, 16, config=config_of(recipe))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(torch.randn(4, 32))
        assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("recipe", RECIPES)
def test_checkpoint_and_layer_called_twice(recipe):
    torch.manual_seed(0)
    layer = Float8Linear(16, 16, config=config_of(recipe))
    x = torch.randn(8, 16)
    plain = step(lambda_module(layer, lambda x: layer(layer(x))), x)
    again = step(lambda_module(layer, lambda x: checkpoint(lambda x: layer(layer(x)), x, use_reentrant=False)), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    selective = lambda x: checkpoint(layer, layer(x), use_reentrant=False, context_fn=contexts)
    again = step(lambda_module(layer, selective), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


class lambda_module:
    """A function with the parameters of a module."""

    def __init__(self, module, function):
        self.module, self.function = module, function

    def __call__(self, x):
        return self.function(x)

    def zero_grad(self):
        self.module.zero_grad()

    def parameters(self):
        return self.module.parameters()


def test_two_forwards_before_a_backward_and_threads():
    torch.manual_seed(0)
    layer = Float8Linear(16, 16, config=config_of("rowwise"))
    inputs = [torch.randn(8, 16, requires_grad=True) for _ in range(4)]
    expected = [torch.autograd.grad(layer(x).sum(), x)[0] for x in inputs]
    outputs = [layer(x) for x in inputs]
    assert all(torch.equal(torch.autograd.grad(y.sum(), x)[0], e) for y, x, e in zip(outputs, inputs, expected))
    results = {}

    def run(index):
        results[index] = torch.autograd.grad(layer(inputs[index]).sum(), inputs[index])[0]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(torch.equal(results[index], expected[index]) for index in range(4))


def test_nothing_is_kept_without_gradients():
    layer = Float8Linear(16, 16)
    x = torch.randn(4, 16, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert layer(x).grad_fn is None


def test_copies_and_checkpoints():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    model = float8.convert_to_float8_training(copy.deepcopy(plain), config=config_of("rowwise"))
    x = torch.randn(4, 16)
    expected = model(x)
    assert list(model.state_dict()) == list(plain.state_dict())
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    other = float8.convert_to_float8_training(
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)), config=config_of("rowwise")
    )
    other.load_state_dict(state, strict=True)
    plain.load_state_dict(state, strict=True)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for each in (copy.deepcopy(model), other, torch.load(buffer, weights_only=False)):
        assert torch.equal(each(x), expected)


def test_meta():
    with torch.device("meta"):
        model = float8.convert_to_float8_training(torch.nn.Sequential(torch.nn.Linear(16, 8)))
    assert model(torch.empty(4, 16, device="meta")).shape == (4, 8)
    model.to_empty(device="cpu")
    assert model(torch.zeros(4, 16)).device.type == "cpu"


def test_repr():
    text = repr(Float8Linear(32, 16, config=config_of("tensorwise", True)))
    assert (
        "in_features=32, out_features=16, bias=True, cast_configs=i:dyn_ten_e4m3,w:dyn_ten_e4m3,go:dyn_ten_e5m2)"
        in text
    )
    text = repr(Float8Linear(32, 16, config=config_of("rowwise_with_gw_hp")))
    assert (
        "i:dyn_axs_e4m3,w:dyn_axs_e4m3,go:dyn_axs_e4m3,i_gw:dis_ten_e4m3,w_gi:dyn_ten_e4m3,go_gw:dis_ten_e4m3" in text
    )


def test_the_function_takes_codes():
    """What is FP8 already is not cast again."""
    from ingot.float8 import GemmInputRole
    from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

    config = config_of("tensorwise")
    layer = Float8Linear(16, 8, bias=False, config=config)
    x = torch.randn(4, 16)
    casts = [
        hp_tensor_to_float8_dynamic(each, torch.float8_e4m3fn, layer.linear_mm_config, gemm_input_role=role)
        for each, role in ((x, GemmInputRole.INPUT), (layer.weight, GemmInputRole.WEIGHT))
    ]
    y = matmul_with_hp_or_float8_args.apply(casts[0], casts[1].t(), layer.linear_mm_config, config)
    assert torch.equal(y, layer(x))
    assert torch.equal(layer(casts[0]), y)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_later_calls_look_at_nothing_but_what_changes(recipe, monkeypatch):
    """They have the bits of the first, for any number of tokens; another dtype, what wants gradients and emulation are seen."""
    layer = Float8Linear(16, 32, config=config_of(recipe))
    looked = []
    check = Float8Linear._checked
    monkeypatch.setattr(Float8Linear, "_checked", lambda *given: looked.append(1) or check(*given))
    for rows in (8, 4096, 8):
        x = torch.randn(rows, 16, requires_grad=True)
        layer.options._eager_plans.clear()
        counts, results = [], []
        for _ in range(2):
            looked.clear()
            y = layer(x)
            results.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, layer.weight, layer.bias])])
            counts.append(len(looked))
        assert counts[0] == 1 and all(map(torch.equal, *results))
        assert counts[1] == (1 if recipe == "rowwise_with_gw_hp" and rows == 4096 else 0), (rows, counts)
    for change in (
        lambda: layer(x.detach().bfloat16()),
        lambda: layer(x.detach()),
        lambda: setattr(layer, "config", config_of(recipe, emulate=True)) or layer(x),
    ):
        looked.clear()
        change()
        assert looked == [1]


class Foreign(torch.Tensor):
    """A weight of another library: it says what F.linear is."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            return "its own way"
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_input_that_a_collective_still_writes(recipe):
    """As a tensor-parallel layer returns it: with the bits of a plain one, and so by the same kernels."""
    torch.manual_seed(0)
    layer = Float8Linear.from_float(torch.nn.Linear(32, 48), config_of(recipe))
    x, found = torch.randn(8, 32), []
    for given in (x, AsyncCollectiveTensor(x.clone())):
        layer.zero_grad()
        output = layer(given.requires_grad_())
        output.square().sum().backward()
        found.append((output, given.grad, layer.weight.grad.clone(), layer.bias.grad.clone()))
    assert all(map(torch.equal, *found)) and found[0][1].count_nonzero()


def test_a_weight_of_another_library():
    for config in (None, Float8LinearConfig(cast_config_input=delayed())):
        layer = float8.convert_to_float8_training(torch.nn.Linear(4, 4), config=config)
        layer.weight = torch.nn.Parameter(torch.zeros(4, 4).as_subclass(Foreign))
        assert layer(torch.ones(1, 4)) == "its own way"


def delayed():
    return float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)


def named_layer():
    return float8.convert_to_float8_training(torch.nn.ModuleDict({"head": torch.nn.Linear(16, 8)}))["head"]


REFUSED = {
    r'Float8Linear\("head", 16 -> 8\): the input has shape \(4, 15\), expected \(..., 16\)': (
        RuntimeError,
        lambda: named_layer()(torch.ones(4, 15)),
    ),
    r'Float8Linear\("head", 16 -> 8\): the input is torch.float64': (
        TypeError,
        lambda: named_layer()(torch.ones(4, 16, dtype=torch.float64)),
    ),
    r"Float8Linear\(16 -> 8\): the input is torch.int64": (
        TypeError,
        lambda: Float8Linear(16, 8)(torch.ones(4, 16, dtype=torch.int64)),
    ),
    r"Float8Linear\(16 -> 8\): the input is on cpu and the weight on meta: move one": (
        RuntimeError,
        lambda: Float8Linear(16, 8, device="meta")(torch.ones(4, 16)),
    ),
    "has no gradient itself": (
        RuntimeError,
        lambda: twice(),
    ),
    "takes a torch.nn.Linear, got a torch.nn.modules.activation.GELU": (
        TypeError,
        lambda: Float8Linear.from_float(torch.nn.GELU()),
    ),
}


def twice():
    x = torch.ones(2, 4, requires_grad=True)
    return torch.autograd.grad(Float8Linear(4, 4)(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    kind, call = REFUSED[message]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, ingot.Error)


def test_an_input_may_change_before_backward():
    """Its codes are kept, not the input."""
    layer = Float8Linear(4, 4)
    x = torch.randn(2, 4)
    layer(x).sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    changed = x.clone()
    y = layer(changed)
    changed.add_(1)
    y.sum().backward()
    assert torch.equal(layer.weight.grad, expected)


def test_what_backward_reads_again_must_not_change():
    layer = Float8Linear.from_float(torch.nn.Linear(4, 4), Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"))
    x = torch.ones(2, 4)
    y = layer(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    layer = Float8Linear(4, 4)
    y = layer(torch.ones(2, 4, requires_grad=True))
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_weight_codes_that_are_kept():
    torch.manual_seed(0)
    layer = Float8Linear(40, 24)
    kept = copy.deepcopy(layer)
    kept.keep_weight_codes()
    assert kept.keeps_weight_codes and not layer.keeps_weight_codes
    x = torch.randn(10, 40, requires_grad=True)
    grads = [torch.autograd.grad(each(x).square().sum(), (x, each.weight)) for each in (layer, kept)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_vmap_is_an_error():
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(Float8Linear(4, 4))(torch.ones(3, 2, 4))


@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers_write_weights_that_fsdp_gathers_in_fp8(foreach):
    """Optimizers that write to lists of tensors, too."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(16, 8)
    config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    layer = float8.Float8Linear.from_float(copy.deepcopy(plain), config)
    for module in (plain, layer):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=foreach)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=foreach)
        optimizer.step()
    assert type(layer.weight) is float8.WeightWithDynamicFloat8CastTensor
    assert torch.equal(layer.weight._tensor, plain.weight) and torch.equal(layer.bias, plain.bias)
