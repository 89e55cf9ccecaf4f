"""Verdicts as one self-contained HTML page: the matrix in colours, plots as inline SVG, findings, environment."""

from __future__ import annotations

import importlib.util
import io
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from references.conformance import TENSORS, Verdict
from references.report import TITLES, complaints, conclusion, severity, summarize, text
from references.spec import DTYPES, CastingMode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .3rem .8rem; text-align: left; }
.low { background: #d8f0d8; } .high { background: #fff3c4; } .over { background: #f8c9c4; } .none { color: #999; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 13px; }
svg { max-width: 100%; height: auto; }
"""
LEGEND = (
    "Each field: the largest error divided by its derived tolerance (over 1 deviates), and the share of elements "
    "that equal the NumPy reference bit for bit. Green is at most half of the tolerance, yellow within it, red beyond."
)


def page(verdicts: Sequence[Verdict], about: dict[str, Any], expected: int) -> str:
    """The whole report; it loads nothing from elsewhere.

    Args:
        verdicts: what was judged, perhaps not all of the cells.
        about: `report.environment`.
        expected: the number of cells that were asked for.
    """
    findings = "\n".join(complaints(verdicts)) or "none"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(about["implementation"])}</title>',
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(about['implementation'])}</h1>",
            f"<p>{escape(conclusion(verdicts, expected))}</p>",
            _matrix(verdicts),
            f"<p>{LEGEND}</p>",
            *_plots(verdicts),
            f"<h2>Findings</h2><pre>{escape(findings)}</pre>",
            f"<h2>Environment</h2>{_facts(about)}",
            "</body></html>\n",
        ]
    )


def _matrix(verdicts: Sequence[Verdict]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("mode", "dtype", "cells", *TITLES.values()))
    rows = []
    for row in summarize(verdicts):
        fields = [f"<td>{value}</td>" for value in (row.casting_mode, row.dtype, row.cells)]
        for tensor in TENSORS:
            worst = row.worst.get(tensor)
            fields.append(f'<td class="{severity(worst)}">{text(worst)}</td>')
        rows.append(f"<tr>{''.join(fields)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _facts(about: dict[str, Any]) -> str:
    flat = {key: value for key, value in about.items() if key != "versions"} | about["versions"]
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>" for key, value in flat.items())
    return f"<table>{rows}</table>"


def _plots(verdicts: Sequence[Verdict]) -> list[str]:
    if importlib.util.find_spec("matplotlib") is None:
        return ["<p>Plots need matplotlib.</p>"]
    drawings = (
        ("Error / tolerance against columns", _draw_ratios),
        ("Bit-exact elements", _draw_exact_rates),
    )
    return [f"<h2>{title}</h2>{_svg(draw, verdicts)}" for title, draw in drawings]


def _svg(draw: Callable[[Figure, Sequence[Verdict]], None], verdicts: Sequence[Verdict]) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "rmsnorm", "svg.fonttype": "none"}):  # the same bytes every time
        figure = Figure(figsize=(10, 4), layout="constrained")
        draw(figure, verdicts)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]


def _draw_ratios(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a tensor, one colour a dtype: the largest ratio of each cell over the number of columns."""
    panels = figure.subplots(1, len(TENSORS), sharey=True, squeeze=False)[0]
    for panel, tensor in zip(panels, TENSORS, strict=True):
        for dtype in DTYPES:
            points = [
                (v.case.shape[-1], v.measures[tensor].ratio)
                for v in verdicts
                if v.case.dtype == dtype and tensor in v.measures and math.isfinite(v.measures[tensor].ratio)
            ]
            panel.plot(*zip(*points, strict=True) if points else ([], []), ".", label=dtype, alpha=0.6)
        panel.axhline(1, color="grey", linewidth=1)
        panel.set(title=TITLES[tensor], xlabel="columns")
        if panel.dataLim.width > 0:  # matplotlib refuses a logarithmic axis without data
            panel.set_xscale("log")
    panels[0].set_ylabel("error / tolerance")
    panels[-1].legend(loc="lower right", fontsize="small")


def _draw_exact_rates(figure: Figure, verdicts: Sequence[Verdict]) -> None:
    """One panel a 16-bit dtype, one group of bars a casting mode, one bar a tensor."""
    rates: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in summarize(verdicts):
        for tensor, worst in row.worst.items():
            if worst.exact_rate is not None and tensor != "rstd":
                rates[row.dtype][row.casting_mode, tensor] = worst.exact_rate
    dtypes = ("float16", "bfloat16")
    panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for panel, dtype in zip(panels, dtypes, strict=True):
        for shift, tensor in enumerate(("y", "dx", "dw")):
            heights = [rates[dtype].get((str(mode), tensor), 0.0) for mode in CastingMode]
            places = [position + (shift - 1) * 0.25 for position in range(len(heights))]
            panel.bar(places, heights, width=0.22, label=TITLES[tensor])
        panel.set_xticks(range(len(CastingMode)), [str(mode) for mode in CastingMode])
        panel.set(title=dtype, ylim=(0, 1.05))
    panels[0].set_ylabel("share")
    panels[-1].legend(loc="lower right", fontsize="small")
