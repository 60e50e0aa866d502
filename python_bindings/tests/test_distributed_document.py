"""The first programs of docs/distributed.md, as the page has them, on two ranks over gloo. scripts/many_gpus.sh runs all of its
programs, on GPUs too."""

import contextlib
import io
import os
import pathlib
import re
import socket
import tempfile

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
import two_processes

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "distributed.md"


def programs():
    """The Python programs of the page; fragments do not begin so."""
    found = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [each for each in found if each.startswith("import os, torch")]


def _run(rank, folder, ports):
    """What a rank of torchrun runs, one program after the other. Each has a port of its own: at one port a rank that is ahead would
    find the store of the program before."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for at, (program, port) in enumerate(zip(programs(), ports)):
        os.environ["MASTER_PORT"] = port
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, DOCUMENT.name, "exec"), {})
        pathlib.Path(folder, f"{at}.{rank}").write_text(printed.getvalue())
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.skipif(two_processes.DEVICE != "cpu", reason="many_gpus.sh runs them on GPUs")
def test_first_programs():
    first, training = programs()[:2]
    assert len([line for line in first.splitlines() if line]) == 10
    with contextlib.ExitStack() as opened:
        free = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [str(each.getsockname()[1]) for each in free]
    with tempfile.TemporaryDirectory() as folder:
        two_processes.spawn(_run, (folder, ports), 2)
        said = [[pathlib.Path(folder, f"{at}.{rank}").read_text() for rank in range(2)] for at in range(2)]
    for rank, text in enumerate(said[0]):
        found = re.fullmatch(rf"rank {rank} loss ([0-9.]+) part of grad \(512, 256\)\n", text)
        assert found and 0 < float(found[1]) < 1, text
    for rank, text in enumerate(said[1]):
        losses = [float(each) for each in re.findall(rf"^rank {rank} step [0-9]+ loss ([0-9.]+)$", text, re.MULTILINE)]
        assert len(losses) == 20 and losses[-1] < 0.9 * losses[0], text
