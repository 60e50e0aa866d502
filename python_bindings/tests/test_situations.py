"""The matrix of situations: every module of ingot.nn and ingot.float8 in every situation that programs bring it into.

A module to come is covered by a line in situations.KINDS. In each situation a module computes what it should, or refuses
with one sentence (REFUSED). `python test_situations.py` prints the matrix as a table.
"""

import copy
import functools
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import threading

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

import ingot
import ingot.torch
import situations
import two_processes
from ingot import float8
from ingot.torch._prepare import recording_of
from situations import (
    DEVICE,
    IN,
    KINDS,
    OUT,
    TOKENS,
    assert_close,
    assert_equal,
    expected_step,
    from_parts,
    gradients_of,
    make,
    outputs_of,
    plain_parts,
    state_of,
    step,
    sync,
    tokens,
)
from torch_module_cases import PYTORCH_2_7, sqnr

# ---- situations: each takes a module's name, and returns or raises ---------------------------------------------------

SITUATIONS = {}


def situation(function):
    SITUATIONS[function.__name__] = function
    return function


def _of_kind(name, **options):
    """A new module and an input that it takes."""
    return make(name, **options), tokens(dtype=options.get("dtype", torch.bfloat16))


@situation
def first_step(name):
    module, x = _of_kind(name)
    assert_close(expected_step(name, module, x), step(module, x))


@situation
def first_without_gradients(name):
    """An evaluation, a forward for inference and one with frozen weights, before the first step that trains."""
    module, x = _of_kind(name)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        outputs_of(module, x)
    with torch.inference_mode():
        outputs_of(module, x)
    module.requires_grad_(False)
    want = expected_step(name, module, x)
    got = step(module, x)
    assert_close({key: value for key, value in want.items() if key in got}, got)
    assert "input" in got
    module.requires_grad_(KINDS[name].trains)
    assert_equal(step(twin, x), step(module, x))


@situation
def gradients_accumulate(name):
    """Two micro-batches, a retained graph, and the gradient of a sum, which is one number in memory."""
    module, x = _of_kind(name)
    once, twice = step(copy.deepcopy(module), x), copy.deepcopy(module)
    outputs = outputs_of(twice, x.requires_grad_())
    for _ in range(2):
        torch.autograd.backward(outputs, gradients_of(outputs), retain_graph=True)
    for key, parameter in twice.named_parameters():
        if key in once:
            assert sqnr(2 * once[key].double(), parameter.grad) > 40, key
    twin, expanded = copy.deepcopy(module), torch.ones((), dtype=x.dtype, device=x.device)
    grads = []
    for of, ones in ((module, expanded.expand), (twin, lambda shape: expanded.expand(shape).contiguous())):
        outputs = outputs_of(of, x)
        grads.append(torch.autograd.grad(outputs, x, [ones(y.shape) for y in outputs])[0])
    assert torch.equal(*grads)


@situation
def change_of_dtype(name):
    module, x = _of_kind(name)
    step(module, x)
    sync(module)
    module.half()
    x = x.half()
    assert_close(expected_step(name, module, x), step(module, x))
    sync(module)
    module.bfloat16()
    x = x.bfloat16()
    assert_close(expected_step(name, module, x), step(module, x))


@situation
def other_defaults(name):
    """Made, trained and loaded while the default dtype and the default device are others, as in transformers' loading."""
    module, x = _of_kind(name)
    state = copy.deepcopy(module.state_dict())
    want = _two_steps(module, x)
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            module = make(name)
            module.load_state_dict(state)
            assert_equal(want, _two_steps(module, x))
        finally:
            torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        module.load_state_dict(state)
        module.half().bfloat16()
        if name in _CONVERSIONS:
            model = torch.nn.Sequential(torch.nn.Linear(IN, OUT, dtype=torch.bfloat16, device=DEVICE))
            _CONVERSIONS[name](model)
            outputs_of(model, x)
        sync(module)
    assert_close(expected_step(name, module, x), step(module, x))


