"""What transformers' norms compute exactly, forward and backward: a table of docs/results/peers.md.

python -m references.peers.exactness docs/results/peers.md
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from references.exact.program import Program, Settings
from references.exact.prove import Proof, prove
from references.peers.transformers_norms import instance, norm_classes

SIZE = 16  # a square, of which programs that take √N apart from the mean get an exact root
SHAPES = tuple((n_rows, SIZE) for n_rows in range(1, 8))
OFFSETS = (0.0, 1.0)


def module_program(module: nn.Module, size: int = SIZE) -> Program:
    """A module of rows of `size` elements, called with x and, if it has one, a gate; its parameter is `weight`."""
    weighted = "weight" in dict(module.named_parameters())
    gated = "gate" in inspect.signature(module.forward).parameters
    eps = [value for value in vars(module).values() if isinstance(value, float) and 0 <= value < 1]
    machine = [torch.finfo(dtype).eps for dtype in (torch.float32, torch.bfloat16)]  # torch.nn.RMSNorm without an eps

    def forward(x: Any, w: Any, s: Settings) -> Any:
        return torch.func.functional_call(module, {} if w is None else {"weight": w}, (x, x) if gated else (x,))

    return Program(
        type(module).__name__,
        "torch",
        forward,
        takes_weight=weighted,
        eps=tuple(dict.fromkeys(eps)) or (*machine, 0.0),
        offsets=OFFSETS if weighted else (0.0,),
        n_cols=size,
    )


def prove_module(module: nn.Module, dtype: str = "bfloat16") -> Proof:
    """What the module computes, in a dtype for x and its weight."""
    return prove(module_program(module.to(getattr(torch, dtype))), dtype=dtype, shapes=SHAPES)


def outcome(proof: Proof) -> tuple[str, str, str]:
    """Y, dX and dW in words."""
    if proof.refusal is not None:
        return proof.refusal, "", ""
    if proof.formula is None:
        return "no formula that was tried", "", ""
    if proof.differs is not None:
        return f"{proof.described}, but {proof.differs}", "", ""
    y = proof.described + (f", offset {proof.offset:g}" if proof.offset else "")
    return y, _gradient(proof, "dx", "dX"), _gradient(proof, "dw", "dW")


def _gradient(proof: Proof, name: str, label: str) -> str:
    found = (proof.gradients or {}).get(name)
    if found is None:
        return "none" if name == "dw" and not proof.weighted else "no formula that was tried"
    words = [word.removeprefix(f"{label} ") for word in found.named() if word.startswith(label)]
    return ", ".join(words) or "the table's"


def survey(classes: Iterable[type[nn.Module]]) -> dict[tuple[str, str, str], list[str]]:
    """The names of classes by what they compute."""
    found = defaultdict(list)
    for norm_class in classes:
        try:
            result = outcome(prove_module(instance(norm_class, SIZE)))
        except Exception as error:  # a class may be impossible to make
            result = (f"cannot be made: {error}", "", "")
        found[result].append(norm_class.__name__)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def markdown(found: dict[tuple[str, str, str], list[str]]) -> str:
    """A table, the commonest outcome first; of many names the first eight."""
    lines = ["| classes | Y | dX | dW | which |", "|---|---|---|---|---|"]
    for result, names in found.items():
        distinct = list(dict.fromkeys(names))
        more = f" and {len(distinct) - 8} other names" if len(distinct) > 8 else ""
        lines.append(f"| {len(names)} | {' | '.join(result)} | {', '.join(distinct[:8])}{more} |")
    return "\n".join(lines)


def main(document: Path) -> None:
    """Write the table between the markers of a document."""
    import transformers

    warnings.simplefilter("ignore")  # importing every model brings the warnings of every model
    found = survey(norm_classes())
    total = sum(map(len, found.values()))
    text = f"{total} classes of transformers {transformers.__version__}:\n\n{markdown(found)}"
    begin, end = "<!-- transformers -->\n", "<!-- end of transformers -->"
    old = document.read_text(encoding="utf-8")
    before, rest = old.split(begin)
    document.write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
