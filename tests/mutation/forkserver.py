"""A process that has imported what is slow to import, and forks one child for each mutant.

It reads requests, one JSON object a line, from standard input, and answers with one line each. The child works in the
scratch copy, where it imports the judged package, and the judge where the fault lies there, and leaves its outcome in a
file: a crash takes it alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

IMPORT_LIMIT = 60  # seconds


def _import_what_is_slow() -> None:
    import hypothesis  # noqa: F401
    import ml_dtypes  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import triton.language
    import triton.runtime.interpreter  # noqa: F401

    torch.set_num_threads(1)  # no threads before the fork, and two workers on two cores


def _warm_up() -> None:
    """Import the judge and let it judge once: what is done lazily, in torch above all, is done before the fork.

    Not where kernels are compiled: torch then asks CUDA for devices, and no child could use them.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from references.candidates import interpreter
    from references.candidates.loading import load
    from references.judge.verdict import check
    from tests.mutation import stages

    interpreter.install()
    check(load("references.torch_reference"), stages.judged_cells(0)[0])


def _child(request: dict[str, Any], scratch: Path) -> None:
    os.setsid()
    os.chdir(scratch)
    output = os.open(scratch / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["PYTHONPATH"] = str(scratch)
    sys.path[:] = [str(scratch), *(path for path in sys.path if path not in ("", request["checkout"]))]
    fresh = {"tests"} | {name for name in ("references",) if not (scratch / name).is_symlink()}  # a fault may lie there
    for name in [name for name in sys.modules if name.partition(".")[0] in fresh]:
        del sys.modules[name]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(IMPORT_LIMIT)  # an endless loop on import, where no stage has a limit yet: the alarm ends the child
    task = importlib.import_module(request["task"])
    signal.alarm(0)
    task.judge(result=scratch / "outcome.json", **request["about"])


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    scratch = Path(request["scratch"])
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _child(request, scratch)
        except BaseException as error:
            (scratch / "outcome.json").write_text(
                json.dumps({"status": "broken", "stage": None, "kill": {"by": "import error", "text": repr(error)}})
            )
        os._exit(0)
    timed_out = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - started > request["timeout"]:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)
    spent = {"seconds": time.monotonic() - started, "processor": usage.ru_utime + usage.ru_stime}
    return _outcome(scratch, status, timed_out) | spent


def _outcome(scratch: Path, status: int, timed_out: bool) -> dict[str, Any]:
    stage = scratch / "outcome.stage"
    at = stage.read_text() if stage.exists() else None
    if timed_out and at is not None:  # beyond the stages' own limits: it hangs where no signal reaches it
        return {"status": "killed", "stage": at, "kill": {"by": "timeout", "where": at, "text": "did not end in time"}}
    path = scratch / "outcome.json"
    written = json.loads(path.read_text()) if path.exists() else None
    if os.WIFSIGNALED(status) and at is not None:
        name = signal.Signals(os.WTERMSIG(status)).name
        return (written or {}) | {"status": "killed", "stage": at, "kill": {"by": "crash", "where": at, "text": name}}
    if written is not None:
        return written
    return {"status": "broken", "stage": at, "kill": {"by": "import error", "text": f"no outcome, status {status}"}}


def main() -> None:
    _import_what_is_slow()
    _warm_up()
    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
