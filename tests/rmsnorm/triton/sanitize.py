"""compute-sanitizer over every kernel: `python3 -m tests.rmsnorm.triton.sanitize [--json FILE]`, with a CUDA GPU.

memcheck (addresses), initcheck (reads of memory that nothing wrote) and racecheck (shared memory), each over a forward
and a backward of every case below, whose results are judged as well. Every allocation is one of its own, so that a step
beyond a tensor is seen. Each tool must also report the fault that is planted for it. Exit status: 0 no error, 1 an
error, a wrong result or a planted fault unseen, 2 nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from references.cells.cell import Case
from references.spec import DTYPES, CastingMode

TOOLS = ("memcheck", "initcheck", "racecheck")
SUMMARIES = {
    "memcheck": r"ERROR SUMMARY: (\d+) error",
    "initcheck": r"ERROR SUMMARY: (\d+) error",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazard",
}
REPORT = "SANITIZED "
N_COMPILERS = 8
TIMEOUT = 300  # seconds
FAULTS = Path(__file__).parent / "probes" / "sanitizer_faults.py"

CASES = (
    *(
        Case(mode, 0.5, dtype, "same", True, (3, 100), 0.7, x_layout="row_strided")
        for mode in CastingMode
        for dtype in DTYPES
    ),
    Case("llama", 0.5, "bfloat16", "float32", True, (33, 7), 0.7),
    Case("llama", 0.0, "float32", "same", True, (2, 1), 0.7),
    Case("none", 0.5, "bfloat16", "same", False, (5, 129), 0.7, "normal", "misaligned", "misaligned", "misaligned"),
    Case("gemma", 1.0, "float16", "same", False, (2, 3, 4, 64), 0.7, "normal", "heads", "transposed"),
    Case("llama", 0.5, "float32", "same", True, (9, 33), 0.7, "normal", "column_strided", "expanded"),
    Case("llama", 0.5, "bfloat16", "same", True, (40, 64), 0.7, row_mode=False),
    Case("none", 0.5, "float16", "same", True, (17, 250), 0.7, row_mode=False),
    Case("gemma", 0.5, "bfloat16", "none", True, (5, 1000), 0.7),
    Case("none", 0.5, "bfloat16", "same", True, (3, 5120), 0.7),  # chunks, all held
    Case("llama", 0.5, "float32", "same", True, (3, 4100), 0.7, dy_layout="row_strided"),
    Case("llama", 0.5, "float32", "same", True, (2, 16384), 0.7),  # streamed, weight reloaded
    Case("gemma", 0.5, "bfloat16", "same", True, (150, 96), 0.7),  # more rows than few, block-wise
    Case("llama", 0.5, "float32", "same", False, (140, 3000), 0.7),
    Case("llama", 0.5, "float64", "same", True, (2, 16384), 0.7),  # split rows
    Case("none", 0.5, "float64", "same", False, (5, 24001), 0.7, x_layout="row_strided"),
    Case("none", 0.5, "float16", "same", True, (2, 65536), 0.7),  # some held, some streamed; split rows
    Case("gemma", 0.5, "bfloat16", "same", True, (5, 40000), 0.7, dy_layout="misaligned"),
    Case("llama", 0.5, "float32", "float32", True, (5, 32768), 0.7, x_layout="row_strided"),
    *(
        Case(mode, 0.5, dtype, "same", True, (3, 100), 0.7, residual=True, r_layout="row_strided")
        for mode in CastingMode
        for dtype in DTYPES
    ),
    Case("none", 0.5, "bfloat16", "same", False, (40, 64), 0.7, residual=True, ds_layout="misaligned"),  # block-wise
    Case("gemma", 0.5, "bfloat16", "same", True, (150, 96), 0.7, residual=True, x_layout="column_strided"),
    Case("llama", 0.5, "bfloat16", "same", True, (3, 16384), 0.7, residual=True),  # streamed, or held
    Case("none", 0.5, "float16", "same", True, (2, 65536), 0.7, residual=True, ds_layout="row_strided"),  # split rows
    Case("llama", 0.5, "float64", "same", True, (5, 24001), 0.7, residual=True),
)


def run_cases(cases: tuple[Case, ...], device: str) -> dict[str, Any]:
    """Kernel launches by name, and what is wrong with the results."""
    from references.candidates import interpreter
    from references.candidates.loading import load
    from references.judge.verdict import check

    interpreter.install()
    norm, add_norm = (load(f"rmsnorm:{name}", device) for name in ("liger_rms_norm", "liger_fused_add_rms_norm"))
    from rmsnorm.fused.variant import Variant

    launches: Counter[str] = Counter()
    launch = Variant.launch

    def counted(variant: Variant, *arguments: Any) -> None:
        launches[variant._kernel.__name__] += 1
        launch(variant, *arguments)

    findings = []
    with patch.object(Variant, "launch", counted):
        for case in cases:
            verdict = check(add_norm if case.residual else norm, case)
            findings += [f"{case.id}: {finding}" for finding in verdict.findings]
            if verdict.status == "unsupported":
                findings.append(f"{case.id}: {verdict.reason}")
    return {"launches": dict(launches), "findings": findings}


def child(program: list[str], tool: str | None = None) -> tuple[str, float]:
    """What a Python program prints, under the tool, and the seconds that it takes."""
    command = [sys.executable, *program]
    if tool is not None:
        command = ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only", *command]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nno end after {TIMEOUT} s"
    return output, time.perf_counter() - started


def share(i: int, n: int) -> list[str]:
    return ["-m", "tests.rmsnorm.triton.sanitize", "--share", f"{i}/{n}"]


def errors_in(output: str, tool: str) -> int | None:
    """How many errors the tool counted, or None where it gave no summary."""
    found = re.search(SUMMARIES[tool], output)
    return None if found is None else int(found[1])


def report_in(output: str) -> dict[str, Any]:
    """What `run_cases` found, or a finding that the program did not end."""
    found = re.search(rf"^{REPORT}(.*)$", output, re.MULTILINE)
    return json.loads(found[1]) if found else {"launches": {}, "findings": ["the program did not end by itself"]}


def sanitized(tool: str) -> dict[str, Any]:
    output, seconds = child(share(0, 1), tool)
    planted_output, _ = child([str(FAULTS), tool], tool)
    record = {"tool": tool, "errors": errors_in(output, tool), "seconds": round(seconds, 1), **report_in(output)}
    record["planted_errors"] = errors_in(planted_output, tool)
    if record["errors"] != 0 or record["findings"] or not record["planted_errors"]:
        record["output"] = "\n".join(line for text in (output, planted_output) for line in text.splitlines()[-60:])
    return record


def passed(record: Mapping[str, Any]) -> bool:
    return record["errors"] == 0 and not record["findings"] and bool(record["planted_errors"])


def table(records: list[dict[str, Any]]) -> list[str]:
    kernels = sorted({name for record in records for name in record["launches"]})
    lines = ["| tool | " + " | ".join(kernels) + " | errors | planted | wrong results | s |"]
    lines.append("|---|" + "---|" * (len(kernels) + 4))
    for record in records:
        cells = [str(record["launches"].get(name, 0)) for name in kernels]
        about = (record["errors"], record["planted_errors"], len(record["findings"]), record["seconds"])
        lines.append(f"| {record['tool']} | " + " | ".join([*cells, *map(str, about)]) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--share", metavar="I/N", help="run every N-th case in this process, under no tool")
    arguments = parser.parse_args()
    if arguments.share:
        start, step = map(int, arguments.share.split("/"))
        print(REPORT + json.dumps(run_cases(CASES[start::step], "auto")), flush=True)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the PATH")
        return 2
    with ThreadPoolExecutor(N_COMPILERS) as pool:  # into Triton's cache: a tool would slow every compilation
        list(pool.map(child, [share(i, N_COMPILERS) for i in range(N_COMPILERS)]))
        records = list(pool.map(sanitized, TOOLS))
    print("\n".join(table(records)))
    for record in records:
        for line in filter(None, (*record["findings"], record.get("output"))):
            print(f"{record['tool']}: {line}")
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0 if all(map(passed, records)) else 1


if __name__ == "__main__":
    sys.exit(main())