def _two_steps(module, x):
    step(module, x)
    sync(module)
    return step(module, x)


@situation
def float64_and_back(name):
    """A layer in float64 refuses its calls in a sentence; converted back it goes on."""
    module, x = _of_kind(name)
    step(module, x)
    sync(module)
    module.double()
    for given in (x, x.double()) if KINDS[name].package == "nn" else ():  # torchao's layer takes float64
        with pytest.raises(ingot.Error, match="is torch.float64, expected|must be float32, bfloat16 or float16"):
            module(given)
    module.bfloat16()
    assert_close(expected_step(name, module, x), step(module, x))


@situation
def parameters_swapped(name):
    """As PyTorch is to convert and load in future: tensors change places, where others do not refer to them."""
    module, x = _of_kind(name)
    step(module, x)
    sync(module)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.zero_grad()
        module.half().bfloat16()
        module.load_state_dict(copy.deepcopy(module.state_dict()))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert_close(expected_step(name, module, x), step(module, x))


@situation
def buffers_converted_in_place(name):
    """As FullyShardedDataParallel does with MixedPrecision(buffer_dtype=torch.bfloat16)."""
    module, x = _of_kind(name)
    step(module, x)
    sync(module)
    converted = [each for each in module.buffers() if each.is_floating_point()]
    for buffer in converted:
        buffer.data = buffer.data.bfloat16()
    if converted and not KINDS[name].trains:  # its values are not there any more
        with pytest.raises(ingot.Error, match="weight(_scale)?: was converted to torch.bfloat16, and is to stay"):
            module(x)
        return "is refused"
    assert_close(expected_step(name, module, x), step(module, x))
    sync(module)
    assert all(each.dtype == torch.float32 for each in module.buffers() if each.is_floating_point())


@situation
def two_threads_call_first(name):
    module, x = _of_kind(name)
    want = [y.detach() for y in outputs_of(copy.deepcopy(module), x)]
    barrier, results = threading.Barrier(2), []

    def work():
        barrier.wait()
        results.append([y.detach() for y in outputs_of(module, x)])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for got in results:
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def _checkpointed(name, use_reentrant, early_stop=True, input_grad=True, **options):
    module, x = _of_kind(name)
    plain = copy.deepcopy(module)
    for at in range(2):
        with set_checkpoint_early_stop(early_stop):
            got = step(module, x, lambda of, given: checkpoint(of, given, use_reentrant=use_reentrant, **options), input_grad)
        assert_equal(step(plain, x, input_grad=input_grad), got)


@situation
def checkpoint_reentrant(name):
    _checkpointed(name, True)


@situation
def checkpoint_not_reentrant(name):
    _checkpointed(name, False)


@situation
def checkpoint_without_early_stop(name):
    _checkpointed(name, False, early_stop=False)


@situation
def checkpoint_input_without_gradient(name):
    _checkpointed(name, False, input_grad=False)
    _checkpointed(name, False, early_stop=False, input_grad=False, determinism_check="none")


@situation
def no_tokens_first(name):
    module, x = _of_kind(name)
    empty = step(module, x[:0])
    for key, value in empty.items():
        assert not value.numel() or value.abs().max() == 0, key
    sync(module)
    assert_close(expected_step(name, module, x), step(module, x))
    sync(module)
    step(module, x[:0])


def _compiled(module, dynamic):
    torch._dynamo.reset()
    return torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=dynamic)


@situation
def no_tokens_compiled(name):
    module, x = _of_kind(name)
    compiled = _compiled(module, True)
    want, got = step(copy.deepcopy(module), x), step(module, x, lambda _, given: compiled(given))
    assert_equal(want, got)
    empty = step(module, x[:0], lambda _, given: compiled(given))
    assert all(not value.numel() or value.abs().max() == 0 for value in empty.values())


@situation
def no_features(name):
    for n_in, n_out in ((IN, 0), (0, OUT), (0, 0)):
        module = make(name, n_in=n_in, n_out=n_out)
        x = tokens(features=n_in)
        expected, got = expected_step(name, module, x), step(module, x)
        assert_close(expected, got)


