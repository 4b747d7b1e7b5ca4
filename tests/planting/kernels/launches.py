"""Kernels, API calls and NVTX ranges of one process in one iteration.

The host runs 50 us ahead of the device. Every launch has a slot 50 us before its kernel::

    host    |push RECV pop|push F3.0.0 [slot: launch, query] [slot: launch] ... pop|push SEND pop|
    device       SendRecv              kernel               kernel                  SendRecv
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import invert_permutation
from bubbleviz.model.phases import Phase
from tests.planting.host import COMPUTE, STREAM_OF
from tests.planting.kernels.timetable import DEVICES, Timetable

Arrays: TypeAlias = "dict[str, Ints]"

#: Rows of ``tests.planting.recorder.KERNEL_NAMES``.
GEMM, ADD, ADAM, SEND_RECV = range(4)
#: Names of API calls, indexed by ``calls["name"]``.
CALL_NAMES = (
    "cudaLaunchKernel_v7000",
    "cuLaunchKernelEx",
    "cudaEventQuery_v3020",
    "cudaEventRecord_v3020",
)
_LAUNCH, _LAUNCH_EX, _QUERY, _RECORD = range(4)
#: Event classes of API calls.
RUNTIME, DRIVER = 0, 1

#: Time by which the host is ahead of the device, in ns.
_AHEAD_NS = 50_000
#: Start and end, within a slot, of the launching call and of a call without work.
#: The next two pairs are the outer and the inner library range.
#: Slots never overlap, because kernels are farther apart than the length of a slot.
_CALL_NS, _OTHER_NS = (500, 2_000), (2_800, 3_400)
_OUTER_NS, _INNER_NS = (100, 2_400), (300, 2_200)
#: Start of an operation's range relative to its first slot, and its end relative to its last slot.
_PUSH_NS, _POP_NS = -1_000, 4_000
#: Spans of the range of a transfer, NCCL's range inside it, its call and its kernel.
#: Spans are relative to the start (receive) or end (send) of the operation.
#: The span of the kernel is relative to device times, and the other spans to host times.
_RECEIVE_NS = {
    "range": (-8_000, -3_000), "nccl": (-7_500, -3_500), "call": (-7_000, -4_000),
    "kernel": (-16_000, -2_000),
}  # fmt: skip
_SEND_NS = {"range": (1_000, 6_000), "call": (2_000, 5_000), "kernel": (2_000, 12_000)}
#: Time by which the range of an iteration extends beyond the slots of its operations.
_ITERATION_NS = (-20_000, 8_000)
#: First correlation id, mean step between ids, and maximum deviation of an id.
_FIRST_ID, _ID_STEP, _ID_JITTER = 1_000, 6, 5


@dataclass(frozen=True)
class Range:
    """An NVTX push/pop range that the framework or NCCL opened.

    Attributes:
        start_ns: Time of the push.
        end_ns: Time of the pop.
        text: Name of the range.
        nccl: Whether NCCL opened the range, in NCCL's domain and with a registered string.
    """

    start_ns: int
    end_ns: int
    text: str
    nccl: bool = False


@dataclass(frozen=True)
class Block:
    """Activity of one process in one iteration, on the profile's clock.

    Attributes:
        device: Index of the process.
        kernels: Columns ``start, end, stream, name, correlation``.
        calls: Columns ``start, end, class, name, correlation``, sorted by time.
        ranges: Ranges of the framework and of NCCL.
        slots: Start of the launch slot of each compute kernel, on the host.
    """

    device: int
    kernels: Arrays
    calls: Arrays
    ranges: tuple[Range, ...]
    slots: Ints

    @property
    def library(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Starts and ends of the outer and the inner library ranges."""
        outer, inner = ([self.slots + time for time in times] for times in (_OUTER_NS, _INNER_NS))
        return (outer[0], outer[1]), (inner[0], inner[1])


