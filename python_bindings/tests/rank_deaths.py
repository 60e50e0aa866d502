"""Kills or stops one of several ranks at a random moment of a training step with FP8 gathers, or gives it a wrong input, and
looks at what the others do: each has to end with an error, within the group's timeout and ten seconds; no process stays; and the
checkpoint before the one that was being saved is whole. Prints a table.

    python rank_deaths.py [--kills 30] [--seed 1] [--ranks 3] [--latest 6]
    python rank_deaths.py --device cuda --ranks 2 --kills 2      # over NCCL, a GPU for each rank; else over gloo

This is a separate program, which forks its ranks: they need not import PyTorch again."""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from ingot.nn import Float8Linear, Mlp, float8_all_gather, precompute_float8_all_gather

TIMEOUT, GRACE = 4.0, 10.0
PHASES = ("forward", "backward", "optimizer", "casts", "save", "rename")
WAYS = ("killed", "stopped", "raised")
KINDS = (
    "Watchdog caught collective operation timeout", "Connection closed by peer", "Connection reset by peer",
    "Timed out waiting", "Broken pipe", "Connection refused",
)  # fmt: skip
PROCESSES = multiprocessing.get_context("fork")


def model():
    torch.manual_seed(0)
    return nn.Sequential(Mlp(32, 80, recipe="rowwise"), Float8Linear(32, 32), Float8Linear(32, 7, recipe="blockwise"))


class Ranks(NamedTuple):
    count: int
    device: str

    def start(self, rank, port):
        """The process group of a rank. The store belongs to the process that started the ranks, as with torchrun: NCCL's
        watchdog asks it before it ends a process, and a rank that is stopped answers nobody. The watchdog ends a process that
        has waited too long after four times the time that PyTorch leaves for the other ranks to write what they know, which
        is 15 s by default."""
        timeout = datetime.timedelta(seconds=TIMEOUT)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
        options = {"store": store, "rank": rank, "world_size": self.count}
        if self.device == "cuda":
            os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1000"
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if self.device == "cuda" else "gloo", timeout=timeout, **options)


def train(rank, ranks, port, folder, steps, progress, phase, wrong):
    """What a rank runs: each step ends with a checkpoint, as docs/distributed.md says to save them."""
    torch.set_num_threads(1)
    ranks.start(rank, port)
    net = model().to(ranks.device)
    float8_all_gather(net)
    for part in (*net, net):
        fully_shard(part)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(rank)).to(ranks.device)
    for step in range(steps):
        progress.value = step
        phase.value = 0
        loss = net(x[:, 1:] if wrong.value else x).square().mean()
        phase.value = 1
        loss.backward()
        phase.value = 2
        optimizer.step()
        optimizer.zero_grad()
        phase.value = 3
        precompute_float8_all_gather(net)
        phase.value = 4
        dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder / f"step_{step}.part")
        phase.value = 5
        if rank == 0:
            os.rename(folder / f"step_{step}.part", folder / f"step_{step}")
    progress.value = steps
    dist.destroy_process_group()


def _rank(rank, ranks, port, folder, *rest):
    with open(folder / f"stderr.{rank}", "w") as file:
        os.dup2(file.fileno(), 2)
    train(rank, ranks, port, folder, *rest)


class Job:
    """Ranks that train."""

    def __init__(self, ranks, folder, steps):
        self.folder, self.began = folder, time.monotonic()
        self.progress = [PROCESSES.Value("i", -1) for _ in range(ranks.count)]
        self.phases, self.wrong = ([PROCESSES.Value("i", 0) for _ in range(ranks.count)] for _ in range(2))
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = self.store.port
        self.ranks = [
            PROCESSES.Process(target=_rank, args=(rank, ranks, port, folder, steps, *of_rank))
            for rank, of_rank in enumerate(zip(self.progress, self.phases, self.wrong))
        ]
        for each in self.ranks:
            each.start()

    def wait_for(self, rank, step, seconds=60.0):
        end = time.monotonic() + seconds
        while self.progress[rank].value < step:
            if time.monotonic() > end or self.ranks[rank].exitcode is not None:
                raise SystemExit(f"rank {rank} did not come to step {step}:\n{self.said(rank)}")
            time.sleep(0.0005)

    def said(self, rank):
        """The last line of its stderr that names an error: after it there may be the stack of a watchdog."""
        lines = (self.folder / f"stderr.{rank}").read_text().strip().splitlines()
        return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")

    def end(self):
        """Ends what is left, by its id."""
        for each in self.ranks:
            if each.exitcode is None:
                os.kill(each.pid, signal.SIGKILL)
            each.join()


