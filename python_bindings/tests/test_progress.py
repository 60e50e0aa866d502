"""Bars of long calls: at a terminal, where there is much to do, and nowhere else."""

import sys

import pytest

torch = pytest.importorskip("torch")

from ingot.nn import Float8WeightOnlyConfig, load_float8_checkpoint, quantize_, save_float8_checkpoint
from ingot.torch import prepare
from ingot.torch._progress import progress


class Terminal:
    """Standard error at a terminal, or not."""

    def __init__(self, is_terminal):
        self.is_terminal, self.text = is_terminal, ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return self.is_terminal


def model():
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False, dtype=torch.bfloat16) for _ in range(40)))


def calls(folder):
    quantized = model()
    quantize_(quantized, Float8WeightOnlyConfig())
    save_float8_checkpoint(quantized, folder)
    load_float8_checkpoint(model(), folder)


def test_bars_of_long_calls(tmp_path, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(True))
    calls(tmp_path)
    for text in ("layers are quantized", "weights are cast", "weights are loaded"):
        assert f"ingot: {text}: " in terminal.text and "/40 [" in terminal.text
    before = len(terminal.text)
    quantize_(model()[:8], Float8WeightOnlyConfig())  # few
    assert len(terminal.text) == before
    with pytest.raises(KeyError), progress("something", 50) as step:  # a bar ends with an error
        step()
        raise KeyError
    monkeypatch.setattr(sys, "stderr", silent := Terminal(False))
    calls(tmp_path)
    monkeypatch.setattr(sys, "stderr", None)
    calls(tmp_path)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "tqdm", None)  # is not installed
    calls(tmp_path)
    assert silent.text == ""


def test_a_callers_progress_comes_first(monkeypatch):
    """Of prepare(), whose kernels take seconds each: none is compiled here."""
    seen = []
    monkeypatch.setattr("ingot._core.prepare", lambda context, recording, gpu, note: [note(at, 40, "k") for at in range(40)])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(True))
    quantized = model()[:1]
    quantize_(quantized, Float8WeightOnlyConfig())
    prepare(quantized, 8, gpu="h200", progress=lambda *each: seen.append(each))
    assert len(seen) == 40 and terminal.text == ""
    assert prepare(quantized, 8, gpu="h200").kernels == ("k",) * 40
    if "tqdm" in sys.modules:
        assert "ingot: kernels are compiled: " in terminal.text
