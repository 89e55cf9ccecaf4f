"""The command line: `rmsnorm-verify`, or `python -m references`.

Exit status: 0 conforms, 1 deviates, 2 wrong usage, 3 nothing could be judged (or none of something that is claimed),
130 interrupted.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
from references.cells.levels import COVERING_AXES, LEVELS, RESIDUAL_AXES, draw, find
from references.cells.selection import select
from references.exact.prove import SHAPES
from references.judge.shrinking import shrink as shrink_verdict
from references.judge.verdict import Verdict, check_all
from references.judge.verdict import check as check_case
from references.report import files, page, terminal
from references.report.environment import environment
from references.report.explanation import explain as explain_verdict
from references.report.files import as_json
from references.report.junit import as_junit
from references.report.summary import conclusion, exit_code, repetition, unjudged
from references.spec import DTYPES, CastingMode


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


class Arrays(enum.StrEnum):
    AUTO = "auto"
    TORCH = "torch"
    JAX = "jax"
    NUMPY = "numpy"


FEW_SHAPES = SHAPES[::7]  # six: enough for a line of `check`

Dtype = enum.StrEnum("Dtype", {name.upper(): name for name in DTYPES})  # type: ignore[misc]

Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="The candidate, or path/to/file.py:NAME; without NAME a pair.")
]
AtLevel = Annotated[Level, typer.Option(help="How many cells.")]
OnDevice = Annotated[Device, typer.Option(help="Where PyTorch candidates run.")]
OfArrays = Annotated[Arrays, typer.Option(help="Whose arrays a function takes; auto: what it is written with.")]
FixedMode = Annotated[
    CastingMode | None, typer.Option(help="The mode that a candidate without such an argument computes.")
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="What the candidate claims (TOML or Python); the rest is probed."),
]
ForwardOnly = Annotated[bool, typer.Option("--forward-only", help="No gradient is claimed: a kernel for inference.")]
TimeLimit = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For one cell; then it counts as hanging.")]
Cases = Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Only this cell; repeatable.")]
Dtypes = Annotated[list[Dtype] | None, typer.Option("--dtype", help="Only X of this dtype; repeatable.")]
Keyword = Annotated[str, typer.Option("-k", metavar="WORDS", help="Only cells whose id fits: 'bf16 and not huge'.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Other inputs than those of seed 0.")]
Stop = Annotated[bool, typer.Option("-x", "--exitfirst", help="Stop at the first cell that deviates.")]
MaxFail = Annotated[int, typer.Option(metavar="N", min=0, help="Stop at the Nth cell that deviates.")]
Jobs = Annotated[int, typer.Option(metavar="N", min=1, help="Processes that run the candidate side by side.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="The verdict alone.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Every kind of finding, with examples.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)


@dataclass(frozen=True)
class Options:
    """What `check` and `compare` are asked for."""

    level: Level = Level.SMOKE
    device: Device = Device.AUTO
    arrays: Arrays = Arrays.AUTO
    casting_mode: CastingMode | None = None
    claims: dict[str, Any] | None = None
    time_limit: float = TIME_LIMIT
    cases: tuple[Case, ...] = ()
    dtypes: tuple[str, ...] = ()
    keyword: str = ""
    seed: int | None = None
    max_failures: int = 0
    jobs: int = 1
    verbosity: int = 0

    def cells(self, found: Probe) -> list[Case]:
        """Those that were named, else the level's within the claims; of them what was selected."""
        cells = self.cases or found.profile.cells(self.level)
        return select(cells, dtypes=self.dtypes, keyword=self.keyword, seed=self.seed)


@dataclass
class Judged:
    """What came of a candidate."""

    verdicts: list[Verdict]
    about: dict[str, Any]
    expected: int
    unjudged: list[str]

    @property
    def status(self) -> int:
        return 130 if self.interrupted else exit_code(self.verdicts, self.unjudged)

    interrupted: bool = False