def _right_or_refused(call, expected, name):
    """call() gives `expected` within FP8's error, or one error of Ingot's that says what cannot be done."""
    try:
        got = call()
    except ingot.Error as error:
        assert re.search(r"torch\.func|forward-mode|second|gradient itself", str(error)), str(error)
        return
    assert sqnr(expected, got) > 15, f"{sqnr(expected, got):.1f} dB"


@situation
def forward_mode(name):
    module, x = _of_kind(name)
    formula, state = KINDS[name].formula, state_of(module)
    tangent = tokens(seed=3)

    def first(y):
        return y[0] if isinstance(y, tuple) else y

    _, expected = torch.func.jvp(
        lambda given: first(formula(state, given)), (x.double(),), (tangent.double(),)
    )

    def dual():
        with torch.autograd.forward_ad.dual_level():
            y = first(module(torch.autograd.forward_ad.make_dual(x, tangent)))
            got = torch.autograd.forward_ad.unpack_dual(y).tangent
            assert got is not None, "no tangent"
            return got

    _right_or_refused(dual, expected, name)
    _right_or_refused(lambda: torch.func.jvp(lambda given: first(module(given)), (x,), (tangent,))[1], expected, name)


@situation
def torch_func(name):
    module, x = _of_kind(name)
    formula, state = KINDS[name].formula, state_of(module)

    def first(y):
        return y[0] if isinstance(y, tuple) else y

    def loss(given):
        return first(module(given)).float().square().sum()

    def right(given):
        return first(formula(state, given)).square().sum()

    few = x[:2]
    grad = torch.func.grad(right)(few.double())
    hessian = torch.func.hessian(right)(few.double())
    _right_or_refused(lambda: torch.func.grad(loss)(few), grad, name)
    _right_or_refused(lambda: torch.func.jacrev(loss)(few), grad, name)
    _right_or_refused(lambda: torch.func.jacfwd(loss)(few), grad, name)
    _right_or_refused(lambda: torch.func.vjp(loss, few)[1](torch.tensor(1.0, device=DEVICE))[0], grad, name)
    _right_or_refused(lambda: torch.func.hessian(loss)(few), hessian, name)
    want = first(formula(state, x.double()))
    _right_or_refused(lambda: torch.func.vmap(lambda row: first(module(row)))(x), want, name)
    _right_or_refused(
        lambda: first(torch.func.functional_call(module, dict(module.named_parameters()), (x,))), want, name
    )


@situation
def second_derivative(name):
    module, x = _of_kind(name)
    x.requires_grad_()

    def second(y, x):
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    try:
        got = second(outputs_of(module, x)[0].float(), x)
    except ingot.Error as error:
        assert re.search("gradient", str(error)), str(error)
        return
    exact = x.detach().double().requires_grad_()
    y = KINDS[name].formula(state_of(module), exact)
    assert sqnr(second(y[0] if isinstance(y, tuple) else y, exact), got) > 15


_WRITES = {
    "in place": lambda p, new: p.copy_(new),
    ".data": lambda p, new: p.data.copy_(new),
    "detach": lambda p, new: p.detach().copy_(new),
    "view": lambda p, new: p.view(-1).copy_(new.view(-1)),
    "slice": lambda p, new: (p[:1].copy_(new[:1]), p[1:].copy_(new[1:])),
    "foreach": lambda p, new: torch._foreach_copy_([p], [new]),
    "swap": lambda p, new: setattr(p, "data", new.clone()),
}


