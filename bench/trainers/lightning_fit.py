"""Lightning: python3 lightning_fit.py. Ingot by the Trainer's plugin; torchao, for which Lightning has none, by its own
call."""

from __future__ import annotations

import importlib.util
from typing import Any

import job as jobs
import torch
import transformers  # imported before the job starts
from torch.utils.data import DataLoader

if importlib.util.find_spec("lightning"):
    import lightning.pytorch as lightning
else:
    import pytorch_lightning as lightning


class Module(lightning.LightningModule):
    def __init__(self, job: jobs.Job) -> None:
        super().__init__()
        self.job = job
        self.net = job.load()
        if job.package == "torchao":
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training

            config = Float8LinearConfig.from_recipe_name(job.recipe)
            convert_to_float8_training(self.net, config=config, module_filter_fn=job.is_converted)
        self.example_input_array = {"input_ids": torch.zeros(1, 16, dtype=torch.long)}

    def forward(self, **batch: torch.Tensor) -> Any:
        return self.net(**batch)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return self(**batch).loss

    def on_fit_start(self) -> None:
        jobs.compile_layers(self.net.model.layers, self.job)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.job.optimizer(self)


class Steps(lightning.Callback):
    def __init__(self, job: jobs.Job) -> None:
        self.job = job

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        if self.job.wants_loss:
            self.job.loss(outputs["loss"])
        self.job.stepped()


def program(job: jobs.Job) -> None:
    how: dict[str, Any] = {"precision": "bf16-mixed"}
    if job.package == "ingot":
        from ingot.integrations.lightning import IngotPrecision

        how = {"plugins": IngotPrecision(job.recipe, example=True)}
    trainer = lightning.Trainer(
        max_steps=job.every_step,
        accelerator="gpu" if job.device.type == "cuda" else "cpu",
        devices=1,
        callbacks=[Steps(job)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(job.folder),
        **how,
    )
    module = Module(job)
    trainer.fit(module, DataLoader(job.dataset(), batch_size=job.batch))
    job.count_layers(module, how["plugins"].report if "plugins" in how else None)


if __name__ == "__main__":
    assert transformers.__version__
    jobs.run(program)
