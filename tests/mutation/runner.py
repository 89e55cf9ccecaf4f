"""Run mutants: each on a scratch copy of the checkout, in a child process of its own, two at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutation.mutant import CELLS, STATIC, Mutant
from tests.mutation.stages import EVERYTHING

CHECKOUT = Path.cwd()  # a checkout's tool: the installed package has no tests to run
COPIED = (  # all that a test reads, so that what fails in a copy fails for its fault
    "rmsnorm",
    "references",
    "tests",
    "docs",
    "examples",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "conftest.py",
    "constraints.txt",
    "pyproject.toml",
    "tox.ini",
)
LINKED = (
    "references",
    "docs",
)  # as long as no fault lies in them: a copy of the judge is imported anew, which takes time
TIMEOUT = 900.0  # seconds for one mutant; each test and the cells have their own, shorter limit
ALL = 99  # stages
WORKERS = 2
TASK = "tests.mutation.stages"

Answer = dict[str, Any]


class SuiteFails(RuntimeError):
    """A stage notices a fault where none is planted: it cannot show anything."""


@dataclass(frozen=True)
class Result:
    """status: "killed", "survived" or "broken" (the mutant does not import: it shows nothing).

    seconds: on the clock; processor: that its processes used.
    """

    mutant: Mutant
    status: str
    stage: str | None
    by: str | None
    where: str | None
    margin: float | None
    text: str | None
    seconds: float
    processor: float

    @property
    def near_miss(self) -> bool:
        """Whether other inputs might not have shown it: a tolerance just exceeded, or a handful of elements."""
        few = re.search(r"\bin ([123]) of \d+ elements", self.text or "")
        return self.status == "killed" and ((self.margin is not None and self.margin < 2) or few is not None)

    @property
    def as_expected(self) -> bool:
        return self.status == ("survived" if self.mutant.equivalent else "killed")

    def __str__(self) -> str:
        head = f"{self.mutant.id:5} {self.status:8} {self.seconds:5.1f} s  {self.mutant.fault}"
        if self.by is None:
            return head
        margin = f", {self.margin:.3g} of the tolerance" if self.margin is not None else ""
        return f"{head}\n      {self.by}{margin}: {self.where}: {(self.text or '')[:160]}"


class _Worker:
    """One fork server and the line to it."""

    def __init__(self, device: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
        if device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=CHECKOUT,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Judges:
    """Child processes that judge mutants, `workers` at a time: `with Judges("cpu") as judges: judges.ask(...)`.

    Args:
        device: "cpu" (Triton's interpreter) or "cuda".
        workers: how many run at a time.
    """

    def __init__(self, device: str = "cpu", workers: int = WORKERS) -> None:
        self.device = device
        self._pool = ThreadPoolExecutor(workers)
        self._local = threading.local()
        self._servers: list[_Worker] = []

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for server in self._servers:
            server.close()

    def ask(
        self, mutants: Iterable[Mutant], *, task: str, on_answer: Callable[[Mutant, Answer], object], **options: Any
    ) -> list[Answer]:
        """What the function `judge` of the module `task` finds out about each mutant, in order.

        Args:
            mutants: which.
            task: a module with `judge(noticed_by, then, device, result, **options)`, which writes JSON to `result`.
            on_answer: told of each answer as it comes.
            options: plain values, of which `depth` is a number of stages.
        """

        def answer(mutant: Mutant) -> Answer:
            if not hasattr(self._local, "worker"):
                self._local.worker = _Worker(self.device)
                self._servers.append(self._local.worker)
            found = self._ask(mutant, self._local.worker, task, options)
            on_answer(mutant, found)
            return found

        return list(self._pool.map(answer, mutants))

    def _ask(self, mutant: Mutant, worker: _Worker, task: str, options: dict[str, Any]) -> Answer:
        with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.id}-", ignore_cleanup_errors=True) as folder:
            scratch = Path(folder)
            copy_checkout(scratch, linked=[name for name in LINKED if name != _room(mutant)])
            mutant.apply(scratch)
            about = {"noticed_by": mutant.noticed_by, "then": mutant.then, "device": self.device, **options}
            request = {"scratch": folder, "checkout": str(CHECKOUT), "timeout": TIMEOUT, "task": task, "about": about}
            return worker.ask(request)


def run(
    mutants: Iterable[Mutant],
    device: str = "cpu",
    on_result: Callable[[Result], object] = lambda result: None,
    *,
    workers: int = WORKERS,
    depth: int = ALL,
    seed: int = 0,
) -> list[Result]:
    """Judge every mutant.

    Args:
        mutants: which.
        device: "cpu" (Triton's interpreter) or "cuda".
        on_result: told of each result as it comes.
        workers: how many run at a time.
        depth: how many stages a mutant goes through at most: 1 is the check that should notice it.
        seed: of the judged cells and of the vote.

    Raises:
        SuiteFails: a stage fails in a copy in which nothing is planted. That is seen before a fault is judged by it.
    """
    mutants = [_as_asked(mutant) for mutant in mutants]
    by_id = {mutant.id: mutant for mutant in mutants}
    found: dict[str, Answer] = {}
    with Judges(device, workers) as judges:
        ask = partial(judges.ask, task=TASK, seed=seed)

        def demand_silence(stages: Iterable[tuple[str, Mutant]]) -> None:
            """Each stage passes where nothing is planted, in a copy of the kind that the mutant gets."""
            kinds = {(stage, _room(mutant)): replace(mutant, old="", new="", at=0) for stage, mutant in stages}
            unmutated = [replace(mutant, noticed_by=stage, then=()) for (stage, _), mutant in sorted(kinds.items())]
            for mutant, answer in zip(unmutated, ask(unmutated, on_answer=_ignore, depth=1), strict=True):
                if answer["status"] != "survived":
                    raise SuiteFails(f"nothing is planted, and {mutant.noticed_by} fails: {answer['kill']['text']}")

        def tell(mutant: Mutant, answer: Answer) -> None:
            found[mutant.id] = answer
            if answer["status"] != "survived" or not _further(mutant, depth):
                on_result(_result(mutant, answer))

        def tell_last(asked: Mutant, answer: Answer) -> None:
            first = found[asked.id]
            spent = {name: first[name] + answer[name] for name in ("seconds", "processor")}
            found[asked.id] = answer | spent
            on_result(_result(by_id[asked.id], found[asked.id]))

        demand_silence((mutant.noticed_by, mutant) for mutant in mutants)
        ask(mutants, on_answer=tell, depth=1)
        left = [m for m in mutants if found[m.id]["status"] == "survived" and _further(m, depth)]
        demand_silence((stage, mutant) for mutant in left for stage in _further(mutant, depth))
        # The rest of the stages, the first of which now stands for the mutant's own.
        others = [(mutant, *_further(mutant, depth)) for mutant in left]
        rest = [replace(mutant, noticed_by=stage, then=tuple(then)) for mutant, stage, *then in others]
        ask(rest, on_answer=tell_last, depth=depth)
    return [_result(mutant, found[mutant.id]) for mutant in mutants]


def _further(mutant: Mutant, depth: int) -> tuple[str, ...]:
    """The stages that are asked where the mutant's own notices nothing."""
    others = tuple(name for name in EVERYTHING if name != mutant.noticed_by)
    return (others if mutant.then is None else mutant.then)[: depth - 1]


def _room(mutant: Mutant) -> str:
    """The part of the checkout that the fault lies in, and that its copy does not merely link to."""
    top = mutant.file.partition("/")[0]
    return top if top in LINKED else ""


def _as_asked(mutant: Mutant) -> Mutant:
    """A curated control shows no false alarm in three stages: the whole suite runs unmutated elsewhere."""
    if mutant.equivalent is None or mutant.then is not None:
        return mutant
    return replace(mutant, then=tuple({STATIC, CELLS} - {mutant.noticed_by}))


def _ignore(mutant: Mutant, answer: Answer) -> None:
    pass


def _result(mutant: Mutant, answer: Answer) -> Result:
    kill = answer["kill"] or {}
    return Result(
        mutant,
        status=answer["status"],
        stage=answer["stage"],
        by=kill.get("by"),
        where=kill.get("where"),
        margin=kill.get("margin"),
        text=kill.get("text"),
        seconds=answer["seconds"],
        processor=answer["processor"],
    )


def copy_checkout(target: Path, linked: Collection[str] = ()) -> None:
    """What a mutant, its judge and the tests read, without caches; directories in `linked` do not change: links."""
    for name in COPIED:
        source = CHECKOUT / name
        if name in linked:
            (target / name).symlink_to(source)
        elif source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def conclusion(results: list[Result]) -> list[str]:
    """`killed K of N`, then near misses and what is not as expected."""
    faults = [result for result in results if result.mutant.equivalent is None]
    controls = [result for result in results if result.mutant.equivalent is not None]
    lines = [f"killed {sum(r.status == 'killed' for r in faults)} of {len(faults)}"]
    if controls:
        kept = sum(r.status == "survived" for r in controls)
        lines.append(f"equivalent: {kept} of {len(controls)} survived, as they must")
    minutes = sum(result.processor for result in results) / 60
    lines.append(f"processor time: {minutes:.1f} min")
    lines += [f"near miss: {result}" for result in results if result.near_miss]
    return lines + [str(result) for result in results if not result.as_expected]


def as_json(results: list[Result]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]