def _version(asked: bool) -> None:
    if asked:
        try:
            version = importlib.metadata.version("rmsnorm")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"  # a checkout that is not installed
        print(f"rmsnorm-verify {version}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Judge RMSNorm implementations."""


@app.command()
def check(
    target: Target,
    level: AtLevel = Level.SMOKE,
    device: OnDevice = Device.AUTO,
    arrays: OfArrays = Arrays.AUTO,
    case: Cases = None,
    dtype: Dtypes = None,
    keyword: Keyword = "",
    casting_mode: FixedMode = None,
    profile_file: ProfileFile = None,
    forward_only: ForwardOnly = False,
    seed: Seed = None,
    exitfirst: Stop = False,
    maxfail: MaxFail = 0,
    jobs: Jobs = 1,
    time_limit: TimeLimit = TIME_LIMIT,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Every number; - is standard output.")
    ] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="For CI systems.")] = None,
    html_folder: Annotated[Path | None, typer.Option("--html", metavar="DIR", help="A page to read.")] = None,
    mutants_file: Annotated[
        Path | None,
        typer.Option("--mutants", metavar="FILE", help="What `python -m tests.mutation --json` wrote, for the page."),
    ] = None,
) -> None:
    """Judge an RMSNorm implementation."""
    options = _options(
        level=level,
        device=device,
        arrays=arrays,
        case=case,
        dtype=dtype,
        keyword=keyword,
        casting_mode=casting_mode,
        profile_file=profile_file,
        forward_only=forward_only,
        seed=seed,
        max_failures=1 if exitfirst else maxfail,
        jobs=jobs,
        time_limit=time_limit,
        verbosity=verbose - quiet,
    )
    planted = _read_mutants(mutants_file) if mutants_file else None
    to_stdout = str(json_file) == "-"
    _prepare_outputs([None if to_stdout else json_file, junit_file], html_folder)
    found = _judge(target, options, _console(sys.stderr if to_stdout else sys.stdout))
    if json_file:
        document = json.dumps(as_json(found.verdicts, found.about, found.expected, found.unjudged), indent=1)
        if to_stdout:
            print(document)
        else:
            json_file.write_text(document, encoding="utf-8")
    if junit_file:
        junit_file.write_text(as_junit(found.verdicts, target), encoding="utf-8")
    if html_folder:
        text = page.page(found.verdicts, found.about, found.expected, planted, found.unjudged)
        (html_folder / "index.html").write_text(text, encoding="utf-8")
    raise typer.Exit(found.status)


@app.command("cases")
def list_cases(
    level: Annotated[Level, typer.Option(help="How many cells.")] = Level.FULL,
    residual: Annotated[bool, typer.Option("--residual", help="Those of a candidate that takes a residual.")] = False,
) -> None:
    """List the ids of the cells."""
    for case in draw(level, COVERING_AXES | RESIDUAL_AXES) if residual else LEVELS[level]:
        print(case.id)


