"""The cells as tests of a kernel author's own suite: `pytest -p references.pytest_plugin --rmsnorm-impl module:name`.

Each cell is an item `rmsnorm::<case id>` with the marker `rmsnorm`, beside whatever else pytest collects, so that -k,
-m, --lf, xdist and JUnit files work as for any test. It is a plugin to be named, not an entry point: an installed
wheel changes nobody else's pytest run, and options in a `--pyargs` package would be unknown when pytest parses them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from references.candidates import profile
from references.candidates.loading import LoadError
from references.candidates.probing import Probe, probe
from references.candidates.process import TIME_LIMIT, Isolated
from references.cells.cell import Case
from references.cells.levels import LEVELS, find
from references.cells.selection import select
from references.judge.verdict import check, plainest
from references.report.explanation import explain
from references.report.terminal import claims
from references.spec import DTYPES, CastingMode

FOUND = pytest.StashKey[Probe]()
CHILD = pytest.StashKey[Isolated]()
CLAIMS = pytest.StashKey[Mapping[str, Any]]()
XFAILS = pytest.StashKey[dict[str, str]]()


class Deviation(Exception):
    """A cell fails; the text takes it apart."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmsnorm", "judging an RMSNorm implementation")
    group.addoption("--rmsnorm-impl", metavar="MODULE:NAME", help="The candidate; MODULE alone for a pair.")
    group.addoption("--rmsnorm-level", choices=list(LEVELS), default="smoke", help="How many cells.")
    group.addoption("--rmsnorm-device", choices=("auto", "cpu", "cuda"), default="auto", help="Where it runs.")
    group.addoption(
        "--rmsnorm-arrays", choices=("auto", "torch", "jax", "numpy"), default="auto", help="Whose arrays it takes."
    )
    group.addoption(
        "--rmsnorm-casting-mode", choices=list(map(str, CastingMode)), help="The mode that it computes without asking."
    )
    group.addoption("--rmsnorm-dtype", action="append", choices=DTYPES, help="Only X of this dtype; repeatable.")
    group.addoption("--rmsnorm-case", action="append", metavar="ID", help="Only this cell; repeatable.")
    group.addoption("--rmsnorm-seed", type=int, metavar="N", help="Other inputs than those of seed 0.")
    group.addoption("--rmsnorm-time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help="For one cell.")
    group.addoption("--rmsnorm-profile", type=Path, metavar="FILE", help="What it claims; the rest is probed.")
    group.addoption("--rmsnorm-forward-only", action="store_true", help="No gradient is claimed.")
    group.addoption(
        "--rmsnorm-xfail",
        type=Path,
        metavar="FILE",
        help="Cells that are known to fail: a case id and the reason on each line.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rmsnorm: a cell in which an RMSNorm implementation is judged")
    profile_file, xfail_file = config.getoption("rmsnorm_profile"), config.getoption("rmsnorm_xfail")
    try:
        claims = profile.read(profile_file) if profile_file else {}
    except profile.ProfileError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[CLAIMS] = claims | ({"gradients": False} if config.getoption("rmsnorm_forward_only") else {})
    config.stash[XFAILS] = _read_xfails(xfail_file) if xfail_file else {}


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    target = config.getoption("rmsnorm_impl")
    if not target:
        return
    try:
        child = config.stash[CHILD] = Isolated(
            target,
            config.getoption("rmsnorm_device"),
            config.getoption("rmsnorm_casting_mode"),
            config.getoption("rmsnorm_time_limit"),
            [os.getcwd()],
            config.getoption("rmsnorm_arrays"),
        )
    except LoadError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[FOUND] = probe(child, config.stash[CLAIMS])
    if config.pluginmanager.hasplugin("dsession"):  # xdist: the workers have children of their own
        child.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    found = config.stash.get(FOUND, None)
    if found is None:
        return []
    first, *others = claims(found.profile, found.notes, found.mode)
    return [f"rmsnorm: {found.implementation.name}; {first}", *others]


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among the items
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("rmsnorm_impl"):
        return
    cells = Cells.from_parent(session, name="rmsnorm", nodeid="rmsnorm", cases=_selected(config))
    collected = session.ihook.pytest_make_collect_report(collector=cells)
    session.ihook.pytest_collectreport(report=collected)
    items.extend(collected.result)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which a candidate was named and no cell of it was judged is no success."""
    config = session.config
    if not config.getoption("rmsnorm_impl") or config.option.collectonly or exitstatus != pytest.ExitCode.OK:
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = () if reporter is None else [*reporter.stats.get("passed", ()), *reporter.stats.get("xfailed", ())]
    if reporter is not None and not any(report.nodeid.startswith("rmsnorm::") for report in reports):
        reporter.write_line(f"rmsnorm: no cell of {config.getoption('rmsnorm_impl')} was judged", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure(config: pytest.Config) -> None:
    if CHILD in config.stash:
        config.stash[CHILD].close()


class Cells(pytest.Collector):
    """All cells of the level, and the lines of the xfail file that name none."""

    def __init__(self, *, cases: Sequence[Case], **about: Any) -> None:
        super().__init__(**about)
        self.cases = cases

    def collect(self) -> Iterator[pytest.Item]:
        repeated = plainest(self.cases)
        for case in self.cases:
            yield Cell.from_parent(self, name=case.id, case=case, repeat=case in repeated)
        profile = self.config.stash[FOUND].profile
        known = {case.id for case in (*LEVELS["full"], *profile.cells("full"), *self.cases)}
        for case_id in self.config.stash[XFAILS]:
            if case_id not in known:
                yield UnknownCell.from_parent(self, name=case_id, known=known)


def _selected(config: pytest.Config) -> list[Case]:
    """The cells that were named, else the level's within the claims. Raises UsageError where none is left."""
    option = config.getoption
    try:
        named = [find(case_id) for case_id in option("rmsnorm_case") or ()]
    except KeyError as error:
        raise pytest.UsageError(error.args[0]) from error
    cells = named or config.stash[FOUND].profile.cells(option("rmsnorm_level"))
    chosen = select(cells, dtypes=option("rmsnorm_dtype") or (), seed=option("rmsnorm_seed"))
    if not chosen:
        raise pytest.UsageError("no cell is selected")
    return chosen


class Judgement(pytest.Item):
    """What both kinds of items share: the marker, and a failure that is its text."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.add_marker("rmsnorm")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Deviation):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid


class Cell(Judgement):
    """One cell: passes, is skipped as unsupported, or fails, which a line of the xfail file may expect."""

    def __init__(self, *, case: Case, repeat: bool, **about: Any) -> None:
        super().__init__(**about)
        self.case, self.repeat = case, repeat

    def runtest(self) -> None:
        found = self.config.stash[FOUND]
        verdict = check(found.implementation, self.case, found.profile, repeat=self.repeat)
        expected = self.config.stash[XFAILS].get(self.case.id)
        if expected is not None and verdict.status != "fail":
            raise Deviation(f"stale: the xfail file expects a failure ({expected}), the cell is: {verdict.status}")
        if verdict.status == "unsupported":
            pytest.skip(str(verdict.reason))
        if verdict.status == "fail":
            if expected is not None:
                pytest.xfail(expected)
            raise Deviation("\n".join(explain(verdict)))


class UnknownCell(Judgement):
    """A line of the xfail file that names no cell."""

    def __init__(self, *, known: set[str], **about: Any) -> None:
        super().__init__(**about)
        self.known = known

    def runtest(self) -> None:
        nearest = difflib.get_close_matches(self.name, self.known, n=1, cutoff=0)
        raise Deviation(f"stale: the xfail file names {self.name!r}, which is no case; the nearest is {nearest[0]!r}")


def _read_xfails(path: Path) -> dict[str, str]:
    """Reasons by case id. Raises UsageError for a file that cannot be read, and for a line without a reason."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"cannot read {path}: {error}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        case_id, _, reason = line.strip().partition(" ")
        if not case_id or case_id.startswith("#"):
            continue
        if not reason.strip():
            raise pytest.UsageError(f"{path}:{number}: {case_id} has no reason beside it")
        if case_id in reasons:
            raise pytest.UsageError(f"{path}:{number}: {case_id} stands there twice")
        reasons[case_id] = reason.strip()
    return reasons
