"""What the numbers depend on: implementation, claims, device, versions, command; no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from references.candidates.outputs import Implementation
from references.candidates.profile import Profile
from references.judge.verdict import EVERYTHING

LIBRARIES = ("rmsnorm", "numpy", "ml_dtypes", "torch", "triton", "jax")


def environment(
    implementation: Implementation,
    interpreted: bool,
    profile: Profile = EVERYTHING,
    notes: Mapping[str, str] = MappingProxyType({}),
    mode: str | None = None,
) -> dict[str, Any]:
    """What the numbers depend on: implementation, claims, device, versions, command; no paths.

    `notes` says by setting what a probe met, `mode` which casting mode was found and how sure that is.
    """
    about = {
        "implementation": implementation.name,
        "ignored_arguments": list(implementation.ignored),
        "takes_mode": implementation.takes_mode,
        "arrays": implementation.arrays,
        "profile": profile.as_dict(),
        "probe": dict(notes),
        "mode_found": mode,
    }
    return about | machine(implementation.device, interpreted)


def machine(device: str, interpreted: bool) -> dict[str, Any]:
    """The part of it that does not depend on the implementation."""
    return {
        "device": _device_name(device),
        "interpreted": interpreted,
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "command": " ".join(["rmsnorm-verify", *(os.path.basename(a) for a in sys.argv[1:])]),
        "seeds": "from the case ids",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _device_name(device: str) -> str:
    if device != "cuda":
        return device
    import torch

    return torch.cuda.get_device_name()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
