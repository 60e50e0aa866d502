"""torchtitan's GroupedExperts, which other trainers have too, with experts that train in FP8:

    from ingot.integrations.grouped_experts import convert_grouped_experts_
    print(convert_grouped_experts_(model, "rowwise"))

A module of this form has the parameters w1 and w3 (experts, hidden, dim) and w2 (experts, dim, hidden), and computes
w2(silu(w1(x)) * w3(x)) of rows that are sorted by experts. It needs none of these libraries.
"""

from __future__ import annotations

import copy
import functools
from typing import Callable, Dict, List, Optional, Type

import torch

from ..torch._checks import SubjectOfExperts, check_dense, check_recipe_of_experts, check_sizes_of_experts, refuse
from ..torch._errors import LinearError
from ..torch._grouped_linear import grouped_linear
from ..torch._linear import LinearOptions

__all__ = ["convert_grouped_experts_"]

_NAME, _WEIGHTS, _CALLER = "GroupedExperts", ("w1", "w2", "w3"), "convert_grouped_experts_"
# What a forward is run with: sizes of its experts, and of rows; modules that compute in 16 bits are well within the tolerance.
_SMALL, _MAGNITUDES, _TOLERANCE = 16, (0.3, 1.0, 5.0, 30.0), 0.01


def _check_operands(subject: SubjectOfExperts, x: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor) -> None:
    """What the counts are is read on the CPU only: a GPU's are there when its work is done."""
    check_dense(subject, "x", x)
    check_dense(subject, "num_tokens_per_expert", counts)
    experts, _, dim = w1.shape
    if x.dim() != 2 or x.shape[1] != dim:
        refuse(subject, f"x: has the shape {tuple(x.shape)}, expected (rows, {dim}), sorted by experts: reshape it before")
    if tuple(counts.shape) != (experts,):
        refuse(subject, f"num_tokens_per_expert: has the shape {tuple(counts.shape)}, expected ({experts},): give a number for each expert")
    if counts.device != x.device:
        refuse(subject, f"num_tokens_per_expert: is on {counts.device} and x on {x.device}: move one with .to()")
    if torch.compiler.is_compiling() or counts.device.type != "cpu" or type(counts) is not torch.Tensor:
        return
    if (counts < 0).any() or counts.sum() > x.shape[0]:
        refuse(
            subject,
            f"num_tokens_per_expert: is {counts.tolist()}, expected numbers from 0 whose sum is at most the {x.shape[0]} rows of x: count "
            "the rows that x has",
        )


class Float8GroupedExperts:
    """Comes before the class of a module that convert_grouped_experts_() has converted."""

    ingot_options: LinearOptions

    def forward(self, x: torch.Tensor, num_tokens_per_expert: torch.Tensor) -> torch.Tensor:
        """x: (rows, dim), of expert 0, then of expert 1, and so on; num_tokens_per_expert: how many each has, of any dtype. Rows
        beyond all experts', as padding and buffers have them, may hold anything: their outputs are 0, and so are their gradients."""
        w1, w2, w3 = (each.to_local() if hasattr(each, "to_local") else each for each in (getattr(self, name) for name in _WEIGHTS))
        subject = SubjectOfExperts("grouped experts", self.ingot_options)
        _check_operands(subject, x, num_tokens_per_expert, w1)
        ends = num_tokens_per_expert.cumsum(0, dtype=torch.int32)
        rows = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
        beyond = (rows >= ends[-1])[:, None]
        # The last expert computes them as zeros, so that what casts read of them, here and backward, is known. Too many rows stay
        # too many, for the check of INGOT_CHECK_EXPERTS.
        ends[-1:].clamp_(min=x.shape[0])
        x = x.masked_fill(beyond, 0)
        product = functools.partial(grouped_linear, ends=ends, options=self.ingot_options)
        hidden = torch.nn.functional.silu(product(x, w1)) * product(x, w3)
        return product(hidden, w2).masked_fill(beyond, 0).type_as(x)

    def __reduce_ex__(self, protocol):
        """Pickles and copies find no class that was made here by its name."""
        plain = type(self).__mro__[type(self).__mro__.index(Float8GroupedExperts) + 1]
        if type(self) is not _class_of(plain):
            return super().__reduce_ex__(protocol)
        return _made_of, (plain,), self.__dict__


@functools.lru_cache(maxsize=None)
def _class_of(plain: Type[torch.nn.Module]) -> Type[torch.nn.Module]:
    return type(f"Float8{plain.__name__}", (Float8GroupedExperts, plain), {"__module__": __name__})


def _made_of(plain: Type[torch.nn.Module]) -> torch.nn.Module:
    made = _class_of(plain)
    return made.__new__(made)


def is_grouped_experts(module: torch.nn.Module) -> bool:
    """Has its class, or one that it is made of, this name?"""
    return any(each.__name__ == _NAME for each in type(module).__mro__)


def _check_form(module: torch.nn.Module, subject: str) -> None:
    shapes = {name: tuple(each.shape) for name, each in module.named_parameters()}
    if set(shapes) == set(_WEIGHTS) and len(shapes["w1"]) == 3:
        experts, hidden, dim = shapes["w1"]
        if shapes["w3"] == shapes["w1"] and shapes["w2"] == (experts, dim, hidden):
            return check_sizes_of_experts(f"{subject}:", dim, hidden, module.w1.device)
    raise LinearError(
        f"{subject}: has the parameters {', '.join(f'{name} {shape}' for name, shape in shapes.items()) or 'of no expert'}, expected w1 "
        "and w3 (experts, hidden, dim) and w2 (experts, dim, hidden): call ingot.torch.grouped_linear() in its forward"
    )


