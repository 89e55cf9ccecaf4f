"""One gradient for two inputs: dX, which is dR, is seen by whoever consumes it, in-place norms upstream among them.

Each pattern is a program in which one consumer of a gradient, or an observer, would notice a write by another. It is
run with `x + r` and torch.nn.RMSNorm, which never write over anything, and with the fused norm, in place on and off:
gradients agree with torch's, the two settings agree bit for bit, and whoever observed a gradient finds it as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from rmsnorm import LigerFusedAddRMSNorm, LigerRMSNorm  # noqa: E402
from tests.rmsnorm.torch.test_in_place import (  # noqa: E402
    CHAIN_ROUNDINGS,
    COLS,
    DEVICES,
    EPS,
    ROWS,
    Downstream,
    Program,
    Upstream,
)


class Unfused(nn.RMSNorm):
    """Addition and torch's norm, called as the fused norm is. What observes S sees the gradient that arrives there."""

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        s = x + r
        return super().forward(s), s.view_as(s)


class Stream(Program):
    """A program with three fused norms, two norms upstream of them, and a second input."""

    def __init__(self, device: str, make: Callable[[], nn.Module], upstream: Callable[[], nn.Module]) -> None:
        super().__init__(device, make)
        self.upstream = [upstream().to(device) for _ in range(2)]
        self.r = self.c.flip(0).requires_grad_()
        self.d = self.c.roll(1, 0).contiguous()

    def parameters(self) -> list[torch.Tensor]:
        return [*super().parameters(), self.r, *[norm.weight for norm in self.upstream]]

    def end(self, y: torch.Tensor, s: torch.Tensor) -> None:
        """A backward whose dY is the engine's alone."""
        self.backward((y * 2.0 * self.c).sum() + (s * self.d).sum())


PATTERNS: dict[str, Callable[[Stream], None]] = {}


def pattern(function: Callable[[Stream], None]) -> Callable[[Stream], None]:
    PATTERNS[function.__name__] = function
    return function


@pattern
def leaves(p: Stream) -> None:
    p.end(*p.norm(p.x, p.r))


@pattern
def leaves_twice(p: Stream) -> None:
    """Accumulated in place from the second backward on."""
    for _ in range(3):
        p.end(*p.norm(p.x, p.r))


@pattern
def x_is_r(p: Stream) -> None:
    p.end(*p.norm(p.x, p.x))


@pattern
def x_is_r_and_no_leaf(p: Stream) -> None:
    h = p.x * 1.0
    p.end(*p.norm(h, h))


@pattern
def r_is_a_view_of_x(p: Stream) -> None:
    h = p.x * 1.0
    p.end(*p.norm(h, h.flip(0).flip(0)))


@pattern
def y_alone(p: Stream) -> None:
    y, _ = p.norm(p.x, p.r)
    p.backward((y * 2.0 * p.c).sum())


@pattern
def s_alone(p: Stream) -> None:
    _, s = p.norm(p.x, p.r)
    p.backward((s * 2.0 * p.c).sum())


