"""ingot.nn.convert() and models that compute more than it sees at first: modes, gates, aliases, and what waits between calls."""

import copy
import pickle
import threading
import unittest.mock

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.nn import Float8Linear, Float8WeightOnlyConfig, LayerNormLinear, Mlp, RMSNormLinear, convert, quantize_, restore
from ingot.nn._fused_parts import FirstOfShared, FusedNorm


class Block(nn.Module):
    """A norm and a linear layer, with something in between or beside them."""

    def __init__(self, how=""):
        super().__init__()
        self.norm, self.layer, self.how = (GatedNorm() if "gate" in how else nn.LayerNorm(32)), nn.Linear(32, 32), how
        self.mask, self.calls = None, []

    def forward(self, x):
        self.calls.append(len(x))
        if self.mask is None:
            self.mask = torch.ones(32)
        if self.how == "a gate":
            return self.layer(self.norm(x, x))
        if self.how == "a gate by name":
            return self.layer(self.norm(x, gate=x))
        y = self.norm(input=x) if self.how == "a keyword" else self.norm(x)
        if self.how == "training" and self.training or self.how == "evaluation" and not self.training:
            y = y + 1
        if self.how == "layerdrop" and self.training and torch.rand([]) < 0.1:
            return x
        if self.how == "a write":
            x = F.relu(x, inplace=True)
        if self.how == "its forward":
            return self.layer(y) + self.norm.forward(x)
        return self.layer(y) * self.mask


class GatedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(32)), 1e-5

    def forward(self, x, gate=None):
        return F.rms_norm(x if gate is None else x * F.silu(gate), (32,), self.weight, self.eps)


def largest(one, other):
    return (one - other).abs().max().item()


@pytest.mark.parametrize("how", ["a gate", "a gate by name", "a keyword", "training", "evaluation", "its forward", "a write"])
def test_norms_that_stay(how):
    model, x = Block(how), torch.randn(4, 32)
    expected = [model.train(training)(x.clone()) for training in (True, False)]
    report = convert(model, "high_precision", example=x)
    what = " as torch.nn.functional.rms_norm" if how.startswith("a gate") else ""
    assert report.norms == {"norm": f"stays by itself{what}: other modules read it too, or it is not called once"}
    assert max(largest(model.train(training)(x.clone()), each) for training, each in zip((True, False), expected)) < 1e-5


class LibraryNorm(nn.Module):
    """As transformers has them: rounded before it is multiplied."""

    def __init__(self, centred=False):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(32) + (-0.5 if centred else 0.5)), 1e-3
        self.centred = centred

    def forward(self, x):
        wide = x.float()
        values = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype)
        return (self.weight + 1) * values if self.centred else self.weight * values


class EndsInANorm(nn.Module):
    def __init__(self, centred=False):
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 32), LibraryNorm(centred)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_a_norm_of_a_library_is_one_function():
    model, x = EndsInANorm(), torch.randn(4, 32)
    own, mine = LibraryNorm.forward, model.norm
    expected = model(x).double()
    assert convert(model, "high_precision", example=x).norms["norm"].startswith("stays by itself as torch.nn.functional.rms_norm: ")
    assert repr(model.norm) == "PyTorchNorm(rms_norm in the place of LibraryNorm)" and list(model.norm.state_dict()) == ["weight"]
    with unittest.mock.patch.object(LibraryNorm, "forward", side_effect=AssertionError):
        assert largest(model(x), expected) < 1e-5
        gradient = torch.autograd.grad(model.norm(x).square().sum(), model.norm.weight)[0]
        with torch.autocast("cpu", torch.bfloat16):
            assert largest(model.norm(x), own(mine, x)) < 1e-5
    assert largest(gradient, torch.autograd.grad(own(mine, x).square().sum(), mine.weight)[0]) < 1e-3
    # As its class computes it: other dtypes, which decide the result's, also after the parameters were replaced.
    model.norm.weight = nn.Parameter(torch.full((32,), 2.0))
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        found = each.norm(x.bfloat16())
        assert torch.equal(each.norm(x=x.bfloat16()), found)
        assert found.dtype == torch.float32 and largest(found, 2 * own(mine, x.bfloat16()) / mine.weight) < 1e-2
        assert torch.equal(each.bfloat16().norm(x), own(each.norm, x)) and each.norm(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ingot.Error, match="a norm that is rms_norm now cannot be copied to several GPUs by torch.nn.DataParallel"):
        model.norm._replicate_for_data_parallel()
    parametrized = copy.deepcopy(model)
    torch.nn.utils.parametrize.register_parametrization(parametrized.norm, "weight", Doubled())
    for given in (x, x.bfloat16()):
        assert torch.equal(parametrized.norm(given), 2 * model.norm(given))
    assert restore(model) == 2 and type(model.norm) is LibraryNorm and model.norm.weight[0] == 2


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class ChannelsFirstNorm(LibraryNorm):
    def forward(self, x):
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class DroppingNorm(LibraryNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class BufferedNorm(LibraryNorm):
    def __init__(self, *_):
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x):
        return super().forward(x) * self.gain


