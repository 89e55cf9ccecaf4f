"""The launch of compiled kernels without a GPU: a kernel, what Triton compiles of it, and the driver are stand-ins.

What a GPU says of the same code: test_launch.py here and tests/rmsnorm/torch/test_devices.py with `-m gpu`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm.fused import launch, plans  # noqa: E402
from rmsnorm.fused.tiles import SplitConfig  # noqa: E402
from rmsnorm.fused.variant import Variant, knobs  # noqa: E402

H200 = SimpleNamespace(
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    shared_memory_per_multiprocessor=228 * 1024,
    shared_memory_per_block_optin=227 * 1024,
    multi_processor_count=132,
)


SMALL = SimpleNamespace(**(vars(H200) | {"multi_processor_count": 8, "shared_memory_per_block_optin": 99 * 1024}))


def properties(device: Any) -> SimpleNamespace:
    """Of a machine whose second GPU is smaller than its first."""
    number = device if isinstance(device, int) else torch.device(device).index
    return (H200, SMALL)[number]


class Kernel:
    """Stands for a @triton.jit function. `seen` holds the launches through it, and `runs` those of what it compiled."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.runs: list[tuple[Any, ...]] = []
        self.handles = 0

    def _compiled(self) -> SimpleNamespace:
        def init_handles() -> None:
            self.handles += 1

        return SimpleNamespace(
            run=lambda *arguments: self.runs.append(arguments),
            function="function",
            packed_metadata="metadata",
            n_regs=255,
            metadata=SimpleNamespace(shared=0),
            _init_handles=init_handles,
        )

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def call(*arguments: Any, **options: Any) -> SimpleNamespace:
            self.seen.append((grid, arguments, options))
            return self._compiled()

        return call

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> SimpleNamespace:
        self.seen.append(("warmup", arguments, options))
        return self._compiled()


