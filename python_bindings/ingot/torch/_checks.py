"""Checks of the layers' tensors: each error is one sentence that names the layer, the tensor and the remedy."""

from __future__ import annotations

from typing import Callable, NoReturn, Optional, Protocol, Union

import torch
from torch.autograd import forward_ad

from ._errors import LinearError, from_operator
from ._operators import HIGH_PRECISION

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DEVICES = ("cpu", "cuda", "meta")
_DTENSOR = (
    "computes with plain tensors, and got a DTensor: shard the whole module whose forward is called, not a part of it, "
    "or pass .to_local() or .full_tensor()"
)


class HasSubject(Protocol):
    """A layer's options."""

    subject: str


# What messages begin with: 'linear "fc"', or the options that have it. A compiler guards each text that a check is given,
# and would compile a layer again for each name: what layers call within a graph gets the options, and only a refusal
# reads their text.
Subject = Union[str, HasSubject]


class SubjectOfExperts:
    """A layer of experts' options, whose own subject is a linear layer's. kind: "grouped linear" or "experts"."""

    def __init__(self, kind: str, options) -> None:
        self._kind, self._options = kind, options

    @property
    def subject(self) -> str:
        return f'{self._kind} "{self._options.name}"'


def refuse(subject: Subject, what: str) -> NoReturn:
    raise LinearError(f"{subject if isinstance(subject, str) else subject.subject} {what}")


def is_dense(tensor: object) -> bool:
    """Is it a tensor with sizes and strides? Until that is known nothing else can be asked of it."""
    if type(tensor) not in _PLAIN and not isinstance(tensor, torch.Tensor):  # which takes longer to ask
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def check_dense(subject: Subject, name: str, tensor: torch.Tensor) -> None:
    if is_dense(tensor):
        return
    if isinstance(tensor, torch.fx.Proxy):
        refuse(
            subject,
            f"{name}: is traced by torch.fx, which cannot look into a layer: make the layer a leaf (is_leaf_module() of a "
            "torch.fx.Tracer), or use torch.export",
        )
    if not isinstance(tensor, torch.Tensor):
        refuse(subject, f"{name}: is a {type(tensor).__name__}, expected a torch.Tensor: torch.as_tensor() makes one")
    if tensor.is_nested:
        refuse(
            subject,
            f"{name}: is a nested tensor, expected one size for each dimension: give its .values(), rows of all parts, or "
            "pad it with torch.nested.to_padded_tensor(); a torch.nn.TransformerEncoder that makes it of a padding mask makes "
            "none with use_nested_tensor = False, which ingot.nn's conversions of models set",
        )
    refuse(subject, f"{name}: is {tensor.layout}, expected a dense tensor: convert it with .to_dense()")


def check_input(subject: Subject, input: torch.Tensor, in_features: int) -> None:
    check_dense(subject, "input", input)
    if input.dim() == 0 or input.shape[-1] != in_features:
        refuse(subject, f"input: has shape {tuple(input.shape)}, expected (..., {in_features})")
    if input.device.type not in _DEVICES:
        refuse(subject, f"input: is on {input.device}, but Ingot computes on the CPU and on CUDA: move it with .to()")


def check_tensor(subject: Subject, name: str, tensor: torch.Tensor, input: torch.Tensor) -> None:
    """Checks a tensor's dtype, and that it is on the input's device."""
    if tensor.dtype not in HIGH_PRECISION:
        refuse(subject, f"{name}: is {tensor.dtype}, expected float32, float16 or bfloat16: convert it with .to()")
    if tensor.device != input.device:
        refuse_places(subject, input, **{name: tensor})


def in_one_place(input: torch.Tensor, *tensors: Optional[torch.Tensor]) -> bool:
    """Are the given tensors on the input's device? Each call of a layer asks, so this formats no message."""
    device = input.device
    for tensor in tensors:
        if tensor is not None and tensor.device != device:
            return False
    return True


