"""The memory of a mixture of experts' MLPs, counted on the CPU: what a forward keeps, and what is alive while its backward runs.
bench/train_experts.py measures the peak of whole steps on a GPU."""

import pytest

torch = pytest.importorskip("torch")
from conftest import in_ci
from ingot.torch import LinearOptions, experts_mlp
from live_memory import LiveMemory, counted_backend
from torch.autograd.graph import saved_tensors_hooks

TOKENS, CHOSEN, EXPERTS, FEATURES, HIDDEN = 512, 4, 8, 128, 176
ROWS = TOKENS * CHOSEN
# Rows that transposed codes have room for, and f32 scale_inv in 128 of their bytes: blockwise, slots of 128 for each expert.
SLOTS = {"blockwise": ROWS + 128 * EXPERTS}
RECIPES = ["rowwise", "tensorwise", "blockwise"]
WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
GRADIENTS = 2 * EXPERTS * 3 * HIDDEN * FEATURES  # bytes of both weights' gradients, a third of them of down's
INDEX = 4 * ROWS * 3 + 8 * 2 * ROWS + 4 * EXPERTS  # int32 and float32 of rows, what the routing itself keeps of int64
SLACK = 4 * EXPERTS * (FEATURES + 3 * HIDDEN) + 8192  # maxima and scale_inv of weights and columns, what is aligned


def codes_bytes(recipe, features):
    """Of transposed codes of a tensor (ROWS, features)."""
    return SLOTS.get(recipe, ROWS) * features * (128 + 4 * (recipe in SLOTS)) // 128


OPERANDS = ("x", "weights", "up", "down")


def step(recipe, compiled, live, retain_graph=False, trained=OPERANDS):
    """trained: the operands that have gradients. Returns what a forward's graph keeps (each memory once, without the operands),
    the bytes alive after each operator of backward that Ingot has, and output and gradients."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    values = lambda *sizes: torch.randn(*sizes, generator=generator).bfloat16()
    x, weights, up, down = values(TOKENS, FEATURES), values(TOKENS, CHOSEN), values(EXPERTS, 2 * HIDDEN, FEATURES), values(EXPERTS, FEATURES, HIDDEN)
    index = torch.rand(TOKENS, EXPERTS, generator=generator).argsort(1)[:, :CHOSEN]
    given = [each.requires_grad_(name in trained) for name, each in zip(OPERANDS, (x, weights, up, down))]
    wanted = [each for each in given if each.requires_grad]
    options = LinearOptions(recipe, name="moe", keep_weight_codes=False)
    call = lambda *each: experts_mlp(each[0], index, *each[1:], options)
    sizes, own = {}, {each.untyped_storage().data_ptr() for each in (*given, index)}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    if compiled:
        call = torch.compile(call, backend=counted_backend(live), fullgraph=True)
        output = call(*given)
    else:
        with live, saved_tensors_hooks(note, lambda tensor: tensor):
            output = call(*given)
    kept = live.bytes - 2 * output.numel() if compiled else sum(sizes.values())
    live.restart()
    grad = torch.ones_like(output)
    if compiled:
        gradients = torch.autograd.grad(output, wanted, grad, retain_graph=retain_graph)
    else:
        with live:
            gradients = torch.autograd.grad(output, wanted, grad, retain_graph=retain_graph)
    calls = [(name.split(".")[1].removeprefix("experts_mlp_"), size) for name, size in live.calls if name.startswith("ingot.")]
    return kept, calls, [output, *gradients]


@WAYS
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_forward_keeps(recipe, compiled):
    """Codes of the inputs of both layers, and the first one's output in 16 bits; the operands and codes of weights are not kept.
    In 16 bits the rows, that output and the activation would be 2 * (features + 3 * hidden) bytes of each row."""
    kept, _, _ = step(recipe, compiled, LiveMemory())
    bound = codes_bytes(recipe, FEATURES) + codes_bytes(recipe, HIDDEN) + 4 * HIDDEN * ROWS
    assert bound <= kept <= bound + INDEX + SLACK
    assert recipe in SLOTS or kept < 0.85 * 2 * ROWS * (FEATURES + 3 * HIDDEN)


@pytest.mark.parametrize(
    "recipe,trained,compiled",
    in_ci(
        lambda recipe, trained, compiled: recipe == "rowwise" and compiled == (trained == "x up"),
        RECIPES,
        ["down", "up", "x down", "x up", "x weights"],
        [False, True],
    ),
)
def test_what_a_forward_keeps_for_some_gradients(recipe, trained, compiled):
    """Codes of the input of each layer that trains, the first one's output where a gradient reaches it, and nothing else. The
    gradients have the bits of a step that makes all."""
    trained = trained.split()
    kept, _, (output, *gradients) = step(recipe, compiled, LiveMemory(), trained=trained)
    bound = codes_bytes(recipe, FEATURES) * ("up" in trained) + codes_bytes(recipe, HIDDEN) * ("down" in trained)
    bound += 4 * HIDDEN * ROWS * (trained != ["down"])
    assert bound <= kept <= bound + INDEX + SLACK
    _, _, (whole, *all_gradients) = step(recipe, False, LiveMemory())
    assert torch.equal(output, whole)
    expected = dict(zip(OPERANDS, all_gradients))
    assert all(map(torch.equal, gradients, [expected[name] for name in trained]))


@WAYS
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_alive_in_backward(recipe, compiled):
    """The first layer's output has gone when the gradients of input and weights are made, and the codes that the input's reads when
    the weights' are made, and those of the first one of these when the second one is made."""
    live = LiveMemory()
    _, calls, results = step(recipe, compiled, live)
    assert [name for name, _ in calls] == ["backward", "input_backward", "weight_backward", "weight_backward"]
    saved = codes_bytes(recipe, FEATURES) + codes_bytes(recipe, HIDDEN)
    others = INDEX + SLACK + 3 * 2 * TOKENS * FEATURES  # output, its gradient and the input's
    kept = codes_bytes(recipe, 2 * HIDDEN) + codes_bytes(recipe, FEATURES)
    of_input = 2 * HIDDEN * ROWS * (128 + 4 * (recipe in SLOTS)) // 128
    bounds = [
        4 * HIDDEN * ROWS + saved + kept + of_input,
        saved + kept + of_input,
        saved + kept + GRADIENTS * 2 // 3,
        saved + codes_bytes(recipe, FEATURES) + GRADIENTS,
    ]
    for (name, size), bound in zip(calls, bounds):
        assert size <= bound + others, (name, size, bound)
    again = step(recipe, not compiled, LiveMemory(), retain_graph=True)[2]
    assert all(map(torch.equal, results, again))


def test_a_retained_graph_keeps_all():
    live = LiveMemory()
    kept, calls, _ = step("rowwise", False, live, retain_graph=True)
    assert all(size >= kept for _, size in calls)
