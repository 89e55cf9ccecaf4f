"""The in_place contract of our own kernels: when dX may lie in dY's storage, and when it must not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from rmsnorm import launch, liger_rms_norm, ops, ownership  # noqa: E402

DEVICES = [pytest.param("cpu", marks=pytest.mark.interpret), pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(device: str, rows: int = 5, cols: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, cols, device=device, requires_grad=True)
    w = torch.randn(cols, device=device, requires_grad=True)
    return x, w, torch.randn(rows, cols, device=device)


def gradients(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, in_place: bool) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(liger_rms_norm(x, w, 1e-6, in_place=in_place), (x, w), dy)


@pytest.mark.parametrize("device", DEVICES)
def test_dense_dy_is_reused(device: str) -> None:
    x, w, dy = inputs(device)
    wanted = gradients(x, w, dy, in_place=False)
    got = gradients(x, w, dy, in_place=True)
    assert got[0].data_ptr() == dy.data_ptr()
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_in_place_off_leaves_dy_alone(device: str) -> None:
    x, w, dy = inputs(device)
    before = dy.clone()
    dx, _ = gradients(x, w, dy, in_place=False)
    assert torch.equal(dy, before)
    assert dx.data_ptr() != dy.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["expanded", "column_strided", "row_strided", "transposed", "aliases_x", "aliases_w"])
def test_a_dy_that_must_stay_stays(device: str, kind: str) -> None:
    x, w, dense = inputs(device, rows=24)
    dy = {
        "expanded": lambda: dense[:1].expand(24, 24),
        "column_strided": lambda: dense.repeat(1, 2)[:, ::2],
        "row_strided": lambda: dense.repeat(1, 2)[:, :24],
        "transposed": lambda: dense.t(),
        "aliases_x": lambda: x.detach(),
        "aliases_w": lambda: w.detach().expand(24, 24),
    }[kind]()
    kept = [t.detach().clone() for t in (dy, x, w)]
    wanted = gradients(x, w, dy.clone(memory_format=torch.contiguous_format), in_place=False)
    got = gradients(x, w, dy, in_place=True)
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip((dy, x, w), kept, strict=True))


Norm = Callable[[torch.Tensor], torch.Tensor]


class PassesOnTwice(torch.autograd.Function):
    """a + b, whose gradient for b is another tensor in the same memory, and no view of the first."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], grads[0].detach()