def refuse_places(subject: Subject, input: torch.Tensor, /, **tensors: Optional[torch.Tensor]) -> None:
    """Raises the error that names a tensor on another device than the input's."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != input.device:
            remedy = "move one with .to()"
            if tensor.is_meta:
                remedy = (
                    "load its values, after to_empty(); where accelerate offloads the model, list the class of this module "
                    "in its preload_module_classes, because it loads the parts of a module only when they are called"
                )
            refuse(subject, f"{name}: is on {tensor.device} and the input on {input.device}: {remedy}")


def check_weight(subject: Subject, name: str, weight: torch.Tensor) -> None:
    check_dense(subject, name, weight)
    if weight.dim() != 2:
        refuse(subject, f"{name}: has shape {tuple(weight.shape)}, expected (out_features, in_features)")


def check_vector(subject: Subject, name: str, vector: torch.Tensor, count: int) -> None:
    check_dense(subject, name, vector)
    if tuple(vector.shape) != (count,):
        refuse(subject, f"{name}: has shape {tuple(vector.shape)}, expected ({count},)")


def check_layer(
    subject: Subject,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    names: tuple[str, str] = ("weight", "bias"),
) -> None:
    """Checks a layer's tensors. `names`: what messages call the weight and the bias."""
    check_weight(subject, names[0], weight)
    check_input(subject, input, weight.shape[1])
    if bias is not None:
        check_vector(subject, names[1], bias, weight.shape[0])
    for name, tensor in (("input", input), (names[0], weight), (names[1], bias)):
        if tensor is not None:
            check_tensor(subject, name, tensor, input)


def check_norm(
    subject: Subject, input: torch.Tensor, gamma: Optional[torch.Tensor], beta: Optional[torch.Tensor], kind: str
) -> None:
    """Checks a norm's tensors, with an input that autocast has converted already."""
    if beta is not None and (kind == "rms" or gamma is None):
        what = "an RMSNorm" if kind == "rms" else "a norm without weight"
        refuse(subject, f"norm bias: is given, but {what} has none")
    for name, tensor in (("norm weight", gamma), ("norm bias", beta)):
        if tensor is None:
            continue
        check_vector(subject, name, tensor, input.shape[-1])
        check_tensor(subject, name, tensor, input)
        if tensor.dtype not in (torch.float32, input.dtype):
            refuse(
                subject,
                f"{name}: is {tensor.dtype} with an input of {input.dtype}, expected that dtype or float32: convert "
                "one with .to()",
            )
    if beta is not None and beta.dtype != gamma.dtype:
        refuse(subject, f"norm bias: is {beta.dtype} with a norm weight of {gamma.dtype}: convert one with .to()")


_transforms_are_active = torch._C._are_functorch_transforms_active
_DIFFERENTIATING = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def _is_transformed(records: bool) -> bool:
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return bool(transforms) and (records or any(each.key() in _DIFFERENTIATING for each in transforms))


@torch.compiler.assume_constant_result
def _trace_is_transformed(records: bool) -> bool:
    # What is traced does not say which of its tensors have tangents.
    return forward_ad._current_level >= 0 or _is_transformed(records)


def is_transformed(*tensors: Optional[torch.Tensor], records: Optional[bool] = None) -> bool:
    """Would a call with these tensors be differentiated in a way that operators do not support, other than by
    backward(): by a torch.func transform or in forward mode? torch.vmap alone may run an operator, but no
    autograd.Function. records: does the call run one? None: where gradients are on."""
    records = torch.is_grad_enabled() if records is None else records
    if torch.compiler.is_compiling():
        return _trace_is_transformed(records)
    if _transforms_are_active() and _is_transformed(records):
        return True
    return forward_ad._current_level >= 0 and any(
        each is not None and forward_ad.unpack_dual(each).tangent is not None for each in tensors
    )


def refuse_transforms(subject: Subject) -> NoReturn:
    refuse(
        subject,
        "cannot run under torch.func transforms (vmap, grad, jvp) and in forward mode: give it the whole batch, which may "
        "have any rank, and take its gradients by backward() or torch.autograd.grad()",
    )


def layer_error(error: RuntimeError, subject: str) -> RuntimeError:
    """The error that an operator's call has raised, as one of ingot's that names the layer."""
    if _transforms_are_active():
        try:
            refuse_transforms(subject)
        except LinearError as refused:
            return refused
    text = str(error)
    if "DTensor" in text or "sharding strategy" in text:  # PyTorch's words for an operator that knows no DTensor
        return LinearError(f"{subject} {_DTENSOR}")
    return from_operator(error)


