"""Candidates as strangers bring them, at the default level: right ones conform, each fault is caught and diagnosed."""

from __future__ import annotations

import pytest

from references.candidates.loading import load
from references.candidates.probing import Probe, probe
from references.cells.selection import select
from references.judge.diagnosis import diagnose
from references.judge.verdict import Verdict, check_all
from references.report.summary import conclusion, exit_code, unjudged

HOME = "tests.references.candidates.strangers"


def found(target: str) -> Probe:
    return probe(load(f"{HOME}.{target}"))


def judged(target: str, keyword: str = "", max_failures: int = 0) -> tuple[Probe, list[Verdict]]:
    one = found(target)
    cells = select(one.profile.cells("smoke"), keyword=keyword)
    verdicts = check_all(one.implementation, cells, lambda verdict: None, one.profile, max_failures=max_failures)
    if not max_failures:
        assert exit_code(verdicts, unjudged(verdicts, cells, one.profile)) in (0, 1)
    return one, verdicts


RIGHT = [
    pytest.param("ordinary:right", "gemma", marks=pytest.mark.torch),
    pytest.param("ordinary:GemmaRMSNorm", "gemma", marks=pytest.mark.torch),
    pytest.param("in_triton:llama_norm", "llama", marks=pytest.mark.interpret),
    ("in_numpy:right", "gemma"),
]


@pytest.mark.parametrize(("target", "mode"), RIGHT)
def test_a_right_candidate_conforms(target: str, mode: str) -> None:
    one, verdicts = judged(target)
    assert [str(d) for d in diagnose(verdicts)] == []
    assert one.implementation.fixed_mode == mode and one.mode is not None and one.mode.startswith(f"{mode}: ")
    ran = [v for v in verdicts if v.status == "pass"]
    assert 60 <= len(ran) <= 150
    assert {v.case.dtype for v in ran} == set(one.profile.dtypes) == {"float16", "bfloat16", "float32"}


@pytest.mark.torch
def test_a_forward_alone_conforms_where_no_gradient_is_claimed() -> None:
    one = probe(load(f"{HOME}.ordinary:forward_alone"), {"gradients": False})
    cells = one.profile.cells("smoke")
    verdicts = check_all(one.implementation, cells, lambda verdict: None, one.profile)
    assert exit_code(verdicts) == 0
    assert conclusion(verdicts, len(cells)).startswith("conforms, the forward alone: 127 cells pass")


@pytest.mark.jax
def test_a_right_function_in_jax_conforms() -> None:
    one, verdicts = judged("in_jax:right", "2x4x41")  # each further shape would be compiled
    ran = [v for v in verdicts if v.status != "unsupported"]
    assert one.implementation.arrays == "jax" and len(ran) >= 4
    assert {v.status for v in ran} == {"pass"} and all("dw" in v.measures for v in ran)


def test_float64_computed_in_float32_is_not_demanded_but_told() -> None:
    one = found("in_numpy:right")
    assert "float64" not in one.profile.dtypes and one.notes["dtypes float64"].startswith("computed in float32")
    (cell,) = [case for case in one.profile.cells("smoke") if case.dtype == "float64"]
    (verdict,) = check_all(one.implementation, [cell], lambda verdict: None, one.profile)
    assert verdict.status == "unsupported" and str(verdict.reason).endswith("computed in float32")
    demanded = probe(load(f"{HOME}.in_numpy:right"), {"dtypes": ["float64"]})
    cells = select(demanded.profile.cells("matrix"), dtypes=["float64"])
    verdicts = check_all(demanded.implementation, cells, lambda verdict: None, demanded.profile)
    assert {f.check for v in verdicts for f in v.findings} == {"precision"}
    assert [d.what for d in diagnose(verdicts)] == ["computes float64 in float32"]


FAULTS = {  # by candidate: a word of the diagnosis of a whole run
    "fp16_overflow": "float16",
    "bf16_all_the_way": "X is not float32",
    "wrong_everywhere": "nearly everywhere",
    "eps_outside_the_root": "Y",
    "eps_subtracted": "Y",
    "eps_hard_coded": "eps",
    "w_ignored_beyond_64": "96 columns or more",
    "last_column_zero_at_3_times_2_to_k": "96 columns",
    "sum_of_4096_columns": "Y (and dX) leaves its bound only where there are 4097 columns or more (8 of 127 cells)",
    "forward_alone": "judged with --forward-only",
    "clamped_in_fp16": "overflowing",
    "w_as_bf16_where_float32": "W",
    "eps_forgotten_without_gradients": "without gradients",
    "dw_doubled_in_16_bits": "dW",
    "dw_zero_in_16_bits": "dW",
    "dw_coarse_above_64_rows": "129 rows",
    "dx_wrong_from_257": "257 columns or more",
    "wrong_where_w_is_strided": "W is not contiguous",
    "wrong_where_x_is_strided": "X is not contiguous",
    "last_row_of_17_lost": "17 rows",
    "frozen_x_doubles_dw": "X frozen",
    "uses_the_last_forward": "another forward",
}


