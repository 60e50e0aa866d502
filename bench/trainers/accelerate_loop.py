"""accelerate: accelerate launch --mixed_precision fp8 accelerate_loop.py, and with -m ingot.run before the program for
Ingot. The program is the same: accelerate converts all linear layers but the first and the last."""

from __future__ import annotations

from typing import Any

import job as jobs
import transformers  # imported before the job starts
from accelerate import Accelerator
from torch.utils.data import DataLoader


def handlers(job: jobs.Job) -> list[Any]:
    """accelerate's own config unless another recipe is asked for."""
    if job.package == "bf16" or job.recipe == "tensorwise":
        return []
    from accelerate.utils import AORecipeKwargs
    from torchao.float8 import Float8LinearConfig

    return [AORecipeKwargs(config=Float8LinearConfig.from_recipe_name(job.recipe))]


def program(job: jobs.Job) -> None:
    accelerator = Accelerator(kwargs_handlers=handlers(job))
    model = job.load().to(accelerator.device)
    data = DataLoader(job.dataset(), batch_size=job.batch)
    model, data = accelerator.prepare(model, data)
    # After it: with torchao 0.18, accelerate 1.15 gives converted layers new parameters, which an earlier optimizer lacks.
    optimizer = accelerator.prepare(job.optimizer(model))
    job.count_layers(model)
    for batch, _ in zip(data, range(job.every_step)):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if job.wants_loss:
            job.loss(loss.detach())
        job.stepped()


if __name__ == "__main__":
    assert transformers.__version__
    jobs.run(program)
