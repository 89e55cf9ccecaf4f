"""A mutant is data: a place in a file, the text there, the text that makes it wrong, and what should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATIC = "static rules"
CELLS = "judged cells"
VOTE = "vote of the references"


class NotApplicable(ValueError):
    """The old text does not occur exactly once in the file."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Args:
        id: kind and number, unique.
        file: path in the checkout.
        old: text that occurs exactly once in it.
        new: what replaces it.
        fault: what is wrong then.
        noticed_by: what should notice it: STATIC, CELLS, VOTE, or the path of a test file, perhaps with `::` and a
            name. It is tried first, everything else after it.
        gpu_only: compiled kernels alone can show it.
        equivalent: why no check can tell it from the original; None for a fault.
    """

    id: str
    file: str
    old: str
    new: str
    fault: str
    noticed_by: str = CELLS
    gpu_only: bool = False
    equivalent: str | None = None

    def apply(self, root: Path) -> None:
        """Make the edit in the checkout at `root`. Raises NotApplicable where `old` is not there exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise NotApplicable(f"{self.id}: the text occurs {text.count(self.old)} times in {self.file}: {self.old!r}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
