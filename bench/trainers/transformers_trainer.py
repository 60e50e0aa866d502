"""transformers' Trainer: python3 transformers_trainer.py. Ingot by from_pretrained()'s quantization_config; torchao, for
which Trainer has no option, by its own call."""

from __future__ import annotations

from typing import Any

import job as jobs
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Steps(TrainerCallback):
    def __init__(self, job: jobs.Job) -> None:
        self.job = job

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.job.stepped()
        control.should_log = self.job.wants_loss

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.job.loss(logs["loss"])


def model_of(job: jobs.Job) -> Any:
    if job.package == "ingot":
        from ingot.integrations.transformers import IngotConfig

        model = job.load(quantization_config=IngotConfig(job.recipe))
        job.count_layers(model, model.ingot_report)
        return model
    model = job.load()
    if job.package == "torchao":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(job.recipe)
        convert_to_float8_training(model, config=config, module_filter_fn=job.is_converted)
    job.count_layers(model)
    return model


def program(job: jobs.Job) -> None:
    arguments = TrainingArguments(
        output_dir=str(job.folder / "output"),
        max_steps=job.every_step,
        per_device_train_batch_size=job.batch,
        train_sampling_strategy="sequential",
        learning_rate=jobs.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        optim="adamw_torch_fused",
        bf16=True,
        use_cpu=job.device.type == "cpu",
        torch_compile=bool(job.compiler),
        torch_compile_backend=job.compiler or None,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=jobs.SEED,
    )
    trainer = Trainer(model_of(job), arguments, train_dataset=job.dataset(), callbacks=[Steps(job)])
    trainer.remove_callback(PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    jobs.run(program)
