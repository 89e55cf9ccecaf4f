"""A candidate in a process of its own: it may raise, hang, crash or exit, and the judge goes on.

The child loads the candidate and runs it; the parent makes the inputs and judges the results, so that nothing that the
candidate does to its process reaches the judge. A child that dies or takes too long is replaced before the next run.
Both ends are POSIX: a process group each, a socket between them.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from references.candidates import interpreter
from references.candidates.loading import LoadError, load
from references.candidates.outputs import Outputs
from references.candidates.repetition import Behaviour
from references.cells.cell import Case, Inputs
from references.exact.prove import SHAPES, Proof

TIME_LIMIT = 60.0  # seconds for one cell: ten times what the slowest takes in Triton's interpreter
LOAD_LIMIT = 300.0  # and for importing a candidate, which may compile something
PROOF_LIMIT = 60.0  # for the search for a formula, before its shapes
BEHAVIOUR_RUNS = 4
STDERR = 2


class Isolated:
    """An `Implementation` whose runs happen in a child process; close it, or use it as a context.

    Args:
        target, device, fixed_mode, array_library: as for `loading.load`.
        time_limit: seconds that one cell may take.
        paths: what the child puts in front of its `sys.path`.

    Raises:
        LoadError: the candidate cannot be loaded; the child is gone then.
    """

    def __init__(
        self,
        target: str,
        device: str = "cpu",
        fixed_mode: str | None = None,
        time_limit: float = TIME_LIMIT,
        paths: Sequence[str] = (),
        array_library: str = "auto",
    ) -> None:
        self.name, self.fixed_mode, self.time_limit = target, fixed_mode, time_limit
        self._child = _Child((target, device, array_library), paths)
        about = self._child.about
        self.device: str = about["device"]
        self.ignored: tuple[str, ...] = about["ignored"]
        self.takes_mode: bool = about["takes_mode"]
        self.interpreted: bool = about["interpreted"]
        self.arrays: str = about["arrays"]
        self.residual: tuple[bool, ...] = about["residual"]

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        answer = self._child.ask("run", self.fixed_mode, case, inputs, limit=self.time_limit)
        return Outputs(died=answer) if isinstance(answer, str) else answer

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        limit = BEHAVIOUR_RUNS * self.time_limit
        answer = self._child.ask("behaviour", self.fixed_mode, case, inputs, limit=limit)
        return Behaviour(error=answer) if isinstance(answer, str) else answer

    def prove(self, case: Case, shapes: Sequence[tuple[int, int]] = SHAPES) -> Proof:
        """What the candidate computes in the exact world, in the case's dtype, weight's dtype and casting mode."""
        limit = PROOF_LIMIT + len(shapes) * self.time_limit / 10
        answer = self._child.ask("prove", self.fixed_mode, case, shapes, limit=limit)
        return Proof(self.name, case.dtype, len(shapes), refusal=f"it {answer}") if isinstance(answer, str) else answer

    def partly(self, case: Case, inputs: Inputs) -> dict[str, Outputs]:
        limit = BEHAVIOUR_RUNS * self.time_limit
        answer = self._child.ask("partly", self.fixed_mode, case, inputs, limit=limit)
        return {"in part": Outputs(died=answer)} if isinstance(answer, str) else answer

    def with_mode(self, casting_mode: str) -> Self:
        """The same child, told that it computes this mode."""
        twin = copy.copy(self)
        twin.fixed_mode = casting_mode
        return twin

    def close(self) -> None:
        """End the child and all that it started."""
        self._child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Child:
    """The parent's end: starts the process, asks it, and starts another one where it is gone."""

    def __init__(self, order: tuple[str, str, str], paths: Sequence[str]) -> None:
        self._order = order  # target, device, array library
        self._paths = list(paths)
        self._process: subprocess.Popen | None = None
        self.about = self._start()

    def ask(self, *question: Any, limit: float) -> Any:
        """The answer; a str that says how the child ended where none came."""
        try:
            if self._process is None:
                self._start()
        except LoadError as error:
            return f"did not start again: {error}"
        return self._exchange(question, limit)

    def end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._process = None

    def _start(self) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        with theirs:
            # A spawned interpreter, not a fork: nothing of the judge is in it, and Triton is imported after the choice.
            # This package is found before the candidate's folders are searched, where another `references` may lie.
            code = (
                "import sys; fileno, n, *paths = sys.argv[1:]; sys.path[:] = paths[int(n):]; "
                "from references.candidates.process import serve; sys.path[:] = paths; serve(int(fileno))"
            )
            paths = [str(len(self._paths)), *self._paths, *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), *paths],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # what a candidate prints is no part of the report
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        about = self._exchange((os.getpid(), *self._order), LOAD_LIMIT)
        if isinstance(about, str):
            raise LoadError(f"cannot load {self._order[0]!r}: it {about}")
        if "refused" in about:
            raise LoadError(about["refused"])
        return about

    def _exchange(self, question: Any, limit: float) -> Any:
        assert self._process is not None
        try:
            self._connection.send(question)
            if not self._connection.poll(limit):
                self.end()
                return f"gave no answer in {limit:g} s"
            usable, answer = self._connection.recv()
        except (OSError, EOFError, pickle.UnpicklingError):
            answer, usable = self._cause_of_death(), False
        if not usable:
            self.end()
        return answer

    def _cause_of_death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        if code is None:
            return "closed the connection to the judge"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended its process with exit status {code}"


def serve(fileno: int) -> None:
    """The child: answers until the parent hangs up, then ends at once, whatever the candidate has left running."""
    code: Any = 1
    try:
        _serve(Connection(fileno))
        code = 0
    except SystemExit as end:  # the candidate's
        code = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def _serve(connection: Connection) -> None:
    parent, target, device, array_library = connection.recv()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        interpreted = all(map(importlib.util.find_spec, ("torch", "triton"))) and interpreter.install()
        device = "cpu" if device == "auto" and interpreted else device
        candidate = load(target, device, array_library=array_library)
    except LoadError as error:
        connection.send((False, {"refused": str(error)}))
        return
    about = {"device": candidate.device, "ignored": candidate.ignored, "takes_mode": candidate.takes_mode}
    about |= {"interpreted": interpreted, "arrays": candidate.arrays, "residual": candidate.residual}
    connection.send((True, about))
    while True:
        try:
            method, mode, case, inputs = connection.recv()
        except EOFError:
            return
        answer = getattr(candidate.with_mode(mode), method)(case, inputs)
        failed = getattr(answer, "error", None) is not None
        connection.send((not failed or _usable(candidate.device), answer))


def _usable(device: str) -> bool:
    """Whether the GPU still answers: after an illegal access nothing works in this process any more."""
    if device != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def _end_with(parent: int) -> None:
    """Leave no orphan where the parent was killed, whatever the candidate is doing."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