def _probe_of(module: torch.nn.Module, weights: Dict[str, torch.Tensor]) -> torch.nn.Module:
    probe = copy.copy(module)
    probe._parameters = {name: torch.nn.Parameter(each) for name, each in weights.items()}
    probe._buffers = {name: each if each is None else each.clone() for name, each in module._buffers.items()}
    return probe


@torch.no_grad()
def _check_computation(module: torch.nn.Module, subject: str) -> None:
    """Other modules of this name have other activations: a copy with as many experts, which are small, is compared with what takes
    its place, on rows of several magnitudes each, since activations differ about 0 or far from it."""
    generator, device = torch.Generator().manual_seed(0), module.w1.device
    if module.w1.is_meta:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    drawn = lambda *sizes: torch.randn(sizes, generator=generator, dtype=torch.float32, device="cpu").to(device)
    experts = module.w1.shape[0]
    weights = {name: drawn(experts, _SMALL, _SMALL) / _SMALL**0.5 for name in _WEIGHTS}
    times_each = max(2, 32 // experts)  # rows enough for a steady norm
    counts = torch.full((experts,), times_each * len(_MAGNITUDES), device=device)
    magnitudes = torch.tensor(_MAGNITUDES, dtype=torch.float32, device=device).repeat(times_each * experts)
    x = drawn(len(magnitudes), _SMALL) * magnitudes[:, None]
    try:
        found = type(module).forward(_probe_of(module, weights), x, counts).float()
    except Exception as error:  # whatever its library raises
        what = next(iter(str(error).splitlines()), "")
        raise LinearError(
            f"{subject}: its forward does not run with experts of {_SMALL} x {_SMALL} on {device} ({type(error).__name__}: {what}), so "
            "what it computes is not known: move it to the device that it runs on, or, if it is w2(silu(w1(x)) * w3(x)), call "
            f"{_CALLER}(model, trusted=True)"
        ) from error
    w1, w2, w3 = (weights[name].repeat_interleave(counts, 0) for name in _WEIGHTS)
    times = lambda rows, of_rows: (of_rows @ rows[..., None])[..., 0]
    expected = times(torch.nn.functional.silu(times(x, w1)) * times(x, w3), w2)
    differs = lambda chosen: not (found[chosen] - expected[chosen]).norm() <= _TOLERANCE * expected[chosen].norm()
    if found.shape != expected.shape or any(differs(magnitudes == each) for each in _MAGNITUDES):
        raise LinearError(
            f"{subject}: does not compute w2(silu(w1(x)) * w3(x)), which is what an FP8 module would compute in its place: call "
            "ingot.torch.grouped_linear() in its forward"
        )


def check_grouped_experts(module: torch.nn.Module, subject: str, trusted: bool = False) -> None:
    """Raises LinearError for a GroupedExperts that computes something else than an FP8 one in its place, or for one that does not
    run to tell, unless it is trusted."""
    if not isinstance(module, Float8GroupedExperts):
        _check_form(module, subject)
        if not trusted:
            _check_computation(module, subject)


def convert_grouped_experts_(
    model: torch.nn.Module,
    recipe: str = "rowwise",
    fast_gradients: bool = False,
    filter_fn: Optional[Callable[[torch.nn.Module, str], bool]] = None,
    trusted: bool = False,
) -> List[str]:
    """Has the GroupedExperts of a model compute in FP8, forward and backward, in place. Returns their names. They keep their
    parameters, hooks and class, of which theirs is then a subclass, so checkpoints, optimizers, FSDP2 and expert parallelism
    find what they know; convert before torch.compile(). recipe: "tensorwise", "rowwise" or "blockwise", not "delayed"; another
    call changes it. fast_gradients: as LinearOptions has it. filter_fn(module, name) says which. Groups need no padding, and
    padded ones are taken. Each module's forward is run with small experts, to see that it computes what FP8 experts do;
    trusted=True runs nothing, and takes your word, where a module runs with its own sizes alone. Raises LinearError for a model
    without such modules, and for those that have other parameters, compute something else or do not run, before it changes
    anything."""
    if not isinstance(model, torch.nn.Module):
        raise LinearError(f"{_CALLER} model: is a {type(model).__name__}, expected a torch.nn.Module")
    if filter_fn is not None and not callable(filter_fn):
        raise LinearError(
            f"{_CALLER} filter_fn: is a {type(filter_fn).__name__}, expected a function (module, name) that says whether to convert it"
        )
    check_recipe_of_experts(_CALLER, recipe, fast_gradients)
    if recipe == "delayed":
        raise LinearError(
            f'{_CALLER} recipe: is "delayed", but expert parallelism gives each rank other experts of such modules, whose scales no '
            'checkpoint would hold: take "tensorwise"'
        )
    named = {name: module for name, module in model.named_modules() if is_grouped_experts(module)}
    found = {name: module for name, module in named.items() if filter_fn is None or filter_fn(module, name)}
    if not found:
        raise LinearError(
            f"{_CALLER}: {type(model).__name__} has no GroupedExperts{' that filter_fn takes' if named else ''}, which are modules of a "
            "class of this name with the parameters w1, w2 and w3: ingot.integrations.experts.convert_experts_() is for the experts of "
            "transformers"
        )
    for name, module in found.items():
        check_grouped_experts(module, f"{_CALLER} {name or _NAME}", trusted)
    for name, module in found.items():
        if not isinstance(module, Float8GroupedExperts):
            module.__class__ = _class_of(type(module))
        module.ingot_options = LinearOptions(recipe, name or _NAME, fast_gradients=fast_gradients)
    return list(found)
