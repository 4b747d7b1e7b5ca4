"""The host side of a planted process: launching calls, ranges, and their times.

The host is a list of instants in program order, with a minimum gap between adjacent instants. The
end of a launching call has a deadline: the start of its kernel minus the launch latency. Instants
are scheduled as late as the deadlines allow, but a range ends right after its last call. Calls
therefore precede their kernels and nest in their ranges, and ranges nest properly::

    host     |push|call|call|pop|push|call ...
    device             ████  ████      ██████
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model.columns import Ints

#: Length of a launching call, and minimum gap between two instants, in nanoseconds.
CALL_NS, STEP_NS = 2_500, 400
#: Minimum time from the end of a launching call to the start of its kernel, in ns.
LATENCY_NS = 1_500
#: Minimum length of a transfer kernel, in ns.
TRANSFER_KERNEL_NS = 2_000
_NEVER = 1 << 60

MAIN, AUTOGRAD, WATCHDOG = 0, 1, 2
#: Device streams, numbered as in real exports of PyTorch and NCCL.
#: The numbers are 7, 11, 15 and so on.
COMPUTE, COMPUTE_2, COPY = 7, 11, 15
STREAM_OF = {"SEND_FORWARD": 19, "RECV_FORWARD": 23, "SEND_BACKWARD": 27, "RECV_BACKWARD": 31}
COLLECTIVE_STREAM = 35


@dataclass
class Columns:
    """Integer columns to which a caller appends blocks of rows."""

    names: tuple[str, ...]
    values: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, count: int, **values: Ints | int) -> None:
        """Append ``count`` rows. A scalar value is repeated in every row."""
        for name in self.names:
            own = values[name]
            self.values[name] += own.tolist() if isinstance(own, np.ndarray) else [own] * count

    def arrays(self) -> dict[str, Ints]:
        """Return the columns."""
        return {name: np.array(self.values[name], np.int64) for name in self.names}


class Host:
    """The host of one process: its instants, and the calls and ranges between them."""

    def __init__(self, library_depth: int, calls_per_library_range: int) -> None:
        self.depth = library_depth
        self.group = calls_per_library_range
        self.gaps: list[int] = []
        self.deadlines: list[int] = []
        self.closings: list[bool] = []
        self.calls = Columns(("start", "end", "thread", "device_row"))
        self.ranges = Columns(("start", "end", "thread", "name", "library"))
        self.names: list[str] = []
        self.operations = 0

    def instant(
        self, deadline: int = _NEVER, *, closing: bool = False, gap_ns: int = STEP_NS
    ) -> int:
        """Append an instant, and return its index.

        A closing instant is placed as early as possible.
        """
        self.gaps.append(gap_ns)
        self.deadlines.append(deadline)
        self.closings.append(closing)
        return len(self.gaps) - 1

    def range(self, text: str, push: int, pop: int, thread: int = MAIN, library: int = 0) -> None:
        """Record a range between two instants."""
        name = len(self.names)
        self.names.append(text)
        self.ranges.add(1, start=push, end=pop, thread=thread, name=name, library=library)

    def launch(self, rows: Ints, deadlines: Ints, thread: int = MAIN, nested: bool = True) -> None:
        """Append one launching call per device row, inside library ranges if these are planted.

        Args:
            rows: Rows of the device table.
            deadlines: Latest end of each call.
            thread: Thread that makes the calls.
            nested: Whether library ranges enclose the calls.
        """
        levels = range(self.depth if nested else 0)
        calls = list(zip(rows.tolist(), deadlines.tolist(), strict=True))
        group = self.group if levels else max(1, len(calls))
        for first in range(0, len(calls), group):
            pushes = [self.instant() for _ in levels]
            for row, deadline in calls[first : first + group]:
                start = self.instant(gap_ns=CALL_NS)
                self.calls.add(
                    1, start=start, end=self.instant(deadline), thread=thread, device_row=row
                )
            pops = [self.instant(closing=True) for _ in levels][::-1]
            for level, push, pop in zip(levels, pushes, pops, strict=True):
                self._record_library_range(push, pop, thread, level)

    def _record_library_range(self, push: int, pop: int, thread: int, level: int) -> None:
        """Record a library range. Its name rarely repeats, like the names of emit_nvtx."""
        stem = ("aten::linear", "aten::addmm", "aten::mm", "forward_step_func")[level % 4]
        if thread == AUTOGRAD and level == 0:
            stem = "autograd::engine::evaluate_function: AddmmBackward0"
        text = f"{stem}, op_id = {self.operations}" if "::" in stem else stem
        self.operations += 1
        self.range(text, push, pop, thread, library=1)

    def times(self) -> Ints:
        """Return the time of every instant.

        An instant is as late as its own deadline and the deadlines of later instants allow. A
        closing instant follows the last non-closing instant before it, after the minimum gaps.
        """
        gaps, deadlines = np.array(self.gaps), np.array(self.deadlines)
        elapsed = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(gaps)[:-1]])
        slack = (deadlines - elapsed)[::-1]
        latest = np.minimum.accumulate(slack)[::-1] + elapsed
        number = np.arange(len(latest), dtype=np.int64)
        anchor = np.maximum.accumulate(np.where(self.closings, 0, number))
        return np.asarray(latest[anchor] + elapsed - elapsed[anchor], dtype=np.int64)


def place_kernels(
    start: int, end: int, count: int, gap_ns: int, overlap: bool
) -> tuple[Ints, Ints]:
    """Return the starts and ends of kernels that exactly fill a span.

    Args:
        start: Start of the span.
        end: End of the span.
        count: Number of kernels.
        gap_ns: Idle time between consecutive kernels.
        overlap: Whether each kernel overlaps the first half of the next one (on another stream).
    """
    count = max(1, min(count, end - start))
    edges = start + (end - start) * np.arange(count + 1, dtype=np.int64) // count
    start_ns, end_ns = edges[:-1], np.maximum(edges[1:] - gap_ns, edges[:-1] + 1)
    if overlap:
        end_ns = np.minimum(edges[1:] + (edges[1:] - edges[:-1]) // 2, end)
    end_ns[-1] = end
    return start_ns, end_ns
