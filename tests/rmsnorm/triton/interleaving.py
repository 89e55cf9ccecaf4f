"""The programs of a launch in the interpreter, side by side: at every load and store another one may go on.

Triton's interpreter runs one program after another, so that programs which wait for each other hang, and a race between
them is never seen. Here each program has a thread of its own, of which one at a time runs. Which one goes on is drawn
anew at the accesses to memory: every order in which a launch can make its accesses is possible, and a seed gives it
again.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from triton.runtime import interpreter

STEPS = 20_000  # accesses of a launch: one that makes more waits for what never comes
AHEAD = (0, 0, 1, 4, 30)  # accesses that a program is ahead before another one's turn: now and then it runs far


class _Stopped(BaseException):
    """Ends the threads of a launch that has failed."""


class _SideBySide:
    """One launch: programs that hand a turn to each other."""

    def __init__(self, program: Callable[[], None], at: list[tuple[int, ...]], draw: random.Random) -> None:
        self._program, self._at, self._draw = program, at, draw
        self._turns = [threading.Semaphore(0) for _ in at]
        self._alive = list(range(len(at)))
        self._running = self._ahead = self._steps = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        threads = [threading.Thread(target=self._body, args=(number,)) for number in self._alive]
        builder = interpreter.interpreter_builder
        load, store = builder.create_masked_load, builder.create_masked_store
        with (
            mock.patch.object(builder, "create_masked_load", self._at_access(load)),
            mock.patch.object(builder, "create_masked_store", self._at_access(store)),
        ):
            for thread in threads:
                thread.start()
            self._hand_over()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _at_access(self, access: Callable[..., Any]) -> Callable[..., Any]:
        def turn(*arguments: Any) -> Any:
            mine = self._running
            self._steps += 1
            if self._steps > STEPS:
                raise AssertionError(f"after {STEPS} accesses to memory the launch has not ended")
            if self._ahead:
                self._ahead -= 1
            elif self._hand_over() != mine:
                self._wait(mine)
            return access(*arguments)

        return turn

    def _hand_over(self) -> int:
        """The number of the program whose turn comes."""
        number = self._draw.choice(self._alive)
        self._ahead = self._draw.choice(AHEAD)
        changes = number != self._running or self._steps == 0
        self._running = number
        interpreter.interpreter_builder.grid_idx = self._at[number]
        if changes:
            self._turns[number].release()
        return number

    def _wait(self, number: int) -> None:
        self._turns[number].acquire()
        if self._error is not None:
            raise _Stopped

    def _body(self, number: int) -> None:
        try:
            self._wait(number)
            with np.errstate(all="ignore"):  # NumPy's setting is one of the thread
                self._program()
        except _Stopped:
            return
        except BaseException as error:
            self._error = error
            for turn in self._turns:
                turn.release()
        self._alive.remove(number)
        if self._alive and self._error is None:
            self._running = -1
            self._hand_over()


class _Programs:
    """What the executor calls for one program after another: it runs them all at the last call."""

    def __init__(self, function: Any, seed: int) -> None:
        self.__signature__ = inspect.signature(function)
        for name in ("__globals__", "__closure__", "__code__", "__name__"):  # what the executor looks at
            setattr(self, name, getattr(function, name))
        self._function = function
        self._draw = random.Random(seed)
        self._at: list[tuple[int, ...]] = []

    def __call__(self, **arguments: Any) -> None:
        builder = interpreter.interpreter_builder
        self._at.append(builder.grid_idx)
        if len(self._at) == builder.grid_dim[0]:
            _SideBySide(lambda: self._function(**arguments), self._at, self._draw).run()
            self._at = []


@contextlib.contextmanager
def interleaved(seed: int) -> Iterator[None]:
    """Within it every launch runs its programs side by side, in the order that the seed draws."""
    make = interpreter.GridExecutor.__init__

    def init(executor: Any, *arguments: Any, **options: Any) -> None:
        make(executor, *arguments, **options)
        executor.fn = _Programs(executor.fn, seed)

    with mock.patch.object(interpreter.GridExecutor, "__init__", init):
        yield