@situation
def writes_through_aliases(name):
    module, x = _of_kind(name)
    kind = KINDS[name]
    if kind.trains:
        step(module, x)
        sync(module)
        for at, write in enumerate(_WRITES.values(), 1):
            other = make(name, seed=at)
            with torch.no_grad():
                for mine, new in zip(module.parameters(), other.parameters(), strict=True):
                    write(mine, new.detach())
            assert_close(expected_step(name, other, x), step(module, x))
            sync(module)
    other = make(name, seed=20)
    outputs_of(module, x)
    module.load_state_dict(other.state_dict())
    assert_close(expected_step(name, other, x), step(module, x))
    last = make(name, seed=21)
    state = module.state_dict()
    with torch.no_grad():
        for key, value in last.state_dict().items():  # what torch.distributed.checkpoint.load() does
            if isinstance(value, torch.Tensor):
                state[key].copy_(value)
    assert_close(expected_step(name, last, x), step(module, x))


@situation
def meta_then_own_values(name):
    module = make(name, device="meta").to_empty(device=DEVICE)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
            tensor.data.fill_(float("nan"))  # what memory may have
    other = make(name)
    if KINDS[name].trains:
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        with torch.no_grad():
            for mine, new in zip(module.parameters(), other.parameters(), strict=True):
                mine.copy_(new)
    else:
        module.load_state_dict(other.state_dict())
    x = tokens()
    assert_close(expected_step(name, module, x), step(module, x))


@situation
def weights_of_zeros(name):
    module, x = _of_kind(name)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.zero_()
    assert_close(expected_step(name, module, x), step(module, x))
    for at in range(3):
        sync(module)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 2:
                    values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(at))
                    parameter.copy_(values * 1e-3)
        assert_close(expected_step(name, module, x), step(module, x), 10.0)


@situation
def infinite_first_step(name):
    for value in (float("inf"), float("nan")):
        module, x = _of_kind(name)
        bad = x.clone()
        bad[0, 0] = value
        first = step(module, bad)
        assert not torch.isfinite(first["output 0"][0]).all()
        sync(module)
        module.zero_grad()
        for _ in range(2):
            assert_close(expected_step(name, module, x), step(module, x))
            sync(module)


@situation
def copies(name):
    module, x = _of_kind(name)
    for at in range(2):  # before the first step, and after it
        twins = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
        twins.append(copy.deepcopy(module).share_memory())
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        twins.append(torch.load(buffer, weights_only=False))
        want = step(module, x)
        for twin in twins:
            assert_equal(want, step(twin, x))
        sync(module)
    shallow = copy.copy(module)
    if not KINDS[name].trains:  # parameters are shared, and so is their dtype; the order of codes is not
        shallow.half()
        assert_close(want, step(module, x), 40.0)
    elif KINDS[name].package == "nn":
        shallow._reset_scales()  # has its own scales
        assert_close(expected_step(name, module, x), step(module, x))