@app.command()
def explain(
    case_id: Annotated[str, typer.Argument(metavar="CASE_ID")],
    target: Target,
    device: OnDevice = Device.AUTO,
    arrays: OfArrays = Arrays.AUTO,
    casting_mode: FixedMode = None,
    profile_file: ProfileFile = None,
    forward_only: ForwardOnly = False,
    time_limit: TimeLimit = TIME_LIMIT,
    shrink: Annotated[bool, typer.Option("--shrink", help="Also find the smallest shape that fails alike.")] = False,
) -> None:
    """Run one cell again and take its worst element apart: every term of its tolerance."""
    case = _find(case_id)
    options = _options(
        device=device,
        arrays=arrays,
        casting_mode=casting_mode,
        profile_file=profile_file,
        forward_only=forward_only,
        time_limit=time_limit,
    )
    with _open(target, options) as candidate:
        found = _probe(candidate, options)
        print(terminal.header(_about(candidate, found)))
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
    with _open(target, _options(device=Device.CPU, time_limit=time_limit)) as candidate:
        for name in dtype or [Dtype("bfloat16"), Dtype("float32")]:
            rounds = str(name) in ("float16", "bfloat16")
            modes = (casting_mode or list(CastingMode)) if candidate.takes_mode and rounds else [CastingMode.LLAMA]
            for mode in modes:
                proof = candidate.prove(Case(str(mode), 0.0, str(name), str(weight), False, (1, 1), 0.0))
                asked = f"asked for {mode}: " if candidate.takes_mode and rounds else ""
                print(asked + str(proof))
                equals = proof.mode is not None and (not asked or proof.mode == str(mode))
                codes.append(3 if proof.refusal else int(not equals))
    raise typer.Exit(max(codes))


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A candidate, or a file that check --json wrote.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    level: AtLevel = Level.SMOKE,
    device: OnDevice = Device.AUTO,
    arrays: OfArrays = Arrays.AUTO,
    case: Cases = None,
    dtype: Dtypes = None,
    keyword: Keyword = "",
    casting_mode: FixedMode = None,
    profile_file: ProfileFile = None,
    forward_only: ForwardOnly = False,
    seed: Seed = None,
    jobs: Jobs = 1,
    time_limit: TimeLimit = TIME_LIMIT,
    quiet: Quiet = False,
    verbose: Verbose = False,
    factor: Annotated[float, typer.Option(min=1, help="A ratio that grew by more is worse.")] = 2.0,
) -> None:
    """Put two results side by side. Exit status: 0 nothing is worse, 1 something is, 2 wrong usage, 3 nothing ran."""
    from references.report import regression as comparing

    options = _options(
        level=level,
        device=device,
        arrays=arrays,
        case=case,
        dtype=dtype,
        keyword=keyword,
        casting_mode=casting_mode,
        profile_file=profile_file,
        forward_only=forward_only,
        seed=seed,
        jobs=jobs,
        time_limit=time_limit,
        verbosity=verbose - quiet,
    )
    console = _console(sys.stdout)
    sides = [_verdicts(side, options, console) for side in (before, after)]
    found = comparing.compare(sides[0], sides[1], factor)
    if not found.common:
        _refuse("no cell is in both results")
    if not found.judged:
        _tell("no cell was judged in both results: nothing can be compared")
        raise typer.Exit(3)
    if not quiet:
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

    _prepare_outputs([json_file, markdown_file], None)
    console = _console(sys.stdout)
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


def _options(
    case: list[str] | None = None,
    dtype: list[Dtype] | None = None,
    profile_file: Path | None = None,
    forward_only: bool = False,
    **given: Any,
) -> Options:
    """As they were typed, read and checked."""
    cases = tuple(_find(case_id) for case_id in case or ())
    claims = _claims(profile_file) | ({"gradients": False} if forward_only else {})
    return Options(cases=cases, dtypes=tuple(map(str, dtype or ())), claims=claims, **given)


def _verdicts(side: str, options: Options, console: Console) -> list[Verdict]:
    """Those of a JSON file, or of a candidate that is judged now."""
    if not side.endswith(".json"):
        return _judge(side, options, console).verdicts
    try:
        verdicts = files.read(Path(side))[0]
    except ValueError as error:
        _refuse(str(error))
    chosen = set(select([v.case for v in verdicts], dtypes=options.dtypes, keyword=options.keyword))
    return [v for v in verdicts if v.case in chosen]


