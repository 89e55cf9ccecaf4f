"""The command line: `rmsnorm-verify`, or `python -m references`.

Exit status: 0 conforms, 1 deviates, 2 wrong usage, 3 nothing could be run, 130 interrupted.
"""

from __future__ import annotations

import enum
import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from references.candidates import profile
from references.candidates.loading import LoadError
from references.candidates.probing import Probe, probe
from references.candidates.process import TIME_LIMIT, Isolated
from references.cells.cell import Case
from references.cells.levels import LEVELS, find
from references.judge.shrinking import shrink as shrink_verdict
from references.judge.verdict import Verdict, check_all
from references.judge.verdict import check as check_case
from references.report import files, page
from references.report.environment import environment
from references.report.explanation import explain as explain_verdict
from references.report.files import as_json
from references.report.summary import conclusion, exit_code, repetition
from references.report.terminal import claims, complaints, header, table
from references.spec import CastingMode


class Level(enum.StrEnum):
    SMOKE = "smoke"
    MATRIX = "matrix"
    FULL = "full"


class Device(enum.StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Weight(enum.StrEnum):
    SAME = "same"
    FLOAT32 = "float32"
    NONE = "none"


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
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="What the candidate claims (TOML or Python); the rest is probed."),
]
TimeLimit = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For one cell; then it counts as hanging.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)
console = Console(soft_wrap=True)


@app.command()
def check(
    target: Target,
    level: Annotated[Level, typer.Option(help="How many cells.")] = Level.SMOKE,
    device: OnDevice = Device.AUTO,
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this cell; repeatable.")] = None,
    casting_mode: FixedMode = None,
    profile_file: ProfileFile = None,
    time_limit: TimeLimit = TIME_LIMIT,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Every number.")] = None,
    html_folder: Annotated[Path | None, typer.Option("--html", metavar="DIR", help="A page to read.")] = None,
    mutants_file: Annotated[
        Path | None,
        typer.Option("--mutants", metavar="FILE", help="What `python -m tests.mutation --json` wrote, for the page."),
    ] = None,
) -> None:
    """Judge an RMSNorm implementation."""
    selected = [_find(case_id) for case_id in case] if case else LEVELS[level]
    claims = _claims(profile_file)
    planted = _read_mutants(mutants_file) if mutants_file else None
    _prepare_outputs(json_file, html_folder)
    with _open(target, device, casting_mode, time_limit) as candidate:
        found = _probe(candidate, claims)
        about = _about(candidate, found)
        verdicts = _judge(found, about, selected)
    if json_file:
        json_file.write_text(json.dumps(as_json(verdicts, about, len(selected)), indent=1))
    if html_folder:
        (html_folder / "index.html").write_text(page.page(verdicts, about, len(selected), planted), encoding="utf-8")
    raise typer.Exit(130 if len(verdicts) < len(selected) else exit_code(verdicts))


@app.command("cases")
def list_cases(level: Annotated[Level, typer.Option(help="How many cells.")] = Level.FULL) -> None:
    """List the ids of the cells."""
    for case in LEVELS[level]:
        print(case.id)


@app.command()
def explain(
    case_id: Annotated[str, typer.Argument(metavar="CASE_ID")],
    target: Target,
    device: OnDevice = Device.AUTO,
    casting_mode: FixedMode = None,
    profile_file: ProfileFile = None,
    time_limit: TimeLimit = TIME_LIMIT,
    shrink: Annotated[bool, typer.Option("--shrink", help="Also find the smallest shape that fails alike.")] = False,
) -> None:
    """Run one cell again and take its worst element apart: every term of its tolerance."""
    case = _find(case_id)
    claims = _claims(profile_file)
    with _open(target, device, casting_mode, time_limit) as candidate:
        found = _probe(candidate, claims)
        print(header(_about(candidate, found)))
        judge = partial(check_case, found.implementation, profile=found.profile, repeat=True)
        verdict = judge(case)
        print("\n".join(explain_verdict(verdict)))
        if shrink and verdict.status == "fail":
            smallest = shrink_verdict(judge, verdict)
            print(f"\nthe smallest shape that fails alike: {smallest.case.shape}")
            print("\n".join(explain_verdict(smallest)))
    raise typer.Exit(exit_code([verdict]))


