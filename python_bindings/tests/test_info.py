"""info(): what the package reports about itself and the machine."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import ingot


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", ingot.__version__)
    assert ingot.__version__ == ingot.info("cpu")["version"]


def test_info_names_every_part():
    info = ingot.info("cpu")
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["device"] == "cpu" and info["device_name"] and info["reason"]
    assert set(info["libraries"]) == {"CUDA driver", "NVRTC", "cuBLASLt", "NVTX", "NCCL"}
    for library in info["libraries"].values():
        assert library["version"] or library["problem"]


def test_subpackages_come_when_they_are_used():
    program = "import sys, ingot; assert 'torch' not in sys.modules; ingot.{}; print('done')"
    for name in ("float8", "nn", "torch"):
        hidden = "import sys; sys.modules['torch'] = None; import ingot; ingot." + name
        done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
        assert f"ImportError: ingot.{name} needs PyTorch 2.7 or newer, which cannot be imported" in done.stderr
    done = subprocess.run([sys.executable, "-c", program.format("nothing")], capture_output=True, text=True, check=False)
    assert "module 'ingot' has no attribute 'nothing'" in done.stderr


def test_stats_of_a_cpu_context():
    context = ingot.Context("cpu")
    assert context.device == "cpu"
    nothing = {"compiled": 0, "compile_seconds": 0.0, "loaded": 0, "from_tiers": {}, "launched": 0}
    assert context.stats() == nothing


def test_a_recording_has_what_was_asked_for():
    x8 = ingot.cast(np.ones((48, 32), np.float32), "e4m3fn", scale="row")
    ingot.gemm(x8, x8, out_dtype="bf16")
    lines = ingot.recording("cpu").splitlines()
    assert "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row 48 48 32" in lines


def in_process(code, **environment):
    """Runs Python without a GPU and without torch, which sys.modules says is missing."""
    code = f"import sys; sys.modules['torch'] = None\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "INGOT_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_info_and_stats_need_no_gpu_no_toolkit_and_no_torch():
    code = "import ingot, json; print(json.dumps([ingot.info(), ingot.stats()]))"
    result = in_process(code, INGOT_CUDA_ROOT="none")
    assert result.returncode == 0, result.stderr
    info, stats = json.loads(result.stdout)
    assert info["device"] == "cpu"
    assert 'INGOT_CUDA_ROOT is "none"' in info["libraries"]["NVRTC"]["problem"]
    assert stats["launched"] == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc makes the driver's library, and there is none")
def test_a_machine_with_an_old_driver_is_told_which_it_needs(tmp_path):
    code = "import ingot; print(ingot.info()['reason'])"
    library = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input="int cuInit(unsigned flags) { return (int)flags; }", text=True, check=True)
    old = in_process(code, LD_LIBRARY_PATH=str(tmp_path), INGOT_DEVICE="")
    assert re.fullmatch(
        rf"the CUDA driver {library} is too old: it lacks cu\w+; CUDA 12\.8 \(driver 570\) or newer is needed\n", old.stdout
    )


def test_a_bundle_that_is_missing_is_listed(tmp_path):
    missing = tmp_path / "no.bundle"
    result = in_process("import ingot; print(ingot.info()['tiers'])", INGOT_CACHE_TIERS=str(missing))
    assert result.returncode == 0, result.stderr
    assert str(missing) in result.stdout and "problem" in result.stdout


def test_a_run_is_recorded_in_a_file(tmp_path):
    file = tmp_path / "run.ingot"
    code = "import ingot, numpy; ingot.cast(numpy.ones((2, 32), 'f'), 'e5m2')"
    result = in_process(code, INGOT_RECORD=str(file))
    assert result.returncode == 0, result.stderr
    assert "cast f32->e5m2 scale=tensor out=codes" in file.read_text().splitlines()


def test_import_needs_no_torch():
    code = "import sys, ingot, numpy; ingot.cast(numpy.ones((2, 2), 'float32')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
