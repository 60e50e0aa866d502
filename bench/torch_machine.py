"""The machine as the Python benchmarks' results describe it: device, driver, versions, date, commit."""

from __future__ import annotations

import datetime
import importlib.metadata
import pathlib
import platform
import re
import subprocess
from typing import Any


def driver_version(text: str) -> str:
    """From /proc/driver/nvidia/version: "580.159.04", or "" for another text."""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""


def commit_of_tree() -> str:
    """As bench_* write it: followed by "-dirty" where files differ, "unknown" where there is no git checkout."""
    folder = pathlib.Path(__file__).parent
    try:
        done = subprocess.run(
            ("git", "describe", "--always", "--dirty"), cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _ingot_version() -> str:
    try:
        import ingot
    except ImportError:
        return ""
    return str(ingot.__version__)


def machine(torch: Any, device: str, commit: str = "") -> dict[str, Any]:
    """`device` is "cuda" or "cpu". Versions of what is not installed are ""."""
    proc = pathlib.Path("/proc/driver/nvidia/version")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "driver": driver_version(proc.read_text(encoding="utf-8") if proc.exists() else ""),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "torchao": _version("torchao"),
        "ingot": _ingot_version(),
        "commit": commit or commit_of_tree(),
    }


def self_check() -> None:
    assert driver_version("NVRM version: NVIDIA UNIX Open Kernel Module  580.159.04  Release Build") == "580.159.04"
    assert driver_version("GCC version: gcc 12") == ""
    assert commit_of_tree()
