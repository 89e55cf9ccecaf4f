"""The modules: LigerRMSNorm and LigerFusedAddRMSNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import has_torch_function_unary, has_torch_function_variadic

from rmsnorm import sharding
from rmsnorm.checks import check_settings, check_size
from rmsnorm.function import liger_fused_add_rms_norm, liger_rms_norm


class _RMSNorm(nn.Module):
    """What both modules are: settings, a weight and the check of the columns."""

    def __init__(
        self,
        hidden_size: int | tuple[int] | list[int],
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        elementwise_affine: bool = True,
        *,
        row_mode: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden_size = check_size(hidden_size)
        if init_fn not in ("ones", "zeros"):
            raise ValueError(f"init_fn must be 'ones' or 'zeros', got {init_fn!r}")
        if not isinstance(elementwise_affine, bool):
            raise TypeError(
                f"elementwise_affine must be a bool, got {elementwise_affine!r}; the seventh positional argument is "
                "elementwise_affine, row_mode is passed by keyword"
            )
        eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.offset = offset
        self.casting_mode = casting_mode
        self.init_fn = init_fn
        self.in_place = in_place
        self.elementwise_affine = elementwise_affine
        self.row_mode = row_mode
        sharding.register()  # here too: a compiled call of the module does not look for DTensor
        if elementwise_affine:
            self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    @property
    def eps(self) -> float:
        """variance_epsilon, under the name that torch.nn.RMSNorm and the Gemma classes give it."""
        return self.variance_epsilon

    def reset_parameters(self) -> None:
        """Fill the weight as init_fn says."""
        if self.weight is not None:
            (nn.init.ones_ if self.init_fn == "ones" else nn.init.zeros_)(self.weight)

    def _check_columns(self, x: Any) -> None:
        if not isinstance(x, torch.Tensor) or (x.is_nested and x.layout is torch.strided):
            return  # what has no shape is refused where X is checked
        if x.dim() > 0 and x.shape[-1] != self.hidden_size:
            raise ValueError(f"X must have hidden_size {self.hidden_size} columns, got shape {tuple(x.shape)}")

    def extra_repr(self) -> str:
        return (
            f"({self.hidden_size},), eps={self.variance_epsilon}, offset={self.offset}, "
            f"casting_mode={self.casting_mode!r}, init_fn={self.init_fn!r}, in_place={self.in_place}, "
            f"elementwise_affine={self.elementwise_affine}, row_mode={self.row_mode}"
        )


class LigerRMSNorm(_RMSNorm):
    """RMSNorm over the last dimension, a drop-in for the Llama and Gemma norms and for torch.nn.RMSNorm.

    Args:
        hidden_size: H, the size of the last dimension; 1 or more, or a shape of that one dimension.
        eps, offset, casting_mode, in_place, row_mode: see `rmsnorm.liger_rms_norm`.
        init_fn: "ones" or "zeros", what `reset_parameters` fills the weight with. Gemma is offset 1.0 with "zeros".
        elementwise_affine: False for no weight; offset is then ignored.
        device, dtype: of the weight.

    Attributes:
        weight: (hidden_size,), the only parameter and the only entry of the state dict, or None.
        variance_epsilon: eps, under the name that the Llama classes give it.

    Raises:
        TypeError: a setting of the wrong type. Upstream's seventh positional argument is row_mode; here it is
            elementwise_affine, which must be a bool, and row_mode is keyword-only.
        ValueError: hidden_size below 1, an unknown init_fn or casting_mode, eps negative or not finite.
    """

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Y, shape and dtype of hidden_states (..., hidden_size). Raises as `rmsnorm.liger_rms_norm` does."""
        # What stands for a tensor (torch.fx's proxies) has no shape to ask for.
        if not has_torch_function_unary(hidden_states):
            self._check_columns(hidden_states)
        return liger_rms_norm(
            hidden_states,
            self.weight,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
            self.in_place,
            self.row_mode,
        )


class LigerFusedAddRMSNorm(_RMSNorm):
    """The residual stream's addition and the RMSNorm of the sum, in one: forward(hidden_states, residual) -> (Y, S).

    Args, attributes and errors are those of `LigerRMSNorm`. in_place is off by default, as in the Liger kernel.
    """

    def __init__(
        self,
        hidden_size: int | tuple[int] | list[int],
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
        elementwise_affine: bool = True,
        *,
        row_mode: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        settings: dict[str, Any] = {"row_mode": row_mode, "device": device, "dtype": dtype}
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine, **settings)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Y and S = hidden_states + residual, shape and dtype of either. Raises as `liger_fused_add_rms_norm` does."""
        if not has_torch_function_variadic(hidden_states, residual):
            self._check_columns(hidden_states)
        return liger_fused_add_rms_norm(
            hidden_states,
            residual,
            self.weight,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
            self.in_place,
            self.row_mode,
        )
