"""WeightOnlyLinear: a linear layer for inference whose weight has 8, 6 or 4 bits, and activations 16."""

from __future__ import annotations

import weakref
from typing import Optional

import torch

from .. import _core
from .._arrays import PACKED_BITS
from ..torch import _codes
from ..torch import _weight_operators as weight_ops
from ..torch._errors import LinearError
from ..torch._module_calls import interned
from ..torch._stored_linear import records, run_weight_only
from ._stored_linear import StoredLinear


class WeightOnlyLinear(StoredLinear, torch.nn.Linear):
    """y = x @ weight.T + bias for x (..., in_features) of bfloat16 or float16; y has its dtype.

    weight_dtype: "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m2fn", "e2m3fn" or "e2m1fn", or PyTorch's dtype. scale:
    what shares a factor: "tensor", "row", "1x128", "1x64", "1x32", "128x128", or "mx", the way to FP6 and FP4. layout:
    of codes in memory; "auto" is the fastest for the layer's dtype, also after .half() or .bfloat16(). `dtype` is that
    of the bias and of the activations to be fast for. batch_invariant: a row of y does not depend on how many
    other rows there are. from_float(), from_codes() and quantize_() make layers with values; a new one has zeros.

    state_dict() has weight (uint8), weight_scale, packing (the bytes' layout) and bias. A layer loads a state of any
    layout, and refuses one of another format. The attribute `weight` shows the values of the codes, in that dtype, which
    other code may read and not write; codes() and named_buffers() have the codes. Whoever writes the buffers other than
    by load_state_dict() and .to() replaces them, or waits for the device before the next forward under torch.compile or
    in a captured graph.
    """

    _kind, _exported_as, _dtype_name, _stored_dtype = "WeightOnlyLinear", "weight_only", "activation_dtype", torch.uint8
    _inputs = (torch.bfloat16, torch.float16)
    _expected = "bfloat16 or float16: convert it with .to(), or use torch.autocast"
    _settled = None  # the codes and scale_inv that the device has finished writing, and their versions

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        weight_dtype="e4m3fn",
        scale: str = "row",
        layout: str = "auto",
        batch_invariant: bool = False,
        layer_name: str = "linear",
    ) -> None:
        torch.nn.Module.__init__(self)
        self._name(in_features, out_features, layer_name)
        self.activation_dtype = dtype or torch.bfloat16
        self.layout_choice = layout
        first = "packed" if layout == "auto" else layout
        self._form = _codes.weight_format(weight_dtype, scale, False, first, batch_invariant, self._subject)
        self._form = interned(self._form._replace(layout=self._best_layout()))
        facts = self._facts()
        shape = (facts.weight_bytes,) if self._form.layout != "row_major" else (out_features, facts.code_bytes)
        self._make_zeros(torch.zeros(shape, dtype=torch.uint8, device=device), bias)
        self.register_buffer("packing", self._packing(device))

    # ---- making ----

    @classmethod
    def from_float(
        cls,
        module: torch.nn.Linear,
        weight_dtype="e4m3fn",
        scale: str = "row",
        *,
        pow2: bool = False,
        layout: str = "auto",
        batch_invariant: bool = False,
        layer_name: str = "linear",
    ) -> "WeightOnlyLinear":
        """Casts the weight of a linear layer, on its device, and takes its hooks, mode, and whatever else was set on it.
        pow2 rounds scales to powers of two. Raises LinearError for what is no torch.nn.Linear or computes its weight,
        and for FP6 and FP4 without scale="mx"."""
        options = {"weight_dtype": weight_dtype, "scale": scale, "layout": layout, "batch_invariant": batch_invariant}
        return cls._of_float(module, pow2, True, layer_name=layer_name, **options)

    @classmethod
    def from_codes(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: Optional[torch.Tensor] = None,
        *,
        weight_dtype=None,
        scale: str = "row",
        in_features: Optional[int] = None,
        dtype: Optional[torch.dtype] = None,
        layout: str = "auto",
        batch_invariant: bool = False,
        layer_name: str = "linear",
    ) -> "WeightOnlyLinear":
        """Makes a layer of a checkpoint's codes (out_features, in_features) and scales, value = code * scale.

        codes: float8, or bits in uint8 with their weight_dtype; FP6 and FP4 are packed rows, lowest bits first, and
        in_features says how many codes a row has. Raises LinearError for codes and scales that do not fit."""
        subject = f'WeightOnlyLinear.from_codes "{layer_name}"'
        form = _codes.weight_format(weight_dtype or codes.dtype, scale, False, "row_major", False, subject)
        if codes.dtype not in (torch.uint8, _codes.FLOAT8.get(form.dtype)):
            raise LinearError(f"{subject} codes: is {codes.dtype}, but weight_dtype says {form.dtype}")
        if codes.dim() != 2:
            raise LinearError(f"{subject} codes: has shape {tuple(codes.shape)}, expected (out_features, in_features)")
        columns = in_features or codes.shape[1] * 8 // PACKED_BITS.get(form.dtype, 8)
        scale_inv = _codes.float_scale_inv(scales, scale, codes.shape[0], columns, subject)
        dtype = dtype or (None if bias is None else bias.dtype)
        options = {"weight_dtype": form.dtype, "scale": scale, "layout": layout, "batch_invariant": batch_invariant}
        new = cls(columns, codes.shape[0], bias is not None, "meta", dtype, layer_name=layer_name, **options)
        rows = _codes.aligned(codes.detach().contiguous()).view(torch.uint8)
        if rows.shape[1] != new._facts().code_bytes:
            raise LinearError(f"{subject} codes: has rows of {rows.shape[1]} bytes, expected {new._facts().code_bytes}")
        new._take(rows, scale_inv.to(codes.device), bias)
        return new

    @torch.inference_mode(False)  # the layer watches for writes, which inference tensors do not count
    def _take(self, codes, scale_inv, bias) -> None:
        codes, scale_inv = (each.clone() if each.is_inference() else each for each in (codes, scale_inv))
        packed = _codes.packed(codes, self._form, self.layer_name, self.out_features, self.in_features)
        super()._take(packed, scale_inv, bias)
        self.packing = self._packing(codes.device)
        self._settle()

    def reset_parameters(self) -> None:
        """Sets zeros, as a new layer has: values come from a cast or a checkpoint."""
        super().reset_parameters()
        self.packing = self._packing(self.packing.device)
        self._settle()

    # ---- computing ----

    _records = staticmethod(records)

    def _facts_to_export(self):
        sizes = self.out_features, self.in_features
        return {"sizes": sizes, "form": tuple(self._form), "packing": _core.packed_layout_version}

    def _run_traced(self, tensors) -> torch.Tensor:
        # Without the name, which a compiler would guard: equal layers share a graph.
        sizes = self.out_features, self.in_features
        return run_weight_only(*tensors, (None, self._form, *sizes), _codes.plan_of_trace(*self._form, *sizes), 1)

    def _run(self, tensors) -> torch.Tensor:
        layer = (self.layer_name, self._form, self.out_features, self.in_features)
        return run_weight_only(*tensors, layer, self._facts().number, 1 if self._is_settled() else 0)

    def codes(self) -> torch.Tensor:
        """The codes in plain rows: uint8 (out_features, bytes of a row)."""
        return _codes.unpacked(self._stored(), self._form, self.layer_name, self.out_features, self.in_features)

    # ---- what the layer is ----

    @property
    def weight_dtype(self) -> str:
        """The format of the codes: "e4m3fn", "e2m1fn" and so on."""
        return self._form.dtype

    @property
    def scale(self) -> str:
        """What shares a scale: "row", "128x128", "mx" and so on."""
        return self._form.scale

    @property
    def layout(self) -> str:
        """The order of the codes in memory: "packed", "packed_f16" or "row_major"."""
        return self._form.layout

    @property
    def batch_invariant(self) -> bool:
        """Is a row of y the same bits whatever other rows there are?"""
        return self._form.batch_invariant

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"{self.weight_dtype}, scale={self.scale}, layout={self.layout}"
        )

    def _facts(self) -> weight_ops.WeightFacts:
        return weight_ops.weight_plan(self.layer_name, self._form, self.out_features, self.in_features)

    def _best_layout(self) -> str:
        if self.layout_choice != "auto":
            return self.layout_choice
        half = self.activation_dtype == torch.float16 and self._form.dtype not in PACKED_BITS
        return "packed_f16" if half else "packed"

    def _packing(self, device=None) -> torch.Tensor:
        """The version of packed layouts, then the layout, the format and the scale, by their places in the lists."""
        form = self._form
        places = (_codes.LAYOUTS.index(form.layout), _codes.FORMATS.index(form.dtype), _codes.SCALES.index(form.scale))
        return torch.tensor([_core.packed_layout_version, *places], dtype=torch.int32, device=device)

    # ---- being moved, loaded and copied ----

    def _settle(self) -> bool:
        """Waits until the device has written the weight and its scale_inv: kernels may then read them before the work
        ahead has ended. Returns False where it cannot: while this stream is captured, and for inference tensors, whose
        writes are not counted."""
        self._settled = None
        codes, scale_inv = self._stored(), self.weight_scale
        if type(codes) is not torch.Tensor or codes.is_meta or codes.is_inference() or scale_inv.is_inference():
            return False
        versions = codes._version, scale_inv._version
        if not _core.torch_synchronize(codes.device.index if codes.is_cuda else -1):
            return False
        self._settled = (weakref.ref(codes), weakref.ref(scale_inv), *versions)
        return True

    def _is_settled(self) -> bool:
        settled, codes, scale_inv = self._settled, self._stored(), self.weight_scale
        if settled is not None and settled[0]() is codes and settled[1]() is scale_inv:
            if settled[2] == codes._version and settled[3] == scale_inv._version:
                return True
        return self._settle()

    def _states_to_prepare(self, device: torch.device):
        """Keeps what is known of the weight while ingot.torch.prepare() uses a substitute for it."""
        settled = self._settled
        try:
            yield
        finally:
            self._settled = settled

    @torch.inference_mode(False)
    def _apply(self, fn, recurse: bool = True):
        packing = self.packing
        super()._apply(fn, recurse)
        if self.packing is not packing:  # to_empty() leaves it without values
            self.packing = self._packing(self.packing.device)
        self._change_layout(self._best_layout())
        self._settle()
        return self

    def _change_layout(self, layout: str) -> None:
        if layout == self._form.layout:
            return
        new = interned(self._form._replace(layout=layout))
        if not self._stored().is_meta:
            sizes = (self.layer_name, self.out_features, self.in_features)
            self.weight = _codes.packed(_codes.unpacked(self._stored(), self._form, *sizes), new, *sizes)
        self._form = new
        self.packing = self._packing(self.packing.device)

    def _load_from_state_dict(self, *arguments):
        self._settled = None  # torch.utils.swap_tensors() refuses tensors that are referred to weakly
        super()._load_from_state_dict(*arguments)
        self._settle()

    def _take_state(self, state_dict, prefix: str) -> str:
        """Gives a stored weight this layer's layout."""
        weight, packing = state_dict.get(prefix + "weight"), state_dict.get(prefix + "packing")
        if weight is None:
            return ""
        if weight.dtype != torch.uint8:
            how = "from_codes()" if weight.dtype in _codes.FLOAT8.values() else "from_float() of a torch.nn.Linear"
            return f"is {weight.dtype}, but the layer's codes are bytes (torch.uint8): make the layer with {how}"
        for name, tensor in (("packing", packing), ("weight_scale", state_dict.get(prefix + "weight_scale"))):
            if tensor is None:
                return f"comes without {name}, which its codes need: make the layer with from_codes()"
        if packing.is_meta or weight.is_meta:
            return ""
        places = packing.reshape(-1).tolist()
        lists = (_codes.LAYOUTS, _codes.FORMATS, _codes.SCALES)
        if len(places) != 4 or any(not 0 <= at < len(names) for at, names in zip(places[1:], lists)):
            return f"has the packing {places}, which no version of Ingot writes: the state is damaged"
        layout, dtype, scale = (names[at] for at, names in zip(places[1:], lists))
        if (dtype, scale) != (self.weight_dtype, self.scale):
            return (
                f"is stored as {dtype} with scale={scale}, but the layer is {self.weight_dtype} with scale={self.scale}: "
                "make the layer with the stored format"
            )
        if places[0] != _core.packed_layout_version and layout != "row_major":
            return "was packed by another version of Ingot: quantize the model again"
        sizes = (self.layer_name, self.out_features, self.in_features)
        facts = weight_ops.weight_plan(sizes[0], self._form._replace(layout=layout), *sizes[1:])
        expected = facts.out_features * facts.code_bytes if layout == "row_major" else facts.weight_bytes
        if weight.numel() != expected:
            return f"has {weight.numel()} bytes, but one of {sizes[1:]} has {expected}: give the layer's own state"
        if layout != self.layout:
            codes = _codes.unpacked(_codes.aligned(weight), self._form._replace(layout=layout), *sizes)
            state_dict[prefix + "weight"] = _codes.packed(codes, self._form, *sizes)
            state_dict[prefix + "packing"] = self._packing(weight.device)
        return ""

    def __getstate__(self):
        state = super().__getstate__()
        state.pop("_settled", None)  # of this process's memory
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._form = interned(self._form)
