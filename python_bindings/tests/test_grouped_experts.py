"""Modules of the form of torchtitan's GroupedExperts in FP8, against their own forward and backward in float64."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")
import ingot
from conftest import devices_of_grouped_gemm
from ingot.integrations.grouped_experts import convert_grouped_experts_
from ingot.torch import LinearError
from ingot.torch._model_weights import other_weights

EXPERTS, DIM, HIDDEN = 5, 64, 48
COUNTS = [3, 0, 40, 1, 20]


class GroupedExperts(torch.nn.Module):
    """Of torchtitan's documented parameters, by a product for each expert; rows beyond have no output."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        drawn = lambda *sizes: torch.nn.Parameter(torch.randn(EXPERTS, *sizes, dtype=dtype) / sizes[1] ** 0.5)
        self.w1, self.w2, self.w3 = drawn(HIDDEN, DIM), drawn(DIM, HIDDEN), drawn(HIDDEN, DIM)

    def gate(self, x):
        return torch.nn.functional.silu(x)

    def forward(self, x, num_tokens_per_expert):
        rows = x.split([*num_tokens_per_expert.int().tolist(), len(x) - int(num_tokens_per_expert.sum())])
        weights = zip(self.w1, self.w3, self.w2)
        outputs = [(self.gate(each @ w1.T) * (each @ w3.T)) @ w2.T for each, (w1, w3, w2) in zip(rows, weights)]
        return torch.cat([*outputs, torch.zeros_like(rows[-1])])


class Geglu(GroupedExperts):
    def gate(self, x):
        return torch.nn.functional.gelu(x)


class GegluOfAllExperts(Geglu):
    """By its own number of experts."""

    num_experts = EXPERTS

    def forward(self, x, num_tokens_per_expert):
        rows = x.split(num_tokens_per_expert.tolist())
        outputs = []
        for e in range(self.num_experts):
            outputs.append((self.gate(rows[e] @ self.w1[e].T) * (rows[e] @ self.w3[e].T)) @ self.w2[e].T)
        return torch.cat(outputs)


class Clamped(GroupedExperts):
    def gate(self, x):
        return torch.nn.functional.silu(x).clamp(max=7)


class OfOneSize(GroupedExperts):
    def forward(self, x, num_tokens_per_expert):
        return super().forward(x.view(-1, DIM // 2, 2).flatten(1), num_tokens_per_expert)


class In16Bits(GroupedExperts):
    def forward(self, x, num_tokens_per_expert):
        halved = GroupedExperts(torch.bfloat16)
        halved._parameters = {name: each.bfloat16() for name, each in self._parameters.items()}
        return halved(x.bfloat16(), num_tokens_per_expert)


class Block(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = experts


def sqnr(exact, found):
    return 20 * torch.log10(exact.norm() / (exact - found.double().cpu()).norm()).item()


def step(module, x, counts, grad):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x, counts)
    y.backward(grad.to(y.dtype))
    return [y.detach(), x.grad, *(each.grad.clone() for each in module.parameters())]


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "blockwise"])
@pytest.mark.parametrize("beyond", [0, 12])
def test_values_and_gradients(beyond, recipe, device):
    """Near those of float64, with rows beyond all experts' too; the same again, in a copy."""
    block = Block(GroupedExperts().to(device))
    exact = GroupedExperts(torch.float64)
    exact.load_state_dict({name: value.double() for name, value in block.experts.state_dict().items()})
    assert convert_grouped_experts_(block, recipe) == ["experts"]
    module = block.experts
    assert isinstance(module, GroupedExperts) and type(module).__name__ == "Float8GroupedExperts" and not other_weights(block)
    x, grad = torch.randn(2, 64 + beyond, DIM).unbind()
    counts = torch.tensor(COUNTS)
    wanted = step(exact, x.double(), counts, grad.double())
    operands = x.to(device), counts.float().to(device), grad.to(device)
    found = step(module, *operands)
    assert all(each.isfinite().all() for each in found) and found[0].dtype == torch.float32
    assert all(sqnr(*each) > (18 if recipe == "tensorwise" else 22) for each in zip(wanted, found)), [*map(sqnr, wanted, found)]
    assert not found[0][64:].any() and not found[1][64:].any()
    module = copy.deepcopy(module)
    assert all(map(torch.equal, step(module, *operands), found))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "blockwise"])
@pytest.mark.parametrize("held", [1e4, float("nan"), float("inf")])
def test_rows_beyond_hold_anything(held, recipe, device):
    """To the bits of what zeros there give, in the output, in both gradients, and in what a gradient of such rows holds."""
    module = GroupedExperts().to(device)
    convert_grouped_experts_(module, recipe)
    x, grad = torch.randn(2, 76, DIM, device=device).unbind()
    counts = torch.tensor(COUNTS, device=device)
    zeros, others = (each.clone() for each in (x, grad)), (each.clone() for each in (x, grad))
    results = []
    for (x, grad), value in ((zeros, 0), (others, held)):
        x[64:], grad[64:] = value, value
        results.append(step(module, x, counts, grad))
    assert all(map(torch.equal, *results)) and all(each.isfinite().all() for each in results[1])
    assert not results[1][0][64:].any() and not results[1][1][64:].any() and results[1][0][:64].any()


@pytest.mark.nightly
def test_compiled():
    module = GroupedExperts()
    convert_grouped_experts_(module)
    operands = torch.randn(70, DIM), torch.tensor(COUNTS), torch.randn(70, DIM)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, step(compiled, *operands), step(module, *operands)))


