"""Lightning: Trainer(plugins=IngotPrecision("rowwise")) trains a module in FP8.

    from ingot.integrations.lightning import IngotPrecision
    Trainer(plugins=IngotPrecision("rowwise"), ...).fit(module)

Works with the packages lightning and pytorch_lightning.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import torch

from ..nn import ConvertReport, convert, sync_amax_history
from ..torch._errors import LinearError
from ..torch._module_calls import check_module_recipe

__all__ = ["IngotPrecision"]

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning.plugins import Precision
else:
    try:
        from lightning.pytorch.plugins import Precision
    except ImportError:
        from pytorch_lightning.plugins import Precision


class IngotPrecision(Precision):
    """Converts the module by ingot.nn.convert() before it is wrapped and its optimizers are made.

    recipe and options: as convert() takes them. example=True takes the module's example_input_array, with which norms are
    computed within casts: only for modules whose training_step() runs the layers by forward(). autocast: the dtype of operations
    besides FP8 GEMMs in each step, None for that of the module. The scales of "delayed" are made before each optimizer's step.
    `report` says what was converted. Raises LinearError for an unknown recipe, and for a module without that array.
    """

    precision = "ingot"  # type: ignore[assignment]

    def __init__(self, recipe: str = "tensorwise", *, autocast: Optional[torch.dtype] = torch.bfloat16, **options: Any) -> None:
        super().__init__()
        check_module_recipe("IngotPrecision", recipe)
        self.recipe, self.autocast, self.options = recipe, autocast, options
        self.report: Optional[ConvertReport] = None
        self._module: Optional[torch.nn.Module] = None

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Lightning asks again in each of fit(), validate() and test()."""
        if module is self._module:
            return module
        options = dict(self.options)
        if options.get("example") is True:
            options["example"] = getattr(module, "example_input_array", None)
            if options["example"] is None:
                raise LinearError(
                    f"IngotPrecision example: is True, but {type(module).__name__} has no example_input_array: set it, or leave "
                    "example out"
                )
        self.report, self._module = convert(module, self.recipe, **options), module
        return module

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        first = next(self._module.parameters(), None) if self._module is not None else None
        device = first.device.type if first is not None else "cpu"
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            yield

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        def with_scales() -> Any:
            result = closure()
            if self.recipe == "delayed":
                sync_amax_history(model)
            return result

        return super().optimizer_step(optimizer, model, with_scales, **kwargs)