@app.command()
def prove(
    target: Target,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Of X; repeatable.")] = None,
    casting_mode: Annotated[
        list[CastingMode] | None, typer.Option(help="Asked of a candidate that takes one; repeatable.")
    ] = None,
    weight: Annotated[Weight, typer.Option(help="Its dtype: X's, float32, or none.")] = Weight.SAME,
    time_limit: TimeLimit = TIME_LIMIT,
) -> None:
    """Run a candidate on numbers without rounding errors and say, without a tolerance, what it computes.

    Exit status: 0 it equals the mode that it was asked for, or any if it takes none; 1 it equals none; 3 refused.
    """
    os.environ["TRITON_INTERPRET"] = "1"  # the exact world is Triton's interpreter, on a GPU machine too
    codes = []
    with _open(target, Device.CPU, None, time_limit) as candidate:
        for name in dtype or [Dtype.BFLOAT16, Dtype.FLOAT32]:
            rounds = name in (Dtype.FLOAT16, Dtype.BFLOAT16)
            modes = (casting_mode or list(CastingMode)) if candidate.takes_mode and rounds else [CastingMode.LLAMA]
            for mode in modes:
                proof = candidate.prove(Case(str(mode), 0.0, str(name), str(weight), False, (1, 1), 0.0))
                asked = f"asked for {mode}: " if candidate.takes_mode and rounds else ""
                console.print(asked + str(proof), highlight=False, markup=False)
                equals = proof.mode is not None and (not asked or proof.mode == str(mode))
                codes.append(3 if proof.refusal else int(not equals))
    raise typer.Exit(max(codes))


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
    from references.report import regression as comparing

    sides = [_verdicts(side, level, device, casting_mode) for side in (before, after)]
    found = comparing.compare(sides[0], sides[1], factor)
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
            cells = LEVELS[level]
            code = command.judge_peers(console, command.choose(only), str(device), cells, json_file, markdown_file)
            raise typer.Exit(code)
    except ValueError as error:
        _refuse(str(error))


def _verdicts(side: str, level: Level, device: Device, casting_mode: CastingMode | None) -> list[Verdict]:
    """Those of a JSON file, or of a candidate that is judged now."""
    if not side.endswith(".json"):
        with _open(side, device, casting_mode) as candidate:
            found = _probe(candidate, {})
            return _judge(found, _about(candidate, found), LEVELS[level])
    try:
        return files.read(Path(side))[0]
    except ValueError as error:
        _refuse(str(error))


def _judge(found: Probe, about: dict[str, Any], selected: Sequence[Case]) -> list[Verdict]:
    """Check the cells with a progress bar, then print table, findings and conclusion."""
    for line in (header(about), *claims(found.profile, found.notes)):
        console.print(line, highlight=False, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(found.implementation.name, total=len(selected))
        verdicts = check_all(
            found.implementation, selected, lambda verdict: progress.advance(task), profile=found.profile
        )
    console.print(table(verdicts))
    for line in complaints(verdicts):
        console.print(line, highlight=False, markup=False)
    repeated = repetition(verdicts)
    if repeated is not None:
        console.print(repeated, highlight=False)
    console.print(conclusion(verdicts, len(selected)), highlight=False)
    return verdicts


def _open(target: str, device: Device, casting_mode: CastingMode | None, time_limit: float = TIME_LIMIT) -> Isolated:
    """The candidate, in a process of its own; it may be a file right here."""
    try:
        return Isolated(target, str(device), casting_mode and str(casting_mode), time_limit, [os.getcwd()])
    except LoadError as error:
        _refuse(str(error))


def _probe(candidate: Isolated, claims: dict[str, Any]) -> Probe:
    try:
        return probe(candidate, claims)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _about(candidate: Isolated, found: Probe) -> dict[str, Any]:
    return environment(found.implementation, candidate.interpreted, found.profile, found.notes)


def _claims(profile_file: Path | None) -> dict[str, Any]:
    try:
        return profile.read(profile_file) if profile_file else {}
    except profile.ProfileError as error:
        _refuse(str(error))


def _find(case_id: str) -> Case:
    try:
        return find(case_id)
    except KeyError as error:
        _refuse(error.args[0])


def _read_mutants(file: Path) -> page.Mutants:
    try:
        return page.read_mutants(file)
    except ValueError as error:
        _refuse(str(error))


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
