"""The machine's GPU and versions go into the benchmark's JSON, beside every figure; warnings of peers end nothing."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = ("torch", "triton", "liger-kernel", "quack-kernels", "transformers")


@pytest.hookimpl(optionalhook=True)  # of pytest-benchmark, which a GPU machine may lack
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a peer or the profiler warns of is no error here, as it is in the tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
