"""A mutant is data: a place in a file, the text there, the text that makes it wrong, and what should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATIC = "static rules"
CELLS = "judged cells"
VOTE = "vote of the references"


class NotApplicable(ValueError):
    """The old text does not occur exactly once in the file, or not where it should."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Args:
        id: kind and number, unique.
        file: path in the checkout.
        old: text that occurs exactly once in it, unless `at` says where.
        new: what replaces it.
        fault: what is wrong then.
        noticed_by: what should notice it: STATIC, CELLS, VOTE, or the path of a test file, perhaps with `::` and a
            name. It is tried first, everything else after it.
        gpu_only: compiled kernels alone can show it.
        equivalent: why no check can tell it from the original; None for a fault.
        at: the position of `old` in the file, where it occurs more often.
        then: what is asked after `noticed_by`; None is everything else.
    """

    id: str
    file: str
    old: str
    new: str
    fault: str
    noticed_by: str = CELLS
    gpu_only: bool = False
    equivalent: str | None = None
    at: int | None = None
    then: tuple[str, ...] | None = None

    def apply(self, root: Path) -> None:
        """Make the edit in the checkout at `root`. Raises NotApplicable where `old` does not fit."""
        path = root / self.file
        path.write_text(self.applied_to(path.read_text(encoding="utf-8")), encoding="utf-8")

    def applied_to(self, text: str) -> str:
        """The file's text with the fault. Raises NotApplicable."""
        at = self.at
        if at is None:
            if text.count(self.old) != 1:
                raise NotApplicable(f"{self.id}: {self.old!r} occurs {text.count(self.old)} times in {self.file}")
            at = text.index(self.old)
        elif not text.startswith(self.old, at):
            raise NotApplicable(f"{self.id}: {self.old!r} does not stand at {at} in {self.file}")
        return text[:at] + self.new + text[at + len(self.old) :]
