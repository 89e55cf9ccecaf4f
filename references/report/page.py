"""Verdicts as one self-contained HTML page: outcome, what is wrong, matrix, plots, every cell, environment."""

from __future__ import annotations

import importlib.resources
import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from references.cells.cell import LAYOUT_CODES, VARIANTS, Case
from references.judge.diagnosis import TITLES, diagnose
from references.judge.verdict import TENSORS, Verdict
from references.report import files, plots
from references.report.deviations import deviations, in_words
from references.report.summary import (
    LOOSE,
    Worst,
    columns,
    conclusion,
    exit_code,
    number,
    percent,
    repro,
    severity,
    summarize,
    text,
)

LEGEND = (
    "Each field: the largest error divided by its derived tolerance (over 1 deviates) and, beneath, the share of "
    "elements with the very bits of the NumPy reference. Blue is within the tolerance, where right 16-bit results "
    "reach 0.98; orange and ✗ is beyond."
)
PICTURES = (
    ("Error / tolerance against columns", plots.ratios, 4.0, "Above the line is a failure."),
    (
        "Signed errors",
        plots.errors,
        6.5,
        "In cells of noise. One rounding to nearest fills −½ to ½ evenly; a shift to one side is a bias. "
        "The outermost steps hold all errors beyond.",
    ),
    ("Bit-exact elements of 16 bits, in percent", plots.exact_rates, 4.0, ""),
    (
        "Error of dX against cancellation",
        plots.cancellation,
        4.0,
        "Each point is a row: how far the terms t = dY·(W + offset)·X of its sum cancel, and the largest error of its "
        "dX in ulps of the result. Where dX should be 0 an ulp is tiny: such errors are drawn at the top.",
    ),
)
Mutants = Sequence[dict[str, Any]]


def page(
    verdicts: Sequence[Verdict],
    about: dict[str, Any],
    expected: int,
    mutants: Mutants | None = None,
    unjudged: Sequence[str] = (),
) -> str:
    """The whole report; it loads nothing from elsewhere.

    Args:
        verdicts: what was judged, perhaps not all of the cells.
        about: `report.environment.environment`.
        expected: the number of cells that were asked for.
        unjudged: what is claimed and of which no cell was judged.
        mutants: what `python -m tests.mutation --json` wrote.
    """
    name = escape(about["implementation"])
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{name}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_asset('page.css')}</style></head><body>",
            f"<h1>{name}</h1>",
            *_outcome(verdicts, expected, about, unjudged),
            *_around_the_matrix(verdicts),
            *_findings(verdicts, about),
            *_tightness(verdicts),
            *_plots(verdicts),
            *(_mutation(mutants) if mutants is not None else ()),
            "<h2>Cells</h2>",
            _cells(verdicts),
            f"<h2>Environment</h2>{_facts(about)}",
            f"<script>{_asset('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def read_mutants(path: Path) -> Mutants:
    """What `python -m tests.mutation --json` wrote. Raises ValueError, in one line, where it is something else."""
    return files.load(path, "`python -m tests.mutation --json`", _are_mutants)


def _are_mutants(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, dict) and "mutant" in one for one in found)


def _asset(name: str) -> str:
    return importlib.resources.files("references.report").joinpath("assets", name).read_text(encoding="utf-8")


def _table(head: Sequence[str], rows: Sequence[str], attributes: str = "") -> str:
    """Headings as text, rows as HTML; wide ones scroll by themselves."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "\n".join(rows)
    return (
        f'<div class="wide"><table{attributes}><thead><tr>{titles}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _outcome(
    verdicts: Sequence[Verdict], expected: int, about: dict[str, Any], unjudged: Sequence[str]
) -> Iterator[str]:
    """The verdict in words; then each fault once, with the command that shows its simplest cell."""
    status = {0: "pass", 1: "fail"}.get(exit_code(verdicts, unjudged), "none")
    words = conclusion(verdicts, expected, unjudged)
    yield f'<p class="verdict {status}"><strong>{escape(words[0].upper() + words[1:])}.</strong></p>'
    if about.get("mode_found"):
        yield f"<p>Casting mode {escape(about['mode_found'])}.</p>"
    faults = diagnose(verdicts)
    if faults:
        told = (f"<li>{escape(str(one))}<pre>{escape(repro(one.case, about))}</pre></li>" for one in faults)
        yield f"<ul>{''.join(told)}</ul>"


def _around_the_matrix(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What was not supported stands first where it is most of the cells."""
    reasons = Counter(str(verdict.reason) for verdict in verdicts if verdict.status == "unsupported")
    judged = [verdict for verdict in verdicts if verdict.status != "unsupported"]
    items = (f"<li>{escape(reason)}: {count} cells</li>" for reason, count in reasons.most_common())
    unsupported = f"<h2>Not supported</h2><ul>{''.join(items)}</ul>" if reasons else ""
    matrix = f"<h2>Matrix</h2>{_matrix(judged)}<p>{LEGEND}</p>" if judged else ""
    yield from (unsupported, matrix) if reasons.total() > len(judged) else (matrix, unsupported)


def _matrix(verdicts: Sequence[Verdict]) -> str:
    """Modes and dtypes that were judged; the counts stand where a phone shows them."""
    exposed = [tensor for tensor in TENSORS if any(tensor in verdict.measures for verdict in verdicts)]
    rows = []
    for row in summarize(verdicts):
        count = str(row.cells) + (f"<small>{row.failed} deviate</small>" if row.failed else "")
        fields = [f"<td>{value}</td>" for value in (row.casting_mode, row.dtype, count)]
        fields += [_field(row.worst.get(tensor)) for tensor in exposed]
        rows.append(f"<tr>{''.join(fields)}</tr>")
    return _table(("mode", "dtype", "cells", *(TITLES[tensor] for tensor in exposed)), rows, ' id="matrix"')