def _misaligned(tensor):
    """The same values, one element after an aligned address."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    view = room[1:].view(tensor.shape)
    return view.copy_(tensor)


def _strided(tensor):
    room = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    view = room[..., ::2]
    return view.copy_(tensor)


@situation
def misaligned_and_strided(name):
    module, x = _of_kind(name)
    want = step(copy.deepcopy(module), x)
    for place in (_misaligned, _strided):
        twin = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.data = place(parameter.detach())
            for buffer in twin.buffers():
                if buffer.numel() > 1 and buffer.dtype.itemsize <= 2:
                    buffer.data = _misaligned(buffer)
        given = place(x)
        got = step(twin, x, lambda of, _: of(given)) | {"input": want["input"]}
        if "high_precision" in name and DEVICE == "cuda":  # other kernels take it
            assert_close(want, got, 40.0)
        else:
            assert_equal(want, got)
    expanded = x[:1].expand(TOKENS, IN)
    one = [y.detach() for y in outputs_of(module, expanded.contiguous())]
    assert all(torch.equal(a, b) for a, b in zip(one, outputs_of(module, expanded), strict=True))


@situation
def main_grad_of_some_inputs(name):
    """A pipeline asks for the input's gradient first and for the weights' later."""
    module, x = _of_kind(name)
    x.requires_grad_()
    by_name = {key: each for key, each in module.named_parameters() if each.dim() > 1 and not key.endswith("bias")}
    weights = list(by_name.values())
    if not weights:
        return "has no parameters"
    plain = step(copy.deepcopy(module), x)
    if KINDS[name].package == "float8":
        return "has no main_grad"
    for weight in weights:
        weight.main_grad = torch.zeros(weight.shape, device=weight.device)
        weight.grad_added_to_main_grad = False
    outputs = outputs_of(module, x)
    grads = gradients_of(outputs)
    (grad_input,) = torch.autograd.grad(outputs, x, grads, retain_graph=True)
    assert torch.equal(grad_input, plain["input"])
    assert all(not weight.main_grad.any() for weight in weights), "added where only the input's gradient was asked for"
    torch.autograd.backward(outputs, grads, inputs=weights)
    for key, weight in by_name.items():
        assert sqnr(plain[key], weight.main_grad) > 40, key
        assert weight.grad_added_to_main_grad


@situation
def autocast_with_f32_weights(name):
    module = make(name, dtype=torch.float32)
    x = tokens(dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        got = step(module, x)
    assert got["output 0"].dtype == torch.bfloat16
    for key, parameter in module.named_parameters():
        if key in got:
            assert got[key].dtype == parameter.dtype
    x = x.bfloat16()
    rounded = {key: value.to(got[key].dtype) for key, value in expected_step(name, module, x).items() if key in got}
    assert_close(rounded, got)


@situation
def blocks_compiled_one_by_one(name):
    if PYTORCH_2_7:
        pytest.skip("PyTorch 2.7 compiles equal layers separately")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = tokens()
    blocks = [make(name, seed=at, name=f"layers.{at}.part") for at in range(12)]
    for block in blocks:
        want = [y.detach() for y in outputs_of(copy.deepcopy(block), x)]
        block.compile(fullgraph=True, backend="aot_eager")
        for got, expected in zip(outputs_of(block, x), want, strict=True):
            assert torch.equal(got, expected)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= 2, f"{graphs} graphs"


@functools.cache
def _exported() -> dict:
    """What this process and another one, where torch.export has saved them, compute with the programs of modules that
    have done a step, by module."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for at, name in enumerate(KINDS):
            module, x = _of_kind(name)
            step(module, x)
            sync(module)
            try:
                if KINDS[name].delayed:
                    with pytest.raises(ingot.Error, match="export of a module that trains: .* call eval()"):
                        torch.export.export(module, (x,))
                program = torch.export.export(module.eval(), (x,))
                with torch.no_grad():
                    torch.save((x, outputs_of(module, x)), f"{folder}/{at}.pt")
                torch.export.save(program, f"{folder}/{at}.pt2")
                here = program.module()
                buffers = {key: value.clone() for key, value in here.named_buffers()}
                of_program = step(here, 2 * x)
                assert_equal(buffers, dict(here.named_buffers()))
                assert_equal(step(module, 2 * x), of_program)
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = [sys.executable, "-c", _RUN_EXPORTED, folder, str(len(KINDS))]
        done = subprocess.run(run, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
    return {name: results.get(name) or line for name, line in zip(KINDS, lines, strict=True)}


_RUN_EXPORTED = """
import sys, pathlib, torch, ingot.nn
for at in range(int(sys.argv[2])):
    try:
        program = torch.export.load(f"{sys.argv[1]}/{at}.pt2").module()
        x, want = torch.load(f"{sys.argv[1]}/{at}.pt")
        with torch.no_grad():
            got = program(x)
        got = got if isinstance(got, tuple) else (got,)
        print("right" if all(map(torch.equal, got, want)) else "other bits")
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[:1])
"""


@situation
def exported(name):
    assert _exported()[name] == "right", _exported()[name]


@functools.cache
def _of_two_ranks() -> dict:
    """What two processes that have loaded other things say of each module: "right", or what is wrong."""
    if not torch.distributed.is_available():
        pytest.skip("PyTorch was built without torch.distributed")
    with tempfile.TemporaryDirectory() as folder:
        try:
            two_processes.spawn(situations.run_rank, (folder,))
        except Exception as error:
            problem = f"a process ended: {str(error).strip().splitlines()[-1]}"
            return dict.fromkeys(KINDS, problem)
        results = [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(two_processes.WORLD)]
    return {name: next((of[name] for of in results if of[name] != "right"), "right") for name in KINDS}


@situation
def ranks_that_loaded_other_states(name):
    """One rank goes on with a checkpoint, the other begins (situations.run_rank)."""
    assert _of_two_ranks()[name] == "right", _of_two_ranks()[name]


def _traces(module):
    """All that a module is: tensors, and what else its parts have in attributes, hooks aside."""
    tensors = {key: value.clone() for key, value in [*module.named_parameters(), *module.named_buffers()]}
    plain = (bool, int, float, str, tuple, type(None))
    attributes = {
        (path, key): value
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, plain)
    }
    return tensors | {"random numbers": torch.get_rng_state()}, attributes


