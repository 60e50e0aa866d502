"""A block of examples/train_gpt, in bf16 and in FP8, for the tests of memory on both devices."""

import pathlib
import sys

import torch

import ingot.torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

from train_gpt.model import Shape, make_model
from train_gpt.training import MasterAdamW, train_step
from train_gpt.variants import Variant, prepare

# bf16's own GEMMs under Ingot's name are among them.
RECIPES = (*ingot.torch.RECIPES, "delayed")


def model_of(recipe, shape, device="cpu"):
    """The model with this recipe's layers in its blocks, or bf16's own for "bf16"."""
    model = make_model(shape, 0, torch.device(device))
    variant = Variant("torch", "bf16") if recipe == "bf16" else Variant("ingot", recipe)
    return prepare(variant, model, "inductor")