def _field(worst: Worst | None) -> str:
    if worst is None:
        return '<td class="none">–</td>'
    sign = " ✗" if severity(worst) == "over" else ""
    rate = "" if worst.exact_rate is None else f"<small>{percent(worst.exact_rate)}</small>"
    return f'<td class="{severity(worst)}">{number(worst.ratio)}{sign}{rate}</td>'


def _findings(verdicts: Sequence[Verdict], about: dict[str, Any]) -> Iterator[str]:
    """What the faults come from: each kind of finding with its worst element, folded."""
    found = in_words(deviations(verdicts))
    if not found:
        return
    yield f"<details><summary>Every kind of finding ({len(found)})</summary><ol>"
    by_id = {verdict.case.id: verdict for verdict in verdicts}
    for sentence, worst in found:
        verdict = by_id[worst.case]
        finding = next(f for f in verdict.findings if (f.tensor, f.message) == (worst.tensor, worst.message))
        command = repro(verdict.case, about)
        yield f"<li>{escape(sentence)}<br>{escape(str(finding))}<pre>{escape(command)}</pre></li>"
    yield "</ol></details>"


def _tightness(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Where the cells hardly test a tensor; nothing where they test all."""
    loose = [
        f"{row.casting_mode}, {row.dtype}, {TITLES[tensor]}: {text(worst)}"
        for row in summarize(verdicts)
        for tensor, worst in row.worst.items()
        if worst.ratio < LOOSE
    ]
    if loose:
        items = "".join(f"<li>{line}</li>" for line in loose)
        yield f"<h2>Tightness</h2><p>Below {LOOSE} of the bound in all of their cells: an error would show late.</p>"
        yield f"<ul>{items}</ul>"


def _plots(verdicts: Sequence[Verdict]) -> Iterator[str]:
    if importlib.util.find_spec("matplotlib") is None:
        yield "<p>Plots need matplotlib.</p>"
        return
    for title, draw, height, note in PICTURES:
        if not plots.SHOWS[draw](verdicts):
            continue
        picture = plots.svg(draw, verdicts, height)
        yield f'<h2>{title}</h2><div class="wide plot">{picture}</div>' + (f"<p>{note}</p>" if note else "")


def _mutation(mutants: Mutants) -> Iterator[str]:
    """Where faults were planted against what noticed them."""
    faults = [result for result in mutants if not result["mutant"]["equivalent"]]
    killed = sum(result["status"] == "killed" for result in faults)
    count = Counter((result["mutant"]["file"], result["by"] or "nothing") for result in faults)
    noticed = [by for by, _ in Counter(result["by"] or "nothing" for result in faults).most_common()]
    rows = []
    for file in dict.fromkeys(result["mutant"]["file"] for result in faults):
        fields = (
            f"<td{' class=over' if by == 'nothing' and count[file, by] else ''}>{count[file, by] or ''}</td>"
            for by in noticed
        )
        rows.append(f'<tr><th scope="row">{escape(file)}</th>{"".join(fields)}</tr>')
    yield f"<h2>Planted faults</h2><p>{killed} of {len(faults)} were noticed: where they stood, what noticed them.</p>"
    yield _table(("file", *noticed), rows)


def _cells(verdicts: Sequence[Verdict]) -> str:
    """Failures first."""
    order = {"fail": 0, "pass": 1, "unsupported": 2}
    tensors = columns(tensor for verdict in verdicts for tensor in verdict.measures)
    rows = [_cell(verdict, tensors) for verdict in sorted(verdicts, key=lambda verdict: order[verdict.status])]
    head = ("status", "mode", "dtype", "offset", "weight", "shape", "data", "layouts", "eps", "variant", "in place")
    return _table((*head, *(TITLES[tensor] for tensor in tensors)), rows, ' id="cells"')


def _cell(verdict: Verdict, tensors: Sequence[str]) -> str:
    case = verdict.case
    shown = {"pass": ("low", "pass"), "fail": ("over", "fail ✗"), "unsupported": ("none", "unsupported")}
    severity_class, status = shown[verdict.status]
    fields = [f'<td class="{severity_class}">{status}</td>']
    fields += [f"<td>{value}</td>" for value in _settings(case)]
    for tensor in tensors:
        measure = verdict.measures.get(tensor)
        worst = Worst(measure.ratio, measure.exact, measure.bounded) if measure else None
        value = str(worst.ratio).replace("inf", "Infinity") if worst else "-1"
        shown_ratio = number(worst.ratio) if worst else "–"
        fields.append(f'<td class="{severity(worst)}" data-value="{value}">{shown_ratio}</td>')
    return f'<tr title="{case.id}">{"".join(fields)}</tr>'


def _settings(case: Case) -> tuple[str, ...]:
    layouts = " ".join(LAYOUT_CODES[layout] for layout in case.layouts)
    shape = "x".join(map(str, case.shape))
    settings = (case.casting_mode, case.dtype, f"{case.offset:g}", case.weight, shape, case.data, layouts)
    return (*map(str, settings), f"{case.eps:g}", VARIANTS[case.row_mode], "yes" if case.in_place else "no")


def _facts(about: dict[str, Any]) -> str:
    flat = {key: value for key, value in about.items() if key != "versions"} | about["versions"]
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(str(value))}</td></tr>' for key, value in flat.items()
    )
    return f'<table class="facts">{rows}</table>'
