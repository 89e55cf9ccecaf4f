"""A dispatch mode that looks on."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Passing(TorchDispatchMode):
    """Sees every operator and changes none."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(operator))
        return operator(*args, **(kwargs or {}))
