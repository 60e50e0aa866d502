"""torchtitan 0.2: torchrun ... -m torchtitan.train --experimental.custom_import torchtitan_job --model.name job, and with
-m ingot.run before -m for Ingot, which then makes the layers of torchtitan's float8 converter. This module registers a
Llama of the job's sizes, the job's tokens, and what logs steps, as torchtitan lets its users do."""

from __future__ import annotations

import atexit
import dataclasses
from typing import Any, Iterator

import job as jobs
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.models.llama3 import get_train_spec
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan_model import model_args


class Tokens(BaseDataLoader):
    """Its labels are the next tokens; the last of a sequence has none."""

    def __init__(self, job: jobs.Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for tokens in self.job.batches():
            yield {"input": tokens}, torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class Steps(MetricsProcessor):
    """torchtitan asks it after each optimizer's step whether to read the loss."""

    job: jobs.Job

    def should_log(self, step: int) -> bool:
        if step == 1:
            self.job.count_layers(self.model_parts[0])
        self.job.stepped()
        if self.job.count == self.job.every_step:
            self.job.finish()
        return self.job.wants_loss

    def log(self, step: int, global_avg_loss: float, *args: Any, **kwargs: Any) -> None:
        self.job.loss(global_avg_loss)
        super().log(step, global_avg_loss, *args, **kwargs)


def metrics(job: jobs.Job, job_config: Any, parallel_dims: Any, tag: Any = None) -> Steps:
    steps = Steps(job_config, parallel_dims, tag)
    steps.job = job
    return steps


def register(job: jobs.Job) -> None:
    spec = dataclasses.replace(
        get_train_spec(),
        model_args={"job": model_args(job.sizes)},
        build_dataloader_fn=lambda **_: Tokens(job),
        build_tokenizer_fn=None,
        build_metrics_processor_fn=lambda config, dims, args, tag=None: metrics(job, config, dims, tag),
    )
    register_train_spec("job", spec)


register(jobs.Job())
