"""Replace the RMSNorm modules of a model by LigerRMSNorm, those alone that were measured to compute the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from rmsnorm.measure import Measured, NotRMSNorm, measure
from rmsnorm.module import LigerRMSNorm


@dataclass(frozen=True)
class Entry:
    """One norm of the model: measured where it was replaced, otherwise with the reason why it was not."""

    name: str
    class_name: str
    measured: Measured | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.measured is None:
            return f"{self.class_name} kept: {self.reason}"
        m = self.measured
        return (
            f"{self.class_name}({m.hidden_size}) replaced: casting_mode={m.casting_mode!r}, offset={m.offset}, "
            f"eps={m.eps}, {m.exact:.4%} of elements equal in every bit"
        )


@dataclass
class Report:
    """What `convert_model` did, norm by norm. Printing it gives one line for each kind of outcome."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def replaced(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.measured is not None]

    @property
    def kept(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.measured is None]

    def __str__(self) -> str:
        lines = Counter(str(entry) for entry in self.entries)
        return "\n".join(f"{count} × {line}" for line, count in lines.items()) or "no module is named RMSNorm"


def convert_model(model: nn.Module, *, in_place: bool = True) -> Report:
    """Replace, in `model` itself, every module whose class is named RMSNorm and whose behaviour LigerRMSNorm has.

    The weights stay the same parameters, so optimizers and tied weights keep working, and the state dict keeps its
    keys. A module that is used in several places stays one module.

    Args:
        model: on any device but meta, in any dtype; it is run on small random input, norm by norm.
        in_place: of the new norms; see `rmsnorm.liger_rms_norm`.

    Returns:
        Report: settings of each replaced norm, and the reason for each kept one.
    """
    report = Report()
    replacements: dict[nn.Module, LigerRMSNorm] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if "RMSNorm" not in type(module).__name__ or isinstance(module, LigerRMSNorm):
            continue
        if module not in replacements:
            try:
                if module is model:
                    raise NotRMSNorm("it is the model itself, and has no place to be replaced in")
                measured = measure(module)
            except NotRMSNorm as reason:
                report.entries.append(Entry(name, type(module).__name__, reason=str(reason)))
                continue
            report.entries.append(Entry(name, type(module).__name__, measured))
            replacements[module] = _replacement(module, measured, in_place)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacements[module])
    return report


def _replacement(module: nn.Module, measured: Measured, in_place: bool) -> LigerRMSNorm:
    with torch.device("meta"):  # the weight is taken over: allocate none
        norm = LigerRMSNorm(
            measured.hidden_size,
            measured.eps,
            measured.offset,
            measured.casting_mode,
            "zeros" if measured.offset else "ones",
            in_place,
            measured.weighted,
        )
    if measured.weighted:
        norm.weight = module.weight  # type: ignore[assignment]
    if hasattr(module, "_hf_hook"):  # a device_map: the hook brings input to the device of the weight
        from accelerate.hooks import add_hook_to_module

        add_hook_to_module(norm, module._hf_hook)
    return norm.train(module.training)
