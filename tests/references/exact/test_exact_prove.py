"""What `prove` finds and says: rounding points, what is out of its place, what is refused, what is almost right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from references.candidates import proving
from references.candidates.loading import load
from references.cells.cell import Case
from references.exact.program import Program
from references.exact.prove import Proof, prove
from references.spec import RoundingPoints

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

POINTS = tuple(field.name for field in fields(RoundingPoints))
FEW = ((1, 3), (2, 8), (3, 5))


def norm(*rounds: str, **twist: Any) -> Callable[..., Any]:
    """An RMSNorm in PyTorch that rounds where it is told, with one thing out of its place."""

    def forward(x: Any, w: Any, s: Any) -> Any:
        def r(point: str, value: Any) -> Any:
            return value.to(x.dtype).float() if point in rounds else value

        eps = twist["eps"](s.eps) if "eps" in twist else s.eps
        x_c = x.float()
        total = r("squares", x_c * x_c).sum(-1, keepdim=True)
        v = r("mean_square", total / twist.get("columns", lambda n: n)(x.shape[-1]))
        if twist.get("outside"):
            rstd = r("rstd", 1 / (v.sqrt() + eps))
        else:
            rstd = r("rstd", torch.rsqrt(r("variance", v + eps)))
        if "weight" in twist:
            weight = twist["weight"](w, s.offset, x.dtype)
        else:
            weight = r("weight", w.float() + s.offset)
        if twist.get("order") == "(x * w) * rstd":
            return (r("x_hat", x_c * weight) * rstd).to(x.dtype)
        if twist.get("order") == "x * (rstd * w)":
            return (x_c * r("x_hat", rstd * weight)).to(x.dtype)
        return (r("x_hat", x_c * rstd) * weight).to(x.dtype)

    return forward


def proof(forward: Callable[..., Any], dtype: str = "bfloat16", **about: Any) -> Proof:
    return prove(Program("it", "torch", forward), dtype=dtype, shapes=FEW, **about)


@pytest.mark.parametrize("count", [0, 1, 2, len(POINTS)])
def test_sets_of_rounding_points_are_found(count: int) -> None:
    for rounds in itertools.combinations(POINTS, count):
        found = proof(norm(*rounds))
        assert found.formula is not None and found.differs is None, rounds
        assert [name for name in POINTS if getattr(found.formula.points, name)] == list(rounds)
        assert found.formula.named() == ()
        if rounds not in ((), ("x_hat",), POINTS):
            assert found.mode is found.forward_mode is None
            assert f"it rounds {', '.join(rounds)} at 3 shapes" in str(found)


TWISTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "eps is added outside of the root": (("x_hat",), {"outside": True}),
    "eps is left out": (("x_hat",), {"eps": lambda eps: 0.0}),
    "eps is rounded": (POINTS, {"eps": lambda eps: torch.tensor(eps, dtype=torch.bfloat16).float()}),
    "the mean is over the padded width": ((), {"columns": lambda n: 1 << (n - 1).bit_length()}),
    "the mean divides by one column less": ((), {"columns": lambda n: n - 1}),
    "the order is (x * w) * rstd": (("x_hat",), {"order": "(x * w) * rstd"}),
    "the order is x * (rstd * w)": (("x_hat",), {"order": "x * (rstd * w)"}),
    "the offset is added after rounding": (POINTS, {"weight": lambda w, o, d: w.to(d).float() + o}),
    "the offset is left out": ((), {"weight": lambda w, o, d: w.float()}),
}


@pytest.mark.parametrize("words", TWISTS)
def test_what_is_out_of_its_place_is_named(words: str) -> None:
    rounds, twist = TWISTS[words]
    found = proof(norm(*rounds, **twist), w_dtype="float32")
    assert found.mode is found.forward_mode is None and found.formula is not None
    assert found.formula.named() == (words,)
    assert f"{words} at 3 shapes; another formula is missed with probability below" in str(found)


@pytest.mark.parametrize(("mode", "rounds"), [("llama", ("x_hat",)), ("gemma", ()), ("none", POINTS)])
def test_forward_of_a_mode_with_autograd_s_gradients(mode: str, rounds: tuple[str, ...]) -> None:
    """x is widened once, so gemma's gradients are the table's; casts on the way round llama's and none's."""
    found = proof(norm(*rounds))
    assert found.forward_mode == mode
    assert found.mode == ("gemma" if mode == "gemma" else None)


def test_float32_is_one_formula() -> None:
    assert "equals the formula, in which the modes are one, exactly at 3 shapes" in str(proof(norm(), "float32"))


def test_gradients_are_named() -> None:
    def twice(x: Any, w: Any, s: Any) -> Any:
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + s.eps) * (w.float() + s.offset)).to(
            x.dtype
        )

    def forgets(x: Any, w: Any, s: Any) -> Any:
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + s.eps).detach()
        return (x.float() * rstd * (w.float() + s.offset)).to(x.dtype)

    assert "dX: adds two terms that were rounded before" in str(proof(twice))
    assert "dX: lacks the term of RSTD's derivative" in str(proof(forgets))


def test_a_program_that_is_right_at_one_width_alone() -> None:
    def forward(x: Any, w: Any, s: Any) -> Any:
        y = norm("x_hat")(x, w, s)
        return y if x.shape[-1] != 5 else torch.cat((y[:, :-1], x[:, -1:]), -1)

    found = proof(forward)
    assert found.mode is None
    assert "Y is llama's exactly at one shape; then at shape 3 × 5 " in str(found) and "3 elements of y" in str(found)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda x, w, s: norm()(x, w.abs(), s), "it, bfloat16: not algebraic: aten.abs.default (prims.abs.default)"),
        (lambda x, w, s: x / 0 if w.sum() > 0 else x, "it, bfloat16: not algebraic: aten.gt.Scalar"),
        (lambda x, w, s: [][0], "it, bfloat16: IndexError: list index out of range"),
        (lambda x, w, s: None, "it, bfloat16: TypeError: y is NoneType, not like x"),
        (lambda x, w, s: x[:1], "it, bfloat16: TypeError: y is (1, 12), not like x"),
        (lambda x, w, s: norm()(x, w, s).float(), "equals no mode, and no set of rounding points explains it"),
    ],
)
def test_what_cannot_be_proven_is_one_line(program: Callable[..., Any], said: str) -> None:
    assert said in str(proof(program)) and "\n" not in str(proof(program))


def test_an_offset_that_is_fixed_is_found_and_told() -> None:
    def forward(x: Any, w: Any, s: Any) -> Any:
        if s.offset != 1:
            raise ValueError("the offset is always 1")
        return norm()(x, w, s)

    assert "equals gemma with offset 1 exactly at 3 shapes" in str(proof(forward))

    def impossible(x: Any, w: Any, s: Any) -> Any:
        raise ValueError(f"no offset {s.offset:g}")

    assert str(proof(impossible)) == "it, bfloat16: ValueError: no offset -0.7"


def test_without_a_weight_two_modes_are_one() -> None:
    def forward(x: Any, w: Any, s: Any) -> Any:
        x_c = x.float()
        return (x_c * torch.rsqrt(x_c.square().mean(-1, keepdim=True) + s.eps)).to(x.dtype)

    found = proof(forward, w_dtype=None)
    assert found.mode == "llama" and "llama and gemma, which are one without a weight," in str(found)


def test_a_candidate_is_called_by_the_names_of_its_arguments() -> None:
    case = Case("llama", 0.0, "bfloat16", "same", False, (1, 1), 0.0)
    found = proving.prove(load("references.numpy_reference", device="cpu"), case, FEW)
    assert found.mode == "llama" and found.missed < 1e-8