class Module(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def with_a_kept_gradient(norm: Norm, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y.register_hook([].append)
    return y + x


def with_a_module_hook(norm: Norm, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    module = Module(norm)
    module.register_full_backward_hook(lambda *_: None)
    return module(x) + x


# x, (12, 12), is no leaf; m is one.
SHARED: dict[str, Callable[[Norm, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "residual": lambda norm, x, m: x + norm(x),
    "residual_last": lambda norm, x, m: norm(x) + x,
    "gemma2": lambda norm, x, m: x + norm(norm(x) @ m),
    "view_of_x": lambda norm, x, m: x + norm(x.view(3, 4, 12)).view(12, 12),
    "views_of_both": lambda norm, x, m: x.view(3, 4, 12) + norm(x.view(3, 4, 12)),
    "two_norms": lambda norm, x, m: norm(x) + norm(m),
    "leaf": lambda norm, x, m: m + norm(x),
    "stacked": lambda norm, x, m: torch.stack([norm(x), x]),
    "no_view": lambda norm, x, m: PassesOnTwice.apply(x, norm(x)),
    "checkpoint": lambda norm, x, m: checkpoint(lambda x: x + norm(x), x, use_reentrant=False),
    "reentrant_checkpoint": lambda norm, x, m: checkpoint(lambda x: x + norm(x), x, use_reentrant=True),
    "beside_checkpoint": lambda norm, x, m: x + checkpoint(norm, x, use_reentrant=False),
    "beside_reentrant_checkpoint": lambda norm, x, m: x + checkpoint(norm, x, use_reentrant=True),
    "kept_by_a_hook": with_a_kept_gradient,
    "module_hook": with_a_module_hook,
}

OWN: dict[str, Callable[[Norm, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda norm, x, m: norm(x) @ m,
    "linear": lambda norm, x, m: nn.functional.linear(norm(x.view(3, 4, 12)), m),
    "scaled": lambda norm, x, m: norm(x) * m,
    "function": lambda norm, x, m: norm(x).sin(),
    "subtracted": lambda norm, x, m: x - norm(x),
    "three_uses": lambda norm, x, m: (lambda y: y @ m + y.sin() * (y @ m))(norm(x)),
    "checkpoint": lambda norm, x, m: checkpoint(lambda x: norm(x) @ m, x, use_reentrant=False),
    "reentrant_checkpoint": lambda norm, x, m: checkpoint(lambda x: norm(x) @ m, x, use_reentrant=True),
    "checkpointed_norm": lambda norm, x, m: checkpoint(norm, x, use_reentrant=False) @ m,
}


@pytest.fixture
def reuses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every backward of a norm, whether it wrote over its dY."""
    seen: list[bool] = []

    def observe(name: str, reused: bool) -> None:
        operator = getattr(ops, name)

        def observed(*args: Any) -> Any:
            seen.append(reused)
            return operator(*args)

        monkeypatch.setattr(ops, name, observed)

    observe("backward_", True)
    observe("backward", False)
    return seen


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def leaves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """x, w and m. On a CPU the operators run eager PyTorch: who holds a gradient is no matter of kernels."""
    if request.param == "cpu":
        monkeypatch.setattr(launch, "INTERPRETED", False)
    x, w, m = inputs(request.param, 12, 12)
    return [x.detach(), w.detach(), m]


def graph_gradients(
    build: Callable[[Norm, torch.Tensor, torch.Tensor], torch.Tensor], leaves: list[torch.Tensor], in_place: bool
) -> list[torch.Tensor]:
    x, w, m = (t.clone().requires_grad_() for t in leaves)
    build(lambda x: liger_rms_norm(x, w, 1e-6, 1.0, "gemma", in_place), x * 2, m).sin().sum().backward()
    return [t.grad for t in (x, w, m) if t.grad is not None]


def assert_same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


@pytest.mark.parametrize("graph", SHARED)
def test_a_gradient_that_others_hold_stays(leaves: list[torch.Tensor], graph: str) -> None:
    wanted = graph_gradients(SHARED[graph], leaves, in_place=False)
    assert_same(graph_gradients(SHARED[graph], leaves, in_place=True), wanted)


@pytest.mark.parametrize("graph", OWN)
def test_a_gradient_of_its_own_is_reused(leaves: list[torch.Tensor], graph: str, reuses: list[bool]) -> None:
    wanted = graph_gradients(OWN[graph], leaves, in_place=False)
    assert reuses == [False]
    assert_same(graph_gradients(OWN[graph], leaves, in_place=True), wanted)
    assert reuses == [False, True]


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_anomaly_mode_changes_nothing(leaves: list[torch.Tensor], reuses: list[bool]) -> None:
    for graph, reused in ((OWN["product"], True), (SHARED["residual"], False)):
        wanted = graph_gradients(graph, leaves, in_place=False)
        with torch.autograd.detect_anomaly():
            assert_same(graph_gradients(graph, leaves, in_place=True), wanted)
        assert reuses.pop() == reused


def test_backwards_in_several_threads(leaves: list[torch.Tensor]) -> None:
    wanted = graph_gradients(SHARED["gemma2"], leaves, in_place=False)
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(graph_gradients, SHARED["gemma2"], leaves, True) for _ in range(20)]
    for task in tasks:
        assert_same(task.result(), wanted)


def test_what_the_caller_passed_is_reused_unless_it_is_shared(leaves: list[torch.Tensor]) -> None:
    x, w, dy = leaves
    x = x.requires_grad_()
    before = dy.clone()
    (wanted,) = torch.autograd.grad(x + liger_rms_norm(x, w, 1e-6, in_place=False), x, dy)
    (got,) = torch.autograd.grad(x + liger_rms_norm(x, w, 1e-6, in_place=True), x, dy)
    assert torch.equal(got, wanted) and torch.equal(dy, before)
    liger_rms_norm(x, w, 1e-6, in_place=True).backward(dy)
    assert not torch.equal(dy, before)


def test_a_gradient_that_is_wanted_itself_stays(leaves: list[torch.Tensor]) -> None:
    x, w, m = leaves
    x = x.requires_grad_()
    results = []
    for in_place in (False, True):
        y = liger_rms_norm(x, w, 1e-6, in_place=in_place)
        wanted = torch.autograd.grad((y @ m).sin().sum(), (x, y), retain_graph=True)
        y.retain_grad()
        (y @ m).sin().sum().backward()
        results.append([*wanted, y.grad])
    assert_same(*results)


def test_counts_are_told_apart() -> None:
    computed, viewed, passed = ownership._measured()
    assert all(ownership.belongs_here(held) for held in (computed, viewed, passed))
    for held in (computed, viewed, passed):
        for place in range(3 if held != passed else 1):
            assert not ownership.belongs_here((*held[:place], held[place] + 1, *held[place + 1 :]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_an_unneeded_gradient_is_none_and_the_other_keeps_its_bits(device: str, frozen: str) -> None:
    x, w, dy = inputs(device)
    wanted = dict(zip("xw", gradients(x, w, dy, in_place=False), strict=True))
    leaves = {"x": x, "w": w}
    leaves[frozen].requires_grad_(False)
    liger_rms_norm(x, w, 1e-6, in_place=False).backward(dy)
    (needed,) = set("xw") - {frozen}
    assert leaves[frozen].grad is None
    assert torch.equal(leaves[needed].grad, wanted[needed])


@pytest.mark.parametrize("device", DEVICES)
def test_writing_over_dy_counts_as_a_new_version(device: str) -> None:
    x, w, dy = inputs(device)
    version = dy._version
    gradients(x, w, dy, in_place=True)
    assert dy._version > version, "a graph that saved dY would not notice"
