"""Tooltips: what an operation, or a stretch of merged ones, is called under the pointer."""

from __future__ import annotations

from collections import defaultdict

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.merging import MergedMarks
from bubbleviz.report.report import Report


class Tooltips:
    """Names and times of operations.

    Args:
        report: any report.
        start_ns: the left edge of the picture, from which times are counted.
        chunked: whether chunks are named.
    """

    def __init__(self, report: Report, start_ns: int, *, chunked: bool) -> None:
        self._operations = report.operations
        self._start_ns = start_ns
        self._chunked = chunked

    def label(self, operation: int) -> str:
        """Return phase, microbatch and, of several, chunk."""
        operations = self._operations
        words = [Phase(int(operations.phase[operation])).label]
        microbatch = int(operations.microbatch[operation])
        chunk = int(operations.chunk[operation])
        if microbatch != NONE:
            words.append(pair(microbatch, int(operations.second_microbatch[operation])))
        if chunk != NONE and self._chunked:
            words.append(f"chunk {pair(chunk, int(operations.second_chunk[operation]))}")
        return " ".join(words)

    def tooltip(self, operation: int) -> str:
        """Return label, range name, start and duration."""
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = one_line(operations.names[name_id], 80) if name_id != NONE else ""
        named = f" ({name})" if name else ""
        cut = ", cut" if operations.cut[operation] else ""
        since, length = (start - self._start_ns) / 1e6, (end - start) / 1e6
        return f"{self.label(operation)}{named}: at {since:.3f} ms for {length:.3f} ms{cut}"


def pair(first: int, second: int) -> str:
    """Return ``3``, or ``3;7`` for an operation on two microbatches or chunks."""
    return f"{first};{second}" if second != NONE else str(first)


def merged_tooltip(merged: MergedMarks, counts: Ints) -> str:
    """Return merged marks by their counts: ``137 operations (F 90, B 47), merged``."""
    by_kind: dict[int, int] = defaultdict(int)
    for (kind, _), count in zip(merged.kinds, counts.tolist(), strict=True):
        by_kind[kind] += count
    outside = by_kind.pop(UNATTRIBUTED_KIND, 0)
    phases = ", ".join(f"{Phase(kind).label} {n:,}" for kind, n in by_kind.items() if n)
    return f"{counted_work(sum(by_kind.values()), outside, f' ({phases})')}, merged"


def counted_work(operations: int, outside: int, phases: str = "") -> str:
    """Return the number of operations, and of intervals of unattributed compute, in words."""
    parts = [f"{counted(operations, 'operation')}{phases}"] * bool(operations)
    if outside:
        parts.append(f"{counted(outside, 'time')} unattributed compute")
    return " and ".join(parts)
