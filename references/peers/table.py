"""Surveys as JSON documents, and one or several of them as a Markdown table with the deviations in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from references.report import files
from references.report.deviations import Deviation, in_words
from references.report.summary import TITLES, Worst, columns, percent, text

SCHEMA = 1
BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"


def document(surveys: Sequence[dict[str, Any]], missing: dict[str, str], about: dict[str, Any]) -> dict[str, Any]:
    """What `rmsnorm-verify peers --json` writes: the machine, the surveys on it, and why the other peers are absent."""
    return {"schema": SCHEMA, "environment": about, "peers": list(surveys), "missing": missing}


def read(path: Path) -> dict[str, Any]:
    """A document from a file. Raises ValueError, in one line, where it is none."""
    return files.load(path, "`rmsnorm-verify peers --json`", lambda found: files.is_document(found, SCHEMA, "peers"))


def markdown(documents: Iterable[dict[str, Any]]) -> str:
    """A section for each machine: commands and versions, the table, and the deviations in words."""
    return "\n".join(line for runs in _by_machine(documents) for line in _section(runs))


def place(table: str, path: Path) -> None:
    """Write the table to a file: between its markers where it has them, else as the whole file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}" if begin and end else table, encoding="utf-8")


def _by_machine(documents: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs with the same device and versions belong together: peers may be judged side by side."""
    machines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for document in documents:
        about = document["environment"]
        machines[repr([about[key] for key in ("device", "interpreted", "python", "versions")])].append(document)
    return list(machines.values())


def _section(runs: list[dict[str, Any]]) -> Iterator[str]:
    about = runs[0]["environment"]
    interpreted = " (Triton interpreted)" if about["interpreted"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    yield f"### On {about['device']}{interpreted}\n"
    for run in runs:
        yield f"`{run['environment']['command']}`, {run['environment']['time'][:10]}"
    yield f"\nPython {about['python']}, {versions}.\n"
    tensors = columns(tensor for _, judged in _judgements(runs) for row in judged["rows"] for tensor in row["worst"])
    yield f"| implementation | judged as | dtype | cells | {' | '.join(TITLES[tensor] for tensor in tensors)} |"
    yield f"|{'---|' * (4 + len(tensors))}"
    for peer, judged in _judgements(runs):
        for row in judged["rows"]:
            worst = (_worst(row["worst"].get(tensor)) for tensor in tensors)
            name = f"{peer['title']} {next(iter(peer['versions'].values()))}"
            deviate = f", {row['failed']} deviate" if row["failed"] else ""
            yield f"| {name} | {row['casting_mode']} | {row['dtype']} | {row['cells']}{deviate} | {' | '.join(worst)} |"
    yield ""
    for peer, judged in _judgements(runs):
        told = [*_nearest(peer, judged), *_deviations(judged["deviations"])]
        versions = ", ".join(f"{name} {version}" for name, version in peer["versions"].items())
        yield f"- **{peer['title']}** ({versions}) as {judged['mode']}:{'' if told else ' no deviation.'}"
        yield from (f"  - {line}" for line in told)
    yield ""
    missing = {name: reason for run in runs for name, reason in run["missing"].items()}
    if missing:
        yield f"Not judged here: {'; '.join(f'{name} ({reason})' for name, reason in missing.items())}.\n"


def _judgements(runs: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return ((peer, judged) for run in runs for peer in run["peers"] for judged in peer["modes"])


def _worst(record: dict[str, Any] | None) -> str:
    return text(Worst(float(record["ratio"]), record["exact"], record["bounded"]) if record else None)


def _nearest(peer: dict[str, Any], judged: dict[str, Any]) -> Iterator[str]:
    """What Y's bits equal, where that is not plainly the mode, or where the peer names none."""
    for dtype, shares in judged["roundings"].items():
        others = {mode: share for mode, share in shares.items() if share > shares[judged["mode"]]}
        if others or not peer["documented"]:
            told = dict(sorted(shares.items(), key=lambda item: -item[1]))
            words = ", ".join(f"{percent(share)} {mode}" for mode, share in told.items())
            yield f"{dtype} Y: {words} (share of the elements with the bits of that rounding)"


def _deviations(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """One line a tensor and complaint, with a cell to look at."""
    found = [Deviation(**record | {"worst": _number(record["worst"])}) for record in records]
    return (f"{sentence} (`{worst.case}`)" for sentence, worst in in_words(found))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
