"""A new user's walk with transformers, from a checkpoint on disk to serving, as one program. For each recipe: a Llama that
from_pretrained() has loaded is converted, trained by Trainer (bf16, accumulation, gradient checkpointing, compiled if asked)
and saved in FP8; transformers loads that again, where it can, and load_float8_checkpoint() for serving with 16-bit
activations; peft's adapters are trained over the saved weights, and merged. Prints a line for each recipe, and ends with 1 if
something is wrong.

    python user_walk.py                                      # on the CPU
    python user_walk.py --device cuda --compile --hidden 512
    python user_walk.py --recipe rowwise --steps 4
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
import tempfile
import time
from typing import Union

import peft
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

from ingot.integrations.transformers import DelayedScales
from ingot.nn import FrozenFloat8Linear, WeightOnlyLinear, convert, dequantize_, load_float8_checkpoint, save_float8_checkpoint

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp", "rowwise_folded", "blockwise", "delayed")
VOCABULARY = 256
NEAR_BF16 = 0.03  # of the mean loss of the same steps in bf16
NEAR_LOGITS = 0.1  # relative to their norm: FP8 keeps three bits, and other layers round other tensors
NEAR_MERGED = 0.02  # of the same layers in bfloat16, whose adapters are added to the weight instead of to the output


class Walk:
    """One recipe's: what was measured, and what is wrong."""

    def __init__(self, source: pathlib.Path, folder: pathlib.Path, options: argparse.Namespace) -> None:
        self.source, self.folder, self.options = source, folder, options
        self.said: list[str] = []
        self.faults: list[str] = []

    def near(self, what: str, value: Union[torch.Tensor, float], expected: Union[torch.Tensor, float], bound: float) -> None:
        ours, theirs = torch.as_tensor(value).double(), torch.as_tensor(expected).double()
        apart = float((ours - theirs).norm() / theirs.norm())
        self.said.append(f"{what} {apart:.4f}")
        if not apart <= bound:  # NaN too
            self.faults.append(f"{what}: {apart:.4f} from what it should be, more than {bound}")

    def count(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            self.faults.append(f"{what}: {found}, expected {expected}")

    def loaded(self, dtype: torch.dtype) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(self.source, dtype=dtype).to(self.options.device)

    def trained(self, model: torch.nn.Module, steps: int, recipe: str = "", by: int = 1) -> float:
        """The mean loss. Sequences count upwards from anywhere, or by another number: that can be learnt."""
        starts = torch.randint(0, VOCABULARY, (64,), generator=torch.Generator().manual_seed(0))
        rows = [(start + by * torch.arange(self.options.tokens)) % VOCABULARY for start in starts]
        arguments = TrainingArguments(
            output_dir=str(self.folder), max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=1e-3, report_to=[], use_cpu=self.options.device == "cpu", disable_tqdm=True, save_strategy="no", seed=1,
            bf16=True, gradient_checkpointing=True, torch_compile=self.options.compile,
        )  # fmt: skip
        callbacks = [DelayedScales()] if recipe == "delayed" else []
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
        trainer.remove_callback(PrinterCallback)
        return trainer.train().training_loss

    @torch.no_grad()
    def logits(self, model: torch.nn.Module) -> torch.Tensor:
        starts = torch.tensor([[3], [90]], device=self.options.device)
        tokens = (starts + torch.arange(32, device=self.options.device)) % VOCABULARY
        return model.eval()(input_ids=tokens).logits.double()

    def run(self, recipe: str, loss_of_bf16: float) -> None:
        layers = 7 * self.options.layers
        model = self.loaded(torch.float32)
        self.count("layers that were converted", len(convert(model, recipe).converted), layers)
        self.near("loss", self.trained(model, self.options.steps, recipe), loss_of_bf16, NEAR_BF16)
        expected, saved = self.logits(model), self.folder / recipe
        config = save_float8_checkpoint(model, saved)

        if importlib.util.find_spec("compressed_tensors") or config["quant_method"] == "fp8":
            settings = transformers.FineGrainedFP8Config(dequantize=True) if config["quant_method"] == "fp8" else None
            again = LlamaForCausalLM.from_pretrained(saved, dtype=torch.bfloat16, quantization_config=settings)
            self.near("transformers", self.logits(again.to(self.options.device)), expected, NEAR_LOGITS)

        served = self.loaded(torch.bfloat16)
        load_float8_checkpoint(served, saved)
        self.count("WeightOnlyLinear", sum(isinstance(each, WeightOnlyLinear) for each in served.modules()), layers)
        self.near("weight-only", self.logits(served), expected, NEAR_LOGITS)
        self.adapters(saved, expected)

    def adapters(self, saved: pathlib.Path, expected: torch.Tensor) -> None:
        base = self.loaded(torch.bfloat16)
        load_float8_checkpoint(base, saved, layers="frozen")
        self.count(
            "FrozenFloat8Linear", sum(isinstance(each, FrozenFloat8Linear) for each in base.modules()), 7 * self.options.layers
        )
        self.near("frozen", self.logits(base), expected, NEAR_LOGITS)
        adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"]))
        before = [each.detach().clone() for each in adapted.parameters() if each.requires_grad]
        self.trained(adapted, 4, by=-1)  # what the base has not learnt
        after = [each for each in adapted.parameters() if each.requires_grad]
        if not any(not torch.equal(one, other) for one, other in zip(before, after)):
            self.faults.append("adapters: nothing was trained")
        with_adapters = self.logits(adapted)
        dequantize_(adapted)
        apart = self.logits(adapted)
        self.near("dequantized", apart, with_adapters, NEAR_LOGITS)
        with adapted.disable_adapter():
            without = self.logits(adapted)
        if not (without - apart).norm() > 2 * NEAR_MERGED * apart.norm():
            self.faults.append("adapters: without them the logits are almost the same, and no merge could be seen to lose them")
        self.near("merged", self.logits(adapted.merge_and_unload()), apart, NEAR_MERGED)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="may be repeated (default: all)")
    parser.add_argument("--steps", type=int, default=30, help="of training (default: 30)")
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 128 (default: 128)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="of a sequence (default: 64)")
    parser.add_argument("--compile", action="store_true", help="Trainer's torch_compile")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 32, num_key_value_heads=options.hidden // 64,
        max_position_embeddings=256,
    )  # fmt: skip
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = folder / "source"
        LlamaForCausalLM(config).save_pretrained(source)
        plain = Walk(source, folder, options)
        loss = plain.trained(plain.loaded(torch.float32), options.steps)
        print(f"bf16: loss {loss:.4f}; differences are relative", flush=True)
        for recipe in options.recipe or RECIPES:
            walk, begin = Walk(source, folder, options), time.monotonic()
            walk.run(recipe, loss)
            print(f"{recipe:<20}{'; '.join(walk.said)}; {time.monotonic() - begin:.0f} s", flush=True)
            for fault in walk.faults:
                print(f"    WRONG {fault}", flush=True)
            failed = failed or bool(walk.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
