"""What the user programs of compare_trainers.py share: the job that they are given, its data, and when a step may be
timed. Each program is started by its trainer's own command, so the job comes by the environment variable TRAINER_JOB: a
folder with job.json, in which result.json is written.

Programs that are compared run at the same time but for their timed steps. At a gate a program leaves a file and waits for
the answer: at "start", once its libraries are imported, and before each round of timed steps, with an idle GPU."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import time
from typing import Any, Callable, Iterator, Optional

import torch

SEED = 0
LEARNING_RATE = 3e-4
HEAD = "lm_head"  # stays in high precision


class Job:
    """Made once all imports are done. After every optimizer's step the program calls stepped()."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(os.environ["TRAINER_JOB"])
        job = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        self.trainer: str = job["trainer"]
        self.package: str = job["package"]  # "bf16", "ingot" or "torchao"
        self.recipe: str = job["recipe"]
        self.direct: bool = job["direct"]
        self.model: str = job["model"]
        self.sizes: dict[str, int] = job["sizes"]
        self.compiler: str = job["compiler"]  # "" where nothing is compiled
        self.warm_up: int = job["warm_up"]
        self.rounds: int = job["rounds"]
        self.steps: int = job["steps"]
        self.device = torch.device(job["device"])
        if job["deterministic"]:
            # With warn_only attention's backward would stay as it is.
            torch.use_deterministic_algorithms(True)
            # A sum's order follows the block that the compiler finds fastest: each process may find another.
            importlib.import_module("torch._inductor.config").deterministic = True
        self.count, self.float8, self.began = 0, 0, 0.0
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._meet("start")
        torch.manual_seed(SEED)

    def _meet(self, gate: str) -> None:
        (self.folder / f"{gate}.at").touch()
        while not (self.folder / f"{gate}.go").exists():
            time.sleep(0.01)

    def _wait_for_gpu(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def every_step(self) -> int:
        """How many steps the program takes. The direct way is not timed."""
        return self.warm_up + (0 if self.direct else self.rounds * (1 + self.steps))

    @property
    def batch(self) -> int:
        return self.sizes["batch"]

    # ---- data --------------------------------------------------------------------------------------------------------

    def rows(self) -> list[torch.Tensor]:
        """One sequence of tokens each, in the order in which they are trained; four batches, over and over."""
        generator = torch.Generator().manual_seed(1 + SEED)
        shape = (4 * self.batch, self.sizes["tokens"])
        four = list(torch.randint(self.sizes["vocabulary"], shape, generator=generator))
        return [four[at % len(four)] for at in range((self.every_step + 2) * self.batch)]

    def dataset(self) -> list[dict[str, torch.Tensor]]:
        return [{"input_ids": row, "labels": row} for row in self.rows()]

    def batches(self) -> Iterator[torch.Tensor]:
        rows = self.rows()
        for at in range(0, len(rows), self.batch):
            yield torch.stack(rows[at : at + self.batch])

    # ---- the model ---------------------------------------------------------------------------------------------------

    def load(self, **options: Any) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.bfloat16, **options).train()
        model.config.use_cache = False
        return model

    def is_converted(self, _: torch.nn.Module, name: str) -> bool:
        return name != HEAD

    def count_layers(self, model: torch.nn.Module, report: Optional[Any] = None) -> None:
        """The linear layers in FP8: of a report of ingot.nn.convert(), or else the modules of that kind."""
        kinds = [
            getattr(sys.modules[name], "Float8Linear")
            for name in ("ingot.float8", "ingot.nn", "torchao.float8.float8_linear")
            if hasattr(sys.modules.get(name), "Float8Linear")
        ]
        modules = sum(isinstance(each, tuple(kinds)) for each in model.modules())
        self.float8 = modules if report is None else len(report.converted)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        parameters = [each for each in model.parameters() if each.requires_grad]
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=True)

    # ---- steps -------------------------------------------------------------------------------------------------------

    @property
    def wants_loss(self) -> bool:
        """Of the steps before the timed ones: reading a loss waits for the GPU."""
        return len(self.losses) < self.warm_up

    def loss(self, value: Any) -> None:
        if self.wants_loss:
            self.losses.append(float(value))

    def stepped(self) -> None:
        """A round's first step is not timed: it begins with an idle GPU."""
        self.count += 1
        if self.direct:
            return
        round_, at = divmod(self.count - self.warm_up, 1 + self.steps)
        if round_ < 0 or at > 1:
            return
        self._wait_for_gpu()
        if at == 1:
            self.began = time.perf_counter()
            return
        if round_ > 0:
            self.seconds.append((time.perf_counter() - self.began) / self.steps)
        elif self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        if round_ < self.rounds:
            self._meet(f"round {round_}")

    def finish(self) -> None:
        """The process ends after all others have been timed."""
        found: dict[str, Any] = {"losses": self.losses, "seconds": self.seconds, "float8": self.float8}
        if self.device.type == "cuda":
            found["peak"] = torch.cuda.max_memory_allocated()
        written = self.folder / "result.part"
        written.write_text(json.dumps(found), encoding="utf-8")
        written.rename(self.folder / "result.json")
        if not self.direct:
            self._meet("end")


def compile_layers(layers: Any, job: Job) -> None:
    """In place, as each is called first: what converts the model may come later."""
    for layer in layers:
        if job.compiler:
            layer.compile(backend=job.compiler, dynamic=False)


def run(program: Callable[[Job], None]) -> None:
    job = Job()
    program(job)
    job.finish()
