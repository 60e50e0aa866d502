"""prepare(): a model's kernels compiled and loaded before its first step."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple, Union

import torch

from .. import _core
from .._context import context_for
from .._text import counted
from ._errors import LinearError
from ._layers import context_name, gpu_of, ingot_layers, name_layers
from ._model_weights import is_experts_layer
from ._operators import HIGH_PRECISION
from ._progress import progress as bar

Progress = Callable[[int, int, str], None]
Tokens = Union[int, Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What prepare() did.

    gpu: the GPU's name, such as "h200"; empty for the one at hand if its kind is not known by name. layers: the names of
    the layers that are prepared. left_out: (name, reason) for each of the others. kernels: the spec of each kernel that
    the layers need. compiled: how many of them were not in the store. seconds: how long it took. str() is a few lines.
    """

    gpu: str
    layers: Tuple[str, ...]
    left_out: Tuple[Tuple[str, str], ...]
    kernels: Tuple[str, ...]
    compiled: int
    seconds: float

    def __str__(self) -> str:
        what = f"{counted(len(self.layers), 'layer is', 'layers are')} prepared" + (f" for {self.gpu}" if self.gpu else "")
        there = len(self.kernels) - self.compiled
        lines = [f"{what}: {counted(len(self.kernels), 'kernel', 'kernels')}, {self.compiled} compiled and {there} in the store, in {self.seconds:.1f} s"]
        return "\n".join([*lines, *(f"  {name}: left out: {reason}" for name, reason in self.left_out)])


def checked_tokens(who: str, tokens: Tokens) -> Tuple[int, ...]:
    """Returns the numbers of tokens. Raises LinearError, which names `who`, for anything else."""
    counts = tuple(tokens) if isinstance(tokens, (list, tuple, range)) else (tokens,)
    if not counts or not all(isinstance(count, int) and count > 0 for count in counts):
        raise LinearError(f"{who}: tokens is {tokens!r}, expected a number of tokens above 0, or several")
    return counts


def _reason_to_leave_out(layer: torch.nn.Module) -> str:
    """Why Ingot's operators do not compute this layer, or ""."""
    if is_experts_layer(layer):
        return "how many rows its experts have is the router's to say: a recording of a run has its kernels"
    if not isinstance(getattr(layer, "in_features", None), int):
        return f"a {type(layer).__name__} does not say how many features its input has"
    if any([getattr(part, "_division", None) is not None for part in (layer, *layer._modules.values())]):
        return "several ranks divide it, which its first step asks: prepare the whole layer on one rank, into the same store"
    if not hasattr(layer, "_operator_casts"):
        return ""
    if layer._operator_casts is None:
        return "its scales have a state, and PyTorch's operations cast it"
    return "PyTorch's operations emulate it" if layer.config.emulate else ""


class _WithoutHooks(torch.nn.Module):
    """A layer's forward alone: hooks are for the model's own steps. Modules that it computes, and that are elsewhere in the
    model, are parts of this one."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.elsewhere = torch.nn.ModuleList(getattr(layer, "computes_elsewhere", ()))

    def forward(self, input: torch.Tensor) -> Any:
        return getattr(self.layer, "compute_all", self.layer.forward)(input)


def _stand_in(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the same shape and dtype, also of one on meta or a shard. Its values are undefined."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, requires_grad=tensor.requires_grad)


def _run_layer(layer: torch.nn.Module, counts: Tuple[int, ...], *rest) -> None:
    """Runs the layer for each number of tokens. A layer with delayed scales runs in the state of its first steps and in
    that of later ones, which launch different kernels; its own state is restored afterwards."""
    for _ in layer._states_to_prepare(rest[-1]) if hasattr(layer, "_states_to_prepare") else (None,):
        for tokens in counts:
            _run_in_a_state(layer, tokens, *rest)


def _run_in_a_state(layer: torch.nn.Module, tokens: int, dtype: Optional[torch.dtype], device: torch.device) -> None:
    """Runs forward as in inference; then, if gradients are on, forward and backward: with and without a gradient of the
    input, and with a gradient of the output that is a matrix or, as that of a sum, a single element."""
    whole = _WithoutHooks(layer)
    tensors = {name: _stand_in(each, device) for name, each in whole.named_parameters()}
    tensors.update((name, _stand_in(each, device)) for name, each in whole.named_buffers())
    if dtype is None:
        dtype = getattr(layer, "values_dtype", None)  # of quantized weights, whose scale_inv are float32
    if dtype is None:
        dtype = next((each.dtype for each in tensors.values() if each.dtype in HIGH_PRECISION), torch.bfloat16)

    def run(input: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(whole, tensors, (input,))

    with torch.no_grad():
        run(torch.empty(tokens, layer.in_features, dtype=dtype, device=device))
    if not torch.is_grad_enabled():
        return
    parameters = [each for each in tensors.values() if each.requires_grad]
    for wants_input in (True, False):
        input = torch.empty(tokens, layer.in_features, dtype=dtype, device=device, requires_grad=wants_input)
        wanted = [input, *parameters] if wants_input else parameters
        if not wanted:
            continue
        for one_element in (False, True):
            outputs = run(input)
            outputs = [each for each in (outputs if isinstance(outputs, tuple) else (outputs,)) if each.requires_grad]
            elements = [torch.empty((), dtype=each.dtype, device=device).expand(each.shape) for each in outputs]
            grads = elements if one_element else [torch.empty_like(each) for each in outputs]
            if outputs:
                torch.autograd.grad(outputs, wanted, grads, allow_unused=True)


def _layers_to_run(model: torch.nn.Module) -> Tuple[list, list]:
    """The layers with their names, equal ones included, and (name, reason) of those that are left out."""
    name_layers(model)
    run, left_out = [], []
    for path, layer in ingot_layers(model):
        name = layer.layer_name or path
        reason = _reason_to_leave_out(layer)
        if reason:
            left_out.append((name, reason))
        else:
            run.append((name, layer))
    return run, left_out


def _kinds(layers: list) -> Iterator[torch.nn.Module]:
    """One layer of each kind that asks for the same kernels: blocks of a model are alike."""
    seen = set()
    for _, layer in layers:
        parameters = _WithoutHooks(layer).named_parameters()
        tensors = tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in parameters)
        kind = (type(layer), layer.extra_repr(), tensors)
        if kind not in seen:
            seen.add(kind)
            yield layer


def recording_of(
    model: torch.nn.Module, tokens: Tokens, gpu: str, dtype: Optional[torch.dtype] = None
) -> Tuple[str, list, list]:
    """What the model's layers, and experts of ingot.integrations, ask for on a GPU of this name, as the text of a recording; the
    layers with their names, and those that are left out, experts too. Runs each layer once on tensors that nobody reads or
    writes."""
    counts = checked_tokens("ingot.torch.prepare", tokens)
    layers, left_out = _layers_to_run(model)

    def run() -> None:
        for layer in _kinds(layers):
            _run_layer(layer, counts, dtype, torch.device("cpu"))

    texts, experts = [recording_of_call(run, gpu)], _experts()
    try:
        if experts is not None:
            texts.append(recording_of_call(lambda: experts.run_converted(model, counts, dtype), gpu))
    except LinearError as error:  # of GPUs that have no grouped GEMMs
        left_out += [(name, str(error)) for name in experts.converted_of(model)]
    lines = dict.fromkeys(line for text in texts for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines), layers, left_out


def _experts():
    """What knows transformers' experts, if the program has imported it."""
    return sys.modules.get("ingot.integrations.experts")


