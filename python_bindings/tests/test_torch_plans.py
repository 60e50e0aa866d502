"""Plans of PyTorch's operators: equal layers share one, and a graph, and keep their names; refused calls keep nothing."""

import functools
import gc
import operator
import subprocess
import sys
import weakref

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode

import ingot.torch
from ingot import _core, float8
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    shared_input,
)
from ingot.torch import _module_operators as module_operators
from ingot.torch import _operators as operators
from ingot.torch import _weight_operators as weight_operators
from torch_module_cases import PYTORCH_2_7

K = 32


def of_float8(name, **config):
    layer = float8.Float8Linear.from_float(torch.nn.Linear(K, K), config=float8.Float8LinearConfig(**config))
    layer.layer_name = name
    return layer


def delayed(name):
    return Float8Linear(K, K, recipe="delayed", layer_name=name)


class OneInput(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.q, self.k = (Float8Linear(K, K, layer_name=f"{name}.{part}") for part in "qk")

    def forward(self, x):
        return shared_input(x, self.q, self.k)


LAYERS = {
    "Float8Linear": lambda name: Float8Linear(K, K, recipe="rowwise", layer_name=name),
    "activation": lambda name: Float8Linear(K, K, activation="silu", layer_name=name),
    "delayed": delayed,
    "RMSNormLinear": lambda name: RMSNormLinear(K, K, recipe="rowwise", layer_name=name),
    "LayerNormLinear": lambda name: LayerNormLinear(K, K, layer_name=name),
    "Mlp": lambda name: Mlp(K, 48, recipe="blockwise", norm="rms", layer_name=name),
    "GatedMlp": lambda name: GatedMlp(K, 48, layer_name=name),
    "gate and up": lambda name: GatedMlp.from_parts(
        (torch.nn.Linear(K, 48), torch.nn.Linear(K, 48)), torch.nn.Linear(48, K), layer_name=name
    ),
    "SharedInputLinears": lambda name: SharedInputLinears(K, {"q": K, "k": K}, layer_name=name),
    "shared_input": OneInput,
    "FrozenFloat8Linear": lambda name: FrozenFloat8Linear.from_float(torch.nn.Linear(K, K), layer_name=name),
    "WeightOnlyLinear": lambda name: WeightOnlyLinear.from_float(torch.nn.Linear(K, K), layer_name=name),
    "ingot.float8": of_float8,
}


class Block(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        return x + (y[0] * y[1] if isinstance(y, tuple) else y)


def blocks_of(which, count):
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*(Block(LAYERS[which](f"blocks.{at}.fc")) for at in range(count))).bfloat16()
    for block in blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return blocks


NEEDS_2_8 = pytest.mark.skipif(PYTORCH_2_7, reason="PyTorch 2.7 compiles equal layers separately")


@NEEDS_2_8
@pytest.mark.parametrize("which", LAYERS)
def test_equal_blocks_that_are_compiled_one_by_one_share_a_graph_and_keep_their_names(which):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    blocks = blocks_of(which, 10)
    trains = which not in ("FrozenFloat8Linear", "WeightOnlyLinear")
    x = torch.randn(4, K).bfloat16().requires_grad_(trains)
    expected = Block.forward(blocks[0], x)
    with ingot.torch.monitor(device="cpu") as monitor:
        y = blocks[:2](x)
        if trains:
            y.sum().backward()
    y = blocks(x)
    assert y.dtype == torch.bfloat16 and torch.equal(blocks[0](x), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    if which == "WeightOnlyLinear":  # it is observed by profilers alone
        return
    found = {each["layer"].split(".")[1] for each in monitor.records() if each["tensor"] == "output"}
    assert found == {"0", "1"}, [each["layer"] for each in monitor.records()]
    assert all(each["layer"].startswith(("blocks.0.fc", "blocks.1.fc")) for each in monitor.records())
    if trains:
        of_backward = {each["layer"].split(".")[1] for each in monitor.records() if each["tensor"] == "grad_weight"}
        assert of_backward == {"0", "1"}


@NEEDS_2_8
def test_a_name_that_is_given_later_needs_no_compilation():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = torch.nn.ModuleDict({"up": Float8Linear(K, K), "down": Float8Linear(K, K)})
    compiled = torch.compile(lambda x: model["down"](model["up"](x)), backend="aot_eager", fullgraph=True)
    x = torch.randn(4, K)
    compiled(x)
    with ingot.torch.monitor(model) as monitor:  # names them
        compiled(x)
    assert {each["layer"] for each in monitor.records()} == {"up", "down"}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_errors_of_graphs_name_the_layer_or_describe_it():
    layer = Float8Linear(K, 48, recipe="rowwise", layer_name="blocks.0.fc")
    facts = operators.add_plan("rowwise", None, K, 48, *(torch.float32,) * 3, True)
    with pytest.raises(RuntimeError, match='ingot: linear "blocks.0.fc" input: must be float32'):
        operators.linear_forward(torch.randn(4, K).double(), layer.weight, layer.bias, facts.number, 0)
    copies = [weakref.ref(layer)]
    del layer
    gc.collect()
    assert copies[0]() is None  # to be found keeps no layer alive
    with pytest.raises(RuntimeError, match='ingot: linear "unnamed, 32 -> 48" input: must be float32'):
        operators.linear_forward(torch.randn(4, K).double(), torch.randn(48, K), torch.ones(48), facts.number, 0)


def test_layers_that_differ_in_their_names_have_one_plan():
    arguments = (K, 48, *(torch.float32,) * 3, True)
    numbers = [operators.add_plan("rowwise", name, *arguments).number for name in ("a", "b", "a", None, None)]
    assert numbers[0] == numbers[2] != numbers[1] and numbers[3] == numbers[4] not in numbers[:3]
    assert operators.facts_of(numbers[0]) is operators.facts_of(numbers[1]) is operators.facts_of(numbers[3])


def test_plans_of_many_layers_take_time_and_memory_in_proportion():
    """Time is counted in table look-ups: of 20000 layers no plan is made, and no table is copied."""
    made = []
    arguments = ("tensorwise", None, K, 48, *(torch.float32,) * 3, True)
    operators.add_plan(*arguments)
    before = operators._plan.cache_info().misses
    for at in range(20000):
        made.append(operators.add_plan("tensorwise", f"layers.{at}", *arguments[2:]).number)
    assert len(set(made)) == 20000 and operators._plan.cache_info().misses == before
    output, *_ = operators.linear_forward(torch.ones(2, K), torch.ones(48, K), torch.ones(48), made[-1], 0)
    torch.testing.assert_close(output, torch.full((2, 48), K + 1.0))


def refused_calls():
    """A call of each operator with tensors, all refused: by the first tensor, or because there is no such plan."""
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("ingot::")]
    assert len(schemas) > 25
    for schema in schemas:
        kinds = [str(argument.type) for argument in schema.arguments]
        if kinds[0] == "Tensor" and schema.name != "ingot::start_scale":  # which is Python's
            packet = getattr(torch.ops.ingot, schema.name.removeprefix("ingot::"))
            yield getattr(packet, schema.overload_name or "default"), kinds


def test_refused_calls_give_all_their_tensors_back():
    for packet, kinds in refused_calls():
        for number in (12345, 54321):
            are_tensors = [kind in ("Tensor", "Optional[Tensor]") for kind in kinds]
            tensors = [torch.zeros(3, 5, dtype=torch.complex64) for _ in range(sum(are_tensors))]
            rest = iter(tensors)
            arguments = [next(rest) if is_tensor else number for is_tensor in are_tensors]
            counts = [each._use_count() for each in tensors]
            with pytest.raises(RuntimeError):
                packet(*arguments)
            assert [each._use_count() for each in tensors] == counts, packet



def test_a_call_that_its_plan_refuses_gives_all_its_tensors_back():
    layer = RMSNormLinear(K, K, recipe="delayed")
    x = torch.randn(4, K)
    layer(x)
    plan = next(iter(layer.options._plans.values()))[0]
    seen = []

    def refused(x):
        scale, amax, starts = layer._delayed(x)
        tensors = [x, layer.norm.weight, layer.norm.weight, layer.weight, layer.weight]
        written = {"scale": scale, "amax": amax, "starts": starts}
        tensors += written.values()
        counts = [each._use_count() for each in tensors]
        with pytest.raises(RuntimeError, match="input: must be float32"):
            module_operators.NORM_LINEAR.forward_in_place(*tensors[:5], plan, 0, **written)
        seen.append([each._use_count() for each in tensors] == counts)

    refused(x.double())
    assert seen == [True]


# ---- the table of operators -------------------------------------------------------------------------------------------


def test_operators_are_those_of_the_table():
    """All of it, as the plans' numbers depend on its hash. Four operators are Python's."""
    table = {str(torch._C.parse_schema(f"ingot::{text}")) for text in _core.torch_schemas()}
    registered = {str(each) for each in torch._C._jit_get_all_schemas() if each.name.startswith("ingot::")}
    names = ("layer", "start_scale", "delayed_scale", "checked_index")
    of_python = {each for each in registered if each.split("(")[0] in {f"ingot::{name}" for name in names}}
    assert registered - of_python == table and len(of_python) == 4
    assert len({text.split("(")[0].split(".")[0] for text in table}) == 30


def test_arguments_are_bound_by_the_names_of_the_table():
    from ingot.torch import _schemas as schemas

    with pytest.raises(TypeError, match=r"torch.ops.ingot.linear_forward has no argument wieght: ingot::linear_forward\("):
        schemas.fake("linear_forward")(lambda input, wieght: None)
    default, in_place = schemas.overloads_of("norm_linear_backward")
    assert (default._schema.overload_name, in_place._schema.overload_name) == ("", "in_place")
    assert not default._schema.is_mutable and in_place._schema.is_mutable
    seen = lambda plan, scale, wants, main_grad="absent": (plan, scale, wants, main_grad)
    arguments = (None,) * 6 + (12, 34)
    assert schemas.by_name(default, seen)(*arguments) == (12, None, 34, "absent")
    assert schemas.by_name(in_place, seen)(*arguments, scale=5, main_grad=6) == (12, 5, 34, 6)
    with pytest.raises(TypeError, match="has no argument main_grad"):
        schemas.by_name(default, lambda main_grad: None)


def test_bits_do_not_overlap():
    from ingot.torch import _schemas as schemas

    wants = [schemas.INPUT, schemas.GAMMA, schemas.UP, schemas.ASKS_ENGINE]
    wants += [schemas.of_layer(bit, at) for bit in (schemas.WEIGHT, schemas.BIAS) for at in range(3)]
    assert sum(wants) == functools.reduce(operator.or_, wants)
    reads = [bit for name, bit in schemas._bits.items() if name.startswith("READS_")]
    assert sum(reads) == functools.reduce(operator.or_, reads) and len(reads) == 4
    assert schemas.KEEP_CODES & schemas.KEEP_SAVED == 0


# ---- FLOPs -----------------------------------------------------------------------------------------------------------

T = 6
OF_MODULES = {  # sizes of the layers' GEMMs, N K of each
    **{name: [K * K] for name in ("Float8Linear", "activation", "delayed", "RMSNormLinear", "LayerNormLinear")},
    **{name: [K * K] for name in ("FrozenFloat8Linear", "WeightOnlyLinear", "ingot.float8")},
    "Mlp": [48 * K, 48 * K],
    "GatedMlp": [96 * K, 48 * K],
    "gate and up": [48 * K] * 3,
    "SharedInputLinears": [K * K] * 2,
    "shared_input": [K * K] * 2,
}


@pytest.mark.parametrize(
    ("which", "how"), in_ci(lambda which, how: how == "eager" or which in ("Float8Linear", "GatedMlp", "WeightOnlyLinear"), LAYERS, ["eager", "compiled"])
)
def test_flops_are_counted(which, how):
    torch._dynamo.reset()
    block = Block(LAYERS[which]("fc")).bfloat16()
    run = torch.compile(block, backend="aot_eager") if how == "compiled" else block
    x = torch.randn(2, T // 2, K).bfloat16().requires_grad_()
    trains_weight = any(parameter.requires_grad for parameter in block.parameters())
    forward = 2 * T * sum(OF_MODULES[which])
    run(x).sum().backward()  # compiled before the counter is there
    with FlopCounterMode(display=False) as counter:
        y = run(x)
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert counter.get_total_flops() == (2 if trains_weight else 1) * forward
    with FlopCounterMode(display=False) as counter:
        run(x.detach()).sum().backward() if trains_weight else run(x.detach())
    of_layers = [2 * T * each for each in OF_MODULES[which]]
    through = of_layers[-1] if which in ("GatedMlp", "gate and up") else 0  # the gradient of the hidden values
    if which in ("RMSNormLinear", "LayerNormLinear", "Mlp"):  # the norm's gradients are those of its values
        through = forward
    assert counter.get_total_flops() == (2 * forward + through if trains_weight else forward)


# ---- programs of torch.export ----------------------------------------------------------------------------------------

RUN = """
import sys, torch, ingot.nn
from torch.utils.flop_counter import FlopCounterMode
for at, flops in enumerate(map(int, sys.argv[2:])):
    program = torch.export.load(f"{sys.argv[1]}/{at}.pt2").module()
    x, y, gradient = torch.load(f"{sys.argv[1]}/{at}.pt")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert torch.equal(program(x), y), at
    assert counter.get_total_flops() == flops, (at, counter.get_total_flops(), flops)
    x.requires_grad_()
    program(x).sum().backward()
    assert torch.equal(x.grad, gradient), at
try:
    torch.ops.ingot.layer([x], '{"layer": "of another version"}')
except ingot.Error as error:
    print(error)
"""


@pytest.mark.nightly
def test_exported_programs_run_in_another_process_with_the_same_bits(tmp_path):
    torch._dynamo.reset()
    flops = []
    for at, which in enumerate(LAYERS):
        block = Block(LAYERS[which](f"blocks.{at}")).bfloat16().eval()
        x = torch.randn(4, K).bfloat16()
        torch.export.save(torch.export.export(block, (x,)), f"{tmp_path}/{at}.pt2")
        of_grad = x.clone().requires_grad_()
        y = block(of_grad)
        y.sum().backward()
        torch.save((x, y.detach(), of_grad.grad), f"{tmp_path}/{at}.pt")
        flops.append(2 * 4 * sum(OF_MODULES[which]))
    run = [sys.executable, "-c", RUN, str(tmp_path), *map(str, flops)]
    result = subprocess.run(run, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "knows no such layer" in result.stdout and "export the program again with this version" in result.stdout
