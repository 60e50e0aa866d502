"""Ingot in other libraries: each module imports its library, and is imported when it is used.

transformers: IngotConfig for from_pretrained(quantization_config=), and a callback for delayed scales.
experts: convert_experts_() and quantize_experts_(), transformers' mixtures of experts that train in FP8 or have FP8 weights.
grouped_experts: convert_grouped_experts_(), the same of torchtitan's GroupedExperts; it needs no library.
lightning: IngotPrecision, a plugin for the Trainer.
torchtitan: float8, an override of its config.
axolotl: IngotPlugin, for its YAML.
vllm: register(), which vLLM calls, for quantization="ingot".
Programs that use torchao.float8, accelerate's mixed_precision="fp8" among them, need none: python3 -m ingot.run.
"""
