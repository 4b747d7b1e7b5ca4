"""Summaries of the iterations of a running job, and limits on the bubble ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.errors import UsageError
from bubbleviz.explain.late_arrivals import sum_by_rank
from bubbleviz.explain.slowness import group_peers, measure_excess
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import format_count, format_percent, suggest_word
from bubbleviz.report import gate
from bubbleviz.report.bubble_parts import BubblePart
from bubbleviz.report.report import Report
from bubbleviz.report.run_lateness import find_lateness

#: Minimum lateness of a rank that is shown, as a fraction of the longest compute time of a
#: rank.
MIN_LATE = 0.02


@dataclass(frozen=True)
class RankPace:
    """How long a rank computed in one iteration.

    Attributes:
        rank: Rank number within the run.
        host: Hostname, or "" if unknown.
        stage: Stage of the rank, or None if unknown.
        compute_ns: Time the rank spent in forward and backward passes.
        excess: How much longer this rank computed than its peers, as a fraction of the peers'
            median. The peers are the ranks of the same stage, or all ranks if any stage has a
            single rank. If there are only two peers, the rank is compared with the other one.
        slow_since: Number of the iteration since which the rank has been slow without a break, or
            -1 if the rank is not slow.
        since_utc_ns: UTC time at which the last rank wrote the iteration ``slow_since``, or -1 if
            the rank is not slow.
    """

    rank: int
    host: str
    stage: int | None
    compute_ns: int
    excess: float
    slow_since: int = NONE
    since_utc_ns: int = NONE


@dataclass(frozen=True)
class LatePace:
    """How late a rank arrived at the barriers of one iteration.

    Attributes:
        rank: Rank number within the run.
        host: Hostname, or "" if unknown.
        late_ns: Sum, over the barriers at which the rank arrived last, of the mean time by which
            the other ranks waited longer.
        barriers: Number of barriers at which the rank arrived last.
        part: Part of the step that contributes most to the lateness, or "" if unknown.
        part_ns: Time by which the rank spent longer in this part than the other ranks.
    """

    rank: int
    host: str
    late_ns: int
    barriers: int
    part: str
    part_ns: int


@dataclass(frozen=True)
class WatchedIteration:
    """One iteration of a running job.

    Attributes:
        number: Number of the iteration.
        utc_ns: UTC time at which the last rank wrote the iteration.
        length_ns: Time from the first start to the last end on any rank.
        pause_ns: Time from the last end of the previous iteration to the first start of this one
            (at least 0), or -1 if unknown.
        ranks: Number of ranks that recorded the iteration.
        world_size: Number of ranks in the run, or -1 if unknown.
        headline: Name of the primary ratio.
        ratios: Values of the ratios, keyed by name, or None if unknown. ``period`` belongs to the
            previous iteration, whose period ends when this iteration starts.
        parts: Parts of the bubble, largest first, with shares that add up to the primary ratio.
        paces: Paces of the ranks that computed in this iteration, sorted by descending excess.
        slow: Paces of the slow ranks, sorted by descending excess.
        usual_pause_ns: Usual pause between iterations if the pause before this iteration was long,
            otherwise -1.
        late: Ranks that arrived last at barriers, sorted by descending lateness. Empty if the run
            has a pipeline or shows no barriers.
    """

    number: int
    utc_ns: int
    length_ns: int
    pause_ns: int
    ranks: int
    world_size: int
    headline: str
    ratios: Mapping[str, float | None]
    parts: tuple[BubblePart, ...]
    paces: tuple[RankPace, ...]
    slow: tuple[RankPace, ...] = ()
    usual_pause_ns: int = NONE
    late: tuple[LatePace, ...] = ()

    @property
    def late_rank(self) -> LatePace | None:
        """The rank that arrived latest, or None if it cost less than 2 % of the compute time."""
        # The length of the iteration is unknown if clocks cannot be compared.
        compute_ns = max((pace.compute_ns for pace in self.paces), default=0)
        if not self.late or self.late[0].late_ns < MIN_LATE * compute_ns:
            return None
        return self.late[0]


def measure_late_ranks(report: Report, iteration: Iteration) -> tuple[LatePace, ...]:
    """Return the ranks that arrived last at the barriers of an iteration.

    They are sorted by descending lateness. The result is empty if the run has a pipeline, or if no
    barrier of the iteration is known.
    """
    lateness = report.derive(find_lateness)
    if lateness is None:
        return ()
    arrivals = lateness.arrivals.take(lateness.arrivals.step == iteration.index)
    late = []
    for entry in sum_by_rank(arrivals):
        rank = report.ranks[entry.rank]
        part, part_ns = entry.parts[0]
        is_known = any(time_ns for _, time_ns in entry.parts)
        late.append(
            LatePace(
                rank=rank.number,
                host=rank.host,
                late_ns=entry.late_ns,
                barriers=entry.barriers,
                part=part if is_known else "",
                part_ns=part_ns,
            )
        )
    return tuple(late)


def measure_paces(report: Report, iteration: Iteration) -> tuple[RankPace, ...]:
    """Return the paces of the ranks that computed in an iteration.

    Paces are sorted by descending excess, then by rank number.
    """
    rows = [row for row in iteration.ranks if row.compute_ns]
    ranks = [report.ranks[row.rank] for row in rows]
    compute_ns = np.array([row.compute_ns for row in rows], np.float64)
    excesses = measure_excess(group_peers([rank.stage for rank in ranks]), compute_ns)
    paces = []
    for row, rank, excess in zip(rows, ranks, excesses.tolist(), strict=True):
        number = row.rank if rank.global_rank is None else rank.global_rank
        paces.append(RankPace(number, rank.host, rank.stage, row.compute_ns, excess))
    return tuple(sorted(paces, key=lambda pace: (-pace.excess, pace.rank)))


def make_limit_check(texts: Sequence[str], max_exceeding: int) -> Callable[[WatchedIteration], str]:
    """Return a function that checks whether ratios have stayed above their limits for too long.

    The function must be called with each iteration in order. It returns a sentence when a ratio has
    been above its limit for ``max_exceeding`` consecutive iterations, otherwise "". Iterations in
    which the ratio is unknown are skipped.

    Args:
        texts: Limits such as ``schedule=20%``. A limit without a name applies to the primary ratio.
        max_exceeding: Number of consecutive iterations above a limit after which the limit is
            triggered.

    Raises:
        UsageError: A limit is invalid or names an unknown ratio, or ``max_exceeding`` is below 1.
    """
    if max_exceeding < 1:
        raise UsageError(f"--for {max_exceeding}: must be at least 1 iteration")
    limits = gate.parse_limits(texts) if texts else ()
    if any(limit.unit == "ms" for limit in limits):
        raise UsageError("--max-bubble: watch accepts only ratios, such as 20% or schedule=0.2")
    ratio_names = [definition.name for definition in list_ratios()]
    for limit in limits:
        if limit.ratio and limit.ratio not in ratio_names:
            raise UsageError(
                f"--max-bubble {limit.ratio[:60]}: no ratio has this name; the ratios are "
                f"{', '.join(ratio_names)}{suggest_word(limit.ratio, ratio_names)}"
            )
    above = [0] * len(limits)

    def check_limits(iteration: WatchedIteration) -> str:
        """Return a sentence about the first limit that this iteration triggers, otherwise "".

        After a limit is triggered, the remaining limits are not checked for this iteration.
        """
        for index, limit in enumerate(limits):
            name = limit.ratio or iteration.headline
            value = iteration.ratios.get(name)
            if value is None:
                continue
            above[index] = above[index] + 1 if value > limit.maximum else 0
            if above[index] == max_exceeding:
                times = format_count(max_exceeding, "iteration")
                return (
                    f"{name} is {format_percent(value)} in iteration {iteration.number}, and has "
                    f"been above {format_percent(limit.maximum)} for {times}"
                )
        return ""

    return check_limits
