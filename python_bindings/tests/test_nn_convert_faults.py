"""ingot.nn.convert() and models that compute more than it sees at first: modes, gates, aliases, and what waits between calls."""

import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.nn import convert, restore
from ingot.nn._fused_parts import FirstOfShared, FusedNorm


def largest(one, other):
    return (one - other).abs().max().item()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, (self.q, self.k, self.v) = nn.LayerNorm(32), (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y))


def attention():
    torch.manual_seed(0)
    model = Attention()
    convert(model, "high_precision", example=torch.randn(4, 32))
    assert isinstance(model.q, FirstOfShared)
    return model


@pytest.mark.parametrize("written", ["q.weight", "norm.weight", "assigned"])
def test_results_of_other_parameters_do_not_wait(written):
    model, x = attention(), torch.randn(4, 32)
    with torch.no_grad():
        model.k(x), model.v(x)  # q's result waits
        if written == "assigned":
            model.load_state_dict({name: 2 * each for name, each in model.state_dict().items()}, assign=True)
        else:
            model.get_parameter(written).mul_(2)
        expected = F.linear(F.layer_norm(x, (32,), model.norm.weight, model.norm.bias), model.q.weight, model.q.bias)
        assert largest(model.q(x), expected) < 1e-5


def test_threads_share_no_results():
    """Each has a graph of its own, also of one input."""
    model, x = attention(), torch.randn(4, 32)
    model.q(x)
    found = []
    thread = threading.Thread(target=lambda: found.append(model.k(x)))
    thread.start()
    thread.join()
    mine = model.k(x)
    assert torch.equal(found[0], mine)
    found[0].sum().backward()
    mine.sum().backward()


def test_what_a_fused_norm_is():
    """Optimizers' groups go by its class; torch.nn.DataParallel's copies would compute with the parameters of the first GPU."""
    model = attention()
    assert isinstance(model.norm, FusedNorm) and isinstance(model.norm, nn.LayerNorm)
    with pytest.raises(ingot.Error, match="within q, k, v cannot be copied to several GPUs by torch.nn.DataParallel: start"):
        model.norm._replicate_for_data_parallel()
    restore(model)
    assert type(model.norm) is nn.LayerNorm
