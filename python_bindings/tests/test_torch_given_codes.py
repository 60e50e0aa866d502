"""The operators of layers with weights that are given as FP8 codes and scale_inv: the bits of the operators that cast the
weights themselves. The codes are made here, in plain PyTorch."""

import math

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

import ingot.torch
from ingot.torch import _module_operators as modules
from ingot.torch import _operators as operators
from ingot.torch import _split_operators as split_operators
from ingot.torch._module_operators import Activation, Layer, Norm
from ingot.torch._schemas import BIAS, GAMMA, INPUT, KEEP_CODES, KEEP_SAVED, UP, WEIGHT, of_layer

RECIPES = ("tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed")
TOKENS, K, N, H = 16, 136, 144, 72


# ---- codes, independently of Ingot -----------------------------------------------------------------------------------

# By the recipe: what shares a scale in the codes for the GEMM of the output, in those for that of grad_input, and whether
# scales are powers of two.
CASTS = {
    "tensorwise": ("tensor", "tensor", False),
    "rowwise": ("row", "column", True),
    "rowwise_folded": ("row", "row", True),
    "rowwise_with_gw_hp": ("row", "tensor", True),
    "blockwise": ("128x128", "128x128", False),
}


def maxima(values, granularity):
    """The largest |value| of what shares a scale, for each element; and one of each, in a row."""
    values = values.abs()
    if granularity == "128x128":
        rows, cols = values.shape
        padded = torch.zeros(-(-rows // 128) * 128, -(-cols // 128) * 128)
        padded[:rows, :cols] = values
        blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).amax((1, 3))
        return blocks.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols], blocks.flatten()
    amax = {"tensor": values.amax, "row": lambda: values.amax(1, True), "column": lambda: values.amax(0, True)}
    amax = amax[granularity]()
    return amax.expand_as(values), amax.flatten()


def scale_of(amax, pow2):
    scale = (448.0 / amax.double().clamp(min=1e-12)).float()
    return torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1) if pow2 else scale


def cast(weight, granularity, pow2, scale=None):
    """The codes by rows, and their scale_inv. scale: one that is given, as a delayed one is."""
    values = weight.detach().cpu().float()
    each, of_all = maxima(values, granularity)
    of_each, scales = (scale_of(each, pow2), scale_of(of_all, pow2)) if scale is None else (scale, scale.reshape(1))
    codes = (values * of_each).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.to(weight.device), (1 / scales).to(weight.device)


def given(recipe, weights, at, scales=None):
    """The weights' codes for a GEMM, 0 or 1 in CASTS, and scale_inv by the weights' names."""
    *granularities, pow2 = CASTS.get(recipe, CASTS["tensorwise"])
    codes, scale_inv = {}, {}
    for place, (name, weight) in enumerate(weights.items()):
        scale = None if scales is None else scales[place, 1]
        codes[name], scale_inv[f"{name}_scale_inv"] = cast(weight, granularities[at], pow2, scale)
    return codes, scale_inv


# ---- the families' operators, called with named tensors --------------------------------------------------------------


def random_weight(rows, cols):
    """Rows of different sizes, and a row and a column of zeros."""
    weight = torch.randn(rows, cols) * torch.rand(rows, 1) * max(cols, 1) ** -0.5
    weight[1:2] = weight[:, 2:3] = 0
    return weight


