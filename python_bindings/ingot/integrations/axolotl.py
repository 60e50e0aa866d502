"""axolotl: a plugin converts the model to FP8 by ingot.nn.convert(); its options are those of the YAML's entry `ingot`.

    plugins:
      - ingot.integrations.axolotl.IngotPlugin
    ingot:
      recipe: rowwise
      modules_to_not_convert: [layers.0.]
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from ..torch._errors import LinearError
from .transformers import DelayedScales, IngotConfig

__all__ = ["IngotArgs", "IngotPlugin"]

_CONTRADICT = {
    **dict.fromkeys(("fp8", "load_in_8bit", "load_in_4bit", "qat", "model_quantization_config"), "quantizes the model by itself"),
    **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), "computes the layers by itself"),
}


class IngotArgs(BaseModel):
    """The YAML's entry of the plugin."""

    ingot: Optional[Dict[str, Any]] = None


class IngotPlugin(BasePlugin):
    """Converts the model once it is loaded and has its adapters; makes the scales of the recipe "delayed" before each
    optimizer's step. Raises LinearError for an unknown option, and for one of axolotl's that quantizes the model too."""

    def register(self, cfg: Any) -> None:
        self._config(cfg)  # before data are read

    def get_input_args(self) -> str:
        return "ingot.integrations.axolotl.IngotArgs"

    def pre_model_load(self, cfg: Any) -> None:
        self._config(cfg)  # with what axolotl has set by itself

    def post_model_load(self, cfg: Any, model: Any) -> None:
        model.ingot_report = self._config(cfg).convert(model)

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> List[Any]:
        return [DelayedScales()] if self._config(cfg).recipe == "delayed" else []

    @staticmethod
    def _config(cfg: Any) -> IngotConfig:
        for name, why in _CONTRADICT.items():
            if cfg.get(name):
                raise LinearError(f"IngotPlugin {name}: {why}: set it to false, or leave the plugin out")
        options = cfg.get("ingot") or {}
        if not isinstance(options, Mapping):
            raise LinearError(f"IngotPlugin ingot: is {options!r}, expected options such as recipe: rowwise")
        config = IngotConfig(**options)
        if cfg.get("adapter"):  # whose small matrices train in high precision
            config.modules_to_not_convert = [*(config.modules_to_not_convert or []), ".lora_"]
        return config
