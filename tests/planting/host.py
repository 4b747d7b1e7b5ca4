"""The host of a planted process: launching calls and ranges, put in time.

The host is a list of instants in program order. Each has a gap to the next, and the end of a
launching call has a deadline: its kernel's start less the launch latency. The host is then put
as late as the deadlines allow, but ends a range right after what it holds, so that calls precede
their kernels, nest in their ranges, and ranges nest properly, whatever the device does::

    host     |push|call|call|pop|push|call ...
    device             ████  ████      ██████
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model.columns import Bools, Ints

#: Host instants, nanoseconds: length of a launching call, and what lies between two instants.
CALL_NS, STEP_NS = 2_500, 400
#: Between the end of a launching call and the earliest start of its kernel.
LATENCY_NS = 1_500
#: The shortest transfer kernel.
TRANSFER_KERNEL_NS = 2_000
_NEVER = 1 << 60

MAIN, AUTOGRAD, WATCHDOG = 0, 1, 2
#: Device streams as PyTorch and NCCL number them in real exports: one, then one every four.
COMPUTE, COMPUTE_2, COPY = 7, 11, 15
STREAM_OF = {"SEND_FORWARD": 19, "RECV_FORWARD": 23, "SEND_BACKWARD": 27, "RECV_BACKWARD": 31}
COLLECTIVE_STREAM = 35


@dataclass
class Columns:
    """Growing integer columns, appended to in blocks."""

    names: tuple[str, ...]
    blocks: dict[str, list[Ints]] = field(default_factory=dict)

    def add(self, count: int, **values: Ints | int) -> None:
        """Append ``count`` rows; a plain number stands for all of them."""
        for name in self.names:
            block = np.broadcast_to(np.asarray(values[name], dtype=np.int64), (count,))
            self.blocks.setdefault(name, []).append(block)

    def arrays(self) -> dict[str, Ints]:
        """Return the columns."""
        empty = np.zeros(0, dtype=np.int64)
        return {name: np.concatenate([empty, *self.blocks.get(name, [])]) for name in self.names}


class Host:
    """The host of one process: instants, and the calls and ranges between them."""

    def __init__(self, library_depth: int, calls_per_library_range: int) -> None:
        self.depth = library_depth
        self.group = calls_per_library_range
        self.gaps: list[Ints] = []
        self.deadlines: list[Ints] = []
        self.closings: list[Bools] = []
        self.count = 0
        self.calls = Columns(("start", "end", "thread", "device_row"))
        self.ranges = Columns(("start", "end", "thread", "name", "library"))
        self.names: list[str] = []
        self.operations = 0

    def instant(self, deadline: int = _NEVER, *, closing: bool = False) -> int:
        """Append one instant and return its number; a closing one comes as early as it can."""
        self._append(np.array([STEP_NS]), np.array([deadline]), np.array([closing]))
        return self.count - 1

    def _append(self, gaps: Ints, deadlines: Ints, closings: Bools) -> None:
        self.gaps.append(gaps)
        self.deadlines.append(deadlines)
        self.closings.append(closings)
        self.count += len(gaps)

    def name(self, text: str) -> int:
        """Return the number of a range's text."""
        self.names.append(text)
        return len(self.names) - 1

    def range(self, text: str, push: int, pop: int, thread: int = MAIN) -> None:
        """Record a range between two instants."""
        self.ranges.add(1, start=push, end=pop, thread=thread, name=self.name(text), library=0)

    def launch(self, rows: Ints, deadlines: Ints, thread: int = MAIN, nested: bool = True) -> None:
        """Append one launching call a device row, in library ranges where there are any.

        Args:
            rows: rows of the device table.
            deadlines: latest end of each call.
            thread: thread that calls.
            nested: whether library ranges enclose the calls.
        """
        depth = self.depth if nested else 0
        group = self.group if depth else max(1, len(rows))
        order = np.arange(len(rows), dtype=np.int64)
        block = 2 * depth + 2 * group
        start = self.count + order // group * block + depth + 2 * (order % group)
        groups = -(-len(rows) // group)
        total = groups * 2 * depth + 2 * len(rows)
        gaps = np.full(total, STEP_NS, dtype=np.int64)
        limits = np.full(total, _NEVER, dtype=np.int64)
        gaps[start - self.count] = CALL_NS
        limits[start + 1 - self.count] = deadlines
        self.calls.add(len(rows), start=start, end=start + 1, thread=thread, device_row=rows)
        first = self.count + np.arange(groups, dtype=np.int64) * block
        last = np.minimum(first + block, self.count + total) - 1
        closings = np.zeros(total, dtype=np.bool_)
        for level in range(depth):
            self._library(first + level, last - level, thread, level)
            closings[last - level - self.count] = True
        self._append(gaps, limits, closings)

    def _library(self, push: Ints, pop: Ints, thread: int, level: int) -> None:
        """Record library ranges: names that hardly repeat, as emit_nvtx writes them."""
        stem = ("aten::linear", "aten::addmm", "aten::mm", "forward_step_func")[level % 4]
        if thread == AUTOGRAD and level == 0:
            stem = "autograd::engine::evaluate_function: AddmmBackward0"
        first = len(self.names)
        tail = (f", op_id = {self.operations + n}" for n in range(len(push)))
        self.names += [stem + text if "::" in stem else stem for text in tail]
        self.operations += len(push)
        names = np.arange(first, len(self.names), dtype=np.int64)
        self.ranges.add(len(push), start=push, end=pop, thread=thread, name=names, library=1)

    def times(self) -> Ints:
        """Return the time of every instant."""
        gaps, deadlines = np.concatenate(self.gaps), np.concatenate(self.deadlines)
        elapsed = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(gaps)[:-1]])
        slack = (deadlines - elapsed)[::-1]
        latest = np.minimum.accumulate(slack)[::-1] + elapsed
        number = np.arange(len(latest), dtype=np.int64)
        anchor = np.maximum.accumulate(np.where(np.concatenate(self.closings), 0, number))
        return np.asarray(latest[anchor] + elapsed - elapsed[anchor], dtype=np.int64)


def kernel_times(start: int, end: int, count: int, gap_ns: int, overlap: bool) -> tuple[Ints, Ints]:
    """Return starts and ends of kernels that begin and end exactly with the span.

    Args:
        start: start of the span.
        end: end of the span.
        count: number of kernels.
        gap_ns: idle time after every kernel but the last.
        overlap: run each kernel on into the next one's first half (two streams in turn).
    """
    count = max(1, min(count, end - start))
    edges = start + (end - start) * np.arange(count + 1, dtype=np.int64) // count
    starts, ends = edges[:-1], np.maximum(edges[1:] - gap_ns, edges[:-1] + 1)
    if overlap:
        ends = np.minimum(edges[1:] + (edges[1:] - edges[:-1]) // 2, end)
    ends[-1] = end
    return starts, ends
