"""What a run ran on: versions, hardware, the commit of the source."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import nanode

_PACKAGES = ("numpy", "pytorch-lightning", "safetensors", "torchdiffeq", "torchmetrics")


def versions() -> dict[str, Any]:
    """The versions of everything that takes part."""
    found: dict[str, Any] = {
        "nanode": nanode.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """The device that trained and the machine it is in."""
    found: dict[str, Any] = {
        "device": device.type,
        "name": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"name": properties.name, "memory_bytes": properties.total_memory}
    return found


def commit() -> tuple[str | None, bool | None]:
    """The commit that the package's source is at and whether files differ from it; None if none.

    A copy without its repository is at the commit that the variable NANODE_COMMIT names.
    """
    folder = Path(nanode.__file__).parent
    try:
        # A package installed inside somebody's checkout isn't that checkout's.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        head = _git(folder, "rev-parse", "HEAD")
        return head, bool(_git(folder, "status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("NANODE_COMMIT"), None


def provenance(device: torch.device) -> dict[str, Any]:
    """What a measurement says of where it was made: hardware, versions, commit."""
    at, modified = commit()
    return {
        "hardware": hardware(device),
        "versions": versions(),
        "commit": at,
        "modified": modified,
    }


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


def processor() -> str:
    """The name of the machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
