"""Plant faults in copies of this checkout, one at a time, and see that the suite notices each.

    python -m tests.mutation                            every planted fault that this device can show
    python -m tests.mutation F09 K10                    these
    python -m tests.mutation --automatic judge          those made by rule from its syntax trees; or: kernels

It prints each result with what noticed the fault and by which margin, then `killed K of N` and the survivors. Exit
status: 0 where every fault is dead and every control alive, 1 otherwise, 2 for an unknown id or where the suite fails
without a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutation import automatic, catalogue, runner
from tests.mutation.mutant import Mutant
from tests.mutation.runner import Result


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these mutants")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets every result")
    parser.add_argument("--seed", type=int, default=0, help="of judged cells (no fault may need one) and of the sample")
    parser.add_argument("--workers", type=int, default=runner.WORKERS, help="how many run at a time")
    parser.add_argument("--by", metavar="TEST", help='this stage alone: a test file, perhaps with "::name" or " -k …"')
    parser.add_argument("--automatic", choices=automatic.PARTS, help="the mutants made by rule of this part instead")
    options = parser.parse_args()
    device = options.device if options.device != "auto" else "cuda" if compiled_kernels() else "cpu"
    try:
        selected = (
            select_automatic(options.automatic, options.ids, options.seed)
            if options.automatic
            else catalogue.select(options.ids, device)
        )
    except KeyError as error:
        parser.error(f"no mutant {error.args[0]!r}")
    if options.by:
        selected = [replace(mutant, noticed_by=options.by, then=()) for mutant in selected]
    if options.json:
        try:
            options.json.open("a").close()  # before the work
        except OSError as error:
            parser.error(f"cannot write to {options.json}: {error.strerror}")
    console = Console(soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("mutants", total=len(selected))

        def show(result: Result) -> None:
            progress.console.print(str(result), highlight=False, markup=False)
            progress.advance(task)

        try:
            results = runner.run(selected, device, show, seed=options.seed, workers=options.workers)
        except runner.SuiteFails as error:
            console.print(str(error), style="red", highlight=False, markup=False)
            return 2
    for line in runner.conclusion(results):
        console.print(line, highlight=False, markup=False)
    if options.json:
        options.json.write_text(json.dumps(runner.as_json(results), indent=1))
    return 0 if all(result.as_expected for result in results) else 1


def select_automatic(part: str, ids: list[str] | None, seed: int) -> list[Mutant]:
    """The part's sample of this seed, or the mutants with these ids. Raises KeyError for an unknown id."""
    if not ids:
        return automatic.sample(runner.CHECKOUT, part, seed)
    by_id = {mutant.id: mutant for mutant in automatic.every_mutant(runner.CHECKOUT)}
    return [by_id[id] for id in ids]


def compiled_kernels() -> bool:
    """Whether this machine compiles kernels for a GPU and is not told to interpret them."""
    import torch

    return torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


if __name__ == "__main__":
    sys.exit(main())