class Case:
    """One family's tensors in the order of its operators, and its plan. again: backward casts weights once more."""

    def __init__(self, family, recipe, dtype=torch.bfloat16, weight_dtype=torch.bfloat16, again=True, device="cpu"):
        torch.manual_seed(7)
        self.family, self.recipe = family, recipe
        self.x = torch.randn(2, TOKENS // 2, K, dtype=dtype)
        self.gamma = 1 + 0.2 * torch.randn(K, dtype=dtype)
        self.layers = {
            "norm_linear": {"weight": (N, K)},
            "mlp": {"up_weight": (2 * H, K), "down_weight": (K, H)},
            "gated_linear": {"weight": (N, K)},
            "shared_linear": {"weight0": (N, K), "weight1": (N - 16, K), "weight2": (N, K)},
        }[family]
        self.weights = {name: random_weight(*shape).to(weight_dtype) for name, shape in self.layers.items()}
        self.biases = [torch.randn(shape[0], dtype=dtype) for shape in self.layers.values()]
        layers = tuple(Layer(*shape, weight_dtype, dtype) for shape in self.layers.values())
        norm = Norm("rms", repr(1e-5), False) if family in ("norm_linear", "mlp", "shared_linear") else None
        activation = Activation("silu(x) * up") if family in ("mlp", "gated_linear") else None
        names = {"mlp": ("ffn",), "shared_linear": ("q", "k", "v")}.get(family, ("wo",))
        subject = f'{family} "{"/".join(names)}"'
        facts = (subject, names, recipe, activation, norm, norm is not None, dtype, True, layers, again)
        self.plan, self.reads = modules.add_plan(family, *facts)
        self.operators = modules.FAMILIES[family].operators
        self.wants = INPUT | (UP if family == "gated_linear" else GAMMA)
        for at in range(len(layers)):
            self.wants |= of_layer(WEIGHT, at) | of_layer(BIAS, at)
        # As after a step: near what dynamic scaling would make.
        self.scale = torch.stack([torch.tensor([90.0, scale_of(1.1 * weight.float().abs().max(), False), 3e3])
                                  for weight in self.weights.values()])  # fmt: skip
        self.up = torch.randn_like(self.x)
        outputs = [N, N - 16, N] if family == "shared_linear" else [K] if family == "mlp" else [N]
        self.grads = [torch.randn(2, TOKENS // 2, each, dtype=dtype) for each in outputs]
        self.x, self.gamma, self.up, self.scale = (
            each.to(device) for each in (self.x, self.gamma, self.up, self.scale)
        )
        self.weights = {name: weight.to(device) for name, weight in self.weights.items()}
        self.biases, self.grads = ([each.to(device) for each in of] for of in (self.biases, self.grads))

    def delayed(self, scale):
        if self.recipe != "delayed":
            return {}
        starts = modules.starts_of((0,) * len(self.layers), scale.device)
        return {"scale": scale, "starts": starts, "amax": torch.zeros_like(scale)}

    def operator(self, name):
        return getattr(self.operators, name + "_in_place" if self.recipe == "delayed" else name)

    def forward_arguments(self, weights):
        pairs = [each for name, bias in zip(self.layers, self.biases) for each in (weights[name], bias)]
        first = (self.x, self.up) if self.family == "gated_linear" else (self.x, self.gamma, None)
        return *first, *pairs

    def backward_arguments(self, weights, outputs, saved):
        of = [weights[name] for name in self.layers]
        if self.family == "gated_linear":
            return *self.grads, self.x, self.up, *of, saved
        between = (outputs[0],) if self.family == "norm_linear" else ()
        return *self.grads, self.x, self.gamma, *of, *between, saved

    def step(self, weights, again=None, scale_inv=({}, {}), keep=KEEP_SAVED, main_grads={}, scale=None):
        """Outputs, gradients, maxima and what forward keeps. again: the weights of backward; scale_inv: of both."""
        scale = self.scale if scale is None else scale
        state = self.delayed(scale)
        forward, backward = self.operator("forward"), self.operator("backward")
        if main_grads:
            backward = self.operators.backward_in_place
        *outputs, saved = forward(*self.forward_arguments(weights), self.plan, keep, **scale_inv[0], **state)
        of_backward = self.backward_arguments(weights if again is None else again, outputs, saved)
        grads = backward(*of_backward, self.plan, self.wants, **scale_inv[1], **state, **main_grads)
        return [*outputs, *grads], state.get("amax"), saved


FAMILIES = ["norm_linear", "mlp", "gated_linear", "shared_linear"]
DTYPES = [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float32)]


def assert_equal(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype and torch.isfinite(b).all() and torch.equal(a, b)


@pytest.mark.parametrize("dtypes", DTYPES, ids=["bf16", "bf16-f32", "f32"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_modules_have_the_bits_of_their_own_casts(family, recipe, dtypes):
    case = Case(family, recipe, *dtypes)
    expected, maxima_of_all, saved = case.step(case.weights)
    scales = case.scale if recipe == "delayed" else None
    (codes, scale_inv), (again, scale_inv_again) = (given(recipe, case.weights, at, scales) for at in range(2))
    unread = case.scale.clone()
    unread[:, 1] = math.nan  # a weight's delayed scale is in its codes
    keep = KEEP_SAVED | KEEP_CODES
    got, amax, kept = case.step(codes, again, (scale_inv, scale_inv_again), keep, scale=unread)
    assert_equal(got, expected)
    assert kept.numel() == saved.numel()  # nothing of the weights
    if recipe == "delayed":
        assert (maxima_of_all > 0).all(0).tolist() == [family != "shared_linear", True, True]
        assert torch.equal(amax[:, ::2], maxima_of_all[:, ::2]) and not amax[:, 1].any()
    assert all(torch.isfinite(each.float()).all() for each in got if each is not None)
    with torch.no_grad():  # a forward that keeps nothing
        *outputs, kept = case.operator("forward")(
            *case.forward_arguments(codes), case.plan, 0, **scale_inv, **case.delayed(unread)
        )
    assert kept.numel() == 0
    assert_equal(outputs, expected[: len(outputs)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu(family, recipe):
    case = Case(family, recipe, device="cuda")
    expected, _, _ = case.step(case.weights)
    scales = case.scale.cpu() if recipe == "delayed" else None
    (codes, scale_inv), (again, scale_inv_again) = (given(recipe, case.weights, at, scales) for at in range(2))
    got, _, _ = case.step(codes, again, (scale_inv, scale_inv_again))
    assert_equal(got, expected)
    name, layer = next((name, layer) for of, name, layer in WRONG if of == family)
    text = message(lambda: case.step({**codes, name: codes[name].cpu()}, again, (scale_inv, scale_inv_again)))
    assert text == f"{layer} weight: is on cpu, but the layer runs on cuda:0: move one with .to()"
    on_cpu = {**scale_inv, f"{name}_scale_inv": scale_inv[f"{name}_scale_inv"].cpu()}
    text = message(lambda: case.step(codes, again, (on_cpu, scale_inv_again)))
    assert text == f"{layer} weight_scale_inv: is on cpu, but the layer runs on cuda:0: move one with .to()"


@pytest.mark.parametrize("dtypes", DTYPES, ids=["bf16", "bf16-f32", "f32"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_linear_has_the_bits_of_its_own_cast(recipe, dtypes):
    dtype, weight_dtype = dtypes
    torch.manual_seed(0)
    x, bias, grad = (torch.randn(*shape, dtype=dtype) for shape in ((2, 8, K), (N,), (2, 8, N)))
    weight = random_weight(N, K).to(weight_dtype)
    config, scale = recipe, None
    forward_scales, backward_scales = {}, {}
    if recipe == "delayed":
        casts = (*[("e4m3fn", False)] * 2, ("e5m2", False), ("e4m3fn", False), ("e4m3fn", False), ("e5m2", False))
        config = operators.Casts(casts, False, (True, False, False), True, (True, True, True))
        scale = torch.tensor(70.0)
        forward_scales = {"input_scale": torch.tensor([100.0])}
        backward_scales = {"grad_output_scale": torch.tensor([1e4])}
    facts = operators.add_plan(config, "wq", K, N, dtype, weight_dtype, dtype, True, True)
    of_weight = {} if scale is None else {"weight_scale": scale}

    def step(weight, again, of_forward, of_backward, keep=KEEP_SAVED):
        arguments = (x, weight, bias, facts.number, keep)
        output, saved, codes, amaxes = operators.linear_forward(*arguments, **of_forward, **forward_scales)
        arguments = (grad, x, again, saved, None, facts.number, INPUT | WEIGHT | BIAS)
        *grads, of_grad = operators.linear_backward(*arguments, **of_backward, **backward_scales)
        return [output, *grads], codes, (amaxes, of_grad)

    expected, _, amaxes = step(weight, weight, of_weight, of_weight)
    (codes, scale_inv), (again, scale_inv_again) = (
        given(recipe, {"weight": weight}, at, None if scale is None else scale.expand(1, 2)) for at in range(2)
    )
    both = {**codes, **scale_inv}
    got, kept, of_got = step(codes["weight"], again["weight"], scale_inv, scale_inv_again, KEEP_SAVED | KEEP_CODES)
    assert_equal(got, expected)
    assert kept is None
    if recipe == "delayed":
        assert all(torch.equal(a, b * torch.tensor([1.0, 0.0])) for a, b in zip(of_got, amaxes))
        return
    # The parts of a forward, as compilers call them.
    input_plan = split_operators.add_input_plan(facts)
    assert input_plan >= 0
    output, _ = split_operators.forward_float8(
        x, both["weight"], both["weight_scale_inv"], bias, input_plan, facts.number, KEEP_SAVED
    )
    assert torch.equal(output, expected[0])


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"])
def test_plans_that_keep_codes_take_codes_too(recipe):
    """Of two weights one is given as codes; forward keeps the other's, unless it is given again."""
    case = Case("mlp", recipe, again=False)
    expected, _, all_kept = case.step(case.weights, keep=KEEP_SAVED | KEEP_CODES)
    for name in case.weights:
        one = {name: case.weights[name]}
        (codes, scale_inv), (again, scale_inv_again) = (given(recipe, one, at) for at in range(2))
        weights, weights_again = {**case.weights, **codes}, {**case.weights, **again}
        got, _, kept = case.step(weights, weights_again, (scale_inv, scale_inv_again), KEEP_SAVED | KEEP_CODES)
        assert_equal(got, expected)
        assert kept.numel() < all_kept.numel()
    (codes, scale_inv), (again, scale_inv_again) = (given(recipe, case.weights, at) for at in range(2))
    got, _, _ = case.step(codes, again, (scale_inv, scale_inv_again), KEEP_SAVED | KEEP_CODES)
    assert_equal(got, expected)


def test_main_grad_and_wanted_gradients():
    case = Case("mlp", "rowwise")
    expected, _, _ = case.step(case.weights)
    pairs = [given("rowwise", case.weights, at) for at in range(2)]
    (codes, scale_inv), (again, scale_inv_again) = pairs
    main_grads = {f"{name}_main_grad": torch.ones(2 * H, K) if name == "up" else torch.ones(K, H) for name in ("up", "down")}
    got, _, _ = case.step(codes, again, (scale_inv, scale_inv_again), main_grads=main_grads)
    assert got[4] is None and got[6] is None
    for main_grad, of_weight in zip(main_grads.values(), (expected[4], expected[6])):
        torch.testing.assert_close(main_grad - 1, of_weight.float(), atol=1e-2, rtol=1e-2)
    # The first layer's weight alone: nothing flows through it, so that nobody has to gather it.
    case.wants = WEIGHT
    got, _, _ = case.step(codes, {**again, "up_weight": None}, (scale_inv, scale_inv_again))
    assert torch.equal(got[4], expected[4]) and sum(each is not None for each in got) == 2


def test_bytes_are_codes_and_no_weight_is_too_small():
    case = Case("norm_linear", "tensorwise")
    codes, scale_inv = given("tensorwise", case.weights, 0)
    expected, _, _ = case.step(codes, codes, (scale_inv, scale_inv))
    as_bytes = {"weight": codes["weight"].view(torch.uint8)}
    got, _, _ = case.step(as_bytes, as_bytes, (scale_inv, scale_inv))
    assert_equal(got, expected)
    for out_features, in_features in ((0, 16), (16, 0), (0, 0), (1, 3)):
        facts = operators.add_plan("rowwise", "wq", in_features, out_features, *(torch.float32,) * 2, None, True, True)
        x, weight = torch.randn(5, in_features), torch.randn(out_features, in_features)
        (codes, scale_inv), (again, scale_inv_again) = (
            cast(weight, axis, True) if weight.numel() > 0
            else (weight.to(torch.float8_e4m3fn), torch.ones(out_features if axis == "row" else in_features))
            for axis in ("row", "column")
        )  # fmt: skip
        results = []
        for of_forward, of_backward, named in (
            (weight, weight, ({}, {})),
            (codes, again, ({"weight_scale_inv": scale_inv}, {"weight_scale_inv": scale_inv_again})),
        ):
            output, saved, *_ = operators.linear_forward(x, of_forward, None, facts.number, KEEP_SAVED, **named[0])
            arguments = (torch.ones_like(output), x, of_backward, saved, None, facts.number, INPUT | WEIGHT)
            results.append([output, *operators.linear_backward(*arguments, **named[1])])
        assert_equal(results[1], results[0])


# ---- compilers, counts and observers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_fakes_and_flops(family):
    case = Case(family, "rowwise", again=False)
    (codes, scale_inv), (again, scale_inv_again) = (given("rowwise", case.weights, at) for at in range(2))
    # Without test_schema, which compares tensors in a way that PyTorch's CPU lacks for FP8.
    check = lambda *call: torch.library.opcheck(*call, test_utils=("test_autograd_registration", "test_faketensor"))
    keep = KEEP_SAVED | KEEP_CODES
    forward = (*case.forward_arguments(codes), case.plan, keep)
    check(case.operators.forward, forward, scale_inv)
    one = next(iter(case.weights))
    mixed = (*case.forward_arguments({**case.weights, one: codes[one]}), case.plan, keep)
    check(case.operators.forward, mixed, {f"{one}_scale_inv": scale_inv[f"{one}_scale_inv"]})
    *outputs, saved = case.operators.forward(*forward, **scale_inv)
    backward = (*case.backward_arguments(again, outputs, saved), case.plan, case.wants)
    check(case.operators.backward, backward, scale_inv_again)
    counts = []
    for of in ((codes, again, (scale_inv, scale_inv_again)), (case.weights,)):
        with FlopCounterMode(display=False) as counter:
            case.step(*of, keep=keep)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("family", in_ci(lambda family: family == "mlp", FAMILIES))
def test_compiled_with_codes_as_inputs(family):
    torch._dynamo.reset()
    case = Case(family, "rowwise_folded")
    codes, scale_inv = given("rowwise_folded", case.weights, 0)
    expected, _, _ = case.step(codes, codes, (scale_inv, scale_inv))
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True)
    def step(codes, scale_inv):
        return case.step(codes, codes, (scale_inv, scale_inv))[0]

    assert_equal(step(codes, scale_inv), expected)
    changed = {name: each / 2 for name, each in scale_inv.items()}
    assert_equal(step(codes, changed), case.step(codes, codes, (changed, changed))[0])
    assert counter.frame_count == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_observers_see_no_cast_of_the_weight(family):
    case = Case(family, "rowwise")
    pairs = [given("rowwise", case.weights, at) for at in range(2)]
    (codes, scale_inv), (again, scale_inv_again) = pairs
    with ingot.torch.monitor(device="cpu") as monitor:
        case.step(case.weights)
    of_own = {(each["layer"], each["tensor"]) for each in monitor.records()}
    with ingot.torch.monitor(device="cpu") as monitor:
        case.step(codes, again, (scale_inv, scale_inv_again))
    seen = {(each["layer"], each["tensor"]) for each in monitor.records()}
    assert {each for each in of_own if each[1] != "weight"} == seen
    assert {tensor for _, tensor in of_own} == {"input", "weight", "grad_output"} | {t for _, t in seen}


# ---- messages --------------------------------------------------------------------------------------------------------


def message(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value).split("\n")[0].removeprefix("ingot: ")


# Of each family the layer whose weight is wrong, by its name in messages.
WRONG = [
    ("norm_linear", "weight", 'norm_linear "wo"'),
    ("mlp", "up_weight", 'linear "ffn.gate_up"'),
    ("mlp", "down_weight", 'linear "ffn.down"'),
    ("gated_linear", "weight", 'gated_linear "wo"'),
    ("shared_linear", "weight1", 'linear "k"'),
    ("shared_linear", "weight2", 'linear "v"'),
]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("family, name, layer", WRONG)
def test_messages(family, name, layer, direction):
    case = Case(family, "rowwise")
    pairs = [given("rowwise", case.weights, at) for at in range(2)]
    (codes, scale_inv), (again, scale_inv_again) = pairs
    rows, cols = case.layers[name]
    is_forward = direction == "forward"

    def refused(weight=None, factors=None, missing=False):
        wrong = {name: None if missing else weight} if missing or weight is not None else {}
        of_wrong = {} if factors is None else {f"{name}_scale_inv": factors}
        if is_forward:
            return message(lambda: case.step({**codes, **wrong}, again, ({**scale_inv, **of_wrong}, scale_inv_again)))
        return message(lambda: case.step(codes, {**again, **wrong}, (scale_inv, {**scale_inv_again, **of_wrong})))

    right = (codes if is_forward else again)[name]
    factors = (scale_inv if is_forward else scale_inv_again)[f"{name}_scale_inv"]
    of_dtype = (
        f"{layer} weight: comes with scale_inv, so it must be codes in e4m3fn, or the bytes of these: cast it, or leave "
        "scale_inv out"
    )
    assert refused(case.weights[name]) == of_dtype
    assert refused(right.view(torch.float8_e5m2)) == of_dtype
    of_shape = f"{layer} weight: must be [{rows}, {cols}] = [out_features, in_features], as its codes are by rows: gather "
    of_shape += "all of it, and do not transpose it"
    assert refused(right[1:]) == of_shape
    assert refused(right.flatten()) == of_shape
    assert refused(right.view(torch.uint8).t().contiguous()) == of_shape
    of_order = f"{layer} weight: is not contiguous: call .contiguous()"
    assert refused(right.view(torch.uint8).t().contiguous().t()) == of_order
    count, one = (rows, "for each row") if is_forward else (cols, "for each column")
    gemm = "the output" if is_forward else "grad_input"
    assert refused(factors=torch.ones(1)) == (
        f"{layer} weight_scale_inv: has 1 elements, but the GEMM of {gemm} takes {count}, one {one}: give those of the "
        "cast for this GEMM"
    )
    assert refused(factors=factors.double()) == f"{layer} weight_scale_inv: must be float32: convert it with .float()"
    assert refused(factors=factors.repeat_interleave(2)[::2]) == (
        f"{layer} weight_scale_inv: is not contiguous: call .contiguous()"
    )
    if not is_forward:
        assert refused(missing=True) == f"{layer} weight: is not given, but its scale_inv is: give both or neither"


def test_messages_of_other_casts():
    case = Case("norm_linear", "high_precision", again=False)
    codes, scale_inv = given("tensorwise", case.weights, 0)
    text = message(lambda: case.step(codes, codes, (scale_inv, scale_inv)))
    assert text == (
        'norm_linear "wo" weight_scale_inv: is given, but the GEMM of the output reads this weight in high precision: give '
        "that, without scale_inv"
    )
    text = message(lambda: case.step(case.weights, codes, ({}, scale_inv)))
    assert "weight_scale_inv: is given, but the GEMM of grad_input reads this weight in high precision" in text
    for recipe, count, one in (("blockwise", 4, "for each 128x128 block"), ("tensorwise", 1, "for the whole weight")):
        case = Case("gated_linear", recipe)
        codes, _ = given(recipe, case.weights, 0)
        text = message(lambda: case.step(codes, codes, ({"weight_scale_inv": torch.ones(N)}, {})))
        assert f"has {N} elements, but the GEMM of the output takes {count}, one {one}: give" in text
