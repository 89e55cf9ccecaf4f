"""Calls leave nothing behind: whatever else is computed in between, a call's results are those of the call alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpret]
torch = pytest.importorskip("torch")

from rmsnorm import liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch, plans  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, SplitConfig  # noqa: E402
from rmsnorm.fused.variant import Variant  # noqa: E402

N_ROWS, N_COLS = 5, 100
ABOUT: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
TILES: dict[str, Any] = {
    "tiles": BackwardConfig(2, 128, 1, 1, 3, False),
    "split": SplitConfig(2, 64, 1, 2, False),
    "split_reload": SplitConfig(4, 32, 1, 2, True),
}


def tensors(seed: int, *, n_rows: int = N_ROWS, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"x": (n_rows, N_COLS), "dy": (n_rows, N_COLS), "w": (N_COLS,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def compute(seed: int, config: Any) -> list[torch.Tensor]:
    """y, rstd, dx and dw of the kernels."""
    given = tensors(seed)
    y, rstd = launch.rms_norm_forward(given["x"], given["w"], eps=0.7, **ABOUT)
    dx = torch.empty_like(y)
    dw = launch.rms_norm_backward(
        given["dy"], given["x"], given["w"], rstd, dx=dx, needs_dw=True, config=config, **ABOUT
    )
    assert dw is not None
    return [y, rstd, dx, dw]


def assert_same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for name, one, other in zip(("y", "rstd", "dx", "dw"), got, wanted, strict=True):
        assert torch.equal(one, other), name


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what happens before every launch of the outermost call."""
    launched, inside = Variant.launch, False

    def set_action(action: Callable[[], object]) -> None:
        def launch_after(*arguments: Any) -> None:
            nonlocal inside
            if not inside:
                inside = True
                action()
                inside = False
            launched(*arguments)

        monkeypatch.setattr(Variant, "launch", launch_after)

    yield set_action


@pytest.mark.parametrize("tile", TILES)
def test_another_call_may_run_between_any_two_launches(tile: str, between: Any) -> None:
    # As another thread or another stream does it.
    wanted = compute(0, TILES[tile])
    others: list[list[torch.Tensor]] = []
    between(lambda: others.append(compute(1, TILES[tile])))
    assert_same(compute(0, TILES[tile]), wanted)
    assert len(others) == (4 if tile.startswith("split") else 3), "a launch boundary was not seen"
    for other in others:
        assert_same(other, others[0])