def recording_of_call(call: Callable[[], object], gpu: str) -> str:
    """What the operators ask for that call() runs, on CPU tensors that they neither read nor write."""
    dry = _core.TorchDryRun(gpu)
    dry.enter()
    try:
        call()
    finally:
        dry.leave()
    return dry.recording()


def _device_for(model: torch.nn.Module, gpu: Optional[str]) -> torch.device:
    """Where the kernels are loaded; the CPU if they are for another machine."""
    if gpu is not None:
        return torch.device("cpu")
    why = "there is no GPU here to load kernels on: name the GPU to compile them for, as gpu=\"h200\""
    return gpu_of(model, "ingot.torch.prepare", why)


def prepare(
    model: torch.nn.Module,
    tokens: Tokens,
    *,
    gpu: Optional[str] = None,
    dtype: Optional[torch.dtype] = None,
    progress: Optional[Progress] = None,
) -> Prepared:
    """Compiles and loads every kernel that the model's Ingot layers, and experts that ingot.integrations.experts converted, need
    for these numbers of tokens, on all cores, so that its first step compiles nothing. Kernels that are in the store are only
    loaded.

    tokens: how many rows the layers' inputs have in one step, batch times sequence; or several such numbers. gpu: the
    name of another GPU, such as "h200", for which kernels are compiled into the store: this machine needs no GPU, and
    nothing is loaded. dtype: that of the layers' inputs (autocast's, say); by default that of each layer's weight.
    progress(done, total, kernel) is called after each kernel; an exception from it ends the preparation. Without it tqdm's bar
    is shown at a terminal. Under
    torch.no_grad() only forward is prepared.

    Layers may be on any device, meta included, and may be sharded. Hooks do not run, and parameters and gradients do not
    change; on a GPU each kind of layer runs on separate tensors, so that cuBLASLt's choices are made, too. Raises
    ingot.Error if there is neither a GPU nor a name, for a name that is not known, and if a kernel cannot be compiled.
    """
    begin = time.perf_counter()
    device = _device_for(model, gpu)
    context = context_for("cpu" if gpu is not None else context_name(device))
    kernels: list[str] = []

    stack = contextlib.ExitStack()
    steps: list[Callable[[], object]] = []

    def note(done: int, total: int, kernel: str) -> None:
        kernels.append(kernel)
        if progress is not None:
            return progress(done, total, kernel)
        if not steps:
            steps.append(stack.enter_context(bar("kernels are compiled", total)))
        steps[0]()

    before = context.stats()["compiled"]
    counts = checked_tokens("ingot.torch.prepare", tokens)
    name = gpu if gpu is not None else _core.gpu_name(context)
    layers, left_out = _layers_to_run(model)
    experts = [] if _experts() is None else _experts().converted_of(model)
    if name:
        recording, layers, left_out = recording_of(model, counts, name, dtype)
        with stack:
            _core.prepare(context, recording, gpu or "", note)
    else:
        left_out += [(each, "this GPU is not one whose kind is known") for each in experts]
    if gpu is None:
        _run_on_gpu(layers, counts, dtype, device)
    refused = {each for each, _ in left_out}
    return Prepared(
        gpu=name,
        layers=(*(each for each, _ in layers), *(each for each in experts if each not in refused)),
        left_out=tuple(left_out),
        kernels=tuple(kernels),
        compiled=context.stats()["compiled"] - before,
        seconds=time.perf_counter() - begin,
    )


def _run_on_gpu(layers: list, counts: Tuple[int, ...], dtype: Any, device: torch.device) -> None:
    with torch.cuda.device(device):
        for layer in _kinds(layers):
            _run_layer(layer, counts, dtype, device)
        torch.cuda.synchronize()