@situation
def prepared(name):
    """prepare() leaves no trace, before the first step and after it; the bits are those of a module without it."""
    module, x = _of_kind(name)
    twin = copy.deepcopy(module)
    if DEVICE == "cpu":
        with pytest.raises(ingot.Error, match="there is no GPU here to load kernels on: name the GPU"):
            ingot.torch.prepare(module, TOKENS)
    for _ in range(2):
        tensors, attributes = _traces(module)
        if DEVICE == "cpu":  # prepare() for a named GPU, without its compiler
            recording, layers, left_out = recording_of(module, TOKENS, "h200")
            assert len(layers) + len(left_out) == 1 and (recording or left_out)
        else:
            ingot.torch.prepare(module, TOKENS)
        after = _traces(module)
        assert_equal(tensors, after[0])
        assert attributes == after[1]
        assert all(parameter.grad is None for parameter in module.parameters())
        assert_equal(step(twin, x), step(module, x))
        for each in (twin, module):
            sync(each)
            each.zero_grad()
    assert_equal(dict(twin.named_buffers()), dict(module.named_buffers()))


@situation
def green_context(name):
    """On the default stream of a green context and on another stream of it, after a kernel that takes long."""
    if DEVICE == "cpu" or not hasattr(torch.cuda, "green_contexts"):
        pytest.skip("needs a GPU, and a PyTorch with green contexts")
    module, x = _of_kind(name)
    want = step(copy.deepcopy(module), x)
    outputs = {key: value for key, value in want.items() if key.startswith("output")}
    long = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    context = torch.cuda.green_contexts.GreenContext.create(num_sms=32, device_id=torch.cuda.current_device())

    def inside():
        given = torch.zeros_like(x)
        for _ in range(4):
            long @ long
        given.copy_(x)
        results = [y.detach() for y in outputs_of(copy.deepcopy(module), given)]
        torch.cuda.synchronize()
        assert_equal(outputs, {f"output {at}": y for at, y in enumerate(results)})
        # Autograd's own thread is not in the green context, and PyTorch takes both default streams for one.
        with torch.autograd.set_multithreading_enabled(False):
            got = step(copy.deepcopy(module), given)
        torch.cuda.synchronize()
        assert_equal(want, got)

    torch.cuda.synchronize()
    context.set_context()
    try:
        inside()
    finally:
        context.pop_context()
    with torch.cuda.stream(context.Stream()):
        inside()


