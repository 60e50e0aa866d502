"""What the modules of a model compute: which are MLPs, and which linear layers read what a norm gives.

Neither goes by names. An MLP is traced by torch.fx, and what is between its linear layers is tried with values; what reads a
norm is seen in one forward of the whole model with fake tensors, which has no values and takes no memory.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import logging
import operator
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

# By Ingot's names (docs/pointwise.md); the first that computes the same is taken.
ACTIVATIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


class FoundMlp(NamedTuple):
    """An MLP's linear layers, by their names in it, and its activation. up: None of one without a gate, and where `gate` has
    both, the gate's rows first."""

    module: torch.nn.Module
    gate: str
    up: Optional[str]
    down: str
    activation: str
    gated: bool

    @property
    def parts(self) -> Tuple[str, ...]:
        return tuple(name for name in (self.gate, self.up, self.down) if name is not None)


def calls_otherwise(module: torch.nn.Module) -> bool:
    """Has the object a forward of its own, or one that is compiled, besides its class's?"""
    return "forward" in vars(module) or vars(module).get("_compiled_call_impl") is not None


# ---- MLPs ----


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, module: torch.nn.Module, name: str) -> bool:
        return True


def find_mlp(module: torch.nn.Module) -> Optional[FoundMlp]:
    """Returns what the module is if its forward computes down(activation(gate(x))), down(activation(gate(x)) * up(x)) or the
    same with gate and up as one layer, and nothing else, in training and in evaluation; None of all others, and of a
    torch.nn.Sequential, whose parts programs take by their numbers."""
    if isinstance(module, torch.nn.Sequential) or calls_otherwise(module):
        return None
    children = dict(module.named_children())
    linears = {name: each for name, each in children.items() if isinstance(each, torch.nn.Linear)}
    others = [each for name, each in children.items() if name not in linears]
    if len(linears) not in (2, 3) or module._parameters or any(True for each in others for _ in each.parameters()):
        return None
    if any(True for _ in module.buffers()):
        return None  # which would be in no state_dict() any more
    modes = {each: each.training for each in module.modules()}
    found = []
    try:
        for training in (True, False):
            for each in modes:  # a class may do more in its train(), such as merging adapters
                each.training = training
            with torch.random.fork_rng(devices=[]):
                found.append(_of_graph(module, _Tracer().trace(module), linears))
    except Exception:  # torch.fx raises errors of many kinds for what it cannot trace
        return None
    finally:
        for each, training in modes.items():
            each.training = training
    return found[0] if found[0] == found[1] else None


def _of_graph(module: torch.nn.Module, graph: torch.fx.Graph, linears: Dict[str, torch.nn.Linear]) -> Optional[FoundMlp]:
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    calls = {node.target: node for node in graph.nodes if node.op == "call_module" and node.target in linears}
    (result,) = [node for node in graph.nodes if node.op == "output"]
    if len(inputs) != 1 or len(calls) != len(linears) or any(len(node.args) != 1 or node.kwargs for node in calls.values()):
        return None
    if sum(node.op == "call_module" and node.target in linears for node in graph.nodes) != len(linears):
        return None  # a layer is called twice
    first = [name for name, node in calls.items() if node.args[0] is inputs[0]]
    last = [name for name in calls if name not in first]
    if len(last) != 1 or set(inputs[0].users) != {calls[name] for name in first}:
        return None
    down = calls[last[0]]
    if result.args[0] is not down and not _passes_on(module, result.args[0], down):
        return None
    sizes = {linears[name].out_features for name in first}
    if linears[last[0]].out_features != linears[first[0]].in_features:
        return None
    if len(sizes) != 1 or not isinstance(down.args[0], torch.fx.Node):
        return None
    return _with_activation(module, first, last[0], linears, lambda *values: _between(module, graph, calls, first, down, values))


