"""The processes of compare_trainers.py, in groups whose timed steps are compared: each group starts and compiles together,
and then each process has the GPU alone for a round (trainers/job.py has the other side of the gates). The next group's
imports come before the timed steps of this one."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Optional, Union

NO_TIME = "no time was left"
LINES_OF_ERROR = 3


class Started:
    """A process with its folder, where its gates, its log and its result are."""

    def __init__(self, command: list[str], folder: pathlib.Path, environment: dict[str, str]) -> None:
        self.command, self.folder, self.began = command, folder, time.monotonic()
        self.ready_s, self.ended_by_us = 0.0, False
        self.log = folder / "log.txt"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def is_at(self, gate: str) -> bool:
        return self.ended or (self.folder / f"{gate}.at").exists()

    def go(self, gate: str) -> None:
        (self.folder / f"{gate}.go").touch()

    def end(self) -> None:
        """With all that it started: torchrun's ranks are in groups of their own, and end as it is asked to."""
        self.ended_by_us = not self.ended
        for how, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            if not self.ended:
                os.killpg(self.process.pid, how)
                try:
                    self.process.wait(seconds)
                except subprocess.TimeoutExpired:
                    pass

    def result(self) -> Union[dict[str, Any], str]:
        """Or why there is none: the last lines that it has printed."""
        written = self.folder / "result.json"
        if written.exists():
            return {**json.loads(written.read_text(encoding="utf-8")), "ready_s": self.ready_s}
        if self.ended_by_us:
            return NO_TIME
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [at for at, line in enumerate(lines) if "Error" in line.split(":")[0]]  # torchrun prints its own after it
        last = lines[errors[0] : errors[0] + LINES_OF_ERROR] if errors else lines[-LINES_OF_ERROR:]
        return " | ".join(last) or f"ended with {self.process.returncode} and printed nothing"


Group = list[tuple[Any, Callable[[], Started]]]


class _Turns:
    def __init__(self, seconds_limit: float) -> None:
        self.began, self.seconds_limit = time.monotonic(), seconds_limit

    @property
    def left(self) -> float:
        return self.seconds_limit - (time.monotonic() - self.began)

    def wait(self, condition: Callable[[], bool], what: str) -> bool:
        """False where the time is over."""
        while not condition():
            if self.left <= 0:
                print(f"compare_trainers: no time to wait for {what}", file=sys.stderr, flush=True)
                return False
            time.sleep(0.01)
        return True

    def timed(self, group: list[Started], others: list[Started], rounds: int) -> None:
        """`group` has been let through "start". Processes without gates, of the direct way, end by themselves."""
        waiting = list(group)

        def are_ready() -> bool:
            for each in [each for each in waiting if each.is_at("round 0")]:
                each.ready_s = time.monotonic() - each.began
                waiting.remove(each)
            return not waiting

        if not self.wait(are_ready, "compilations"):
            return
        if not self.wait(lambda: all(each.is_at("start") for each in others), "imports"):
            return
        for turn in range(rounds):
            after = f"round {turn + 1}" if turn + 1 < rounds else "end"
            for each in group[turn % len(group) :] + group[: turn % len(group)]:
                each.go(f"round {turn}")
                if not self.wait(lambda each=each: each.is_at(after), "timed steps"):
                    return


class NotPrepared(Exception):
    """With the last lines of what should have prepared the model."""


def take_turns(
    groups: list[Group],
    prepared: Started,
    rounds: int,
    seconds_limit: float,
    report: Callable[[Any, Optional[Started]], None],
    write: Callable[[], None],
) -> None:
    """Calls report() with each process once it has ended or has a result, or with None where no time was left to start it,
    and write() after each group. `prepared` ends before anything is let through: raises NotPrepared if it fails."""
    turns, expected = _Turns(seconds_limit), 0.0  # seconds, as of the group before

    def begun(at: int) -> list[tuple[Any, Started]]:
        return [(key, begin()) for key, begin in groups[at]] if at < len(groups) and turns.left > expected else []

    running: list[tuple[Any, Started]] = []
    following = begun(0)
    try:
        turns.wait(lambda: prepared.ended, "the model")
        if not prepared.ended or prepared.process.returncode:
            prepared.end()
            raise NotPrepared(prepared.result())
        for at, group in enumerate(groups):
            running, following = following, []
            if turns.left > expected:
                running, begin_group = running or begun(at), time.monotonic()
                turns.wait(lambda: all(each.is_at("start") for _, each in running), "imports")
                following = begun(at + 1)
                for _, each in running:
                    each.go("start")
                turns.timed([each for _, each in running], [each for _, each in following], rounds)
                for _, each in running:
                    each.go("end")
                _let_end([each for _, each in running], turns.left)
                expected = time.monotonic() - begin_group
            for key, each in running:
                each.end()
                report(key, each)
            for key, _ in group if not running else []:
                report(key, None)
            write()
    finally:
        for _, each in running + following:
            each.end()
        prepared.end()


def _let_end(group: list[Started], seconds: float, most: float = 15.0) -> None:
    """What the next group allocates has to find their memory free."""
    until = time.monotonic() + max(0.0, min(seconds, most))
    while time.monotonic() < until and not all(each.ended for each in group):
        time.sleep(0.05)


def self_check() -> None:
    """Two processes that work through their gates, one that fails, and one that is not done in time: what comes after it
    is not started. Nothing runs where the model was not prepared."""
    passes = "import pathlib, sys, time, json; f = pathlib.Path(sys.argv[1])\nfor gate in ('start', 'round 0', 'end'):\n"
    passes += "    (f / (gate + '.at')).touch()\n    while not (f / (gate + '.go')).exists(): time.sleep(0.01)\n"
    passes += "    if gate == 'round 0': (f / 'result.json').write_text(json.dumps({'seconds': [1.0]}))\n"
    fails = "raise ValueError('no\\nmore')"

    def turns(names: list[list[str]], code: dict[str, str], seconds: float) -> tuple[dict[Any, Any], list[str]]:
        found, begun = {}, []
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)

            def begin(key: str) -> Started:
                begun.append(key)
                (folder / key).mkdir()
                command = [sys.executable, "-S", "-c", code.get(key, passes), str(folder / key)]
                return Started(command, folder / key, dict(os.environ))

            def report(key: Any, each: Optional[Started]) -> None:
                found[key] = each.result() if each else NO_TIME

            groups = [[(key, lambda key=key: begin(key)) for key in group] for group in names]
            take_turns(groups, begin("prepared"), 1, seconds, report, lambda: None)
        return found, begun

    never = passes.replace("'start', ", "'start', 'never', ")
    found, begun = turns([["a", "b", "c"], ["d"], ["e"], ["f"]], {"prepared": "", "c": fails, "d": never}, 3.0)
    assert found["a"]["seconds"] == found["b"]["seconds"] == [1.0] and found["a"]["ready_s"] > 0
    assert found["c"] == "ValueError: no | more" and found["d"] == found["e"] == found["f"] == NO_TIME, found
    assert "d" in begun and "f" not in begun, begun
    for code, seconds, text in ((fails, 3.0, "ValueError: no | more"), ("import time; time.sleep(60)", 0.3, NO_TIME)):
        try:
            raise AssertionError(turns([["a"]], {"prepared": code}, seconds))
        except NotPrepared as error:
            assert text in str(error), error
