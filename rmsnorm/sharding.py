"""How DTensor shards the operators: rows anywhere, columns nowhere, a residual and its gradient as X is.

With rows sharded every rank computes its own rows, and dW is a partial sum over the ranks. A sharded last dimension is
redistributed first, which DTensor does by the cheapest way it finds.
"""

from __future__ import annotations

import sys
from typing import Any

from rmsnorm import ops

_registered = False


def register() -> None:
    """Teach DTensor the operators, if torch.distributed.tensor has been imported: without it there is no DTensor.

    Cheap to call again. The functions and the module call it; call it yourself only where a DTensor meets the
    operators under torch.compile without a LigerRMSNorm made after the import of torch.distributed.tensor.
    """
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(ops.rms_norm_forward)(_forward_shardings)
    register_sharding(ops.rms_norm_backward)(_backward_shardings)
    register_sharding(ops.add_rms_norm_forward)(_add_forward_shardings)
    register_sharding(ops.add_rms_norm_backward)(_add_backward_shardings)
    _registered = True


def _row_placements(x: Any) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate(), *[Shard(dim) for dim in range(x.ndim - 1)]]


def _forward_shardings(x: Any, w: Any, eps: float, offset: float, casting_mode: str, row_mode: bool | None) -> Any:
    from torch.distributed.tensor import Replicate

    whole = None if w is None else Replicate()
    return [([rows, rows], [rows, whole, None, None, None, None]) for rows in _row_placements(x)]


def _backward_shardings(
    dy: Any,
    x: Any,
    w: Any,
    rstd: Any,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dx: bool,
    needs_dw: bool,
) -> Any:
    from torch.distributed.tensor import Partial, Replicate

    whole = None if w is None else Replicate()
    shardings = []
    for rows in _row_placements(x):
        dx = rows if needs_dx else Replicate()
        dw = Partial() if needs_dw and w is not None and rows != Replicate() else Replicate()
        shardings.append(([dx, dw], [rows, rows, whole, rows, *[None] * 6]))
    return shardings


def _add_forward_shardings(
    x: Any, r: Any, w: Any, eps: float, offset: float, casting_mode: str, row_mode: bool | None
) -> Any:
    from torch.distributed.tensor import Replicate

    whole = None if w is None else Replicate()
    return [([rows, rows, rows], [rows, rows, whole, None, None, None, None]) for rows in _row_placements(x)]


def _add_backward_shardings(
    dy: Any,
    x: Any,
    w: Any,
    rstd: Any,
    ds: Any,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dw: bool,
) -> Any:
    without_ds = _backward_shardings(dy, x, w, rstd, eps, offset, casting_mode, row_mode, True, needs_dw)
    return [(gradients, [*inputs[:4], inputs[0], *[None] * 5]) for gradients, inputs in without_ds]
