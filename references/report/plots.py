"""Verdicts as pictures: inline SVG by matplotlib, in colours that red-green blindness keeps apart."""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from references.judge.comparison import QUARTERS
from references.judge.verdict import TENSORS, Verdict
from references.report.summary import TITLES, summarize
from references.spec import DTYPES, CastingMode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's; markers differ as well.
STYLES = {
    "float16": ("#0072b2", "o"),
    "bfloat16": ("#e69f00", "s"),
    "float32": ("#009e73", "^"),
    "float64": ("#cc79a7", "x"),
}
SMALLEST, LARGEST = 1e-4, 1e6  # what lies beyond is drawn there
LINES = {"y": ("#0072b2", "-"), "dx": ("#d55e00", "--"), "dw": ("#000000", ":")}
Draw = Callable[["Figure", Sequence[Verdict]], None]


def svg(draw: Draw, verdicts: Sequence[Verdict], height: float = 4) -> str:
    """A picture as an <svg> element: the same bytes every time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "rmsnorm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, height), layout="constrained")
        draw(figure, verdicts)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]


def ratios(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a tensor, one colour a dtype: the largest ratio of each cell over the number of columns."""
    tensors = [tensor for tensor in TENSORS if any(tensor in v.measures for v in verdicts)]
    panels = figure.subplots(1, len(tensors), sharey=True, squeeze=False)[0]
    for panel, tensor in zip(panels, tensors, strict=True):
        for dtype, (colour, marker) in STYLES.items():
            points = [
                (v.case.shape[-1], max(v.measures[tensor].ratio, SMALLEST))
                for v in verdicts
                if v.case.dtype == dtype and tensor in v.measures and v.measures[tensor].ratio < math.inf
            ]
            xs, ys = zip(*points, strict=True) if points else ((), ())
            panel.plot(xs, ys, marker, color=colour, label=dtype, alpha=0.6, markersize=4)
        panel.axhline(1, color="#d55e00", linewidth=1)
        panel.set(title=TITLES[tensor], xlabel="columns")
        _logarithmic(panel)
    panels[0].set_ylabel("error / tolerance")
    panels[-1].legend(loc="lower right", fontsize="small")


def errors(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a casting mode and dtype: how the signed errors of noise spread, in quarter ulps of its dtype."""
    counts: dict[tuple[str, str, str], Counter] = defaultdict(Counter)
    for verdict in (v for v in verdicts if v.case.data == "normal" and v.case.n_rows):
        for tensor, measure in verdict.measures.items():
            counts[str(verdict.case.casting_mode), verdict.case.dtype, tensor].update(measure.errors)
    modes = _modes(verdicts)
    panels = figure.subplots(len(modes), len(DTYPES), sharex=True, sharey=True, squeeze=False)
    edges = [edge / 4 for edge in range(-QUARTERS - 1, QUARTERS + 1)]
    for line, mode in zip(panels, modes, strict=True):
        line[0].set_ylabel(f"{mode}\nshare")
        for panel, dtype in zip(line, DTYPES, strict=True):
            for tensor, (colour, style) in LINES.items():
                found = counts[mode, dtype, tensor]
                shares = [found[edge] / found.total() if found else math.nan for edge in edges]
                panel.step(edges, shares, style, where="post", color=colour, label=TITLES[tensor], linewidth=1.2)
            panel.axvline(0, color="#999999", linewidth=0.6)
    for panel, dtype in zip(panels[0], DTYPES, strict=True):
        panel.set_title(dtype)
    for panel in panels[-1]:
        panel.set_xlabel("error in ulps")
    panels[0][-1].legend(fontsize="small")


def exact_rates(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a 16-bit dtype, one group of bars a casting mode, one bar a tensor."""
    rates: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in summarize(verdicts):
        for tensor, worst in row.worst.items():
            if worst.exact_rate is not None and tensor in LINES:
                rates[row.dtype][row.casting_mode, tensor] = worst.exact_rate
    dtypes, modes = ("float16", "bfloat16"), _modes(verdicts)
    panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for panel, dtype in zip(panels, dtypes, strict=True):
        for shift, (tensor, (colour, _)) in enumerate(LINES.items()):
            heights = [rates[dtype].get((mode, tensor), 0.0) for mode in modes]
            places = [position + (shift - 1) * 0.25 for position in range(len(heights))]
            bars = panel.bar(places, heights, width=0.22, label=TITLES[tensor], color=colour)
            labels = [f"{math.floor(1000 * height) / 10:.1f}" if height else "" for height in heights]  # not up to 100
            panel.bar_label(bars, labels, fontsize="x-small")
        panel.set_xticks(range(len(modes)), modes)
        panel.set(title=dtype, ylim=(0, 1.1), xlim=(-0.75, len(modes) - 0.25))
    panels[0].set_ylabel("share")
    panels[-1].legend(loc="lower right", fontsize="small")


def cancellation(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a casting mode: the largest error of each row's dX over the condition of the sum inside it."""
    modes = _modes(verdicts)
    panels = figure.subplots(1, len(modes), sharex=True, sharey=True, squeeze=False)[0]
    for panel, mode in zip(panels, modes, strict=True):
        for dtype, (colour, marker) in STYLES.items():
            alike = [v for v in verdicts if (v.case.casting_mode, v.case.dtype) == (mode, dtype) and "dx" in v.measures]
            rows = [
                (condition, min(max(error, SMALLEST), LARGEST))
                for v in alike
                for condition, error in v.measures["dx"].cancellation
            ]
            xs, ys = zip(*rows, strict=True) if rows else ((), ())
            panel.plot(xs, ys, marker, color=colour, label=dtype, alpha=0.5, markersize=3)
        panel.set(title=mode, xlabel="Σ|t| / |Σt|")
        _logarithmic(panel)
    panels[0].set_ylabel("largest error of a row in ulps")
    panels[-1].legend(loc="upper left", fontsize="small")


def _logarithmic(panel: Axes) -> None:
    """Both axes, where there are points: matplotlib refuses it without any."""
    if any(np.size(line.get_xdata()) for line in panel.lines if line.get_label() in STYLES):
        panel.set(xscale="log", yscale="log")


def _modes(verdicts: Sequence[Verdict]) -> list[str]:
    """Those of which anything was measured."""
    return [str(mode) for mode in CastingMode if any(v.case.casting_mode == mode and v.measures for v in verdicts)]


def _has(tensor: str, dtypes: Sequence[str] = DTYPES) -> Callable[[Sequence[Verdict]], bool]:
    return lambda verdicts: any(tensor in v.measures and v.case.dtype in dtypes for v in verdicts)


SHOWS: dict[Draw, Callable[[Sequence[Verdict]], bool]] = {  # whether there is anything to see
    ratios: lambda verdicts: len({v.case.shape[-1] for v in verdicts if v.measures}) > 1,
    errors: lambda verdicts: any(v.case.data == "normal" and v.case.n_rows and v.measures for v in verdicts),
    exact_rates: _has("y", ("float16", "bfloat16")),
    cancellation: _has("dx"),
}
