"""One kernel and its compiled variants: a launch that costs little host time.

Triton's own launch binds arguments, specialises them and computes a cache key on every call. `Launcher` does this once
for each key and then calls the compiled variant. Its key is everything that specialises the kernels of this package:
device, dtype and 16-byte alignment of every tensor, width of every runtime integer (none is specialised otherwise: the
kernels list them under do_not_specialize), every constant and every option. Launch hooks and the interpreter take
Triton's own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

# Read once, as @triton.jit does: in one process the kernels are either compiled or interpreted.
INTERPRETED = bool(knobs.runtime.interpret)


class Launcher:
    """Launches one kernel whose parameters are tensors, then runtime integers, then constants."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._resident: dict[tuple[Any, ...], int] = {}

    def __call__(
        self,
        n_programs: int,
        tensors: Sequence[torch.Tensor | None],
        integers: Sequence[int],
        constants: Sequence[Any],
        *,
        num_warps: int,
        cooperative: bool = False,
    ) -> None:
        """Launch n_programs programs on the current device and stream, which must be the tensors'."""
        if INTERPRETED:
            self.kernel[(n_programs,)](*tensors, *integers, *constants)
            return
        if knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
            self._launch(n_programs, tensors, integers, constants, num_warps, cooperative)
            return
        device = torch.cuda.current_device()
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        key = self._key(device, tensors, pointers, integers, constants, num_warps, cooperative)
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = self._launch(n_programs, tensors, integers, constants, num_warps, cooperative)
            return
        compiled.run(
            n_programs,
            1,
            1,
            driver.active.get_current_stream(device),
            compiled.function,
            compiled.packed_metadata,
            None,  # launch metadata and hooks: there are none
            None,
            None,
            *pointers,
            *integers,
            *constants,
        )

    def resident_programs(
        self,
        tensors: Sequence[torch.Tensor | None],
        integers: Sequence[int],
        constants: Sequence[Any],
        *,
        num_warps: int,
    ) -> int:
        """How many programs of a cooperative launch the current device holds at once. Compiles, launches nothing."""
        device = torch.cuda.current_device()
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        key = self._key(device, tensors, pointers, integers, constants, num_warps, True)
        if key not in self._resident:
            compiled = self.kernel.warmup(
                *tensors, *integers, *constants, grid=(1,), num_warps=num_warps, **_options(True)
            )
            compiled._init_handles()
            self._resident[key] = _resident_programs(
                compiled.n_regs, compiled.metadata.shared, num_warps, torch.cuda.get_device_properties(device)
            )
        return self._resident[key]

    @staticmethod
    def _key(
        device: int,
        tensors: Sequence[torch.Tensor | None],
        pointers: Sequence[int | None],
        integers: Sequence[int],
        constants: Sequence[Any],
        num_warps: int,
        cooperative: bool,
    ) -> tuple[Any, ...]:
        return (
            device,
            num_warps,
            cooperative,
            *[None if t is None else t.dtype for t in tensors],
            *[None if p is None else p % 16 == 0 for p in pointers],
            *[-(2**31) <= i < 2**31 for i in integers],
            # A bool equals an int and 0.0 equals -0.0, but neither pair is one constant.
            *[(type(c), c if c else repr(c)) for c in constants],
        )

    def _launch(
        self,
        n_programs: int,
        tensors: Sequence[torch.Tensor | None],
        integers: Sequence[int],
        constants: Sequence[Any],
        num_warps: int,
        cooperative: bool,
    ) -> Any:
        return self.kernel[(n_programs,)](*tensors, *integers, *constants, num_warps=num_warps, **_options(cooperative))


def _options(cooperative: bool) -> dict[str, bool]:
    # Contraction is pinned: Triton's default changes with its version, and bits would change with it.
    options = {"enable_fp_fusion": True}
    if cooperative:
        options["launch_cooperative_grid"] = True
    return options


def _resident_programs(registers: int, shared_memory: int, num_warps: int, properties: Any) -> int:
    """The occupancy of CUDA's programming guide: registers are granted by 256 a warp and by four warps."""
    warp_registers = -(-registers * properties.warp_size // 256) * 256
    warps_by_registers = properties.regs_per_multiprocessor // warp_registers // 4 * 4
    threads = num_warps * properties.warp_size
    a_processor = min(
        warps_by_registers // num_warps,
        properties.max_threads_per_multi_processor // threads,
        properties.shared_memory_per_multiprocessor // (shared_memory + 1024),  # CUDA keeps 1 KiB a program
        16,
    )
    return a_processor * properties.multi_processor_count
