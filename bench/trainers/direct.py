"""The direct way of a trainer's job: a plain loop of PyTorch over the same model, data and optimizer, with Ingot's call
that converts a model. Its losses are what the trainer's have to be, so it compiles the parts that the trainer compiles."""

from __future__ import annotations

import importlib
from typing import Any

import job as jobs
import torch
import transformers  # imported before the job starts


def through_modules(job: jobs.Job) -> Any:
    """As Trainer and Lightning have them."""
    from ingot.nn import convert

    model = job.load().to(job.device)
    job.count_layers(model, convert(model, job.recipe))
    return model


def through_torchao_interface(job: jobs.Job, model: Any, but: list[str], **tensorwise: Any) -> Any:
    """As programs for torchao have them, on every layer `but` those. tensorwise: what the trainer sets of that config."""
    from ingot.float8 import Float8LinearConfig, convert_to_float8_training

    if tensorwise and job.recipe == "tensorwise":
        config = Float8LinearConfig(**tensorwise)
    else:
        config = Float8LinearConfig.from_recipe_name(job.recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name not in but)
    job.count_layers(model)
    return model


def compiled_by_accelerate(model: Any, job: jobs.Job, **options: Any) -> Any:
    from accelerate.utils import compile_regions

    return compile_regions(model, backend=job.compiler, **options) if job.compiler else model


def of_trainer(job: jobs.Job) -> Any:
    net = compiled_by_accelerate(through_modules(job), job)
    items = torch.tensor(job.batch * (job.sizes["tokens"] - 1), device=job.device)
    return net, lambda tokens: net(input_ids=tokens, labels=tokens, num_items_in_batch=items).loss


def of_accelerate(job: jobs.Job) -> Any:
    first = "model.layers.0.self_attn.q_proj"
    defaults = {"pad_inner_dim": True, "enable_fsdp_float8_all_gather": True}
    model = through_torchao_interface(job, job.load().to(job.device), [first, jobs.HEAD], **defaults)
    net = compiled_by_accelerate(model, job, dynamic=False)
    return net, lambda tokens: net(input_ids=tokens, labels=tokens).loss


def of_lightning(job: jobs.Job) -> Any:
    net = through_modules(job)
    jobs.compile_layers(net.model.layers, job)
    return net, lambda tokens: net(input_ids=tokens, labels=tokens).loss


def of_torchtitan(job: jobs.Job) -> Any:
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.models.llama3 import Transformer
    from torchtitan_model import model_args

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Transformer(model_args(job.sizes))
    torch.set_default_dtype(torch.float32)
    through_torchao_interface(job, model, ["output"])
    if job.recipe == "rowwise":  # so torchtitan's converter
        importlib.import_module("torch._inductor.config").emulate_precision_casts = True
    for name, layer in list(model.layers.named_children()) if job.compiler else []:
        model.layers.register_module(name, torch.compile(layer, backend=job.compiler, fullgraph=True))
    loss_of = torch.compile(cross_entropy_loss, backend=job.compiler) if job.compiler else cross_entropy_loss
    model.to_empty(device=job.device)
    torch.manual_seed(jobs.SEED)
    with torch.no_grad():
        model.init_weights(buffer_device=None)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
        return loss_of(model(tokens), labels) / (labels != -100).sum().float()

    return model.train(), loss


MODELS = {"Trainer": of_trainer, "accelerate": of_accelerate, "Lightning": of_lightning, "torchtitan": of_torchtitan}


def program(job: jobs.Job) -> None:
    net, loss_of = MODELS[job.trainer](job)
    optimizer = job.optimizer(net)
    for tokens, _ in zip(job.batches(), range(job.every_step)):
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = loss_of(tokens.to(job.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.loss(loss.detach())
        job.stepped()


if __name__ == "__main__":
    assert transformers.__version__
    jobs.run(program)
