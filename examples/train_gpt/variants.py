"""Who computes the linear layers of the blocks: PyTorch in bf16, Ingot or torchao in FP8, compiled or not."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import torch

from .errors import TrainGptError
from .model import Gpt

PACKAGES = ("torch", "ingot", "float8", "torchao")


@dataclasses.dataclass(frozen=True)
class Variant:
    """Written package:recipe or package:recipe+compile."""

    package: str
    recipe: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.package}:{self.recipe}{'+compile' if self.compiled else ''}"

    @property
    def is_fp8(self) -> bool:
        return self.package != "torch"

    @staticmethod
    def read(text: str) -> "Variant":
        base, plus, mode = text.partition("+")
        package, colon, recipe = base.partition(":")
        right = package in PACKAGES and colon and recipe and (not plus or mode == "compile")
        if not right or (package == "torch" and recipe != "bf16"):
            raise TrainGptError(
                f"variant {text!r}: write package:recipe or package:recipe+compile, where package is one of "
                f"{', '.join(PACKAGES)}, as torch:bf16 or ingot:rowwise+compile"
            )
        return Variant(package, recipe, bool(plus))


BF16 = Variant("torch", "bf16")
COMPILED_BF16 = Variant("torch", "bf16", compiled=True)


def nn_recipes() -> tuple[str, ...]:
    """The recipes of ingot.nn.Float8Linear. Delayed scales are those of a module, with a call for each step."""
    import ingot.nn
    import ingot.torch

    return (*ingot.torch.RECIPES, *(["delayed"] if hasattr(ingot.nn, "sync_amax_history") else []))


def loss_variants() -> list[Variant]:
    """bf16, and every recipe of Ingot."""
    names = ["torch:bf16"]
    try:
        names += [f"ingot:{recipe}" for recipe in nn_recipes() if recipe != "high_precision"]
    except ImportError as error:
        raise TrainGptError(f"Ingot's Python package cannot be imported ({error}): pip install .") from None
    if "ingot:delayed" not in names:
        names.append("float8:delayed")
    return [Variant.read(name) for name in names]


def speed_variants() -> list[Variant]:
    compiled = [
        f"{package}:{recipe}+compile" for package in ("torchao", "ingot") for recipe in ("tensorwise", "rowwise")
    ]
    names = ["torch:bf16", "torch:bf16+compile", "ingot:tensorwise", "ingot:rowwise", *compiled]
    return [Variant.read(name) for name in names]


def is_of_a_block(name: str) -> bool:
    return name.startswith("blocks.")


def convert_by_nn(model: Gpt, recipe: str) -> None:
    from ingot.nn import Float8Linear

    if recipe not in nn_recipes():
        raise TrainGptError(f"ingot:{recipe}: ingot.nn has no such recipe, but {', '.join(nn_recipes())}")
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.Linear) and is_of_a_block(name):
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, Float8Linear.from_float(layer, recipe))


def convert_as_torchao(float8: Any, model: Gpt, recipe: str) -> None:
    """`float8` is torchao.float8 or ingot.float8, which has the same names."""
    if recipe == "delayed":
        cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
        config = float8.Float8LinearConfig(
            cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast
        )
    else:
        config = float8.Float8LinearConfig.from_recipe_name(recipe)
    float8.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: is_of_a_block(name))


@dataclasses.dataclass
class Prepared:
    """A model that a variant computes, and what it wants done before the optimizer's step."""

    model: Gpt
    before_update: Optional[Callable[[], None]] = None


def prepare(variant: Variant, model: Gpt, backend: str) -> Prepared:
    """Changes the model into the variant's. Raises TrainGptError where this machine cannot run it."""
    prepared = Prepared(model)
    try:
        if variant.package == "ingot":
            import ingot.nn

            convert_by_nn(model, variant.recipe)
            if variant.recipe == "delayed":
                prepared.before_update = lambda: ingot.nn.sync_amax_history(model)
        elif variant.package == "float8":
            import ingot.float8

            convert_as_torchao(ingot.float8, model, variant.recipe)
            if variant.recipe == "delayed":
                prepared.before_update = lambda: ingot.float8.sync_float8_amax_and_scale_history(model)
        elif variant.package == "torchao":
            import torchao.float8

            convert_as_torchao(torchao.float8, model, variant.recipe)
    except (AssertionError, ImportError, ValueError) as error:
        raise TrainGptError(f"{variant}: {error}") from None
    if variant.compiled:
        # Blocks are alike, so one compilation serves all of them.
        for module in (*model.blocks, model.head):
            module.compile(backend=backend, dynamic=False)
    return prepared