@dataclass(frozen=True)
class _Transfer:
    """A send or a receive, with its name, its times, and the reference point of its times."""

    name: str
    at_ns: int
    times: dict[str, tuple[int, int]]

    def on_host(self, what: str) -> tuple[int, int]:
        start, end = self.times[what]
        return self.at_ns - _AHEAD_NS + start, self.at_ns - _AHEAD_NS + end


def make_block(timetable: Timetable, device: int, iteration: int) -> Block:
    """Return the activity of one process in one iteration. Equal arguments give equal blocks."""
    simulation = timetable.iterations[iteration]
    rows = simulation.take(simulation.device == device)
    begin_ns = timetable.starts_ns[iteration]
    starts, end_ns = rows.start_ns + begin_ns, rows.end_ns + begin_ns
    seed = [timetable.recipe.seed, iteration, device]
    kernel_starts, kernel_ends = _place_kernels(
        starts, end_ns, timetable.recipe.kernels_per_operation, np.random.default_rng(seed)
    )
    phases, microbatches = rows.phase.tolist(), rows.microbatch.tolist()
    transfers = _list_transfers(device, phases, microbatches, starts.tolist(), end_ns.tolist())
    slots = kernel_starts - _AHEAD_NS
    ranges = [
        *_make_operation_ranges(phases, microbatches, slots),
        *_make_transfer_ranges(transfers),
        _make_iteration_range(f"iter_{device}_{iteration}", phases, starts, end_ns),
    ]
    calls = _make_calls(slots.ravel(), transfers)
    _number_calls(calls, iteration)
    kernels = _make_kernels(kernel_starts, kernel_ends, phases, transfers)
    launching = calls["name"] <= _LAUNCH_EX
    kernels["correlation"] = calls["correlation"][launching][
        invert_permutation(calls["kernel"][launching])
    ]
    return Block(device, kernels, calls, tuple(ranges), slots.ravel())