@situation
def optimizer_made_before(name):
    """An optimizer of the layers that a module is then converted from trains the module's parameters."""
    layers = plain_parts(name)
    parameters = [each for layer in layers for each in layer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1 / 128)
    module, x = from_parts(name, layers), tokens()
    trained = [each for each in module.parameters() if each.requires_grad]
    assert {id(each) for each in trained} <= {id(each) for each in parameters}
    assert len(trained) == len(parameters) or not KINDS[name].trains
    for _ in range(3):
        assert_close(expected_step(name, module, x), step(module, x), 10.0)
        before = {key: each.detach().clone() for key, each in module.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        sync(module)
        for key, each in module.named_parameters():
            assert torch.equal(before[key], each) != each.requires_grad, key
    assert_close(expected_step(name, module, x), step(module, x), 10.0)


@situation
def weight_tied_later(name):
    """After a step, each weight is given to a module's parameter, and then replaced by another module's."""
    module, x = _of_kind(name)
    step(module, x)
    sync(module)
    if not KINDS[name].trains:
        with pytest.raises(ingot.Error, match="weight: is a buffer of codes .*, and cannot become a Parameter of torch"):
            module.weight = torch.nn.Embedding(OUT, IN, dtype=x.dtype, device=DEVICE).weight
        assert_close(expected_step(name, module, x), step(module, x))
        return "is refused"
    for replaces in (False, True):
        tied = {}
        for path, part in module.named_modules():
            weight = part._parameters.get("weight")
            if weight is None or weight.dim() != 2:
                continue
            key = f"{path}.weight".lstrip(".")
            tied[key] = torch.nn.Embedding(*weight.shape, dtype=weight.dtype, device=DEVICE)
            if replaces:
                tied[key].weight.data.copy_(-weight.flip(0))
                part.weight = tied[key].weight
            else:
                tied[key].weight = weight
        for _ in range(2):
            assert_close(expected_step(name, module, x), step(module, x))
            sync(module)
            for other in tied.values():
                grad = other.weight.grad.clone()
                other(torch.zeros(1, dtype=torch.long, device=DEVICE)).sum().backward()
                assert sqnr(grad[0].double() + 1, other.weight.grad[0]) > 40
                with torch.no_grad():
                    other.weight.mul_(-0.75)
        assert_close(expected_step(name, module, x), step(module, x))
        twin, others = copy.deepcopy((module, tied))
        twin.half()
        for key, other in others.items():
            assert twin.get_parameter(key) is other.weight and other.weight.dtype == torch.float16


@situation
def loaded_by_assignment(name):
    """load_state_dict(assign=True): from meta, before the first step and after it, of another dtype, mapped memory."""
    other = make(name, seed=7)
    x = tokens()
    step(other, x)
    sync(other)
    states = {"copied": copy.deepcopy(other.state_dict())}
    buffer = tempfile.NamedTemporaryFile()
    torch.save(other.state_dict(), buffer.name)
    states["mapped"] = torch.load(buffer.name, mmap=True, weights_only=True, map_location=DEVICE)
    started, new = make(name), make(name)
    step(started, x)
    sync(started)
    started.zero_grad()
    for state in states.values():
        for module in (new, started, make(name, device="meta")):
            module.load_state_dict(state, assign=True)
            assert_close(expected_step(name, other, x), step(module, x))
            sync(module)
            assert_close(expected_step(name, other, x), step(module, x))
    half = copy.deepcopy(other).half()
    module = make(name)
    step(module, x)
    sync(module)
    module.zero_grad()
    module.load_state_dict(copy.deepcopy(half.state_dict()), assign=True)
    assert_close(expected_step(name, half, x.half()), step(module, x.half()))


@situation
def flops_counted(name):
    module, x = _of_kind(name)
    weights = [p for p in module.parameters() if p.dim() == 2]
    elements = sum(p.numel() for p in weights) or module.in_features * module.out_features
    with FlopCounterMode(display=False) as counter:
        step(module, x)
    forward = 2 * TOKENS * elements
    expected = forward * (3 if KINDS[name].trains else 2)
    assert counter.get_total_flops() == expected, f"{counter.get_total_flops()} instead of {expected}"


@situation
def hooks_and_conversion(name):
    """Hooks of a layer live on in the module that it is converted to."""
    convert = _CONVERSIONS.get(name)
    if convert is None:
        return "is not made of one layer"
    called = []
    model = torch.nn.Sequential(torch.nn.Linear(IN, OUT, dtype=torch.bfloat16, device=DEVICE))
    linear = model[0]
    linear.register_forward_pre_hook(lambda *_: called.append("forward_pre"))
    linear.register_forward_hook(lambda *_: called.append("forward"))
    linear.register_load_state_dict_pre_hook(lambda module, *_: called.append(type(module).__name__))
    linear.register_load_state_dict_post_hook(lambda *_: called.append("load_post"))
    linear.register_state_dict_pre_hook(lambda *_: called.append("state_pre"))
    del linear
    convert(model)
    model(tokens())
    model.load_state_dict(model.state_dict())
    assert set(called) == {"forward_pre", "forward", type(model[0]).__name__, "load_post", "state_pre"}, called


def _from_float(kind, *arguments):
    def convert(model):
        model[0] = kind.from_float(model[0], *arguments)

    return convert


_CONVERSIONS = {
    "Float8Linear rowwise": _from_float(ingot.nn.Float8Linear, "rowwise"),
    "Float8Linear delayed": _from_float(ingot.nn.Float8Linear, "delayed"),
    "FrozenFloat8Linear": _from_float(ingot.nn.FrozenFloat8Linear),
    "WeightOnlyLinear": _from_float(ingot.nn.WeightOnlyLinear),
    "float8 tensorwise": float8.convert_to_float8_training,
}


@situation
def unclear_inputs(name):
    import numpy as np

    module, x = _of_kind(name)
    inputs = (
        x.float().cpu().numpy(),
        x.to_sparse(),
        torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged),
        x.double(),
        x.long(),
        x[:, :7],
        None,
    )
    for value in inputs:
        for autocast in (False, True):
            try:
                with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
                    module(value)
            except ingot.Error as error:
                assert len(str(error)) > 20
            else:
                raise AssertionError(f"takes {type(value).__name__}")