@pytest.mark.parametrize("tile", TILES)
def test_no_buffer_is_used_again(tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a call allocated and did not return is poisoned after it: a call that reads it is wrong."""
    wanted = compute(0, TILES[tile])
    allocated: list[torch.Tensor] = []
    for name in ("new_empty", "new_full"):
        make = getattr(torch.Tensor, name)

        def recorded(*arguments: Any, _make: Any = make, **options: Any) -> torch.Tensor:
            allocated.append(_make(*arguments, **options))
            return allocated[-1]

        monkeypatch.setattr(torch.Tensor, name, recorded)
    for _ in range(3):
        results = compute(0, TILES[tile])
        assert_same(results, wanted)
        returned = {t.data_ptr() for t in results}
        assert len(allocated) > 4, "an allocation was not seen"
        for buffer in allocated:
            if buffer.data_ptr() not in returned:
                buffer.fill_(torch.nan if buffer.is_floating_point() else 12345)
        allocated.clear()


def leaves(seed: int, **settings: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    given = tensors(seed, **settings)
    inputs = {name: given[name].requires_grad_() for name in ("x", "w")}
    return inputs, liger_rms_norm(inputs["x"], inputs["w"], 0.7, 0.5), given["dy"]


def gradients(call: tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor], **options: Any) -> list[torch.Tensor]:
    inputs, y, dy = call
    return list(torch.autograd.grad(y, list(inputs.values()), dy, **options))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("rows", [(N_ROWS, N_ROWS, N_ROWS), (N_ROWS, 3, 40)], ids=str)
def test_backwards_come_in_any_order(order: tuple[int, ...], rows: tuple[int, ...]) -> None:
    alone = [gradients(leaves(seed, n_rows=n_rows)) for seed, n_rows in enumerate(rows)]
    calls = [leaves(seed, n_rows=n_rows) for seed, n_rows in enumerate(rows)]
    for which in order:
        for got, wanted in zip(gradients(calls[which]), alone[which], strict=True):
            assert torch.equal(got, wanted)


def test_a_backward_repeats_its_bits_whatever_ran_since() -> None:
    call = leaves(0)
    first = gradients(call, retain_graph=True)
    for other in range(1, 4):
        gradients(leaves(other))
        with torch.no_grad():
            leaves(other)
        for got, wanted in zip(gradients(call, retain_graph=True), first, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("frozen", ["x", "w", "both", "neither"])
def test_gradients_and_values_do_not_depend_on_who_else_needs_one(frozen: str) -> None:
    inputs, y, dy = leaves(0)
    wanted = dict(zip(inputs, gradients((inputs, y, dy)), strict=True))
    given = {name: t.detach().requires_grad_(frozen not in (name, "both")) for name, t in inputs.items()}
    got = liger_rms_norm(given["x"], given["w"], 0.7, 0.5)
    assert torch.equal(got, y)
    needed = [name for name, t in given.items() if t.requires_grad]
    if needed:
        for name, gradient in zip(needed, torch.autograd.grad(got, [given[n] for n in needed], dy), strict=True):
            assert torch.equal(gradient, wanted[name]), name
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(liger_rms_norm(given["x"], given["w"], 0.7, 0.5), y)


def test_threads_do_not_meet() -> None:
    alone = [gradients(leaves(seed)) for seed in range(4)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(4):
            if not all(map(torch.equal, gradients(leaves(seed)), alone[seed])):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# What a plan depends on: each setting here and another one that differs from it by as little as can be.
FORWARD: dict[str, tuple[Any, ...]] = {
    "shape": ((4, 24), (8, 24), (4, 25)),
    "x_strides": ((24, 1), (32, 1), (25, 1), (24, 2)),
    "dtype": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "w_dtype": (torch.float32, torch.float64, None),
    "eps": (0.1234561, 0.1234564, 0.1234561 * (1 + 2**-52), 0.0),
    "offset": (0.1234561, 0.1234564, 0.1234561 * (1 + 2**-52), -0.1234561, 0.0),
    "casting_mode": ("llama", "gemma", "none"),
    "row_mode": (None, True, False),
    "config": (None, ForwardConfig(1, 32, 1, 1), ForwardConfig(1, 32, 0, 1)),
}
BACKWARD: dict[str, tuple[Any, ...]] = {
    "shape": FORWARD["shape"],
    "dy_strides": FORWARD["x_strides"],
    "x_strides": FORWARD["x_strides"],
    "dtype": FORWARD["dtype"],
    "w_dtype": FORWARD["w_dtype"],
    "offset": FORWARD["offset"],
    "casting_mode": FORWARD["casting_mode"],
    "needs_dx": (True, False),
    "needs_dw": (True, False),
    "row_mode": FORWARD["row_mode"],
    "device": (torch.device("cpu"), torch.device("meta")),
    "config": (None, BackwardConfig(1, 32, 1, 1, 2, False), SplitConfig(2, 16, 1, 2, True)),
}
WEIGHT: dict[str, tuple[Any, ...]] = {
    "n_partials": (3, 4, 300),
    "n_cols": (24, 25, 65536),
    "c_dtype": (torch.float32, torch.float64),
    "w_dtype": (torch.float32, torch.float16),
    "device": (torch.device("cpu"), torch.device("meta")),
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("forward_plan", FORWARD), ("backward_plan", BACKWARD), ("weight_gradient_plan", WEIGHT)],
    ids=["forward", "backward", "weight_gradient"],
)
def test_a_plan_is_remembered_for_its_own_settings_alone(
    name: str, settings: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "processors", lambda device: plans.INTERPRETER)
    made: list[tuple[Any, ...]] = []

    class Made:
        def __init__(self, kernel: Any, constants: tuple[Any, ...], *options: Any, **named: Any) -> None:
            self.about = (constants, options, tuple(named.items()))
            made.append(self.about)

    monkeypatch.setattr(plans, "Variant", Made)
    variants = (
        "_forward_variant",
        "_backward_variant",
        "_few_rows_variant",
        "split_variant",
        "_weight_gradient_variant",
    )

    def forget() -> None:
        for function in (*variants, name):
            clear = getattr(getattr(plans, function), "cache_clear", None)
            if clear is not None:
                clear()

    def about(plan: Any) -> Any:
        return [part.about if isinstance(part, Made) else part for part in plan]

    first = {key: values[0] for key, values in settings.items()}
    choices = [first | {key: value} for key, values in settings.items() for value in values]
    forget()
    plan = getattr(plans, name)
    together = [about(plan(*choice.values())) for choice in [*choices, *reversed(choices)]]
    alone = []
    for choice in choices:
        fresh = getattr(plans, name).__wrapped__
        forget()
        alone.append(about(fresh(*choice.values())))
    forget()
    for got, wanted in zip(together, [*alone, *reversed(alone)], strict=True):
        assert got == wanted and str(got) == str(wanted)


def test_two_eps_that_agree_in_six_digits_are_two() -> None:
    x = torch.full((1, 4), 0.5, dtype=torch.float64)
    rstd = [launch.rms_norm_forward(x, None, eps=eps, **ABOUT)[1].item() for eps in (0.1234561, 0.1234564)]
    assert rstd == pytest.approx([0.3734561**-0.5, 0.3734564**-0.5], rel=1e-15)


def test_no_more_plans_are_kept_than_a_program_can_need() -> None:
    """A server sees a new number of rows in every call."""
    kept = [value for value in vars(plans).values() if hasattr(value, "cache_info")]
    before = sum(function.cache_info().currsize for function in kept)
    about = (torch.float32, torch.float32)
    settings = (0.5, "llama")
    for n_rows in range(1, 20001):
        shape, strides = (n_rows, 24), (24, 1)
        plans.forward_plan(shape, strides, *about, 0.7, *settings, None, None)
        plans.backward_plan(
            shape, strides, strides, *about, *settings, True, True, None, torch.device("cpu"), TILES["tiles"]
        )
    after = sum(function.cache_info().currsize for function in kept)
    assert after - before < 10000, f"{after - before} plans of 40,000 are kept"
