"""transformers: from_pretrained(quantization_config=IngotConfig(...)) gives a model that trains in FP8.

    from ingot.integrations.transformers import IngotConfig
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, quantization_config=IngotConfig("rowwise"))
    Trainer(model, ...).train()

The model's weights are loaded in high precision, and then it is ingot.nn.convert()ed; it is an ordinary model to the Trainer and to
save_pretrained(), which writes the weights that it has, under the model's own names.
"""

from __future__ import annotations

from typing import Any, List, Optional

import torch
from transformers import TrainerCallback
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..nn import ConvertReport, convert, sync_amax_history
from ..torch._errors import LinearError
from ..torch._module_calls import check_module_recipe

__all__ = ["DelayedScales", "IngotConfig"]

METHOD = "ingot"


@register_quantization_config(METHOD)
class IngotConfig(QuantizationConfigMixin):
    """How from_pretrained() converts a model to FP8: the arguments of ingot.nn.convert(). modules_to_not_convert: names of
    modules, or parts of their names, whose layers stay. Raises LinearError for an unknown recipe, and for names that are
    no list."""

    def __init__(
        self,
        recipe: str = "tensorwise",
        tokens: Optional[int] = None,
        gpu: Optional[str] = None,
        head: bool = False,
        fuse: bool = True,
        history_length: int = 16,
        modules_to_not_convert: Optional[List[str]] = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("quant_method", None)
        if kwargs:
            raise LinearError(f"IngotConfig {', '.join(sorted(kwargs))}: is no argument of ingot.nn.convert()")
        check_module_recipe("IngotConfig", recipe)
        left = modules_to_not_convert
        if left is not None and not (isinstance(left, (list, tuple, set)) and all(isinstance(each, str) for each in left)):
            raise LinearError(f"IngotConfig modules_to_not_convert: is {left!r}, expected a list of names, such as ['lm_head']")
        self.quant_method = METHOD
        self.recipe, self.tokens, self.gpu, self.head, self.fuse = recipe, tokens, gpu, head, fuse
        self.history_length = history_length
        self.modules_to_not_convert = modules_to_not_convert

    def convert(self, model: torch.nn.Module) -> ConvertReport:
        left = self.modules_to_not_convert or []
        return convert(
            model,
            self.recipe,
            tokens=self.tokens,
            gpu=self.gpu,
            head=self.head,
            fuse=self.fuse,
            history_length=self.history_length,
            filter_fn=lambda layer, name: not any(each in name for each in left),
        )


@register_quantizer(METHOD)
class IngotQuantizer(HfQuantizer):
    """What from_pretrained() calls for an IngotConfig."""

    requires_calibration = False
    quantization_config: IngotConfig

    def _process_model_before_weight_loading(self, model: Any, device_map: Any = None, **kwargs: Any) -> None:
        devices = device_map.values() if isinstance(device_map, dict) else ()
        if len(set(devices)) > 1:  # accelerate will put its own forward into each module
            model.ingot_report = self.quantization_config.convert(model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if not hasattr(model, "ingot_report"):  # after it has initialised what the checkpoint lacks, by the modules' classes
            model.ingot_report = self.quantization_config.convert(model)
        self.remove_quantization_config(model)  # its weights are not quantized: it trains and is saved as any other
        return model

    def update_missing_keys(self, model: Any, missing_keys: List[str], prefix: str) -> List[str]:
        """Checkpoints have no delayed scales, which begin anew."""
        return [key for key in missing_keys if not key.rpartition(".")[2].startswith("fp8_")]

    def is_serializable(self, safe_serialization: Any = None) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


class DelayedScales(TrainerCallback):
    """For the recipe "delayed": makes the scales of the next step from the maxima of this one, before each optimizer's step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        sync_amax_history(model)