@pytest.mark.parametrize("kind", [LibraryNorm, ChannelsFirstNorm, DroppingNorm, BufferedNorm, nn.LayerNorm])
def test_norms_that_no_function_computes(kind):
    model = nn.Sequential(nn.Linear(32, 32), kind(32)).eval()  # of LibraryNorm it asks for 1 + weight
    report = convert(model, "high_precision", example=torch.randn(2, 4, 32))
    assert report.norms["1"].startswith("stays by itself: ") and type(model[1]) is kind


def test_norms_of_a_model_that_nothing_else_changes():
    model = EndsInANorm()
    assert convert(model, "rowwise", filter_fn=lambda *_: False).norms["norm"].startswith("stays by itself: ")
    assert type(model.norm) is LibraryNorm


class Merging(nn.Linear):
    """Of an adapter that evaluation adds to the weight."""

    merged = False

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def train(self, mode=True):
        if self.merged == mode:
            self.weight.data += -1 if mode else 1
            self.merged = not mode
        return super().train(mode)


def test_modes_that_write_weights():
    model, x = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), Merging(32, 32), FeedForward()), torch.randn(4, 32)
    expected = [model.train(training)(x) for training in (False, True)]
    convert(model, "high_precision", example=x)
    assert isinstance(model[1], LayerNormLinear) and isinstance(model[3], Mlp)
    assert max(largest(model.train(training)(x), each) for training, each in zip((False, True), expected)) < 1e-4


def test_a_forward_that_keeps_something():
    """A mask that the first forward makes has values, and the forward without values was not counted."""
    model, x = Block(), torch.randn(4, 32)
    expected = copy.deepcopy(model)(x)
    calls = model.calls
    convert(model, "high_precision", example=x)
    assert isinstance(model.layer, LayerNormLinear) and model.mask is None and model.calls is calls and calls == []
    assert largest(model(x), expected) < 1e-5 and type(model.mask) is torch.Tensor and model.training


def test_layers_that_training_skips_at_times():
    model = Block("layerdrop")
    report = convert(model, "high_precision", example=torch.randn(4, 32))
    assert report.norms == {"norm": "is computed within layer"}
    assert str(report).startswith("1 of 1 linear layer is converted, in high precision")


class FeedForward(nn.Module):
    def __init__(self, how=""):
        super().__init__()
        self.up, self.down, self.how = nn.Linear(32, 64), nn.Linear(64, 32), how

    def forward(self, x):
        y = F.gelu(self.up(x))
        if self.how == "dropout":
            y = F.dropout(y, 0.5, self.training)
        if self.how == "noise" and self.training:
            y = y * torch.rand_like(y)
        return self.down(y)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("how", ["dropout", "noise"])
def test_mlps_that_train_otherwise(how, training):
    """What only training computes is not lost where the model is in evaluation."""
    model = nn.Sequential(FeedForward(how)).train(training)
    state = torch.get_rng_state()
    convert(model, "high_precision")
    assert isinstance(model[0], FeedForward) and isinstance(model[0].up, Float8Linear)
    assert model[0].training == training and torch.equal(state, torch.get_rng_state())


class Bypass(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = FeedForward()

    def forward(self, x):
        return self.mlp.down(F.relu(self.mlp.up(x)))


def test_an_mlp_whose_layers_are_called_by_a_function():
    model, x = Bypass(), torch.randn(4, 32)
    expected = model(x)
    report = convert(model, "high_precision", example=x)
    assert set(report.converted.values()) == {"Float8Linear"} and largest(model(x), expected) < 1e-5
    unseen = Bypass()
    convert(unseen, "high_precision")
    with pytest.raises(ingot.Error, match="has no forward: call the module that contains it, or .* fuse=False"):
        unseen(x)


class Named(FeedForward):
    def forward(self, hidden):
        return super().forward(hidden)


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Named()

    def forward(self, x):
        return self.mlp(hidden=x)


class Narrow(FeedForward):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(64, 16)


class Counting(FeedForward):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(3))


@pytest.mark.parametrize("kind", [ByName, Narrow, Counting])
def test_mlps_that_stay(kind):
    """One that is called by keyword, one with another number of features, and one with a buffer."""
    model, x = nn.Sequential(kind()), torch.randn(4, 32)
    expected, names = model(x), list(model.state_dict())
    report = convert(model, "high_precision", example=x)
    assert set(report.converted.values()) == {"Float8Linear"} and names == list(model.state_dict())
    assert largest(model(x), expected) < 1e-5


