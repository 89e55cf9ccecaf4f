"""Every RMSNorm class of the installed transformers: found in its model files, made in a small size."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn


def norm_classes() -> Iterator[type[nn.Module]]:
    """Every class named *RMSNorm* that a model file of transformers defines."""
    import transformers

    folder = Path(transformers.__file__).parent
    for path in sorted(folder.glob("models/*/modeling_*.py")):
        names = re.findall(r"^class (\w*RMSNorm\w*)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        if names:
            module = importlib.import_module(
                ".".join(("transformers", *path.relative_to(folder).with_suffix("").parts))
            )
            yield from (getattr(module, name) for name in names)


def instance(norm_class: type[nn.Module], size: int) -> nn.Module:
    """One for rows of `size` elements."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(norm_class).parameters.items():
        if name in ("hidden_size", "dim"):
            arguments[name] = size
        elif name == "group_size" and parameter.default is parameter.empty:
            arguments[name] = size // 4
        elif name == "config":
            configuration = inspect.get_annotations(norm_class.__init__, eval_str=True)["config"]
            arguments[name] = configuration(hidden_size=size)
    return norm_class(**arguments)
