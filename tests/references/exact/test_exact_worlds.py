"""What the worlds take, what they refuse by name, and that right programs pass however they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references.candidates.loading import load
from references.cells.cell import Case
from references.exact import draw, table
from references.exact.field import Field, NotAlgebraic
from references.exact.program import Program, differing, run
from references.exact.prove import SHAPES
from references.exact.table import formula


def differences(
    program: Program, mode: str, dtype: str = "bfloat16", offset: float = 0.0, **about: Any
) -> dict[str, int]:
    field = Field(seed=3, splits=dtype == "float64")
    problem = draw.draw(field, (3, 16), dtype, dtype, eps=0.3, offset=offset, formulas=[formula(mode)], seed=3, **about)
    got = run(field, program, problem, mode)
    return differing(field, problem, table.evaluate(field, problem, formula(mode)), got)


def torch_program(forward: Callable[..., Any]) -> Program:
    return Program("it", "torch", forward)


@pytest.mark.torch
def test_rearranged_programs_are_equal() -> None:
    import torch

    def one(x: Any, w: Any, s: Any) -> Any:  # Gemma's Y, and its derivatives, in float32
        return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + s.eps) ** 0.5 * w

    def another(x: Any, w: Any, s: Any) -> Any:
        n = x.shape[-1]
        scale = torch.rsqrt((x * x).flip(-1).reshape(3, 4, 4).sum(1).sum(-1, keepdim=True) + n * s.eps)
        return scale * (4.0 * (w * x))  # the root of 16, taken out of the mean

    def by_norm(x: Any, w: Any, s: Any) -> Any:
        ones = torch.ones(x.shape[-1], 1)
        return w * x * torch.pow((x.pow(2) @ ones).div(16) + s.eps, -0.5)

    for forward in (one, another, by_norm):
        assert differences(torch_program(forward), "gemma", "float32") == {}


@pytest.mark.torch
def test_a_backward_may_take_one_over_v_for_rstd_squared() -> None:
    import torch

    def forward(x: Any, w: Any, s: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + s.eps) * w

    def backward(dy: Any, x: Any, w: Any, rstd: Any, s: Any) -> Any:
        v = x.square().mean(-1, keepdim=True) + s.eps
        m = dy * w
        dx = torch.rsqrt(v) * (m - x / v * (m * x).mean(-1, keepdim=True))
        return dx, (dy * x * torch.rsqrt(v)).sum(0)

    program = Program("it", "torch", forward, backward)
    assert differences(program, "llama", "float32") == {}
    # Of rows whose v is negative only √v·√v = -v is known: there the two are not equal, and nothing is wrong.
    field = Field(seed=3)
    problem = draw.draw(field, (9, 16), "float32", "float32", eps=0.3, offset=0.0, formulas=[])
    positive = field.positive(table.variance(field, problem, formula("llama")))[:, 0]
    got = run(field, program, problem)["dx"][0]
    wanted = table.evaluate(field, problem, formula("llama"))["dx"]
    assert (got == wanted).all(1).tolist() == positive.tolist()
    assert field.negative_roots >= (~positive).sum() > 0


def refused(forward: Callable[..., Any], library: str = "torch", backward: Any = None) -> str:
    field = Field()
    problem = draw.draw(field, (2, 4), "float32", "float32", eps=0.3, offset=0.0, formulas=[])
    with pytest.raises(NotAlgebraic) as error:
        run(field, Program("it", library, forward, backward), problem)
    return str(error.value)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "named"),
    [
        (lambda x, w, s: x * w.abs(), "aten.abs"),
        (lambda x, w, s: x.clamp(min=0) * w, "aten.clamp"),
        (lambda x, w, s: x * w.exp(), "aten.exp"),
        (lambda x, w, s: x * w * (x > 0), "aten.gt"),
        (lambda x, w, s: x / x.amax(-1, keepdim=True) * w, "aten.amax"),
        (lambda x, w, s: x * w.sum().item(), "aten._local_scalar_dense"),
        (lambda x, w, s: x * float(w.detach().numpy()[0]), "numpy"),
        (lambda x, w, s: x.int() * w, "becomes"),
        (lambda x, w, s: x.view(__import__("torch").int32) * w, "view"),
    ],
)
def test_what_is_no_algebra_is_refused_by_name(program: Callable[..., Any], named: str) -> None:
    message = refused(program)
    assert message.startswith("not algebraic: ") and named in message


def test_numpy_and_jax_programs_are_refused_by_name_too() -> None:
    def backward(dy: Any, x: Any, w: Any, rstd: Any, s: Any) -> Any:
        return dy, w

    for program, named in (
        (lambda x, w, s: np.abs(x) * w, "numpy.absolute"),
        (lambda x, w, s: x / np.max(x) * w, "numpy.max"),
        (lambda x, w, s: x * float(w[0]), "a Python number"),
        (lambda x, w, s: np.exp(x) * w, "numpy.exp"),
    ):
        assert named in refused(program, "numpy", backward)


@pytest.mark.jax
def test_jax_programs_are_refused_by_name() -> None:
    import jax
    import jax.numpy as jnp

    for program, named in (
        (lambda x, w, s: jnp.abs(x) * w, "jax's abs"),
        (lambda x, w, s: x / x.max() * w, "jax's reduce_max"),
        (lambda x, w, s: jax.nn.silu(x) * w, "jax's logistic"),
    ):
        assert named in refused(program, "jax")


@pytest.mark.jax
def test_jax_looks_into_jit_remat_and_custom_derivatives() -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def scaled(x: Any, w: Any) -> Any:
        return x * w

    scaled.defvjp(lambda x, w: (x * w, (x, w)), lambda saved, dy: (dy * saved[1], (dy * saved[0]).sum(0)))

    @jax.jit
    @jax.checkpoint
    def forward(x: Any, w: Any, s: float) -> Any:
        return scaled(x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + s), w)

    assert differences(Program("it", "jax", lambda x, w, s: forward(x, w, s.eps)), "gemma", "float32") == {}


@pytest.mark.torch
def test_a_literal_is_the_number_that_it_says() -> None:
    import torch

    def forward(x: Any, w: Any, s: Any) -> Any:
        eps = torch.tensor(s.eps)
        half = torch.full((1,), 0.5) * torch.ones_like(w)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (half * w + w * 0.5)

    assert differences(torch_program(forward), "gemma", "float32") == {}


@pytest.mark.torch
def test_memory_that_was_never_written_shows() -> None:
    import torch

    def forward(x: Any, w: Any, s: Any) -> Any:
        y = torch.empty_like(x)
        y[1:] = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + s.eps) * w)[1:]
        return y

    assert set(differences(torch_program(forward), "gemma", "float32")) == {"y", "dx", "dw"}


@pytest.mark.torch
def test_float64_that_is_computed_in_float32_shows() -> None:
    def forward(x: Any, w: Any, s: Any) -> Any:
        x_c, w_c = x.float(), w.float()
        return (x_c * (x_c.square().mean(-1, keepdim=True) + s.eps).rsqrt() * w_c).to(x.dtype)

    assert set(differences(torch_program(forward), "gemma", "float64")) == {"y", "dx", "dw"}


@pytest.mark.torch
def test_the_world_is_closed_again() -> None:
    import torch

    from references.exact import torch_world

    before = torch.ones(3) * 2.5
    with pytest.raises(NotAlgebraic), torch_world.world(Field()):
        torch.ones(3).exp()
    assert torch.equal(torch.ones(3) * 2.5, before)
    assert np.asarray(np.float32(1.5)).dtype == np.float32


# With a residual


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("right", "equals gemma exactly"),
        ("Fused", "equals gemma exactly"),
        ("FusedAddRMSNorm", "equals gemma exactly"),
        ("ds_after_rounding", "dR: adds dS after its rounding"),
        ("ds_dropped", "dX: leaves out dS"),
        ("dr_all_0", "dR: no formula that was tried explains it"),
        ("s_is_x", "elements of s are others"),
        ("y_of_the_unrounded_sum", "equals no mode"),
    ],
)
def test_a_fused_residual_is_proven_or_said_what_it_is(name: str, says: str) -> None:
    candidate = load(f"tests.references.candidates.strangers.residual:{name}")
    case = Case("gemma", 0.0, "bfloat16", "same", False, (1, 1), 0.0)
    assert says in str(candidate.prove(case, SHAPES[:6]))
