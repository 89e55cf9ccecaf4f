"""The machine's GPU and versions go into the benchmark's JSON, beside every figure."""

from __future__ import annotations

import importlib.metadata
from typing import Any

LIBRARIES = ("torch", "triton", "liger-kernel", "quack-kernels", "transformers")


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    import torch

    versions = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    machine_info["gpu"] = {"name": gpu, "versions": ", ".join(versions)}
    machine_info.pop("node", None)  # a machine's name belongs in no document
