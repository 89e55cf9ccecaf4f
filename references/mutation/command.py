"""`rmsnorm-verify mutants`, a tool of the checkout: run the mutants, show progress, tell what killed each."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from references.mutation import automatic as rules
from references.mutation import catalogue, runner
from references.mutation.mutant import Mutant
from references.mutation.runner import Result


def run_mutants(
    console: Console,
    only: list[str] | None,
    device: str,
    json_file: Path | None,
    seed: int = 0,
    automatic: bool = False,
) -> int:
    """Print `killed K of N`, the survivors, and for each kill what killed it with which margin.

    Args:
        console: where.
        only: ids; None is every mutant that the device can show.
        device: "cpu", "cuda" or "auto".
        json_file: gets every result.
        seed: of the judged cells and of the vote.
        automatic: the mutants made by rule instead of the curated ones.

    Returns:
        The exit status: 0 where every fault is dead and every control alive, 1 otherwise, 2 for an unknown id or
        where the suite fails without a fault.
    """
    if not (runner.CHECKOUT / "tests").is_dir():
        console.print("mutants are a tool of the checkout: the tests are not here", style="red")
        return 2
    if device == "auto":
        device = "cuda" if compiled_kernels() else "cpu"
    try:
        selected = select_automatic(only) if automatic else catalogue.select(only, device)
    except KeyError as error:
        console.print(f"no mutant {error.args[0]!r}", style="red")
        return 2
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("mutants", total=len(selected))

        def show(result: Result) -> None:
            progress.console.print(str(result), highlight=False, markup=False)
            progress.advance(task)

        try:
            results = runner.run(selected, device, show, seed=seed)
        except runner.SuiteFails as error:
            console.print(str(error), style="red", highlight=False, markup=False)
            return 2
    for line in runner.conclusion(results):
        console.print(line, highlight=False, markup=False)
    if json_file:
        json_file.write_text(json.dumps(runner.as_json(results), indent=1))
    return 0 if all(result.as_expected for result in results) else 1


def select_automatic(ids: list[str] | None) -> list[Mutant]:
    """The sample, or the mutants with these ids. Raises KeyError for an unknown id."""
    if not ids:
        return rules.sample(runner.CHECKOUT)
    by_id = {mutant.id: mutant for mutant in rules.every_mutant(runner.CHECKOUT)}
    return [by_id[id] for id in ids]


def compiled_kernels() -> bool:
    """Whether this machine compiles kernels for a GPU and is not told to interpret them."""
    import torch

    return torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
