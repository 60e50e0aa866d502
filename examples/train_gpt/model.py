"""A GPT on bytes: RMSNorm, causal attention, a GELU MLP of four times the width, no biases. All in bf16; the linear
layers of its blocks are what FP8 may replace. Embedding, norms and head stay as they are."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional

BYTES = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """width has to be a multiple of heads; window is the number of bytes that the model sees at once."""

    width: int
    blocks: int
    heads: int
    window: int

    def linear_parameters(self) -> int:
        """Of the blocks' linear layers: attention has 4 width^2, the MLP 8."""
        return 12 * self.width**2 * self.blocks


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, window, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, window, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, window, width))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Head(nn.Module):
    """The loss: mean cross entropy of the next byte, in nats, f32."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.logits = nn.Linear(shape.width, BYTES, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.logits(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, BYTES), targets.reshape(-1))


class Gpt(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.bytes = nn.Embedding(BYTES, shape.width)
        self.places = nn.Embedding(shape.window, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.head = Head(shape)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.bytes(inputs) + self.places.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x, targets)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """The same values for the same seed and kind of device. What a block adds to the residual starts smaller by
        1 / sqrt(2 blocks), so that seeds agree."""
        generator = torch.Generator(self.places.weight.device).manual_seed(seed)
        small = (2 * self.shape.blocks) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            scale = 0.02 * (small if name.endswith(("attention_out.weight", "down.weight")) else 1.0)
            parameter.normal_(0.0, scale, generator=generator)


def make_model(shape: Shape, seed: int, device: torch.device) -> Gpt:
    with torch.device("meta"):
        model = Gpt(shape).to(torch.bfloat16)
    model = model.to_empty(device=device)
    model.initialise(seed)
    return model


def twin(model: Gpt) -> Gpt:
    """Another model with the very same parameters, so that variants of a model need no further memory."""
    with torch.device("meta"):
        other = Gpt(model.shape).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(owner), leaf, parameter)
    return other
