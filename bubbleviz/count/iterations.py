"""The iterations of a run and their bubble ratios, as a sequence that is also an Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bubbleviz.count.rank_iterations import RankIterations
from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.arrow import Column, Kind, Records, collect_attributes, make_column
from bubbleviz.model.run_kinds import EVALUATION


@dataclass(frozen=True)
class Ratio:
    """One bubble ratio for one iteration over all its ranks.

    Attributes:
        value: The bubble ratio, 1 - work / (ranks x window), or None if unknown.
        low: The bubble ratio with unattributed compute counted as work.
        overhead: Bubble time divided by work.
        window_ns: Window length in ns. For ``period``, the mean over the ranks.
        interval: Lower and upper bound of the ratio given the uncertainty of the clock alignment,
            or None if the bounds are unknown or the ratio does not compare clocks.
        incomplete: Whether a rank that takes part in training is known to be missing.
        contradicted: Whether the ratio compares clocks that data dependencies contradict.
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
    """One iteration of training or inference, or an evaluation between training iterations.

    Attributes:
        index: Index of the iteration in the report.
        name: Name of the iteration in range names, or its number if the names contain none.
        kind: ``"training"``, ``"evaluation"`` or ``"inference"``.
        complete: Whether the capture contains the whole iteration.
        averaged: Whether the summary includes the iteration.
        microbatches: Number of microbatches, or None if the names contain no microbatch numbers.
        start_ns: Earliest start of the iteration's work on any rank.
        end_ns: Latest end of the iteration's work on any rank, including the Optimizer.
        ratios: Bubble ratios, keyed by ratio name.
        ranks: Ranks that take part in the iteration.
        unmatched: Whether an F has no B even though its rank continued, so the end of the capture
            does not explain the missing B.
        bubble_ratio: The report's primary ratio in this iteration, or None if unknown.
        began_unrecorded: Whether the iteration began before the start of a recording for which
            other ranks had to wait. Such an iteration is incomplete.
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
        """Whether a clock was set during the iteration.

        In that case, even ratios that need no common clock are marked as contradicted.
        """
        without_clock = (one.name for one in list_ratios() if not one.common_clock)
        ratios = (self.ratios[name] for name in without_clock if name in self.ratios)
        return any(ratio.contradicted for ratio in ratios)


_UNKNOWN = Ratio(None, None, None, None)


def make_iteration_records(iterations: Iterable[Iteration]) -> Records[Iteration]:
    """Return the iterations as a sequence that is also an Arrow table.

    The table (``polars.DataFrame(report.iterations)``) has one row per iteration. The column names
    are those of the JSON report: ``index, name, kind, complete, averaged, microbatches, start_ns,
    end_ns, incomplete, clocks_contradict, clock_set`` and the primary ``bubble_ratio``. Each ratio
    adds the columns ``window_ns_NAME, bubble_ratio_NAME, bubble_low_NAME, bubble_overhead_NAME``. A
    ratio that needs a common clock also adds ``bubble_interval_low_NAME`` and
    ``bubble_interval_high_NAME``. Unknown values are null.
    """
    return Records(iterations, _make_columns)


def _make_columns(iterations: Sequence[Iteration]) -> Mapping[str, Column]:
    """Return the columns of the Arrow table, keyed by name. The ratio columns come last."""
    columns = collect_attributes(_COLUMNS, iterations)
    for name in ("start_ns", "end_ns"):
        times = [getattr(i, name) if i.ranks else None for i in iterations]
        columns[name] = make_column(times, "int64")
    flags = {"incomplete": "incomplete", "clocks_contradict": "contradicted"}
    for name, flag in flags.items():
        has_flag = [any(getattr(r, flag) for r in i.ratios.values()) for i in iterations]
        columns[name] = make_column(has_flag, "bool")
    columns["clock_set"] = make_column([i.clock_set for i in iterations], "bool")
    columns["bubble_ratio"] = make_column([i.bubble_ratio for i in iterations], "float64")
    for definition in list_ratios():
        ratios = [i.ratios.get(definition.name, _UNKNOWN) for i in iterations]
        suffix = definition.name
        columns[f"window_ns_{suffix}"] = make_column([r.window_ns for r in ratios], "int64")
        values = {
            "bubble_ratio": [r.value for r in ratios],
            "bubble_low": [r.low for r in ratios],
            "bubble_overhead": [r.overhead for r in ratios],
        }
        if definition.common_clock:
            bounds = [r.interval or (None, None) for r in ratios]
            values["bubble_interval_low"] = [low for low, _ in bounds]
            values["bubble_interval_high"] = [high for _, high in bounds]
        for name, column in values.items():
            columns[f"{name}_{suffix}"] = make_column(column, "float64")
    return columns


#: Columns of :func:`make_iteration_records` that are attributes of :class:`Iteration`, with their
#: types.
_COLUMNS: Mapping[str, Kind] = {
    "index": "int64",
    "name": "string",
    "kind": "string",
    "complete": "bool",
    "averaged": "bool",
    "microbatches": "int64",
}


def choose_typical(iterations: Sequence[Iteration], headline: str) -> Iteration | None:
    """Choose the iteration with the median length, or None if no iteration has ranks.

    Only iterations with ranks are considered. The iteration is chosen from the first nonempty group
    in this list:

    1. Averaged iterations whose headline ratio is known.
    2. Averaged iterations.
    3. Complete iterations, except evaluations.
    4. All iterations.

    If there are two middle lengths, the shorter one is used. Among equally long iterations, the
    first one wins. See :meth:`.report.Report.typical_iteration`.

    Args:
        iterations: Iterations of a run.
        headline: Name of the headline ratio.
    """
    with_ranks = [i for i in iterations if i.ranks]
    averaged = [i for i in with_ranks if i.averaged]
    # For example, the period of the last iteration is unknown.
    with_headline = [i for i in averaged if i.ratios.get(headline, _UNKNOWN).value is not None]
    complete = [i for i in with_ranks if i.complete and i.kind != EVALUATION]
    candidates = with_headline or averaged or complete or with_ranks
    if not candidates:
        return None
    ordered = sorted(candidates, key=lambda i: (i.end_ns - i.start_ns, i.index))
    median = ordered[(len(ordered) - 1) // 2]
    length_ns = median.end_ns - median.start_ns
    return next(i for i in ordered if i.end_ns - i.start_ns == length_ns)