def test_a_forward_of_one_object():
    """What a program puts into a norm or an MLP itself stays, and nothing is restored under what was put there since."""
    model, x = nn.Sequential(nn.LayerNorm(32), FeedForward(), nn.LayerNorm(32), nn.Linear(32, 32)), torch.randn(4, 32)
    model[1].forward = lambda x, mlp=model[1]: mlp.down(F.relu(mlp.up(x)))
    model[2].forward = lambda x, norm=model[2]: 2 * F.layer_norm(x, (32,), norm.weight, norm.bias)
    expected = model(x)
    convert(model, "high_precision", example=x)
    assert largest(model(x), expected) < 1e-5
    model[3].forward = model[3].forward
    with pytest.raises(ingot.Error, match="restore model: the forward of 3 was replaced since.*remove_hook_from_submodules"):
        restore(model)
    assert isinstance(model[3], Float8Linear)
    del model[3].forward
    restore(model)
    assert largest(model(x), expected) < 1e-5


def test_norms_and_mlps_that_are_compiled_in_place():
    model, x = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), FeedForward()), torch.randn(4, 32)
    model[0].compile(backend="eager")
    model[2].compile(backend="eager")
    expected = model(x)
    report = convert(model, "high_precision", example=x)
    assert set(report.converted.values()) == {"Float8Linear"} and report.norms == {}
    assert largest(model(x), expected) < 1e-5


class Asking(Block):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_a_forward_that_asks_for_values():
    why = "the model could not be run without values (DataDependentOutputException: its code asks for a value, as of an attention_mask"
    assert why in convert(Asking(), "rowwise", example=torch.randn(4, 32)).norms["norm"]


class ConditionedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(32)), 1e-5

    def forward(self, x, scale):
        return F.rms_norm(x, (32,), self.weight, self.eps) * scale


def test_a_norm_that_cannot_be_tried():
    with pytest.raises(ingot.Error, match="a ConditionedNorm cannot be tried with an input .TypeError: .*scale"):
        RMSNormLinear.from_parts(ConditionedNorm(), nn.Linear(32, 32))


class Listed(nn.Module):
    """Calls its layers by a list, which is no part of the model."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.last = nn.LayerNorm(32), FeedForward(), nn.Linear(32, 32)
        self.order = [self.norm, self.mlp, self.last]

    def forward(self, x):
        for module in self.order:
            x = module(x)
        return x


def test_modules_that_a_list_holds_too():
    model, x, seen = Listed(), torch.randn(4, 32), []
    model.last.register_forward_hook(lambda *_: seen.append(1))
    expected = model(x)
    convert(model, "high_precision", example=x)
    assert isinstance(model.last, Float8Linear) and isinstance(model.order[2], nn.Linear)
    del seen[:]  # hooks run when the model is looked at
    assert largest(model(x), expected) < 1e-5 and len(seen) == 1
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.last.weight.zero_()
    assert largest(copied(x), copied.last.bias.expand(4, 32)) < 1e-5 and largest(model(x), expected) < 1e-5
    restore(model)
    del seen[:]
    assert torch.equal(model(x), expected) and len(seen) == 1 and "forward" not in vars(model.last)


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


def test_autocast_of_one_layer():
    model, x = attention(), torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.q(x).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert model.k(x).dtype == torch.float32


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


def test_a_monitor_sees_all_layers_of_an_input():
    model = attention()
    restore(model)
    convert(model, "rowwise", example=torch.randn(4, 32))
    with ingot.torch.monitor(model) as monitor:
        model(torch.randn(4, 32)).sum().backward()
    weights = {each["layer"] for each in monitor.records() if each["kind"] == "cast" and each["tensor"] == "weight"}
    assert weights == {"q", "k", "v"}


def test_a_compiled_model():
    """Runs anew without its graphs while it is looked at, and is compiled again."""
    model, x = Attention(), torch.randn(4, 32)
    graphs = []
    compiled = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    expected = compiled(x)
    assert len(convert(compiled, "high_precision", example=x).converted) == 3 and len(graphs) == 1
    assert largest(compiled(x), expected) < 1e-5 and len(graphs) == 2


def test_quantize_refuses_a_wrapped_model_as_it_is():
    """Refused after convert() had been undone, the model would be neither."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        convert(model, "rowwise")
        parallel = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(ingot.Error, match="quantize_: the model is wrapped already: quantize before DistributedDataParallel"):
            quantize_(parallel, Float8WeightOnlyConfig())
        assert all(isinstance(layer, Float8Linear) for layer in model)
        quantize_(parallel.module, Float8WeightOnlyConfig())  # what the wrapper holds, after it
    finally:
        torch.distributed.destroy_process_group()
