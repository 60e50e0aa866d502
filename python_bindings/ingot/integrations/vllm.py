"""vLLM: `quantization="ingot"` computes linear layers from FP8 weights and 16-bit activations, by Ingot's operators.

vLLM finds register() by the package's entry point in vllm.general_plugins, in each of its processes.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

import torch

from ..torch._errors import LinearError

__all__ = ["register"]

METHOD = "ingot"
_SUBJECT = f'vLLM quantization="{METHOD}"'
_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}  # as compressed-tensors names FP8 with a scale for each row


def register() -> None:
    """Makes the name known to vLLM; imports nothing of it that starts a device."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(_config_class())


def _is_ignored(name: str, ignored: List[str]) -> bool:
    """By compressed-tensors' entries: a whole name, what it ends with, or a regular expression after "re:"."""
    return any(
        re.match(each[3:], name) is not None if each.startswith("re:") else name == each or name.endswith("." + each)
        for each in ignored
    )


def _config_class() -> type:
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    from vllm.model_executor.parameter import ChannelQuantScaleParameter, ModelWeightParameter

    from ..nn import WeightOnlyLinear
    from ..nn._parts import linear_with

    class IngotLinearMethod(LinearMethodBase):
        """stored: does the checkpoint have codes with a scale for each row? Else weights are cast once they are loaded."""

        def __init__(self, stored: bool) -> None:
            self.stored = stored

        def create_weights(
            self,
            layer: torch.nn.Module,
            input_size_per_partition: int,
            output_partition_sizes: List[int],
            input_size: int,
            output_size: int,
            params_dtype: torch.dtype,
            **extra: Any,
        ) -> None:
            loader, rows = extra["weight_loader"], sum(output_partition_sizes)
            layer.ingot_dtype = params_dtype
            dtype = torch.float8_e4m3fn if self.stored else params_dtype
            weight = torch.empty(rows, input_size_per_partition, dtype=dtype)
            layer.register_parameter("weight", ModelWeightParameter(data=weight, input_dim=1, output_dim=0, weight_loader=loader))
            if self.stored:
                scale = torch.full((rows, 1), torch.nan)
                scale = ChannelQuantScaleParameter(data=scale, output_dim=0, weight_loader=loader)
                layer.register_parameter("weight_scale", scale)

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            name = getattr(layer, "prefix", "") or "linear"
            weight = layer.weight.data
            if self.stored:
                missing = int(layer.weight_scale.isnan().sum())
                if missing:
                    raise LinearError(
                        f"{_SUBJECT} {name}: the checkpoint has no weight_scale for {missing} of {len(weight)} rows: if this "
                        "layer is in high precision there, its quantization_config must name it in \"ignore\""
                    )
                computed = WeightOnlyLinear.from_codes(
                    weight, layer.weight_scale.data, scale="row", dtype=layer.ingot_dtype, layer_name=name
                )
                del layer.weight_scale
            else:
                linear = linear_with(torch.nn.Parameter(weight, requires_grad=False), None)
                computed = WeightOnlyLinear.from_float(linear, scale="row", layer_name=name)
            del layer.weight
            layer.ingot = computed

        def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
            output = layer.ingot(x)
            return output if bias is None else output + bias

    class IngotQuantizationConfig(QuantizationConfig):
        """ignored: the modules that stay in high precision, as compressed-tensors names them."""

        def __init__(self, stored: bool = False, ignored: Optional[List[str]] = None) -> None:
            super().__init__()
            self.stored, self.ignored = stored, list(ignored or [])

        def get_name(self) -> str:
            return METHOD

        def get_supported_act_dtypes(self) -> List[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        @classmethod
        def get_min_capability(cls) -> int:
            return 80

        @staticmethod
        def get_config_filenames() -> List[str]:
            return []

        @classmethod
        def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: Optional[str], **_: Any) -> Optional[str]:
            return METHOD if user_quant == METHOD and hf_quant_cfg is not None else None

        @classmethod
        def from_config(cls, config: Dict[str, Any]) -> "IngotQuantizationConfig":
            if not config:
                return cls()
            method, groups = config.get("quant_method"), config.get("config_groups") or {}
            said = [{key: (group.get("weights") or {}).get(key) for key in _WEIGHTS} for group in groups.values()]
            if method == "compressed-tensors" and said and all(each == _WEIGHTS for each in said):
                return cls(True, config.get("ignore"))
            other = next((f" and weights of {each}" for each in said if each != _WEIGHTS), "")
            raise LinearError(
                f"{_SUBJECT}: the checkpoint's quantization_config has quant_method {method!r}{other}, expected none, or "
                f"compressed-tensors with weights of {_WEIGHTS}: leave out quantization= and vLLM computes it"
            )

        def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
            if not isinstance(layer, LinearBase):
                experts = [f"{prefix}.0.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
                left = _is_ignored(prefix, self.ignored) or all(_is_ignored(each, self.ignored) for each in experts)
                if self.stored and isinstance(layer, RoutedExperts) and not left:  # which would take codes for values
                    raise LinearError(f"{_SUBJECT} {prefix}: experts in FP8 are not computed: leave out quantization=")
                return None  # embeddings, the head, attention and experts compute as without a quantization
            own, _, last = prefix.rpartition(".")
            fused = [f"{own}.{part}" if own else part for part in self.packed_modules_mapping.get(last, ())]
            left = [part for part in fused if _is_ignored(part, self.ignored)]
            if _is_ignored(prefix, self.ignored) or (left and left == fused):
                return UnquantizedLinearMethod()
            if left:
                raise LinearError(
                    f"{_SUBJECT} {prefix}: the checkpoint's \"ignore\" has {', '.join(left)} of its parts "
                    f"{', '.join(fused)}, which vLLM computes as one layer: it must have all of them, or none"
                )
            return IngotLinearMethod(self.stored)

        def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
            """vLLM's names of modules may differ from the checkpoint's."""
            self.ignored = [
                new
                for each in self.ignored
                for new in (hf_to_vllm_mapper.apply_list([each]) if "." in each and not each.startswith("re:") else [each])
            ]

    return IngotQuantizationConfig
