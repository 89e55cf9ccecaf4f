"""Other people's RMSNorms: the adapters call them right, the survey finds what they compute, the table says it."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from references.candidates.loading import LoadError, load
from references.cells.cell import Case
from references.cells.levels import MATRIX
from references.judge.comparison import Finding, Measure
from references.judge.verdict import Verdict, check
from references.peers import survey, table
from references.peers.registry import PEERS, Peer
from references.report.deviations import deviations
from references.report.summary import summarize

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # other people's code
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=PEERS)
def installed(request: pytest.FixtureRequest, device: str) -> Peer:
    peer = PEERS[request.param]
    if reason := peer.missing(device):
        pytest.skip(f"{peer.title}: {reason}")
    return peer


def _judge(name: str, device: str, case: Case) -> Verdict:
    return check(load(f"references.peers:{name}", device, str(case.casting_mode)), case)


@pytest.mark.torch
def test_in_float32_where_all_modes_agree_every_adapter_is_right(installed: Peer, device: str) -> None:
    mode = (*installed.casting_modes, "gemma")[0]
    asked = [dataclasses.replace(case, residual=installed.residual) for case in MATRIX]
    small = [case for case in asked if case.casting_mode == mode and case.dtype == "float32" and installed.admits(case)]
    assert small
    for case in small[:1] if installed.compiles else small:
        verdict = _judge(installed.name, device, case)
        assert verdict.status == "pass", [str(finding) for finding in verdict.findings]


def _shares(name: str, device: str, mode: str = "gemma") -> dict[str, float]:
    peer = PEERS[name]
    if reason := peer.missing(device):
        pytest.skip(f"{peer.title}: {reason}")
    return survey.roundings(load(f"references.peers:{name}", device, mode), survey.large_cell(peer, mode))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "computes", "exactly"),
    [
        ("torch_functional", "gemma", True),
        ("torch_module", "gemma", True),
        ("hf_llama", "llama", True),
        ("hf_llama_compiled", "gemma", True),  # the compiler drops the cast
        ("hf_gemma", "gemma", True),
        ("fla", "gemma", True),
        ("quack", "gemma", True),
        ("equinox", "gemma", True),
        ("keras", "gemma", True),
        ("haiku", "none", False),  # x·w before ·RSTD, each rounded
    ],
)
def test_the_mode_that_a_peer_really_computes(name: str, computes: str, exactly: bool, device: str) -> None:
    shares = _shares(name, device)
    assert survey.nearest(shares) == computes
    others = [share for mode, share in shares.items() if mode != computes]
    assert shares[computes] > 0.999 if exactly else shares[computes] < 0.95
    assert max(others) < 0.8


@pytest.mark.hf
def test_eager_autograd_misses_the_single_rounding_of_dx_by_hundreds_of_times(device: str) -> None:
    verdict = _judge("hf_llama", device, survey.large_cell(PEERS["hf_llama"], "llama"))
    assert verdict.measures["dx"].ratio > 100
    assert verdict.measures["y"].ratio <= 1 and verdict.measures["dw"].ratio <= 1


# The registry


@pytest.mark.peers
def test_every_peer_of_a_cpu_is_installed() -> None:
    assert {name: reason for name, peer in PEERS.items() if (reason := peer.missing("cpu"))} == dict.fromkeys(
        ("liger_kernel", "fla", "quack", "liger_kernel_add", "quack_add"), "needs a GPU"
    )


def test_an_absent_library_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Peer("absent", "An Absent One", "torch_peers", "no_such_library", ("absent-norms",))
    monkeypatch.setitem(PEERS, "absent", absent)
    assert absent.missing("cpu") is not None and absent.versions == {}
    with pytest.raises(LoadError, match="absent-norms is not installed here") as caught:
        load("references.peers:absent")
    assert "\n" not in str(caught.value)
    with pytest.raises(LoadError, match="no peer 'lama'; there are torch_functional"):
        load("references.peers:lama")


def test_a_gpu_peer_says_so_on_a_cpu() -> None:
    assert PEERS["quack"].missing("cpu") == "needs a GPU"


def test_claims_select_cells() -> None:
    gemma = PEERS["hf_gemma"]
    chosen = survey.cells(gemma, "gemma", MATRIX)
    assert {case.dtype for case in chosen} == set(gemma.dtypes)
    assert {(case.offset, case.weight, case.casting_mode) for case in chosen} == {(1.0, "same", "gemma")}
    assert [case.shape for case in chosen[:3]] == [survey.LARGE] * 3 and len(chosen) == 9
    assert len(survey.cells(PEERS["hf_llama_compiled"], "llama", MATRIX)) == 3  # each shape would be compiled
    added = survey.cells(PEERS["torch_add"], "gemma", MATRIX)
    assert added and all(case.residual for case in added) and PEERS["torch_add"].claims.endswith("with a residual")
    assert "llama; float16" in PEERS["hf_llama"].claims and "any offset" in PEERS["liger_kernel"].claims


# The survey and its table, without any peer


BF16 = Case("llama", 0.0, "bfloat16", "same", True, (2, 8), 1e-6)
OTHER = Case("llama", 0.0, "bfloat16", "same", True, (3, 8), 1e-6)


def _verdicts() -> list[Verdict]:
    near = Finding("value", "dx", "outside the tolerance in 1 of 16 elements", (0, 1), 1.0, 2.0, "", "", 3, 2.5, "sum")
    far = Finding("value", "dx", "outside the tolerance in 4 of 24 elements", (0, 1), 1.0, 2.0, "", "", 3, 403.0, "sum")
    bits = Finding("rounding", "dx", "cannot come from", (0, 1), 1.0, 2.0, "", "", 3, 2.5, "sum")
    rate = Finding("exact", "y", "0.7 of the elements", (0, 1), 1.0, 2.0, "", "", 1, 0.5, "sum")
    return [
        Verdict(BF16, "fail", findings=[near, bits, rate], measures={"dx": Measure(16, 16, 2.5, 1.0, 8, 3, 0.0)}),
        Verdict(OTHER, "fail", findings=[far], measures={"dx": Measure(24, 24, 403.0, 1.0, 8, 3, 0.0)}),
    ]


def test_deviations_are_kinds_with_their_worst_cell() -> None:
    value, bits = deviations(_verdicts())
    assert (value.check, value.tensor, value.cells, value.of, value.worst) == ("value", "dx", 2, 2, 403.0)
    assert value.case == OTHER.id and "4 of 24" in value.message
    assert (bits.check, bits.tensor, bits.cells, bits.worst) == ("rounding", "y", 1, None)


def test_the_nearest_mode() -> None:
    assert survey.nearest({"llama": 0.739, "gemma": 1.0, "none": 0.7}) == "gemma"
    assert survey.nearest({"llama": 1.0, "gemma": 1.0, "none": 1.0}) == survey.nearest({}) == "gemma"


def _document(documented: bool = True) -> dict[str, Any]:
    judged = {
        "mode": "llama",
        "roundings": {"bfloat16": {"llama": 0.7391, "gemma": 1.0, "none": 0.5}},
        "rows": [dataclasses.asdict(row) for row in summarize(_verdicts())],
        "deviations": [dataclasses.asdict(deviation) for deviation in deviations(_verdicts())],
    }
    peer = {"title": "A Norm", "versions": {"norms": "1.2"}, "documented": documented, "modes": [judged]}
    about = {"device": "cpu", "interpreted": True, "versions": {"numpy": "2"}, "python": "3", "command": "c"}
    return table.document([peer], {"B": "needs a GPU"}, about | {"time": "2026-11-30T01:02:03"})


def test_the_table_gives_numbers_and_says_what_they_mean() -> None:
    text = table.markdown([_document()])
    assert "| A Norm 1.2 | llama | bfloat16 | 2, 2 deviate | – | – | 403, 40.00 % | – |" in text
    assert "bfloat16 Y: 100.00 % gemma, 73.91 % llama, 50.00 % none" in text
    assert f"dX leaves its bound: bfloat16 in 2 of 2 cells by up to 403 times (`{OTHER.id}`)" in text
    assert "Not judged here: B (needs a GPU)." in text and "On cpu (Triton interpreted)" in text


def test_a_peer_that_computes_what_it_says_has_no_deviation() -> None:
    document = _document()
    judged = document["peers"][0]["modes"][0]
    judged["roundings"], judged["deviations"] = {"bfloat16": {"llama": 1.0, "gemma": 0.7}}, []
    assert "- **A Norm** (norms 1.2) as llama: no deviation." in table.markdown([document])


def test_results_of_several_machines_go_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "peers.md"
    document.write_text(f"before\n{table.BEGIN}old\n{table.END}after\n")
    other = _document()
    other["environment"]["device"] = "a GPU"
    table.place(table.markdown([_document(), other, _document()]), document)
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert text.count("### On cpu") == text.count("### On a GPU") == 1  # runs on one machine are one section
    assert text.count("| A Norm 1.2 |") == 3
    table.place("again\n", document)
    assert document.read_text() == f"before\n{table.BEGIN}\nagain\n\n{table.END}after\n"
    table.place("alone\n", tmp_path / "new.md")
    assert (tmp_path / "new.md").read_text() == "alone\n"


def test_another_file_is_refused(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"schema": 1, "cells": []}'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ValueError, match=r"x\.json"):
            table.read(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"cannot read y\.json"):
        table.read(tmp_path / "y.json")


def test_the_document_is_the_table_of_its_results() -> None:
    results = sorted((ROOT / "docs/results/data").glob("peers*.json"))
    text = (ROOT / "docs/results/peers.md").read_text(encoding="utf-8")
    assert results and table.markdown([table.read(path) for path in results]) in text


PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/judge/peers.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.peers
@pytest.mark.parametrize("number", range(7))
def test_the_programs_of_the_document_run(number: int) -> None:
    assert len(PROGRAMS) == 7
    done = subprocess.run([sys.executable, "-c", PROGRAMS[number]], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and len(done.stdout.splitlines()) in (2, 3), done.stderr


# The command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    rich = pytest.importorskip("rich.console")
    from references.peers import command

    monkeypatch.setattr(sys, "argv", ["rmsnorm-verify", "peers"])
    command.test_console = rich.Console(file=io.StringIO(), width=200)
    return command


def test_the_list_names_every_peer(command: Any) -> None:
    command.list_peers(command.test_console, command.choose(None), "cpu")
    shown = command.test_console.file.getvalue()
    assert all(f"{peer.name}: {peer.title}; " in shown and peer.claims in shown for peer in PEERS.values())
    assert "needs a GPU" in shown


@pytest.mark.torch
def test_judging_writes_both_files_and_names_the_missing(command: Any, tmp_path: Path) -> None:
    files = tmp_path / "p.json", tmp_path / "p.md"
    code = command.judge_peers(
        command.test_console, command.choose(["torch_module", "quack"]), "cpu", MATRIX[:8], *files
    )
    assert code == 0
    document = json.loads(files[0].read_text())
    assert [peer["name"] for peer in document["peers"]] == ["torch_module"]
    assert document["missing"] == {"quack rmsnorm": "needs a GPU"}
    assert files[1].read_text() == table.markdown([document])
    assert command.judge_peers(command.test_console, command.choose(["quack"]), "cpu", MATRIX[:8], None, None) == 2
    with pytest.raises(ValueError, match="no peer 'lama'"):
        command.choose(["lama"])


@pytest.mark.torch
def test_interrupted_it_keeps_the_peers_that_are_done(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(peer: Peer, *_: Any) -> dict[str, Any]:
        if peer.name == "torch_module":
            raise KeyboardInterrupt
        return _document()["peers"][0]

    monkeypatch.setattr(command, "survey", interrupted)
    selected = command.choose(["torch_functional", "torch_module"])
    code = command.judge_peers(command.test_console, selected, "cpu", MATRIX[:1], tmp_path / "p.json", None)
    assert code == 130
    assert [peer["title"] for peer in json.loads((tmp_path / "p.json").read_text())["peers"]] == ["A Norm"]


def test_results_are_merged_into_one_document(command: Any, tmp_path: Path) -> None:
    result, both = tmp_path / "p.json", tmp_path / "both.md"
    result.write_text(json.dumps(_document()))
    command.merge([result, result], both)
    assert both.read_text() == table.markdown([_document(), _document()])