class Death(NamedTuple):
    rank: int
    how: str
    step: int
    phase: str
    seconds: float  # until the last of the others had ended
    checkpoint: str  # the last one that is whole
    messages: tuple[str, ...]
    faults: tuple[str, ...]


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*") if path.name[5:].isdecimal())


def values(folder, step):
    """What a checkpoint holds, read by one process."""
    whole = {name: torch.zeros_like(value) for name, value in model().state_dict().items()}
    dcp.load({"model": whole}, checkpoint_id=folder / f"step_{step}", no_dist=True)
    return whole


def undisturbed(ranks, folder, steps):
    """The seconds of a step, and what each step's checkpoint holds: training repeats itself bit for bit."""
    job = Job(ranks, folder, steps)
    job.wait_for(0, 1)
    begin = time.monotonic()
    job.wait_for(0, steps)
    seconds = (time.monotonic() - begin) / (steps - 1)
    for each in job.ranks:
        each.join(30)
    if any(each.exitcode != 0 for each in job.ranks):
        raise SystemExit(f"undisturbed ranks failed: {[job.said(rank) for rank in range(ranks.count)]}")
    assert checkpoints(folder) == list(range(steps))
    return seconds, [values(folder, step) for step in range(steps)]


def death(ranks, folder, chance, how, latest, step_seconds, expected):
    rank, step = chance.randrange(ranks.count), chance.randint(1, latest)
    job = Job(ranks, folder, 10**6)
    try:
        job.wait_for(rank, step)
        time.sleep(chance.uniform(0, step_seconds))
        if how == "raised":
            job.wrong[rank].value = 1
            job.ranks[rank].join(TIMEOUT + GRACE)
        else:
            os.kill(job.ranks[rank].pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        begin = time.monotonic()
        at, phase = job.progress[rank].value, PHASES[job.phases[rank].value]
        others = [other for other in range(ranks.count) if other != rank]
        faults = []
        if how == "raised" and (job.ranks[rank].exitcode != 1 or "LinearError" not in job.said(rank)):
            faults.append(f"the rank ended with {job.ranks[rank].exitcode} and said {job.said(rank)!r}")
        for other in others:
            job.ranks[other].join(max(0.0, begin + TIMEOUT + GRACE - time.monotonic()))
            code = job.ranks[other].exitcode
            if code is None:
                faults.append(f"rank {other} still runs {TIMEOUT + GRACE:.0f} s later")
            elif code == 0:
                faults.append(f"rank {other} ended with 0")
            elif "Error" not in job.said(other):
                faults.append(f"rank {other} said {job.said(other)!r}")
        seconds = time.monotonic() - begin
    finally:
        job.end()
    if multiprocessing.active_children():
        faults.append("a process is left")
    whole = checkpoints(folder)
    if whole != list(range(len(whole))) or len(whole) < at:
        faults.append(f"in step {at} there are the checkpoints {whole}")
    for each in whole[-2:]:
        found = values(folder, each)
        if not all(torch.equal(found[name], value) for name, value in expected[each].items()):
            faults.append(f"the checkpoint of step {each} is another")
    messages = tuple(job.said(other) for other in others)
    return Death(rank, how, at, phase, seconds, f"step_{whole[-1]}" if whole else "none", messages, tuple(faults))


def kind(message):
    """An error without what differs from time to time."""
    for text in KINDS:
        if text.lower() in message.lower():
            return text.lower()
    return message[:60]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--latest", type=int, default=6, help="the last step in which a rank may die")
    options = parser.parse_args(arguments)
    chance, failed, ranks = random.Random(options.seed), 0, Ranks(options.ranks, options.device)
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        (place / "undisturbed").mkdir()
        step_seconds, expected = undisturbed(ranks, place / "undisturbed", 2 * options.latest + 4)
        over = "NCCL" if ranks.device == "cuda" else "gloo"
        print(f"{ranks.count} ranks over {over}, a timeout of {TIMEOUT:.0f} s; a step with its checkpoint takes {step_seconds * 1e3:.0f} ms")
        print(f"{'':>3} {'rank':>4}  {'what':<8}{'step':>5}  {'in':<10}{'all ended after':>16}  {'last whole':<11} others said")
        for count in range(options.kills):
            folder = place / str(count)
            folder.mkdir()
            found = death(ranks, folder, chance, WAYS[count % len(WAYS)], options.latest, step_seconds, expected)
            said = "; ".join(sorted({kind(each) for each in found.messages}))
            row = f"{count + 1:>3} {found.rank:>4}  {found.how:<8}{found.step:>5}  {found.phase:<10}{found.seconds:>14.1f} s"
            print(f"{row}  {found.checkpoint:<11} {said}", flush=True)
            for fault in found.faults:
                failed += 1
                print(f"    FAILED: {fault}", flush=True)
    print(f"{options.kills} deaths, {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
