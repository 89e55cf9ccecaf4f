"""One kernel with its constants: a launch that costs little host time.

Triton's own launch binds arguments, specialises them and computes a cache key on every call. A `Variant` fixes a
kernel, its constants, the dtypes of its tensors and its options, so that little is left that specialises it: the
device, the 16-byte alignment of every tensor and the width of every runtime integer (nothing else is specialised on:
the kernels list their integers under do_not_specialize). That is the key under which it keeps what Triton compiled.
Launch hooks and the interpreter take Triton's own path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import wrap_triton
from triton import knobs
from triton.runtime import driver

# Read once, as @triton.jit does: in one process the kernels are either compiled or interpreted.
INTERPRETED = bool(knobs.runtime.interpret)
if INTERPRETED:
    from rmsnorm.fused import interpreter

    interpreter.correct_casts()

Tensors = tuple[torch.Tensor | None, ...]
Integers = tuple[int, ...]


class Variant:
    """A kernel whose parameters are tensors, runtime integers and constants, with all but the first two fixed."""

    def __init__(self, kernel: Any, constants: tuple[Any, ...], num_warps: int, cooperative: bool = False) -> None:
        self._kernel = kernel
        self._constants = constants
        # Contraction is pinned: Triton's default changes with its version, and bits would change with it.
        self._options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": True}
        if cooperative:
            self._options["launch_cooperative_grid"] = True
        self._compiled: dict[int | tuple[int, ...], Any] = {}
        self._resident: dict[tuple[int, ...], int] = {}

    def launch(self, n_programs: int, tensors: Tensors, integers: Integers) -> None:
        """Launch n_programs programs on the device of the tensors, one of which leads, and on its current stream."""
        lead = tensors[0]
        assert lead is not None
        device = lead.get_device()
        if INTERPRETED:
            with interpreter.launching():
                self._kernel[(n_programs,)](*tensors, *integers, *self._constants)
        elif device == torch.cuda.current_device():
            self._launch(device, n_programs, tensors, integers)
        else:  # Triton launches on the current device
            with torch.cuda.device(device):
                self._launch(device, n_programs, tensors, integers)

    def record(self, n_programs: Any, tensors: Tensors, integers: tuple[Any, ...]) -> None:
        """The launch as a node of the graph that torch.compile is making: what it generates launches the kernel itself.

        Contraction stays at Triton's default there: PyTorch passes no such option on.
        """
        wrap_triton(self._kernel)[(n_programs,)](
            *tensors, *integers, *self._constants, num_warps=self._options["num_warps"]
        )

    def _launch(self, device: int, n_programs: int, tensors: Tensors, integers: Integers) -> None:
        if knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
            self._kernel[(n_programs,)](*tensors, *integers, *self._constants, **self._options)
            return
        pointers: list[int | None] = []
        bits = 0
        for t in tensors:
            pointer = None if t is None else t.data_ptr()
            bits |= pointer or 0
            pointers.append(pointer)
        usual = bits % 16 == 0 and max(integers) < 0x80000000  # the key is the device alone then
        key = device if usual else _key(device, pointers, integers)
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = self._kernel[(n_programs,)](*tensors, *integers, *self._constants, **self._options)
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
            *self._constants,
        )

    def resident_programs(self, tensors: Tensors, integers: Integers) -> int:
        """How many programs of a cooperative launch the tensors' device holds at once. Compiles, launches nothing."""
        lead = tensors[0]
        assert lead is not None
        device = lead.get_device()
        key = _key(device, [None if t is None else t.data_ptr() for t in tensors], integers)
        if key not in self._resident:
            with torch.cuda.device(device):
                compiled = self._kernel.warmup(*tensors, *integers, *self._constants, grid=(1,), **self._options)
                compiled._init_handles()
            self._resident[key] = _resident_programs(
                compiled.n_regs,
                compiled.metadata.shared,
                self._options["num_warps"],
                torch.cuda.get_device_properties(device),
            )
        return self._resident[key]


def _key(device: int, pointers: list[int | None], integers: Integers) -> tuple[int, ...]:
    aligned = [pointer is not None and pointer % 16 == 0 for pointer in pointers]
    narrow = [-0x80000000 <= integer < 0x80000000 for integer in integers]
    return device, *aligned, *narrow


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