def called(subject: str, operator: Callable, *arguments, **named):
    """Returns an operator's results. Its errors become Ingot's, and name the layer."""
    if torch.compiler.is_compiling():
        return operator(*arguments, **named)
    try:
        return operator(*arguments, **named)
    except RuntimeError as error:
        raise layer_error(error, subject) from None


def _is_batched(tensor: torch.Tensor) -> bool:
    """Is it torch.vmap's, or that of autograd's older one?"""
    try:
        tensor.untyped_storage()
    except NotImplementedError as error:
        return "Batched" in str(error)
    return False


def refuse_batched_gradients(subject: Subject, grad_output: torch.Tensor) -> None:
    """Call it within a backward that has state or reads values."""
    if not torch.compiler.is_compiling() and _is_batched(grad_output):
        refuse(
            subject,
            "backward: takes one gradient of the output at a time, and got a batch of them (is_grads_batched=True, "
            "vectorize=True): call it for each",
        )


RECIPES_OF_EXPERTS = ("tensorwise", "delayed", "rowwise", "blockwise")  # that grouped GEMMs take


def check_recipe_of_experts(subject: Subject, recipe: str, fast_gradients: bool = False) -> None:
    if recipe not in RECIPES_OF_EXPERTS:
        refuse(subject, f"recipe: {recipe!r} is not one of {', '.join(RECIPES_OF_EXPERTS)}, which grouped GEMMs take")
    if fast_gradients and recipe == "blockwise":
        refuse(subject, "fast_gradients: is set, but blockwise sums each 128 of a product separately, by their scales: leave it out")


def check_bias_of_experts(caller: str, name: str, bias: Optional[torch.Tensor], weight: torch.Tensor) -> None:
    """Of a layer whose weights are (experts, N, K)."""
    if bias is None:
        return
    check_dense(caller, name, bias)
    what = f"{caller} {name}"
    if tuple(bias.shape) != tuple(weight.shape[:2]):
        raise LinearError(f"{what}: has the shape {tuple(bias.shape)}, expected {tuple(weight.shape[:2])}, a row for each expert")
    if not bias.is_floating_point() or bias.dtype.itemsize not in (2, 4):
        raise LinearError(f"{what}: is {bias.dtype}, expected float32, bfloat16 or float16")
    if bias.device != weight.device:
        raise LinearError(f"{what}: is on {bias.device} and the weight on {weight.device}: move one with .to()")


_MULTIPLE, _HOPPER = 16, (9, 0)  # what grouped GEMMs need of sizes, and of the GPU


def check_sizes_of_experts(subject: str, hidden: int, intermediate: int, device: torch.device) -> None:
    """Refuses what a GPU's grouped GEMMs would refuse in the first forward; sizes on any device, as models move."""
    if hidden % _MULTIPLE != 0 or intermediate % _MULTIPLE != 0:
        refuse(
            subject,
            f"has a hidden size of {hidden} and an intermediate size of {intermediate}, but FP8 grouped GEMMs need multiples of "
            f"{_MULTIPLE}: leave this model's experts as they are",
        )
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability != _HOPPER:
        refuse(
            subject,
            f"is on {device}, a GPU of compute capability {'.'.join(map(str, capability))}, but FP8 grouped GEMMs need Hopper's 9.0: "
            "leave this model's experts as they are",
        )


def refuse_second_derivative_of_experts(kind: str, name: str) -> NoReturn:
    """kind: as SubjectOfExperts has it."""
    raise LinearError(
        f'{kind} "{name}" backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): multiply by '
        'torch._grouped_mm, or call set_experts_implementation("grouped_mm") of a transformers model'
    )


def refuse_double_backward(subject: Subject) -> None:
    """Call it within a backward: create_graph=True asks for a second derivative, which there is not."""
    if torch.is_grad_enabled():
        refuse(
            subject,
            "backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): use PyTorch's own "
            "modules for this layer",
        )