def _passes_on(module: torch.nn.Module, node: Any, down: torch.fx.Node) -> bool:
    """Is the MLP's result its last layer's through a dropout that drops nothing?"""
    dropout = module.get_submodule(node.target) if isinstance(node, torch.fx.Node) and node.op == "call_module" else None
    return isinstance(dropout, torch.nn.Dropout) and dropout.p == 0 and node.args == (down,)


def _between(module, graph, calls, first: List[str], down: torch.fx.Node, values: Tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the last layer gets if the first ones give these values. Raises whatever the module's code does."""
    known: Dict[torch.fx.Node, Any] = {calls[name]: value for name, value in zip(first, values)}
    modules = dict(module.named_modules())
    load = lambda argument: torch.fx.map_arg(argument, lambda node: known[node])
    for node in graph.nodes:
        if node is down:
            return load(down.args[0])
        if node in known or node.op == "placeholder":
            continue
        args, kwargs = load(node.args), load(node.kwargs)
        if node.op == "call_module":
            known[node] = modules[node.target](*args, **kwargs)
        elif node.op == "call_function":
            known[node] = node.target(*args, **kwargs)
        elif node.op == "call_method":
            known[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        elif node.op == "get_attr":
            known[node] = operator.attrgetter(node.target)(module)
    raise RuntimeError("the last layer is not called")


@torch.no_grad()
def _with_activation(
    module: torch.nn.Module, first: List[str], last: str, linears: Dict[str, torch.nn.Linear], between: Callable
) -> Optional[FoundMlp]:
    hidden, given = linears[last].in_features, linears[first[0]].out_features
    place = {"generator": torch.Generator().manual_seed(0), "device": "cpu", "dtype": torch.float32}
    values = [4 * torch.randn(8, given, **place) for _ in first]
    try:
        with torch.device("cpu"):
            found = between(*(value.clone() for value in values))
    except Exception:  # code of another library, which may ask for anything
        return None
    if not isinstance(found, torch.Tensor) or found.shape != (8, hidden) or not found.is_floating_point():
        return None
    if len(first) == 1 and given == hidden:
        roles = [(first[0], None, values[0], None)]
    elif len(first) == 1 and given == 2 * hidden:
        roles = [(first[0], None, *values[0].chunk(2, 1))]
    elif len(first) == 2 and given == hidden:
        roles = [(first[0], first[1], *values), (first[1], first[0], *reversed(values))]
    else:
        return None
    for gate, up, x, factor in roles:
        for name, activation in ACTIVATIONS.items():
            expected = activation(x) if factor is None else activation(x) * factor
            if torch.allclose(found, expected, rtol=1e-5, atol=1e-6):
                return FoundMlp(module, gate, up, last, name, factor is not None)
    return None


# ---- norms ----

_READ_NO_VALUES = {"size", "dim", "numel", "nelement", "ndimension", "stride", "is_contiguous", "is_floating_point", "__len__"}


def _reads_no_values(function: Any) -> bool:
    """Is it a tensor's size, dtype or device?"""
    if getattr(function, "__name__", "") == "__get__":
        of = getattr(getattr(function, "__self__", None), "__name__", "")
        return of in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "names") or of.startswith("is_")
    return getattr(function, "__name__", "") in _READ_NO_VALUES


class _Readers(TorchFunctionMode):
    """Notes which of some modules read what each norm gives, while a model runs."""

    def __init__(self, norms: Set[torch.nn.Module], leaves: Set[torch.nn.Module]) -> None:
        super().__init__()
        self._norms, self._leaves = norms, leaves
        self._inside: Optional[torch.nn.Module] = None
        self._given: Dict[int, Tuple[torch.nn.Module, torch.Tensor]] = {}  # by id: held, so that no other tensor has it
        self._inputs: Dict[torch.nn.Module, Tuple[torch.Tensor, int]] = {}  # of the norms, with their versions
        self.called_by_name: Set[torch.nn.Module] = set()  # leaves that get more or less than one argument
        self.owners: Dict[int, torch.nn.Module] = {}  # the norms, by the ids of their parameters
        self.called: List[torch.nn.Module] = []  # and not at its end: the innermost module is the last
        self.calls: Dict[torch.nn.Module, int] = {}
        self.readers: Dict[torch.nn.Module, List[torch.nn.Module]] = {norm: [] for norm in norms}
        self.read_elsewhere: Set[torch.nn.Module] = set()

    def _norms_of(self, values: Any) -> List[torch.nn.Module]:
        leaves = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
        return [self._given[id(each)][0] for each in leaves if id(each) in self._given]

    def note_elsewhere(self, values: Any) -> None:
        """What the model returns, or what runs unseen gets, others read."""
        self.read_elsewhere.update(self._norms_of(values))

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _reads_no_values(function):
            norms = self._norms_of((args, kwargs))
            self.read_elsewhere.update(norm for norm in norms if self._inside not in self.readers[norm])
            owners = {self.owners.get(id(each)) for each in tree_leaves((args, kwargs))} - {None, self._inside}
            self.read_elsewhere.update(owners)  # computed by its parameters, or by its forward() without a call
        result = function(*args, **kwargs)
        # A number by which models skip layers in training (layerdrop): none is skipped.
        return torch.tensor(0.5) if function is torch.rand and result.dim() == 0 else result

    def before(self, module: torch.nn.Module, args: tuple) -> None:
        self.called.append(module)
        if self._inside is not None or not (module in self._norms or module in self._leaves):
            return
        self.calls[module] = self.calls.get(module, 0) + 1
        if module in self._norms and args and isinstance(args[0], torch.Tensor):
            self._inputs[module] = args[0], args[0]._version
        if module in self._leaves and len(args) != 1:
            self.called_by_name.add(module)
        for norm in self._norms_of(args):
            input, version = self._inputs.get(norm, (args[0], -1))
            if module in self._leaves and input._version == version:  # else the norm would be of other values
                self.readers[norm].append(module)
            else:
                self.read_elsewhere.add(norm)
        self._inside = module

    def before_norm(self, norm: torch.nn.Module, args: tuple, kwargs: Dict[str, Any]) -> None:
        """One that gets more than its input, a gate say, computes more than a norm."""
        if len(args) != 1 or kwargs:
            self.read_elsewhere.add(norm)

    def after(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        while self.called and self.called.pop() is not module:
            pass
        if self._inside is not module:
            return
        self._inside = None
        if module in self._norms and isinstance(output, torch.Tensor):
            self._given[id(output)] = module, output


class _Unseen:
    """A forward in the place of one that needs values, as routers of experts do: it returns a tensor like the first that it gets,
    or a pair of it and None."""

    def __init__(self, watch: _Readers, is_pair: bool) -> None:
        self._watch, self._is_pair = watch, is_pair

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.note_elsewhere((args, kwargs))
        result = torch.empty_like(next(each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)))
        return (result, None) if self._is_pair else result


@contextlib.contextmanager
def _no_log_of_fake_tensors() -> Iterator[None]:
    """PyTorch logs what it then raises."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


def _uncompiled() -> Any:
    """Functions and modules that are compiled already run eagerly."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


@contextlib.contextmanager
def _without_traces(model: torch.nn.Module, training: bool) -> Iterator[None]:
    """In this mode; afterwards modules have the attributes that they had: a mask that a forward keeps for the next one would
    have no values."""
    kept = []
    for module in model.modules():
        own = vars(module)
        containers = [each for each in own.values() if type(each) in (dict, list, set, collections.OrderedDict)]
        kept.append((own, dict(own), [(each, copy.copy(each)) for each in containers]))
    try:
        for module in model.modules():  # a class may do more in its train(), such as merging adapters
            module.training = training
        yield
    finally:
        for own, before, containers in kept:
            own.clear()
            own.update(before)
            for each, content in containers:
                each.clear()
                (each.extend if isinstance(each, list) else each.update)(content)


def _run(model: torch.nn.Module, watch: _Readers, unseen: Dict[type, bool], args: tuple, kwargs: Dict[str, Any]) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: torch.Tensor) -> torch.Tensor:  # on the CPU, where the model may be on meta
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")

    tensors = {name: fake(each) for name, each in (*model.named_parameters(), *model.named_buffers())}
    args, kwargs = tree_map_only(torch.Tensor, fake, (args, kwargs))
    names = {norm: name for name, norm in model.named_modules() if norm in watch.readers}
    for norm, name in names.items():
        keys = [f"{name}.{key}" if name else key for key in norm._parameters]
        watch.owners.update((id(tensors[key]), norm) for key in keys if key in tensors)
    hooks = torch.nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(watch.before), hooks.register_module_forward_hook(watch.after)]
    handles += [norm.register_forward_pre_hook(watch.before_norm, with_kwargs=True) for norm in names]
    stubs = [module for module in model.modules() if type(module) in unseen and "forward" not in vars(module)]
    try:
        for module in stubs:
            module.__dict__["forward"] = _Unseen(watch, unseen[type(module)])
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # they are about a forward that nobody asked for
            quiet = _uncompiled(), _no_log_of_fake_tensors()
            for each in (torch.no_grad(), torch.random.fork_rng(devices=[]), *quiet, mode, watch):
                stack.enter_context(each)
            result = torch.func.functional_call(model, tensors, args, kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for module in stubs:
            del module.__dict__["forward"]
    watch.note_elsewhere(result)


def _watched(
    model: torch.nn.Module,
    training: bool,
    norms: Set[torch.nn.Module],
    leaves: Set[torch.nn.Module],
    args: tuple,
    kwargs: Dict[str, Any],
) -> _Readers:
    """What is seen in one forward in this mode. Raises what the model's own forward raises of tensors without values."""
    unseen: Dict[type, bool] = {}
    first: Optional[Exception] = None
    while True:
        watch = _Readers(norms, leaves)
        try:
            with _without_traces(model, training):
                _run(model, watch, unseen, args, kwargs)
            return watch
        except Exception as error:
            first = first or error
            failed = watch.called[-1] if watch.called else model
            within = [kind for kind in unseen if any(type(child) is kind for child in failed.children())]
            if within and not unseen[within[-1]]:  # what it returned is not what its parent takes apart
                unseen[within[-1]] = True
            elif failed is model or type(failed) in unseen or type(failed).__module__.startswith("torch."):
                raise first
            else:
                unseen[type(failed)] = False


_ReadersOfNorms = Dict[torch.nn.Module, List[torch.nn.Module]]


def readers_of_norms(
    model: torch.nn.Module, norms: Set[torch.nn.Module], leaves: Set[torch.nn.Module], args: tuple, kwargs: Dict[str, Any]
) -> Tuple[_ReadersOfNorms, Set[torch.nn.Module], Set[torch.nn.Module]]:
    """Returns the norms that a forward of the model calls once, and whose result only some of `leaves` read, each called once,
    as its only argument, in training as in evaluation; with these, in the order of their calls. And the leaves that are called
    outside of others, and those that get keywords. What modules read whose forward needs values is not seen, and counts as read elsewhere. Raises what the
    model's own forward raises of tensors without values."""
    found: List[_ReadersOfNorms] = []
    called: Set[torch.nn.Module] = set()
    by_name: Set[torch.nn.Module] = set()
    for training in (model.training, not model.training):
        watch = _watched(model, training, norms, leaves, args, kwargs)
        called.update(leaves.intersection(watch.calls))
        by_name.update(watch.called_by_name)
        once = {module for module, calls in watch.calls.items() if calls == 1}
        found.append({
            norm: readers
            for norm, readers in watch.readers.items()
            if norm in once and readers and norm not in watch.read_elsewhere and once.issuperset(readers)
        })  # fmt: skip
    one, other = found
    return {norm: readers for norm, readers in one.items() if other.get(norm) == readers}, called, by_name