@pattern
def one_gradient_for_y_and_s(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    p.backward(((y + s) * p.c).sum())


@pattern
def gradients_that_are_views_of_one(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    p.backward((torch.cat([y, s]) * torch.cat([p.c, p.d])).sum() + (torch.stack([y, s]) * p.c).sum())


@pattern
def one_cotangent_of_the_caller(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    p.keep(p.c)
    torch.autograd.backward([y, s], [p.c, p.c])


@pattern
def chain(p: Stream) -> None:
    h, s = p.x, p.r
    for norm in p.norms:
        h, s = norm(h @ p.matrix, s)
    p.end(h, s)


@pattern
def chain_without_anything_between(p: Stream) -> None:
    h, s = p.x, p.r
    for norm in p.norms:
        h, s = norm(h, s)
    p.end(h, s)


@pattern
def chain_whose_sums_are_used_too(p: Stream) -> None:
    h, s, total = p.x, p.r, 0.0
    for norm in p.norms:
        h, s = norm(h.sin(), s)
        total = total + (s * p.c).sum()
    p.backward(total + (h * p.d).sum())


@pattern
def norms_upstream_of_both(p: Stream) -> None:
    p.end(*p.norm(p.upstream[0](p.x), p.upstream[1](p.r)))


@pattern
def one_norm_upstream_of_both(p: Stream) -> None:
    h = p.upstream[0](p.x)
    p.end(*p.norm(h, h))


@pattern
def a_norm_upstream_of_one_and_of_itself(p: Stream) -> None:
    p.end(*p.norm(p.upstream[0](p.r), p.r))
    p.end(*p.norm(p.x, p.upstream[1](p.x)))


@pattern
def an_upstream_sum(p: Stream) -> None:
    h = p.upstream[0](p.x) + p.upstream[1](p.r)
    p.end(*p.norm(h, p.upstream[0](p.r) + h))


@pattern
def hooks_on_both(p: Stream) -> None:
    x, r = p.upstream[0](p.x), p.upstream[1](p.r)
    x.register_hook(p.keep)
    r.register_hook(p.keep)
    p.end(*p.norm(x, r))


@pattern
def a_hook_that_changes_one(p: Stream) -> None:
    x, r = p.upstream[0](p.x), p.upstream[1](p.r)
    x.register_hook(lambda g: g * 2.0)
    p.end(*p.norm(x, r))


@pattern
def hooks_of_the_leaves(p: Stream) -> None:
    p.x.register_hook(p.keep)
    p.r.register_post_accumulate_grad_hook(lambda leaf: p.keep(leaf.grad))
    p.end(*p.norm(p.x, p.r))


@pattern
def hooks_on_the_results(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    kept: dict[str, torch.Tensor] = {}
    y.register_hook(lambda g: kept.update(y=g))
    s.register_hook(lambda g: kept.update(s=g))
    p.end(y, s)
    p.held.extend([kept["y"], kept["s"]])


@pattern
def a_hook_on_s_alone(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    s.register_hook(p.keep)
    p.end(y, s)


@pattern
def retain_grad(p: Stream) -> None:
    x, r = p.upstream[0](p.x), p.upstream[1](p.r)
    y, s = p.norm(x, r)
    for t in (x, r, y, s):
        t.retain_grad()
    p.end(y, s)
    for t in (x, r, y, s):
        p.keep(t.grad)


@pattern
def hook_of_the_node(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: p.keep(grad_outputs[0]))
    p.end(y, s)


@pattern
def module_backward_hooks(p: Stream) -> None:
    handles = [
        p.norm.register_full_backward_hook(lambda module, grad_input, grad_output: p.held.extend(grad_output)),
        p.norm.register_full_backward_pre_hook(lambda module, grad_output: p.held.extend(grad_output)),
    ]
    p.end(*p.norm(p.x * 1.0, p.r * 1.0))
    for handle in handles:
        handle.remove()


@pattern
def gradients_of_the_results_too(p: Stream) -> None:
    y, s = p.norm(p.x, p.r)
    loss = (y * 2.0 * p.c).sum() + (s * p.d).sum()
    found = torch.autograd.grad(loss, [y, s, p.x, p.r])
    p.held.extend(found)
    p.x.grad = found[2]


@pattern
def retain_graph(p: Stream) -> None:
    y, s = p.norm(p.upstream[0](p.x), p.upstream[1](p.r))
    loss = (y * 2.0 * p.c).sum() + (s * p.d).sum()
    p.backward(loss, retain_graph=True)
    p.backward(loss)


@pattern
def checkpointing(p: Stream) -> None:
    for reentrant in (False, True):
        h = checkpoint(p.upstream[0], p.x, use_reentrant=reentrant)
        p.end(*checkpoint(p.norm, h, p.r * 1.0, use_reentrant=reentrant))


@pattern
def frozen_x(p: Stream) -> None:
    p.end(*p.norm(p.x.detach(), p.upstream[0](p.r)))


@pattern
def frozen_r(p: Stream) -> None:
    p.end(*p.norm(p.upstream[0](p.x), p.r.detach()))


@pattern
def saved_tensor_hooks(p: Stream) -> None:
    with torch.autograd.graph.save_on_cpu():
        p.end(*p.norm(p.upstream[0](p.x), p.r))


def run(
    device: str, make: Callable[[], nn.Module], upstream: Callable[[], nn.Module], name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The gradients and what observers hold at the end."""
    program = Stream(device, make, upstream)
    PATTERNS[name](program)
    gradients = [t.grad for t in program.parameters() if t.grad is not None]
    return [g.clone() for g in gradients], [h.clone() for h in program.held]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.filterwarnings("ignore:.*use_reentrant.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_nobody_can_tell(device: str, name: str) -> None:
    torch_gradients, torch_held = run(device, lambda: Unfused(COLS, EPS), lambda: nn.RMSNorm(COLS, EPS), name)
    (off_gradients, off_held), (on_gradients, on_held) = (
        run(
            device,
            lambda: LigerFusedAddRMSNorm(COLS, EPS, in_place=in_place),  # noqa: B023  called at once
            lambda: LigerRMSNorm(COLS, EPS, in_place=in_place),  # noqa: B023
            name,
        )
        for in_place in (False, True)
    )
    assert torch_gradients, "the pattern differentiates nothing"
    assert len(on_gradients) == len(torch_gradients) and len(on_held) == len(off_held) == len(torch_held)
    for on, off in zip(on_gradients + on_held, off_gradients + off_held, strict=True):
        assert torch.equal(on, off), "in_place can be seen"
    for ours, theirs in zip(on_gradients + on_held, torch_gradients + torch_held, strict=True):
        distance = (ours - theirs).abs().max().item()
        assert distance <= CHAIN_ROUNDINGS * torch.finfo(torch.float32).eps * theirs.abs().max().item()


@pytest.mark.parametrize("device", DEVICES)
def test_an_exclusive_dy_is_written_over(device: str) -> None:
    for in_place in (True, False):
        norm, dy, dx = LigerFusedAddRMSNorm(COLS, in_place=in_place).to(device), [], []
        x, r = (torch.randn(ROWS, COLS, device=device, requires_grad=True) for _ in range(2))
        y, s = norm(Downstream.apply(x, dx), Downstream.apply(r, dx))
        ((Upstream.apply(y, dy) * 2.0).sum() + (s * 3.0).sum()).backward()
        assert dx[0] == dx[1], "one gradient for two inputs"
        assert (dy[0][0] == dx[0]) == in_place


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_two_leaves_share_is_not_accumulated_into_by_one(device: str) -> None:
    x, r = (torch.randn(ROWS, COLS, device=device, requires_grad=True) for _ in range(2))
    norm = LigerFusedAddRMSNorm(COLS, in_place=True).to(device)
    norm(x, r)[0].mul(2.0).sum().backward()
    before = r.grad.clone()
    x.grad.add_(1.0)
    assert torch.equal(r.grad, before) and x.grad.data_ptr() != r.grad.data_ptr()