def tensor(pointer: int, device: int = 0) -> Any:
    return SimpleNamespace(data_ptr=lambda: pointer, get_device=lambda: device)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with GPUs, of which 0 is current; the list holds what was made current for a while."""
    entered: list[int] = []

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        entered.append(number)
        yield

    monkeypatch.setattr("rmsnorm.fused.variant.INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda device: f"stream of {device}"))
    monkeypatch.setattr("rmsnorm.fused.variant.driver", driver)
    return entered


@pytest.mark.usefixtures("devices")
def test_the_first_launch_goes_through_triton_and_later_ones_run_what_it_compiled() -> None:
    kernel = Kernel()
    variant = Variant(kernel, (64, 0.5), num_warps=4)
    tensors = (tensor(160), None, tensor(320))
    for n_rows in (7, 8):
        variant.launch(3, tensors, (64, n_rows))
    (first,) = kernel.seen
    assert first == ((3,), (*tensors, 64, 7, 64, 0.5), {"num_warps": 4, "enable_fp_fusion": True})
    about = (3, 1, 1, "stream of 0", "function", "metadata", None, None, None)
    assert kernel.runs == [(*about, 160, None, 320, 64, 8, 64, 0.5)]


@pytest.mark.usefixtures("devices")
def test_what_is_specialised_apart_is_compiled_apart_and_kept() -> None:
    kernel = Kernel()
    variant = Variant(kernel, (), num_warps=4)
    for _ in range(2):
        for pointer, stride in ((160, 5), (168, 5), (160, 2**31)):
            variant.launch(1, (tensor(pointer),), (stride,))
    assert len(kernel.seen) == len(kernel.runs) == 3


@pytest.mark.usefixtures("devices")
def test_the_usual_launch_is_kept_by_its_device_alone() -> None:
    kernel = Kernel()
    variant = Variant(kernel, (), num_warps=4)
    variant.launch(1, (tensor(160), None, tensor(32)), (5, 2**31 - 1))
    assert list(variant._compiled) == [0]
    for first, second in ((168, 32), (160, 40), (168, 40)):  # each is aligned otherwise
        for _ in range(2):
            variant.launch(1, (tensor(first), None, tensor(second)), (5, 6))
    assert len(variant._compiled) == len(kernel.seen) == 4
    assert list(variant._compiled)[1:] == [
        (0, False, False, True, True, True),
        (0, True, False, False, True, True),
        (0, False, False, False, True, True),
    ]


def test_a_launch_happens_on_the_device_of_its_tensors(devices: list[int]) -> None:
    kernel = Kernel()
    variant = Variant(kernel, (), num_warps=4)
    variant.launch(1, (tensor(160, device=0),), (5,))
    assert devices == [], "the current device needs no switch"
    for _ in range(2):
        variant.launch(1, (tensor(160, device=1),), (5,))
    assert devices == [1, 1]
    assert len(kernel.seen) == 2, "each device loads its own"
    assert kernel.runs[0][3] == "stream of 1"


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_launch_hook_sees_every_launch(hook: str) -> None:
    kernel = Kernel()
    variant = Variant(kernel, (64,), num_warps=4)
    chain = getattr(knobs.runtime, hook)

    def profiler(*_: Any) -> None:
        pass

    variant.launch(1, (tensor(160),), (5,))
    chain.add(profiler)
    try:
        for _ in range(2):
            variant.launch(2, (tensor(160),), (5,))
    finally:
        chain.remove(profiler)
    variant.launch(1, (tensor(160),), (5,))
    assert [grid for grid, *_ in kernel.seen] == [(1,), (2,), (2,)]
    assert {options["num_warps"] for _, _, options in kernel.seen} == {4}
    assert len(kernel.runs) == 1


def test_the_interpreter_takes_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsnorm.fused.variant.INTERPRETED", True)
    kernel = Kernel()
    x = tensor(160, device=-1)
    for _ in range(2):
        Variant(kernel, (64,), num_warps=4).launch(3, (x,), (5,))
    assert kernel.seen == [((3,), (x, 5, 64), {})] * 2


def test_resident_programs_are_counted_once_on_the_device_of_the_tensors(devices: list[int]) -> None:
    kernel = Kernel()
    variant = Variant(kernel, (64,), num_warps=4, cooperative=True)
    x = tensor(160, device=1)
    for _ in range(2):
        assert variant.resident_programs((x, None), (5,)) == 2 * 8
    options = {"num_warps": 4, "enable_fp_fusion": True, "launch_cooperative_grid": True}
    assert kernel.seen == [("warmup", (x, None, 5, 64), options)]
    assert kernel.handles == 1, "the registers are known once it is loaded"
    assert devices == [1]
    variant.resident_programs((tensor(168, device=1), None), (5,))
    assert len(kernel.seen) == 2, "compiled apart, counted apart"
    assert variant.resident_programs((tensor(160, device=0), None), (5,)) == 2 * 132
    assert variant.resident_programs((x, None), (5,)) == 2 * 8, "the first GPU's number is not the second's"


@pytest.mark.usefixtures("devices")
def test_each_gpu_gets_the_tiles_of_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_gpu", plans._gpu.__wrapped__)  # nothing is remembered of this
    gpus = [plans.processors(torch.device("cuda", number)) for number in (0, 1, 0)]
    assert [(gpu.count, gpu.shared_memory) for gpu in gpus] == [
        (132, 227 * 1024),
        (8, 99 * 1024),
        (132, 227 * 1024),
    ]
    monkeypatch.setattr(plans, "_gpu", functools.cache(plans._gpu))
    plan, weight_plan = plans.backward_plan.__wrapped__, plans.weight_gradient_plan.__wrapped__
    shape, about = (1000, 65536), (torch.bfloat16, None, 0.0, "llama", True, False, True)
    partials, widths = [], []
    for number in (0, 1, 0):
        device = torch.device("cuda", number)
        partials.append(plan(shape, (65536, 1), (65536, 1), *about, device, None).n_partials)
        widths.append(weight_plan(33, 16384, torch.float32, torch.bfloat16, device)[1])
    for found in (partials, widths):
        assert found[0] == found[2] != found[1], "one GPU gets the other's"


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("hip", [None, "6.4"])
def test_what_a_gpu_grants(hip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    device = torch.device("cuda", 0)
    found = plans._gpu.__wrapped__(device)
    assert (found.count, found.shared_memory, found.cooperative) == (132, 227 * 1024, hip is None)
    assert plans.processors(torch.device("cpu")) == plans.INTERPRETER
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "_gpu", lambda _: found)
        assert plans.processors(device) == found
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=8))
    assert plans._gpu.__wrapped__(device).shared_memory == 64 * 1024, "where it does not say"


@pytest.mark.parametrize(("resident", "n_groups"), [(100, 3), (12, 3), (11, 2), (9, 2), (4, 1)])
def test_split_rows_take_no_more_groups_than_are_resident(
    resident: int, n_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[int] = []
    variant = SimpleNamespace(
        resident_programs=lambda tensors, integers: resident,
        launch=lambda n_programs, tensors, integers: programs.append(n_programs),
    )
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(plans, "split_variant", lambda *_: variant)
    config = SplitConfig(4, 64, 1, 3, False)
    settings = (config, torch.float32, None, 256, 0.0, "llama", False, 1)
    tensors = (torch.ones(10, 256), torch.ones(10, 256), None, torch.ones(10), torch.ones(10, 256), None)
    assert launch._launch_split(settings, tensors, (256, 256, 10)) == n_groups
    assert programs == [4 * n_groups]
    variant.resident_programs = lambda tensors, integers: 3
    with pytest.raises(RuntimeError, match="holds 3 programs at once, a row needs 4"):
        launch._launch_split(settings, tensors, (256, 256, 10))
    assert len(programs) == 1, "programs that wait for each other are not launched by halves"
