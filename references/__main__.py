"""The command line: `rmsnorm-verify`, or `python -m references`.

Exit status: 0 conforms, 1 deviates, 2 wrong usage, 3 nothing could be run, 130 interrupted.
"""

from __future__ import annotations

import enum
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from references import cases, interpreter, page, record, report
from references.cases import Case
from references.conformance import Verdict, check_all
from references.conformance import check as check_case
from references.explanation import explain as explain_verdict
from references.explanation import typical_tolerances
from references.implementation import Implementation, LoadError, load
from references.spec import CastingMode

REFERENCES = ("numpy", "torch", "jax")


class Level(enum.StrEnum):
    SMOKE = "smoke"
    MATRIX = "matrix"
    FULL = "full"


class Device(enum.StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(enum.StrEnum):
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


Target = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The candidate; MODULE alone for a pair.")]
OnDevice = Annotated[Device, typer.Option(help="Where PyTorch candidates run.")]
FixedMode = Annotated[
    CastingMode | None, typer.Option(help="The mode that a candidate without such an argument computes.")
]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)
console = Console(soft_wrap=True)


@app.command()
def check(
    target: Target,
    level: Annotated[Level, typer.Option(help="How many cells.")] = Level.SMOKE,
    device: OnDevice = Device.AUTO,
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this cell; repeatable.")] = None,
    casting_mode: FixedMode = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Every number.")] = None,
    html_folder: Annotated[Path | None, typer.Option("--html", metavar="DIR", help="A page to read.")] = None,
) -> None:
    """Judge an RMSNorm implementation."""
    selected = [_find(case_id) for case_id in case] if case else cases.LEVELS[level]
    _prepare_outputs(json_file, html_folder)
    implementation, interpreted = _load(target, device, casting_mode)
    about = report.environment(implementation, interpreted)
    verdicts = _judge(implementation, about, selected)
    if json_file:
        json_file.write_text(json.dumps(report.as_json(verdicts, about, len(selected)), indent=1))
    if html_folder:
        (html_folder / "index.html").write_text(page.page(verdicts, about, len(selected)), encoding="utf-8")
    raise typer.Exit(130 if len(verdicts) < len(selected) else report.exit_code(verdicts))


@app.command("cases")
def list_cases(level: Annotated[Level, typer.Option(help="How many cells.")] = Level.FULL) -> None:
    """List the ids of the cells."""
    for case in cases.LEVELS[level]:
        print(case.id)


@app.command()
def explain(
    case_id: Annotated[str, typer.Argument(metavar="CASE_ID")],
    target: Target,
    device: OnDevice = Device.AUTO,
    casting_mode: FixedMode = None,
) -> None:
    """Run one cell again and take its worst element apart: every term of its tolerance."""
    case = _find(case_id)
    implementation, interpreted = _load(target, device, casting_mode)
    verdict = check_case(implementation, case)
    print(report.header(report.environment(implementation, interpreted)))
    print("\n".join(explain_verdict(verdict)))
    raise typer.Exit(report.exit_code([verdict]))


@app.command()
def tolerances(
    casting_mode: Annotated[CastingMode, typer.Option()] = CastingMode.LLAMA,
    dtype: Annotated[Dtype, typer.Option(help="Of X and W.")] = Dtype.BFLOAT16,
    rows: Annotated[int, typer.Option(min=1)] = 64,
    columns: Annotated[int, typer.Option(min=1)] = 1024,
) -> None:
    """Show how large the tolerances are on random data of a size, and what they are made of."""
    print("\n".join(typical_tolerances(str(casting_mode), str(dtype), rows, columns)))


@app.command()
def selftest(level: Annotated[Level, typer.Option(help="How many cells.")] = Level.SMOKE) -> None:
    """Judge the three references themselves, through the same door."""
    present = [name for name in REFERENCES if importlib.util.find_spec(name)]
    codes = []
    for name in present:
        implementation, interpreted = _load(f"references.{name}_reference", Device.CPU, None)
        about = report.environment(implementation, interpreted)
        codes.append(report.exit_code(_judge(implementation, about, cases.LEVELS[level])))
    for name in sorted(set(REFERENCES) - set(present)):
        console.print(f"{name} is not installed: its reference was not judged", style="red")
    raise typer.Exit(max(codes))


