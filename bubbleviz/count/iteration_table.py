"""The iterations of a report: a sequence for Python, a table for Arrow's libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import overload

from bubbleviz.count.count import Iteration, Ratio
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.model.arrow import ArrowTable, Column, values

_UNKNOWN = Ratio(None, None, None, None)


class Iterations(ArrowTable):
    """Iterations in order, like a tuple of them: ``iterations[0]``, ``iterations[1:]``, ``len``.

    As a table (``polars.DataFrame(report.iterations)``) it has one row an iteration, with the names
    of the JSON report: ``index, name, kind, complete, averaged, microbatches, start_ns, end_ns,
    incomplete, clocks_contradict``, and for each ratio ``window_ns_NAME, bubble_ratio_NAME,
    bubble_low_NAME, bubble_overhead_NAME``, where it needs a common clock also
    ``bubble_interval_low_NAME, bubble_interval_high_NAME``. What is unknown is null.
    """

    def __init__(self, iterations: Iterable[Iteration] = ()) -> None:
        self._own = tuple(iterations)

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Iteration]:
        return iter(self._own)

    @overload
    def __getitem__(self, at: int) -> Iteration: ...

    @overload
    def __getitem__(self, at: slice) -> Iterations: ...

    def __getitem__(self, at: int | slice) -> Iteration | Iterations:
        return Iterations(self._own[at]) if isinstance(at, slice) else self._own[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Iterations):
            return self._own == other._own
        return self._own == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._own)

    def __repr__(self) -> str:
        return f"Iterations({len(self):,}: {', '.join(ascii(i.name)[:20] for i in self._own[:8])})"

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns by name: what an iteration is, then its ratios."""
        own = self._own
        each = [tuple(i.ratios.values()) for i in own]
        columns = {
            "index": values([i.index for i in own], "int64"),
            "name": values([i.name for i in own], "string"),
            "kind": values([i.kind for i in own], "string"),
            "complete": values([i.complete for i in own], "bool"),
            "averaged": values([i.averaged for i in own], "bool"),
            "microbatches": values([i.microbatches for i in own], "int64"),
            "start_ns": values([i.start_ns if i.ranks else None for i in own], "int64"),
            "end_ns": values([i.end_ns if i.ranks else None for i in own], "int64"),
            "incomplete": values([any(r.incomplete for r in ratios) for ratios in each], "bool"),
            "clocks_contradict": values(
                [any(r.contradicted for r in ratios) for ratios in each], "bool"
            ),
        }
        for ratio in ratio_definitions():
            named = [i.ratios.get(ratio.name, _UNKNOWN) for i in own]
            columns |= _of_ratio(ratio.name, named, between=ratio.common_clock)
        return columns


def _of_ratio(name: str, ratios: list[Ratio], *, between: bool) -> dict[str, Column]:
    """Return the columns of one ratio; ``between``: whether clocks bound it."""
    columns = {
        f"window_ns_{name}": values([r.window_ns for r in ratios], "int64"),
        f"bubble_ratio_{name}": values([r.value for r in ratios], "float64"),
        f"bubble_low_{name}": values([r.low for r in ratios], "float64"),
        f"bubble_overhead_{name}": values([r.overhead for r in ratios], "float64"),
    }
    for end, which in enumerate(("low", "high")) if between else ():
        ends = [None if r.interval is None else r.interval[end] for r in ratios]
        columns[f"bubble_interval_{which}_{name}"] = values(ends, "float64")
    return columns
