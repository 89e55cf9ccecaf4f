"""Checks in the way of well-known public suites, on the same mutants: what their tolerances, data and shapes let pass.

These are reimplementations of described methods, not those projects' code or their own runs: each follows its project's
tolerances, dtypes, data, weights and settings; rows are cut to a handful, because the kernels are interpreted.
`python -m references.mutation.lookalikes` prints each one's score on the curated mutants of kernels, launch, autograd.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from references.mutation import catalogue, runner
from references.mutation.mutant import Mutant

FILES = tuple(f"rmsnorm/{name}.py" for name in ("kernels", "split_kernels", "launch", "launcher", "config", "function"))

Tolerance = tuple[float, float]  # absolute, relative


@dataclass(frozen=True)
class Look:
    """One way of testing: eager PyTorch in some dtype beside the candidate, within a tolerance.

    Args:
        source: whose way it is.
        settings: (casting mode, offset).
        shapes: of X.
        tolerances: dtype → that of Y, dX and, unless dw says otherwise, dW.
        eps: one.
        data: "normal", "rand" (0 to 1) or a number a for -a to a, of X; and of dY.
        weight: "ones", "normal", "none", or such a number.
        backward: whether gradients are compared.
        upcasts: whether the reference computes in float32, or in X's dtype as the model code does.
        dw: (rows, columns, largest |dW|, dtype) → tolerance of dW.
        row_stride: X has this many columns more in memory.
    """

    source: str
    settings: tuple[tuple[str, float], ...]
    shapes: tuple[tuple[int, ...], ...]
    tolerances: dict[str, Tolerance]
    eps: float = 1e-6
    data: str | float = "normal"
    dy_data: str | float = "normal"
    weight: str | float = "normal"
    backward: bool = True
    upcasts: bool = False
    dw: Callable[[int, int, float, str], Tolerance] | None = None
    row_stride: int = 0


def _quack_dw(rows: int, columns: int, largest: float, dtype: str) -> Tolerance:
    return (
        (5e-6 * rows**0.5, 1e-3) if dtype == "float32" else (2 * {"bfloat16": 2**-7}.get(dtype, 2**-10) * largest, 1e-3)
    )


_DEFAULTS = {"float16": (1e-5, 1e-3), "bfloat16": (1e-5, 1.6e-2), "float32": (1e-5, 1.3e-6), "float64": (1e-7, 1e-7)}

LOOKS = {
    "Liger-like": Look(
        "Liger-Kernel, test_rms_norm.py",
        (("llama", 0.0), ("gemma", 1.0), ("none", 0.0)),
        ((4, 512), (5, 123)),
        {"float32": (1e-4, 1e-6), "bfloat16": (2e-1, 2e-2)},
        weight="ones",
    ),
    "quack-like": Look(
        "quack, test_rmsnorm.py",
        (("gemma", 0.0),),
        ((1, 192), (7, 576)),
        {"bfloat16": (1e-1, 1e-3), "float16": (1e-2, 1e-3), "float32": (1e-4, 1e-3)},
        upcasts=True,
        dw=_quack_dw,
        row_stride=64,
    ),
    "FlagGems-like": Look(
        "FlagGems, test_rms_norm",
        (("llama", 0.0),),
        ((1, 2), (9, 256)),
        {"float16": (1e-4, 1e-3), "float32": (1e-4, 1.3e-6), "bfloat16": (1e-4, 1.6e-2)},
        eps=1e-5,
        data=0.1,
        dy_data=0.01,
        weight=0.1,
        dw=lambda rows, columns, largest, dtype: (
            1e-4 * columns,
            {"float16": 1e-3, "float32": 1.3e-6, "bfloat16": 1.6e-2}[dtype],
        ),
    ),
    "tritonbench-like": Look(
        "tritonbench, the accuracy metric of rms_norm",
        (("llama", 0.0),),
        ((8, 1024),),
        {"bfloat16": _DEFAULTS["bfloat16"]},
        weight="ones",
        backward=False,
    ),
    "assert_close": Look(
        # Not llama: eager autograd rounds dY·w to X's dtype on the way, and the defaults refuse right kernels.
        "torch.testing.assert_close with its defaults, forward and backward",
        (("gemma", 1.0),),
        ((4, 64), (3, 100)),
        _DEFAULTS,
    ),
    "BackendBench-like": Look(
        "BackendBench, 1 % in bfloat16",
        (("llama", 0.0),),
        ((4, 64), (2, 2, 3)),
        {"bfloat16": (1e-2, 1e-2)},
        backward=False,
    ),
    "KernelBench-like": Look(
        "KernelBench, level 1 RMSNorm",
        (("llama", 0.0),),
        ((8, 64),),
        {"float32": (1e-4, 1e-4)},
        eps=1e-5,
        data="rand",
        weight="none",
        backward=False,
    ),
}
GRADCHECK = "gradcheck"
NAMES = (*LOOKS, GRADCHECK)


def _failure(look: Look) -> str | None:
    """The first comparison that fails, or None."""
    for dtype in look.tolerances:
        for mode, offset in look.settings:
            for shape in look.shapes:
                why = _compared(look, dtype, mode, offset, shape)
                if why:
                    return f"{mode} {offset:g} {dtype} {shape}: {why}"
    return None


def _compared(look: Look, dtype: str, mode: str, offset: float, shape: tuple[int, ...]) -> str | None:
    import torch

    kind, generator = getattr(torch, dtype), torch.Generator().manual_seed(42)

    def drawn(how: str | float, *size: int) -> Any:
        if how == "normal":
            return torch.randn(size, generator=generator).to(kind)
        uniform = torch.rand(size, generator=generator)
        return (uniform if how == "rand" else (2 * uniform - 1) * float(how)).to(kind)

    columns = shape[-1]
    x = drawn(look.data, *shape[:-1], columns + look.row_stride)[..., :columns]
    dy = drawn(look.dy_data, *shape)
    w = None
    if look.weight != "none":
        w = torch.ones(columns, dtype=kind) if look.weight == "ones" else drawn(look.weight, columns)
    theirs = [t.clone().requires_grad_() if t is not None else None for t in (x, w)]
    ours = [t.detach().requires_grad_() if t is not None else None for t in (x, w)]
    wanted = _eager(theirs[0], theirs[1], look.eps, offset, mode, look.upcasts)
    got = _candidate()(ours[0], ours[1], look.eps, offset, mode)
    pairs = [("y", got, wanted, look.tolerances[dtype])]
    if look.backward:
        leaves = [[t for t in leaves if t is not None] for leaves in (ours, theirs)]
        ours_dx, *ours_dw = torch.autograd.grad(got, leaves[0], dy.clone())
        theirs_dx, *theirs_dw = torch.autograd.grad(wanted, leaves[1], dy.clone())
        pairs.append(("dx", ours_dx, theirs_dx, look.tolerances[dtype]))
        for a, b in zip(ours_dw, theirs_dw, strict=True):
            rows = x.numel() // columns
            tolerance = look.dw(rows, columns, float(b.abs().max()), dtype) if look.dw else look.tolerances[dtype]
            pairs.append(("dw", a, b, tolerance))
    for name, a, b, (absolute, relative) in pairs:
        try:
            torch.testing.assert_close(a, b, atol=absolute, rtol=relative)
        except AssertionError as error:
            return f"{name}: {str(error).splitlines()[0]}"
    return None


def _candidate() -> Any:
    """The judged function, which no module of the judge imports by name."""
    return importlib.import_module("rmsnorm").liger_rms_norm


def _eager(x: Any, w: Any, eps: float, offset: float, mode: str, upcasts: bool) -> Any:
    """The model code's formula: Llama casts before the weight, Gemma after it, `none` never leaves X's dtype."""
    import torch

    c = torch.promote_types(x.dtype, torch.float32)
    wide = x if mode == "none" else x.to(c)
    x_hat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if mode == "llama" and not upcasts:
        x_hat = x_hat.to(x.dtype)
    if w is None:
        return x_hat.to(x.dtype)
    w = w if mode != "gemma" and not upcasts else w.to(c)
    return ((w + offset) * x_hat).to(x.dtype)


def _gradcheck() -> str | None:
    import torch

    generator = torch.Generator().manual_seed(42)
    for mode, offset in (("llama", 0.0), ("gemma", 1.0)):
        x, w = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((2, 3), (3,)))
        leaves = (x.requires_grad_(), w.requires_grad_())
        try:
            torch.autograd.gradcheck(lambda x, w, m=mode, o=offset: _candidate()(x, w, 1e-6, o, m, False), leaves)
        except RuntimeError as error:
            return str(error).strip().splitlines()[0]
    return None


def _guarded(run: Callable[[], str | None]) -> str | None:
    from references.mutation import stages

    try:
        with stages.limited(stages.PATIENCE):
            return run()
    except Exception as error:  # what a mutant raises fails any suite
        return f"{type(error).__name__}: {error}"


def judge(noticed_by: str, then: list[str], device: str, result: Path) -> None:
    """Write {"status", "failed": {name: what failed or None}}; a crash in one counts for it and those after it."""
    from references import interpreter

    interpreter.install()
    failed: dict[str, str | None] = {}
    for name in NAMES:
        result.with_suffix(".stage").write_text(json.dumps(failed | {name: "crash"}))
        failed[name] = _guarded(_gradcheck if name == GRADCHECK else partial(_failure, LOOKS[name]))
    result.write_text(json.dumps({"status": "killed" if any(failed.values()) else "survived", "failed": failed}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="what failed first, by mutant and look-alike")
    parser.add_argument("--only", action="append", metavar="ID", help="only this mutant; repeatable")
    arguments = parser.parse_args()
    faults = [m for m in catalogue.select(arguments.only, "cpu") if m.equivalent is None and m.file in FILES]
    unmutated = replace(faults[0], id="none", old="", new="", at=0)
    with runner.Judges() as judges:
        silent, *answers = judges.ask([unmutated, *faults], __spec__.name, _tell)
    if silent["status"] != "survived":
        print(f"nothing is planted, and a look-alike fails: {silent['failed']}", file=sys.stderr)
        return 2
    found = {mutant.id: _failed(answer) for mutant, answer in zip(faults, answers, strict=True)}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    print(table(found, {mutant.id: Path(mutant.file).stem for mutant in faults}))
    return 0


def table(found: dict[str, dict[str, str | None]], stems: dict[str, str]) -> str:
    """Markdown: how many mutants each look-alike kills, in all and of each file.

    found: mutant → look-alike → what failed; stems: mutant → its file.
    """
    files = list(dict.fromkeys(stems.values()))
    counts = [list(stems.values()).count(stem) for stem in files]
    heads = (f"{stem} ({count})" for stem, count in zip(files, counts, strict=True))
    lines = [f"| look-alike | all ({len(found)}) | " + " | ".join(heads) + " |", "|---|" + "---|" * (1 + len(files))]
    for name in NAMES:
        killed = [stems[id] for id, failed in found.items() if failed.get(name)]
        cells = (str(killed.count(stem)) for stem in files)
        lines.append(f"| {name} | {len(killed)}, {len(killed) / len(found):.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _failed(answer: dict[str, Any]) -> dict[str, str | None]:
    """By look-alike; where the process crashed, what had failed until then."""
    return answer["failed"] if "failed" in answer else json.loads(answer["stage"])


def _tell(mutant: Mutant, answer: dict[str, Any]) -> None:
    caught = [name for name, why in _failed(answer).items() if why]
    print(f"{mutant.id:5} {answer['processor']:5.1f} s {', '.join(caught) or '-'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
