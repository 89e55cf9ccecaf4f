"""`rmsnorm-verify peers`: list them, judge those that are installed, or put earlier results into one document."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from references.candidates import interpreter
from references.cells.cell import Case
from references.peers.registry import PEERS, Peer
from references.peers.survey import survey
from references.peers.table import document, markdown, place, read
from references.report.environment import machine
from references.report.files import finite


def choose(only: Sequence[str] | None) -> list[Peer]:
    """The peers of these names; None is all, and those of them that are not installed are left out as they are met.

    Raises:
        ValueError: there is no such peer.
    """
    for name in only or ():
        if name not in PEERS:
            raise ValueError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    return [peer for name, peer in PEERS.items() if not only or name in only]


def list_peers(console: Console, selected: Sequence[Peer], device: str) -> None:
    """Each with its versions, or why it is missing, and its claims."""
    device, _ = _settle(device)
    for peer in selected:
        versions = ", ".join(f"{name} {version}" for name, version in peer.versions.items())
        line = f"{peer.name}: {peer.title}; {peer.missing(device) or versions}\n    {peer.claims}"
        console.print(line, highlight=False, markup=False)


def merge(files: Sequence[Path], markdown_file: Path) -> None:
    """Write one Markdown table of several results. Raises ValueError where a file is none."""
    place(markdown([read(path) for path in files]), markdown_file)


def judge_peers(
    console: Console,
    selected: Sequence[Peer],
    device: str,
    level: Sequence[Case],
    json_file: Path | None,
    markdown_file: Path | None,
) -> int:
    """Survey the installed ones among `selected`, telling of each as it ends.

    The JSON file is written after every peer, so that an interruption keeps what there is.

    Returns:
        The exit status: 0; 2 where none of them is installed; 130 where it was interrupted.
    """
    device, interpreted = _settle(device)
    surveys: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    about = machine(device, interpreted)

    def result() -> dict[str, Any]:
        return finite(document(surveys, missing, about))

    for peer in selected:
        reason = peer.missing(device)
        if reason is not None:
            missing[peer.title] = reason
            told = reason
        else:
            started = time.perf_counter()
            try:
                surveys.append(survey(peer, device, level))
            except KeyboardInterrupt:
                return 130
            rows = [row for mode in surveys[-1]["modes"] for row in mode["rows"]]
            cells, deviate = (sum(row[key] for row in rows) for key in ("cells", "failed"))
            told = f"{deviate} of {cells} cells deviate, {time.perf_counter() - started:.0f} s"
        console.print(f"{peer.name}: {told}", highlight=False, markup=False)
        if json_file:
            json_file.write_text(json.dumps(result(), indent=1), encoding="utf-8")
    if markdown_file:
        place(markdown([result()]), markdown_file)
    return 0 if surveys else 2


def _settle(device: str) -> tuple[str, bool]:
    """Where PyTorch peers run, "cpu" or "cuda", and whether Triton's kernels are interpreted there."""
    triton = all(map(importlib.util.find_spec, ("torch", "triton")))
    interpreted = triton and interpreter.install()  # before an adapter imports Triton
    if device == "auto":
        device = "cuda" if triton and not interpreted else "cpu"
    return device, interpreted
