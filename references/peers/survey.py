"""Every peer in every mode that it claims: what its bits are nearest to, and where it leaves the bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from references import arrays, numpy_reference
from references.candidates.loading import load
from references.candidates.outputs import Implementation
from references.cells.cell import Case, make_inputs
from references.judge.verdict import check_all
from references.peers.registry import Peer
from references.report.deviations import deviations
from references.report.summary import summarize
from references.spec import SIXTEEN_BITS, CastingMode

LARGE = (256, 1024)  # enough elements for the rare ones, in which gradients cancel


def survey(peer: Peer, device: str, level: Sequence[Case]) -> dict[str, Any]:
    """Judge an installed peer, as a record for JSON: its claims, its versions, and a judgement for each mode.

    Args:
        peer: whom.
        device: "cpu" or "cuda".
        level: cells to choose from; the large ones are added.
    """
    modes = peer.casting_modes or (nearest(roundings(_load(peer, device, "gemma"), large_cell(peer, "gemma"))),)
    return {
        "name": peer.name,
        "title": peer.title,
        "versions": peer.versions,
        "claims": peer.claims,
        "documented": bool(peer.casting_modes),
        "modes": [_judge(peer, device, mode, level) for mode in modes],
    }


def large_cell(peer: Peer, mode: str, dtype: str = "bfloat16") -> Case:
    """A cell of noise within the peer's claims, large enough to tell the modes apart."""
    offset = 0.0 if peer.offsets is None else peer.offsets[0]
    weight = "same" if "same" in peer.weights else "none"
    return Case(mode, offset, dtype, weight, False, LARGE, 1e-6, residual=peer.residual)


def cells(peer: Peer, mode: str, level: Iterable[Case]) -> list[Case]:
    """What the peer is judged on in one mode."""
    chosen = [large_cell(peer, mode, dtype) for dtype in peer.dtypes]
    asked = [replace(case, residual=peer.residual) for case in level if case.casting_mode == mode]
    return chosen + [case for case in asked if peer.admits(case) and not peer.compiles]


def roundings(implementation: Implementation, case: Case) -> dict[str, float]:
    """The share of Y's elements that have the bits of each casting mode, on a cell's inputs; empty without a Y."""
    inputs = make_inputs(case)
    y = implementation.run(case, inputs).y
    if y is None or arrays.dtype_name(y) != case.dtype:
        return {}
    shares = {}
    for mode in CastingMode:
        wanted, _ = numpy_reference.forward(
            inputs.normed, inputs.w, eps=case.eps, offset=case.offset, casting_mode=str(mode)
        )
        shares[str(mode)] = float((arrays.bits(y) == arrays.bits(wanted)).mean())
    return shares


def nearest(shares: dict[str, float]) -> str:
    """The mode with the largest share; of equals, and of none, gemma, which rounds least."""
    return max(shares, key=lambda mode: (shares[mode], mode == "gemma"), default="gemma")


def _load(peer: Peer, device: str, mode: str) -> Implementation:
    return load(f"references.peers:{peer.name}", device, mode)


def _judge(peer: Peer, device: str, mode: str, level: Sequence[Case]) -> dict[str, Any]:
    implementation = _load(peer, device, mode)
    chosen = cells(peer, mode, level)
    verdicts = check_all(implementation, chosen, lambda verdict: None)
    if len(verdicts) < len(chosen):
        raise KeyboardInterrupt  # a part of them must not read as the whole
    bits = {d: roundings(implementation, large_cell(peer, mode, d)) for d in SIXTEEN_BITS if d in peer.dtypes}
    return {
        "mode": mode,
        "roundings": bits,
        "rows": [asdict(row) for row in summarize(verdicts)],
        "deviations": [asdict(deviation) for deviation in deviations(verdicts)],
    }
