"""The iterations of a run with their bubble ratios, one by one and as a table for Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bubbleviz.count.rank_iterations import RankIterations
from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.arrow import Column, Kind, Records, collect_attributes, make_column
from bubbleviz.model.run_kinds import EVALUATION


@dataclass(frozen=True)
class Ratio:
    """One bubble ratio of one iteration over all its ranks.

    Attributes:
        value: 1 - work / (ranks x window); None where it is unknown.
        low: the same with unattributed compute counted as work.
        overhead: bubble / work.
        window_ns: length of the window (mean over the ranks for ``period``).
        interval: bounds of it that the clocks' uncertainty allows; None where these are not
            known, or the ratio needs no common clock.
        incomplete: whether a rank that takes part in training is known to be missing.
        contradicted: whether it needs clocks that data dependencies contradict.
    """

    value: float | None
    low: float | None
    overhead: float | None
    window_ns: int | None
    interval: tuple[float, float] | None = None
    incomplete: bool = False
    contradicted: bool = False


@dataclass(frozen=True, repr=False)
class Iteration:
    """One iteration: of training, an evaluation in between, or of inference.

    Attributes:
        index: place in the report.
        name: the name its ranges give, else its number in order.
        kind: ``"training"``, ``"evaluation"`` or ``"inference"``.
        complete: whether the capture holds all of it.
        averaged: whether it enters the summary.
        microbatches: number of microbatches; None where the names do not give it.
        start_ns: first start of its work on any rank.
        end_ns: last end, Optimizer included.
        ratios: by name of the ratio.
        ranks: the ranks with work in it.
        unmatched: whether some F has no B though its rank went on, so that no capture cut it.
        bubble_ratio: the report's primary one in it; None where it is unknown.
        began_unrecorded: Whether it began before the recording of a rank that others waited for,
            so that it is incomplete.
    """

    index: int
    name: str
    kind: str
    complete: bool
    averaged: bool
    microbatches: int | None
    start_ns: int
    end_ns: int
    ratios: Mapping[str, Ratio]
    ranks: RankIterations
    unmatched: bool = False
    bubble_ratio: float | None = None
    began_unrecorded: bool = False

    def __repr__(self) -> str:
        ratio = "unknown" if self.bubble_ratio is None else f"{self.bubble_ratio:.4f}"
        length_ms = (self.end_ns - self.start_ns) / 1e6
        return f"Iteration({ascii(self.name)[:40]}, bubble ratio {ratio}, {length_ms:.3f} ms)"

    @property
    def clock_set(self) -> bool:
        """Whether a clock was set in it: even ratios that need no common one are contradicted."""
        without_clock = (one.name for one in list_ratios() if not one.common_clock)
        ratios = (self.ratios[name] for name in without_clock if name in self.ratios)
        return any(ratio.contradicted for ratio in ratios)


_UNKNOWN = Ratio(None, None, None, None)


def make_iteration_records(iterations: Iterable[Iteration]) -> Records[Iteration]:
    """Return iterations like a tuple of them, which is a table as well.

    As a table (``polars.DataFrame(report.iterations)``) it has one row per iteration, and the names
    of the JSON report: ``index, name, kind, complete, averaged, microbatches, start_ns, end_ns,
    incomplete, clocks_contradict, clock_set``, the primary ``bubble_ratio``, and for each ratio
    ``window_ns_NAME, bubble_ratio_NAME, bubble_low_NAME, bubble_overhead_NAME``, where it needs a
    common clock also ``bubble_interval_low_NAME, bubble_interval_high_NAME``. What is unknown is
    null.
    """
    return Records(iterations, _make_columns)


def _make_columns(iterations: Sequence[Iteration]) -> Mapping[str, Column]:
    """Return the columns by name: what an iteration is, then its ratios."""
    columns = collect_attributes(_COLUMNS, iterations)
    for name in ("start_ns", "end_ns"):
        times = [getattr(i, name) if i.ranks else None for i in iterations]
        columns[name] = make_column(times, "int64")
    flags = {"incomplete": "incomplete", "clocks_contradict": "contradicted"}
    for name, flag in flags.items():
        told = [any(getattr(r, flag) for r in i.ratios.values()) for i in iterations]
        columns[name] = make_column(told, "bool")
    columns["clock_set"] = make_column([i.clock_set for i in iterations], "bool")
    columns["bubble_ratio"] = make_column([i.bubble_ratio for i in iterations], "float64")
    for ratio in list_ratios():
        own = [i.ratios.get(ratio.name, _UNKNOWN) for i in iterations]
        columns[f"window_ns_{ratio.name}"] = make_column([r.window_ns for r in own], "int64")
        shares = {
            "bubble_ratio": [r.value for r in own],
            "bubble_low": [r.low for r in own],
            "bubble_overhead": [r.overhead for r in own],
        }
        if ratio.common_clock:
            ends = [r.interval or (None, None) for r in own]
            shares["bubble_interval_low"] = [low for low, _ in ends]
            shares["bubble_interval_high"] = [high for _, high in ends]
        for name, column in shares.items():
            columns[f"{name}_{ratio.name}"] = make_column(column, "float64")
    return columns


#: Columns of :func:`make_iteration_records` that are attributes of each, with their types.
_COLUMNS: Mapping[str, Kind] = {
    "index": "int64",
    "name": "string",
    "kind": "string",
    "complete": "bool",
    "averaged": "bool",
    "microbatches": "int64",
}


def choose_typical(iterations: Sequence[Iteration], headline: str) -> Iteration | None:
    """Return the iteration to show; see :meth:`.report.Report.typical_iteration`."""
    at_work = [i for i in iterations if i.ranks]
    averaged = [i for i in at_work if i.averaged]
    # One that has the headline ratio (the last iteration has no period) goes first.
    averaged = [
        i for i in averaged if i.ratios.get(headline, _UNKNOWN).value is not None
    ] or averaged
    complete = [i for i in at_work if i.complete and i.kind != EVALUATION]
    ordered = sorted(
        averaged or complete or at_work, key=lambda i: (i.end_ns - i.start_ns, i.index)
    )
    if not ordered:
        return None
    median = ordered[(len(ordered) - 1) // 2]
    length_ns = median.end_ns - median.start_ns
    return next(i for i in ordered if i.end_ns - i.start_ns == length_ns)
