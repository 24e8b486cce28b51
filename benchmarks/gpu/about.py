"""Description of the machine: one row, with the packages that cannot be imported."""

from __future__ import annotations

import datetime as dt
import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from gpu.results import Row

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "pytest", "libcst", "rich")


def rows(*, dry: bool) -> Iterator[Row]:
    missing = ", ".join(name for name in NEEDED if find_spec(name) is None)
    if missing:
        yield {"missing": missing}
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield {
        "missing": "",
        "gpu": "dry run" if dry else torch.cuda.get_device_name() if count else "none",
        "cuda devices": count,
        "driver": _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "none",
        "CUDA": torch.version.cuda or "none",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": _printed("git", "-C", str(ROOT), "describe", "--always", "--dirty") or _digest(),
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "interpreter": sys.implementation.name,
    }


def _digest() -> str:
    """Return a digest of the package's sources, which replaces the commit in a copy without history."""
    sources = sorted((ROOT / "pytest_amp_check").rglob("*.py"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources))
    return f"sources {digest.hexdigest()[:12]}"


def _printed(*command: str) -> str:
    """Return the first output line of a command, or "" if it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""
