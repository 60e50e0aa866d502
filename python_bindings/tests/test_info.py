"""info(): what the package reports about itself and the machine."""

import re
import subprocess
import sys

import ingot


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", ingot.__version__)
    assert ingot.__version__ == ingot.info("cpu")["version"]


def test_info_names_every_part():
    info = ingot.info("cpu")
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["device"] == "cpu" and info["device_name"] and info["reason"]
    assert set(info["libraries"]) == {"CUDA driver", "NVRTC", "cuBLASLt", "NVTX"}
    for library in info["libraries"].values():
        assert library["version"] or library["problem"]


def test_stats_of_a_cpu_context():
    context = ingot.Context("cpu")
    assert context.device == "cpu"
    assert context.stats() == {"compiled": 0, "loaded": 0, "launched": 0}


def test_import_needs_no_torch():
    code = "import sys, ingot, numpy; ingot.cast(numpy.ones((2, 2), 'float32')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
