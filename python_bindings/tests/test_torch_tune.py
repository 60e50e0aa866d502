"""ingot.torch.tune: what it says without a GPU, and on one a record for each of a model's GEMMs."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import ingot
import ingot.nn
import ingot.torch
from ingot.torch import LinearError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_messages():
    model = torch.nn.Sequential(ingot.nn.Float8Linear(64, 32))
    with pytest.raises(LinearError, match="^ingot.torch.tune: tokens is 0, expected a number of tokens above 0"):
        ingot.torch.tune(model, 0)
    if not torch.cuda.is_available():
        message = "^ingot.torch.tune: kernels are measured on a GPU, and PyTorch finds none here"
        with pytest.raises(ingot.Error, match=message):
            ingot.torch.tune(model, 64)


@needs_gpu
def test_each_gemm_gets_a_record_which_later_processes_use(tmp_path):
    code = """
import json, torch, ingot, ingot.nn, ingot.torch
model = torch.nn.Sequential(ingot.nn.Float8Linear(256, 384, bias=False, dtype=torch.bfloat16, device="cuda"))
seen = []
found = ingot.torch.tune(model, 512, progress=lambda *now: seen.append(now))
model(torch.randn(512, 256, dtype=torch.bfloat16, device="cuda")).sum().backward()
print(json.dumps([[each.matmul, each.kernel, each.us, each.problem] for each in found] + [len(seen)]))
"""
    outcomes = []
    for _ in range(2):
        environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path), "INGOT_TUNING": "on"}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        outcomes.append(json.loads(result.stdout))
    first, second = outcomes
    assert first == second  # the second time nothing is measured: the times would differ
    assert first.pop() == len(first) == 3  # output, grad_input and grad_weight
    for matmul, kernel, us, problem in first:
        assert matmul.startswith("gemm ") and "kernel=" in kernel and 0 < us < 1e4 and problem == ""
