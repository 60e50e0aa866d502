"""The training step that all variants share: bf16 parameters with f32 masters, gradients clipped by their global norm,
AdamW, a learning rate that warms up and falls along a cosine. Nothing in a step waits for the device."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Iterable, Optional

import torch

from .model import Gpt
from .text import Windows
from .variants import Prepared


@dataclasses.dataclass(frozen=True)
class Schedule:
    steps: int
    warmup: int
    lr: float
    final_share: float = 0.1

    def at(self, step: int) -> float:
        """The learning rate of a step: linear up to `lr`, then a cosine down to final_share * lr."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class MasterAdamW:
    """AdamW on f32 copies of the parameters, from which the bf16 ones are rounded after each step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], weight_decay: float = 0.1, clip: float = 1.0) -> None:
        self.parameters = list(parameters)
        self.clip = clip
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        matrices = [master for master in self.masters if master.dim() > 1]
        others = [master for master in self.masters if master.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)

    @torch.no_grad()
    def step(self, lr: float) -> torch.Tensor:
        """Returns the gradients' norm before clipping, on the device."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.clip)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        for master in self.masters:
            master.grad = None
        torch._foreach_copy_(self.parameters, self.masters)
        return norm


def train_step(
    prepared: Prepared, optimizer: MasterAdamW, batch: tuple[torch.Tensor, torch.Tensor], lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns loss and gradient norm, on the device."""
    loss = prepared.model(*batch)
    loss.backward()
    if prepared.before_update is not None:
        prepared.before_update()
    return loss.detach(), optimizer.step(lr)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PeakMemory:
    """The most bytes of PyTorch's allocator since it was made, or None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> Optional[int]:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None


@dataclasses.dataclass
class Run:
    losses: list[float]
    validation_loss: float
    tokens_per_second: float
    peak_bytes: Optional[int]
    largest_norm: float


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # not worth a compilation for no_grad
def validation_loss(model: Gpt, windows: Windows) -> float:
    return float(torch.stack([model(*windows[step]) for step in range(len(windows))]).mean())


def train(prepared: Prepared, windows: Windows, validation: Windows, schedule: Schedule, device: torch.device) -> Run:
    """One whole run. Speed and memory are those after the first steps, in which kernels are compiled."""
    optimizer = MasterAdamW(prepared.model.parameters())
    untimed = min(10, schedule.steps // 2)
    found = []
    begin, peak = time.perf_counter(), PeakMemory(device)
    for step in range(schedule.steps):
        if step == untimed:
            wait_for(device)
            begin, peak = time.perf_counter(), PeakMemory(device)
        found.append(torch.stack(train_step(prepared, optimizer, windows[step], schedule.at(step))))
    wait_for(device)
    seconds = time.perf_counter() - begin
    losses, norms = torch.stack(found).T.tolist()
    tokens = windows.starts.shape[1] * windows.window * (schedule.steps - untimed)
    peak_bytes = peak.bytes()
    return Run(losses, validation_loss(prepared.model, validation), tokens / seconds, peak_bytes, max(norms))