def _judge(target: str, options: Options, console: Console) -> Judged:
    """Check the cells with a progress bar, then say what is wrong, what was judged, and the verdict."""

    def tell(*lines: str) -> None:
        for line in lines:
            console.print(line, highlight=False, markup=False)

    quiet, verbose = options.verbosity < 0, options.verbosity > 0
    if not quiet:
        tell(f"loading {target} …")
    with contextlib.ExitStack() as opened:
        candidate = opened.enter_context(_open(target, options))
        found = _probe(candidate, options)
        about = _about(candidate, found)
        selected = options.cells(found)
        if not quiet:
            tell(terminal.header(about), *terminal.claims(found.profile, found.notes, found.mode))
        if not selected:
            _refuse("no cell is selected")
        others = [opened.enter_context(_open(target, options)) for _ in range(min(options.jobs, len(selected)) - 1)]
        mode = found.implementation.fixed_mode
        helpers = [other.with_mode(mode) if mode else other for other in others]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
            task = progress.add_task(target, total=len(selected))
            verdicts = check_all(
                found.implementation,
                selected,
                lambda verdict: progress.advance(task),
                found.profile,
                max_failures=options.max_failures,
                others=helpers,
            )
        proofs = [] if quiet or len(verdicts) < len(selected) else _proofs(candidate, found)
    failed = sum(v.status == "fail" for v in verdicts)
    stopped = bool(options.max_failures) and failed >= options.max_failures
    interrupted = len(verdicts) < len(selected) and not stopped
    missing = unjudged(verdicts, selected, found.profile) if len(verdicts) == len(selected) else []
    tell(*terminal.diagnosis(verdicts, about, verbose))
    if not quiet and any(v.status != "unsupported" for v in verdicts):
        console.print(terminal.table(verdicts))
    if verbose:
        tell(*terminal.complaints(verdicts), *filter(None, [repetition(verdicts)]))
    if not quiet:
        tell(*terminal.unsupported(verdicts))
    tell(*proofs)
    tell(conclusion(verdicts, len(selected), missing))
    return Judged(verdicts, about, len(selected), missing, interrupted)


def _open(target: str, options: Options) -> Isolated:
    """The candidate, in a process of its own; it may be a file right here."""
    mode = options.casting_mode and str(options.casting_mode)
    try:
        return Isolated(target, str(options.device), mode, options.time_limit, [os.getcwd()], str(options.arrays))
    except LoadError as error:
        _refuse(str(error))


def _probe(candidate: Isolated, options: Options) -> Probe:
    try:
        return probe(candidate, options.claims or {})
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _proofs(candidate: Isolated, found: Probe) -> list[str]:
    """Without a tolerance, at a few shapes: which formula each claimed mode is. Kernels of a GPU are not asked."""
    if candidate.device != "cpu":
        return []
    claims = found.profile
    dtype = next((name for name in ("bfloat16", "float16") if name in claims.dtypes), claims.dtypes[0])
    modes = claims.casting_modes if candidate.takes_mode else [found.implementation.fixed_mode or CastingMode.LLAMA]
    weight = "same" if "same" in claims.weights else claims.weights[0]
    lines = []
    for mode in modes:
        proof = candidate.prove(Case(str(mode), 0.0, dtype, weight, False, (1, 1), 0.0), FEW_SHAPES)
        asked = f"asked for {mode}: " if candidate.takes_mode else ""
        lines.append(f"exact: {asked}{proof.brief}")
    return lines


def _about(candidate: Isolated, found: Probe) -> dict[str, Any]:
    return environment(found.implementation, candidate.interpreted, found.profile, found.notes, found.mode)


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


def _prepare_outputs(written: Sequence[Path | None], html_folder: Path | None) -> None:
    """Find out before the work whether its result can be written."""
    try:
        for file in filter(None, written):
            file.open("a").close()
        if html_folder:
            html_folder.mkdir(parents=True, exist_ok=True)
            (html_folder / "index.html").open("a").close()
    except OSError as error:
        _refuse(f"cannot write to {error.filename}: {error.strerror}")


def _console(stream: Any) -> Console:
    return Console(file=stream, soft_wrap=True)


def _tell(message: str) -> None:
    print(f"rmsnorm-verify: {message}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    _tell(message)
    raise typer.Exit(2)


def run() -> None:
    """The command, with a terminal that may lack characters and a time limit that ends like Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # results are kept
    app(prog_name="rmsnorm-verify")