# What a module refuses, by situation: the sentence that its error has to have.
REFUSED: dict[tuple[str, str], str] = {}


def _run(name, which):
    torch.manual_seed(0)
    if which in KINDS[name].without:
        return "of layers"
    refused = REFUSED.get((name, which)) or REFUSED.get(("*", which))
    if refused is None:
        return SITUATIONS[which](name) or "right"
    with pytest.raises(ingot.Error, match=refused) as caught:
        SITUATIONS[which](name)
    return str(caught.value)




@pytest.fixture(scope="module")
def one_thread():
    """Of PyTorch's: so little work takes longer on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ALIKE = (
    *(f"Float8Linear {recipe}" for recipe in ("rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "high_precision")),
    "RMSNormLinear delayed",
    "GatedMlp delayed",
    "GatedMlp of parts",
    "SharedInputLinears delayed",
    "ExpertsMlp rowwise",
    "GroupedLinear delayed",
    "WeightOnlyLinear e2m1fn",
    "float8 rowwise",
    "float8 rowwise_with_gw_hp",
)
COMPILED = ("no_tokens_compiled", "blocks_compiled_one_by_one")  # these take seconds: in CI, each class once


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "which"), in_ci(lambda name, which: which not in COMPILED or name not in ALIKE, KINDS, SITUATIONS)
)
def test_situation(name, which):
    _run(name, which)


def test_every_module_is_listed():
    made = {type(part) for name in KINDS for part in make(name).modules()}
    for package in (ingot.nn, float8):
        for name in package.__all__:
            kind = getattr(package, name)
            if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
                assert kind in made, f"{package.__name__}.{name} is not in situations.KINDS"


if __name__ == "__main__":
    import time

    torch.set_num_threads(1)
    print("| |", " | ".join(SITUATIONS), "|")
    print("|---" * (len(SITUATIONS) + 1) + "|")
    problems, spent = {}, {}
    for of in sys.argv[1:] or KINDS:
        cells = []
        for which in SITUATIONS:
            begin = time.time()
            try:
                cells.append(_run(of, which))
            except pytest.skip.Exception as reason:
                cells.append(f"skipped: {reason}")
            except BaseException as error:
                cells.append("WRONG")
                problems[of, which] = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
            spent[which] = spent.get(which, 0) + time.time() - begin
        print("|", " | ".join([of, *cells]), "|", flush=True)
    for cell, problem in problems.items():
        print(*cell, problem)
    print({which: round(seconds, 1) for which, seconds in spent.items()})