@pytest.mark.torch
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_at_the_default_level_and_diagnosed(name: str) -> None:
    _, verdicts = judged(f"ordinary:{name}")
    diagnoses = diagnose(verdicts)
    assert exit_code(verdicts) == 1
    assert FAULTS[name] in str(diagnoses[0]), "\n".join(map(str, diagnoses))
    # One bug is told once.
    assert len(diagnoses) <= 2, "\n".join(map(str, diagnoses))


@pytest.mark.torch
def test_what_is_wrong_everywhere_is_wrong_and_not_unsupported() -> None:
    one, verdicts = judged("ordinary:wrong_everywhere", "2x4x41")
    assert one.mode is not None and one.mode.startswith("nearest to ")
    ran = [v for v in verdicts if v.status != "unsupported"]
    assert ran and all(("value", "y") in {(f.check, f.tensor) for f in v.findings} for v in ran)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "says"), [("LlamaRMSNorm", "LlamaRMSNorm: docs/"), ("x_converted_twice", "convert it once: docs/")]
)
def test_a_known_habit_is_explained_with_the_page_that_has_it(name: str, says: str) -> None:
    _, verdicts = judged(f"ordinary:{name}", "normal")
    told = [str(d) for d in diagnose(verdicts) if "dx" in d.tensors]
    assert len(told) == 1 and says in told[0] and "race" not in told[0]


@pytest.mark.interpret
def test_a_fault_of_a_triton_kernel_is_diagnosed() -> None:
    _, verdicts = judged("in_triton:no_mask_fill", "normal")
    assert "the columns are no power of two" in str(diagnose(verdicts)[0])


@pytest.mark.jax
def test_a_wrong_function_in_jax_is_caught() -> None:
    for name in ("sum_for_mean", "no_gradient_to_w"):
        _, verdicts = judged(f"in_jax:{name}", "bf16 and 2x4x41", max_failures=1)
        assert exit_code(verdicts) == 1


def test_a_wrong_function_in_numpy_is_caught() -> None:
    _, verdicts = judged("in_numpy:truncated")
    assert "only where X is float16" in str(diagnose(verdicts)[0]).replace("wherever", "only where")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["right", "Fused", "FusedAddRMSNorm"])
def test_a_right_fused_residual_conforms(name: str) -> None:
    one, verdicts = judged(f"residual:{name}", "" if name == "right" else "2x4x41")
    assert [str(d) for d in diagnose(verdicts)] == []
    assert one.profile.residual == (True,) and one.implementation.fixed_mode == "gemma"
    ran = [v for v in verdicts if v.status == "pass"]
    assert ran and all(v.case.residual and {"y", "s", "dx", "dr", "dw"} <= v.measures.keys() for v in ran)
    assert name != "right" or len(ran) >= 120


@pytest.mark.torch
def test_an_optional_residual_is_judged_both_ways() -> None:
    one, verdicts = judged("residual:optional", "2x4x41")
    assert one.profile.residual == (False, True)
    assert {v.case.residual for v in verdicts if v.status == "pass"} == {False, True}
    assert [str(d) for d in diagnose(verdicts)] == []


RESIDUAL_FAULTS = {  # by candidate: words of the diagnosis
    "s_unrounded": "S is float32, specified is",
    "s_truncated": "S leaves its bound",
    "s_is_x": "S is X: the residual is left out",
    "s_loses_the_sign_of_zero": "S differs in NaN, infinity or the sign of zero",
    "y_of_x": "Y is the norm of X: the residual is left out",
    "y_of_the_unrounded_sum": "Y is the norm of the sum before its rounding",
    "added_after_the_norm": "the residual is added after the norm",
    "ds_dropped": "dS is ignored",
    "ds_after_rounding": "dS is added after the norm's dX was rounded",
    "dr_all_0": "dR is zero",
    "dr_missing": "dR is not computed (no gradient was returned)",
    "dw_of_x": "dW is of X, and not of S",
    "norms_gradient_dropped": "dX is dS alone",
    "x_overwritten": "was overwritten",
    "only_y": "a Tensor was returned, not Y and S",
    "s_detached": "dS is ignored",
    "NeedsBoth": "with no gradient at S",
}


@pytest.mark.torch
@pytest.mark.parametrize("name", RESIDUAL_FAULTS)
def test_a_fault_of_a_fused_residual_is_caught_at_the_default_level_and_named(name: str) -> None:
    _, verdicts = judged(f"residual:{name}", "zero_rows" if "zero" in name else "normal")
    diagnoses = diagnose(verdicts)
    assert exit_code(verdicts) == 1
    assert RESIDUAL_FAULTS[name] in str(diagnoses[0]), "\n".join(map(str, diagnoses))
    assert len(diagnoses) <= 2, "\n".join(map(str, diagnoses))