def test_training_pickles_and_second_calls():
    model = Block(GroupedExperts().bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    convert_grouped_experts_(model, "tensorwise")
    assert convert_grouped_experts_(model, fast_gradients=True) == ["experts"] and model.experts.ingot_options.recipe == "rowwise"
    x, target, counts, losses = torch.randn(64, DIM).bfloat16(), torch.randn(64, DIM), torch.tensor(COUNTS), []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append((model.experts(x, counts) - target).square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.95 * losses[0]
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    with torch.no_grad():
        assert torch.equal(torch.load(buffer, weights_only=False).experts(x, counts), model.experts(x, counts))
    GroupedExperts().load_state_dict(model.experts.state_dict())
    with torch.device("meta"):
        assert convert_grouped_experts_(GroupedExperts()) == [""]


def test_modules_that_run_with_their_own_sizes_and_in_16_bits():
    assert convert_grouped_experts_(Block(OfOneSize()), trusted=True) == ["experts"]
    assert convert_grouped_experts_(Block(In16Bits())) == ["experts"]
    try:
        torch.set_default_dtype(torch.bfloat16)  # as trainers do while they make a model
        assert convert_grouped_experts_(Block(In16Bits())) == ["experts"]
        with pytest.raises(LinearError, match="does not compute"):
            convert_grouped_experts_(Block(Clamped()))
    finally:
        torch.set_default_dtype(torch.float32)


def test_messages_of_the_forward():
    module = GroupedExperts()
    convert_grouped_experts_(Block(module))
    x, counts = torch.zeros(64, DIM), torch.tensor(COUNTS)
    for arguments, message in (
        ((x, counts + 1), r"num_tokens_per_expert: is \[4, 1, 41, 2, 21\], expected numbers from 0 whose sum is at most the 64 rows of x: count"),
        ((x, counts - 1), r"num_tokens_per_expert: is \[2, -1, 39, 0, 19\], expected numbers from 0"),
        ((x, COUNTS), r"num_tokens_per_expert: is a list, expected a torch.Tensor: torch.as_tensor\(\) makes one"),
        ((x, counts[None]), r"num_tokens_per_expert: has the shape \(1, 5\), expected \(5,\): give a number for each expert"),
        ((x, counts.to("meta")), r"num_tokens_per_expert: is on meta and x on cpu: move one with .to\(\)"),
        ((x[None], counts), r"x: has the shape \(1, 64, 64\), expected \(rows, 64\), sorted by experts: reshape it before"),
        ((x[:, :32], counts), r"x: has the shape \(64, 32\), expected \(rows, 64\)"),
        (([1.0], counts), "x: is a list, expected a torch.Tensor"),
    ):
        with pytest.raises(LinearError, match=f'^grouped experts "experts" {message}'):
            module(*arguments)


def test_messages():
    other = GroupedExperts()
    other.w2 = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, DIM))
    biased = GroupedExperts()
    biased.bias = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN))
    odd = GroupedExperts()
    odd.w1, odd.w3 = (torch.nn.Parameter(torch.zeros(EXPERTS, 40, DIM)) for _ in range(2))
    odd.w2 = torch.nn.Parameter(torch.zeros(EXPERTS, DIM, 40))
    wants = r"expected w1 and w3 \(experts, hidden, dim\) and w2 \(experts, dim, hidden\): call ingot.torch.grouped_linear\(\) in its forward$"
    for module, message in (
        (torch.nn.Linear(2, 2), r"^convert_grouped_experts_: Linear has no GroupedExperts, .*convert_experts_\(\) is for the experts of transf"),
        (Block(other), rf"^convert_grouped_experts_ experts: has the parameters .*w2 \(5, 48, 64\), w3 \(5, 48, 64\), {wants}"),
        (Block(biased), rf"^convert_grouped_experts_ experts: has the parameters .*bias \(5, 48\), {wants}"),
        (odd, "^convert_grouped_experts_ GroupedExperts: has a hidden size of 64 and an intermediate size of 40, but FP8 grouped GEMMs need"),
        (Block(GegluOfAllExperts()), r"experts: does not compute w2\(silu"),
        (Block(Clamped()), r"experts: does not compute w2\(silu"),
        (Block(OfOneSize()), r"^convert_grouped_experts_ experts: its forward does not run with experts of 16 x 16 on cpu \(RuntimeError: .*\), so "
         r"what it computes is not known: move it to the device that it runs on, or, if it is .*convert_grouped_experts_\(model, trusted=True\)$"),
        (Block(Geglu()), r"^convert_grouped_experts_ experts: does not compute w2\(silu\(w1\(x\)\) \* w3\(x\)\), which is what an FP8 module"),
    ):
        before = [type(each) for each in module.modules()]
        with pytest.raises(LinearError, match=message) as caught:
            convert_grouped_experts_(module)
        assert isinstance(caught.value, ingot.Error) and [type(each) for each in module.modules()] == before
    with pytest.raises(LinearError, match='^convert_grouped_experts_ recipe: is "delayed", but expert parallelism gives each rank other experts'):
        convert_grouped_experts_(Block(GroupedExperts()), "delayed")
    with pytest.raises(LinearError, match="^convert_grouped_experts_ model: is a NoneType, expected a torch.nn.Module"):
        convert_grouped_experts_(None)
    with pytest.raises(LinearError, match=r"^convert_grouped_experts_ filter_fn: is a str, expected a function \(module, name\) that says"):
        convert_grouped_experts_(Block(GroupedExperts()), filter_fn="x")
