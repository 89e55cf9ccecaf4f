"""Kernel time on a GPU: the sum over a call's kernels as the profiler sees them, each call after a cleaned L2.

The L2 is filled with clean lines by reading a buffer several times its size (writing one would charge its write-back to
the call that is timed). All candidates of a comparison are timed in one session, interleaved, so that clocks and
temperature are shared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

L2_CLEAN_BYTES = 256 * 1024 * 1024


@triton.jit
def l2_clean_kernel(source_ptr, sink_ptr, BLOCK: tl.constexpr):
    """Read BLOCK int32 and keep the read alive without writing (the sum of zeros is never 1)."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(source_ptr + offsets), axis=0)
    tl.store(sink_ptr, total, mask=total == 1)


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over repetitions and the quartiles around it."""

    median: float
    lower: float
    upper: float


class KernelTimer:
    """Times calls on one CUDA device."""

    def __init__(self, device: str = "cuda") -> None:
        self._source = torch.zeros(L2_CLEAN_BYTES // 4, dtype=torch.int32, device=device)
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)

    def _clean_l2(self) -> None:
        block = 8192
        l2_clean_kernel[(self._source.numel() // block,)](self._source, self._sink, BLOCK=block)

    def time(
        self, calls: Mapping[str, Callable[[], object]], repetitions: int = 15, only: str = ""
    ) -> dict[str, Timing]:
        """The kernel time of each call, or of its kernels whose name contains `only`.

        Raises RuntimeError for a call that launches no such kernel.
        """
        for call in calls.values():
            call()
        self._clean_l2()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(repetitions):
                for call in calls.values():
                    self._clean_l2()
                    call()
            torch.cuda.synchronize()
        assert profile.profiler is not None
        events = [e for e in profile.profiler.kineto_results.events() if str(e.device_type()).endswith("CUDA")]
        events.sort(key=lambda e: e.start_ns())
        samples: dict[str, list[float]] = {name: [] for name in calls}
        order = [name for _ in range(repetitions) for name in calls]
        position = -1
        for event in events:
            if event.name() == "l2_clean_kernel":
                position += 1
                samples[order[position]].append(0.0)
            elif position >= 0 and only in event.name():
                samples[order[position]][-1] += event.duration_ns() / 1000
        for name, times in samples.items():
            if len(times) != repetitions or min(times) == 0.0:
                raise RuntimeError(f"{name}: the profiler saw kernels in {len(times)} of {repetitions} calls")
        return {name: _summary(times) for name, times in samples.items()}


def _summary(times: list[float]) -> Timing:
    lower, median, upper = statistics.quantiles(times, n=4)
    return Timing(median, lower, upper)