@app.command()
def mutants(
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this mutant; repeatable.")] = None,
    device: OnDevice = Device.AUTO,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Every result.")] = None,
    seed: Annotated[int, typer.Option(help="Of the judged cells: no fault may need one seed to be seen.")] = 0,
    automatic: Annotated[bool, typer.Option(help="Those made by rule from the syntax trees instead.")] = False,
) -> None:
    """Plant faults in copies of this checkout, one at a time, and see that the suite notices each."""
    from references.mutation.command import run_mutants  # a tool of the checkout: nothing else needs it

    _prepare_outputs(json_file, None)
    raise typer.Exit(run_mutants(console, only, str(device), json_file, seed, automatic))


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A candidate, or a file that check --json wrote.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    level: Annotated[Level, typer.Option(help="How many cells a candidate runs.")] = Level.SMOKE,
    device: OnDevice = Device.AUTO,
    casting_mode: FixedMode = None,
    factor: Annotated[float, typer.Option(min=1, help="A ratio that grew by more is worse.")] = 2.0,
) -> None:
    """Put two results side by side. Exit status: 0 nothing is worse, 1 something is, 2 wrong usage."""
    from references import compare as comparing

    sides = [_verdicts(side, level, device, casting_mode) for side in (before, after)]
    found = comparing.compare(*sides, factor)
    if not found.common:
        _refuse("no cell is in both results")
    console.print(comparing.table(found, (os.path.basename(before), os.path.basename(after))))
    for line in comparing.conclusion(found):
        console.print(line, highlight=False, markup=False)
    raise typer.Exit(int(found.worse))


@app.command()
def peers(
    level: Annotated[Level | None, typer.Option(help="Judge them on these cells and large ones.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this peer; repeatable.")] = None,
    device: OnDevice = Device.AUTO,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Every result.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="The table; between markers where it has them.")
    ] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="Judge nothing: the table of these results; repeatable."),
    ] = None,
) -> None:
    """Other people's RMSNorms: list them or, with --level, judge those that are installed."""
    from references.peers import command

    for file in filter(None, (json_file, markdown_file)):
        _prepare_outputs(file, None)
    try:
        if earlier and markdown_file:
            command.merge(earlier, markdown_file)
        elif level is None:
            command.list_peers(console, command.choose(only), str(device))
        else:
            cells = cases.LEVELS[level]
            code = command.judge_peers(console, command.choose(only), str(device), cells, json_file, markdown_file)
            raise typer.Exit(code)
    except ValueError as error:
        _refuse(str(error))


def _verdicts(side: str, level: Level, device: Device, casting_mode: CastingMode | None) -> list[Verdict]:
    """Those of a JSON file, or of a candidate that is judged now."""
    if not side.endswith(".json"):
        implementation, interpreted = _load(side, device, casting_mode)
        return _judge(implementation, report.environment(implementation, interpreted), cases.LEVELS[level])
    try:
        return record.read(Path(side))[0]
    except ValueError as error:
        _refuse(str(error))


def _judge(implementation: Implementation, about: dict[str, Any], selected: Sequence[Case]) -> list[Verdict]:
    """Check the cells with a progress bar, then print table, findings and conclusion."""
    console.print(report.header(about), highlight=False, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(implementation.name, total=len(selected))
        verdicts = check_all(implementation, selected, lambda verdict: progress.advance(task))
    console.print(report.table(verdicts))
    for line in report.complaints(verdicts):
        console.print(line, highlight=False, markup=False)
    console.print(report.conclusion(verdicts, len(selected)), highlight=False)
    return verdicts


def _load(target: str, device: Device, casting_mode: CastingMode | None) -> tuple[Implementation, bool]:
    """The candidate, and whether Triton is interpreted, which must be decided before Triton is imported."""
    interpreted = all(map(importlib.util.find_spec, ("torch", "triton"))) and interpreter.install()
    sys.path.insert(0, os.getcwd())  # a candidate may be a file right here
    if device is Device.AUTO and interpreted:
        device = Device.CPU
    try:
        return load(target, str(device), casting_mode and str(casting_mode)), interpreted
    except LoadError as error:
        _refuse(str(error))


def _find(case_id: str) -> Case:
    try:
        return cases.find(case_id)
    except KeyError as error:
        _refuse(error.args[0])


def _prepare_outputs(json_file: Path | None, html_folder: Path | None) -> None:
    """Find out before the work whether its result can be written."""
    try:
        if json_file:
            json_file.open("a").close()
        if html_folder:
            html_folder.mkdir(parents=True, exist_ok=True)
            (html_folder / "index.html").open("a").close()
    except OSError as error:
        _refuse(f"cannot write to {error.filename}: {error.strerror}")


def _refuse(message: str) -> NoReturn:
    print(f"rmsnorm-verify: {message}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit ends like Ctrl-C: results are kept
    app(prog_name="rmsnorm-verify")


if __name__ == "__main__":
    main()