def _place_kernels(
    start_ns: Ints, end_ns: Ints, count: int, random: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return the starts and ends of the compute kernels that fill operations.

    Both arrays have one row per operation.
    """
    weights = np.cumsum(random.integers(750, 1_251, (len(start_ns), count)), axis=1)
    length = (end_ns - start_ns)[:, None]
    edges = np.zeros((len(start_ns), count + 1), dtype=np.int64)
    edges[:, 1:] = length * weights // weights[:, -1:]
    edges += start_ns[:, None]
    kernel_ends = edges[:, 1:] - (edges[:, 1:] - edges[:, :-1]) // 5
    kernel_ends[:, -1] = end_ns
    return edges[:, :-1], kernel_ends


def _list_transfers(
    device: int, phases: list[int], microbatches: list[int], starts: list[int], ends: list[int]
) -> list[_Transfer]:
    """Return the transfers of each operation: a receive before the operation, and a send after it.

    The first device of a pass receives nothing, and the last device sends nothing.
    """
    transfers = []
    for phase, microbatch, start, end in zip(phases, microbatches, starts, ends, strict=True):
        if phase == Phase.OPTIMIZER:
            continue
        forward = phase == Phase.F
        way = "FORWARD" if forward else "BACKWARD"
        first, last = (0, DEVICES - 1) if forward else (DEVICES - 1, 0)
        if device != first:
            transfers.append(_Transfer(f"RECV_{way}.{microbatch}.0.0", start, _RECEIVE_NS))
        if device != last:
            transfers.append(_Transfer(f"SEND_{way}.{microbatch}.0.0", end, _SEND_NS))
    return transfers


def _make_operation_ranges(phases: list[int], microbatches: list[int], slots: Ints) -> list[Range]:
    """Return one range per operation, around the slots of its launches.

    Args:
        phases: Phase of each operation.
        microbatches: Microbatch of each operation.
        slots: Start of the slot of each kernel, shape (operations, kernels).
    """
    ranges = []
    firsts, lasts = slots[:, 0].tolist(), slots[:, -1].tolist()
    for phase, microbatch, first, last in zip(phases, microbatches, firsts, lasts, strict=True):
        letter = "F" if phase == Phase.F else "B"
        text = "Optimizer" if phase == Phase.OPTIMIZER else f"{letter}{microbatch}.0.0"
        ranges.append(Range(first + _PUSH_NS, last + _POP_NS, text))
    return ranges


def _make_transfer_ranges(transfers: list[_Transfer]) -> list[Range]:
    """Return the range of each transfer, and NCCL's range inside each receive."""
    ranges = []
    for transfer in transfers:
        ranges.append(Range(*transfer.on_host("range"), transfer.name))
        if "nccl" in transfer.times:
            ranges.append(Range(*transfer.on_host("nccl"), "ncclRecv", nccl=True))
    return ranges


def _make_iteration_range(text: str, phases: list[int], starts: Ints, ends: Ints) -> Range:
    """Return the range around the work of an iteration. The range ends before the Optimizer."""
    work = np.array(phases) != Phase.OPTIMIZER
    first_ns, last_ns = _ITERATION_NS
    first, last = int(starts[work].min()), int(ends[work].max())
    return Range(first - _AHEAD_NS + first_ns, last - _AHEAD_NS + last_ns, text)


def _make_calls(slots: Ints, transfers: list[_Transfer]) -> Arrays:
    """Return the calls sorted by time.

    There is one launch per slot and per transfer. Two of three slots also contain a call that
    launches nothing. The column ``kernel`` is the row of the kernel that a call launches, or -1.
    """
    number = np.arange(len(slots), dtype=np.int64)
    driver, other = number % 3 == 2, number[number % 3 != 2]
    times = [transfer.on_host("call") for transfer in transfers]
    host = np.array(times, dtype=np.int64).reshape(-1, 2)
    sent = len(slots) + np.arange(len(transfers), dtype=np.int64)
    none, ex = np.full(len(other), -1, dtype=np.int64), np.full(len(sent), _LAUNCH_EX)
    parts = {
        "start": (slots + _CALL_NS[0], slots[other] + _OTHER_NS[0], host[:, 0]),
        "end": (slots + _CALL_NS[1], slots[other] + _OTHER_NS[1], host[:, 1]),
        "name": (np.where(driver, _LAUNCH_EX, _LAUNCH), _QUERY + (other % 2), ex),
        "kernel": (number, none, sent),
    }
    calls = {name: np.concatenate(columns) for name, columns in parts.items()}
    calls["class"] = np.where(calls["name"] == _LAUNCH_EX, DRIVER, RUNTIME)
    order = np.argsort(calls["start"], kind="stable")
    return {name: column[order] for name, column in calls.items()}


def _number_calls(calls: Arrays, iteration: int) -> None:
    """Assign correlation ids to the calls of an iteration, above all ids of earlier iterations."""
    count = len(calls["start"])
    expected_id = iteration * count + np.arange(count, dtype=np.int64)
    calls["correlation"] = (
        _FIRST_ID + _ID_STEP * expected_id + (7 * expected_id + iteration) % _ID_JITTER
    )


def _make_kernels(
    starts: Ints, ends: Ints, phases: list[int], transfers: list[_Transfer]
) -> Arrays:
    """Return the kernels: first the compute kernels by operation, then the transfers."""
    adam: Bools = np.repeat(np.array(phases) == Phase.OPTIMIZER, starts.shape[1])
    number = np.arange(starts.size, dtype=np.int64)
    names = np.where(adam, ADAM, np.where(number % 3 == 1, ADD, GEMM))
    times = [
        (transfer.at_ns + transfer.times["kernel"][0], transfer.at_ns + transfer.times["kernel"][1])
        for transfer in transfers
    ]
    sent = np.array(times, dtype=np.int64).reshape(-1, 2)
    streams = [STREAM_OF[transfer.name.partition(".")[0]] for transfer in transfers]
    return {
        "start": np.concatenate([starts.ravel(), sent[:, 0]]),
        "end": np.concatenate([ends.ravel(), sent[:, 1]]),
        "stream": np.concatenate([np.full(starts.size, COMPUTE), streams]).astype(np.int64),
        "name": np.concatenate([names, np.full(len(sent), SEND_RECV)]),
    }
