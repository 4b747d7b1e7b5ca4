"""Standouts: the few of very many ranks that differ from the others, and by what.

Ranks that differ together are named together: by their stage, pipeline or host, where most of its
ranks are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.report.labels import rank_label, shortened
from bubbleviz.report.rank_means import RankMeans, as_multiples, median_of_stage
from bubbleviz.report.report import Report

#: A rank stands out whose ratio is so far from the median of all, or a phase of which takes so
#: much more or less than the median of its stage.
_POINTS, _TIMES = 0.01, 0.05
#: A stage, pipeline or host does of whose ranks so many do.
_MOST_OF = 0.75


@frozen
class Standout:
    """A rank, or a stage, pipeline or host, that differs from the others.

    Attributes:
        name: of it.
        ranks: their indices, ascending.
        ratio: mean of their ratios; None where it is unknown.
        above: how far that is above the median of all ranks.
        phase: of those whose time differs from the median of its stage, that which differs by
            most time; empty where none does.
        times: that time, as a multiple.
    """

    name: str
    ranks: tuple[int, ...]
    ratio: float | None
    above: float
    phase: str
    times: float

    @property
    def why(self) -> str:
        """By what it differs."""
        if self.phase:
            return f"{self.phase} takes {self.times:.2f} times the median of its stage"
        side = "above" if self.above > 0 else "below"
        return f"{100 * abs(self.above):.2f} points {side} the median"

    @property
    def short(self) -> str:
        """By what it differs, in a few characters."""
        if self.phase:
            return f"{self.phase} {self.times:.2f} x median"
        return f"bubble {100 * self.above:+.1f}"


def standouts(report: Report, means: RankMeans) -> tuple[Standout, ...]:
    """Return what stands out, what differs most first."""
    ratios = means.bubble_ratio
    known = ratios[~np.isnan(ratios)]
    above = ratios - (float(np.median(known)) if len(known) else 0.0)
    middle = {phase: median_of_stage(report, own) for phase, own in means.busy_ns.items()}
    times = {phase: as_multiples(own, middle[phase]) for phase, own in means.busy_ns.items()}
    lost_ns = {phase: np.abs(own - middle[phase]) for phase, own in means.busy_ns.items()}
    away = {phase: np.nan_to_num(np.abs(own - 1)) for phase, own in times.items()}
    out = np.abs(np.nan_to_num(above)) >= _POINTS
    for own in away.values():
        out |= own >= _TIMES
    found = [
        _standout(name, ranks, above, times, lost_ns, means)
        for name, ranks in _grouped(report, np.asarray(out, bool))
    ]
    return tuple(sorted(found, key=lambda s: (-max(abs(s.times - 1), abs(s.above)), s.ranks)))


def _grouped(report: Report, out: Bools) -> Iterator[tuple[str, Ints]]:
    """Yield the ranks that stand out, by what most of is among them, each once."""
    left = out.copy()
    ranks = report.ranks
    for kind, keys in (
        ("stage", [rank.stage for rank in ranks]),
        ("pipeline", [rank.pipeline for rank in ranks]),
        ("host", [rank.host for rank in ranks]),
    ):
        for key, members in _members(keys, left):
            inside = members[left[members]]
            if len(members) > 1 and _MOST_OF * len(members) <= len(inside) < len(ranks):
                yield f"{kind} {one_line(str(key), 60)}", inside
                left[inside] = False
    for rank in np.flatnonzero(left).tolist():
        stage = "" if ranks[rank].stage is None else f", stage {ranks[rank].stage}"
        label = one_line(ranks[rank].label, 40)
        yield f"rank {rank} ({label}){stage}", np.array([rank], np.int64)


def _members(keys: Sequence[str | int | None], out: Bools) -> Iterator[tuple[str | int, Ints]]:
    """Yield the ranks of each key that some of them that stand out have."""
    members: dict[str | int, list[int]] = {}
    wanted = {keys[rank] for rank in np.flatnonzero(out).tolist()} - {None}
    for rank, key in enumerate(keys):
        if key is not None and key in wanted:
            members.setdefault(key, []).append(rank)
    for key, own in members.items():
        yield key, np.array(own, np.int64)


def _standout(
    name: str,
    ranks: Ints,
    above: Floats,
    times: dict[str, Floats],
    lost_ns: dict[str, Floats],
    means: RankMeans,
) -> Standout:
    multiples = {phase: _median(own[ranks]) for phase, own in times.items()}
    known = {phase: own for phase, own in multiples.items() if abs(own - 1) >= _TIMES}
    # That which takes most time more, or less.
    phase = max(known, key=lambda p: _median(lost_ns[p][ranks]), default="")
    own = means.bubble_ratio[ranks][~np.isnan(means.bubble_ratio[ranks])]
    return Standout(
        name=name,
        ranks=tuple(ranks.tolist()),
        ratio=float(own.mean()) if len(own) else None,
        above=float(above[ranks][~np.isnan(above[ranks])].mean()) if len(own) else 0.0,
        phase=phase,
        times=known[phase] if phase else 1.0,
    )


def _median(values: Floats) -> float:
    """Return the median of those that are known; NaN of none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def sentence_of(standout: Standout) -> str:
    """Return what stands out, how many ranks that are, and by what."""
    several = len(standout.ranks) > 1
    ranks = f" ({counted(len(standout.ranks), 'rank')})" if several else ""
    return f"{standout.name}{ranks}: {standout.why}"


# Late hosts: which hosts launched late, and what they did instead.


def latest_host(report: Report, ranks: Sequence[int] | None = None) -> str:
    """Return which rank's host is late the longest, and where its thread is then.

    Args:
        report: of the run.
        ranks: among which it is looked for; None for all.
    """
    bubbles = report.bubbles
    late = np.flatnonzero(bubbles.cause == Cause.HOST)
    if ranks is not None:
        late = late[np.isin(bubbles.rank[late], ranks)]
    if len(late) == 0:
        return ""
    length_ns = (bubbles.end_ns - bubbles.start_ns)[late]
    total_ns = np.zeros(len(report.ranks), np.int64)
    np.add.at(total_ns, bubbles.rank[late], length_ns)
    rank = int(total_ns.argmax())
    rows = late[bubbles.rank[late] == rank]
    longest = int(rows[np.argmax((bubbles.end_ns - bubbles.start_ns)[rows])])
    others = "" if ranks is None or len(ranks) < 2 else f" and {len(ranks) - 1} more"
    return f" on {rank_label(report, rank)}{others}{host_state(report, longest)}"


def host_state(report: Report, row: int) -> str:
    """Return where the launching thread was in a bubble; empty where that is unknown."""
    return thread_state(*host_activity(report, row))


def thread_state(call: str | None, range_name: str | None) -> str:
    """Return where a launching thread was, as the end of a sentence; empty for nowhere."""
    inside = f" inside {shortened(range_name)!r}" if range_name else ""
    call = shortened(call) if call else None
    if call:
        return f", its thread is in {call}{inside}"
    return f", its thread is{inside}, outside API calls" if inside else ""


def host_activity(report: Report, row: int) -> tuple[str | None, str | None]:
    """Return (CUDA call, range) that the host was in during a bubble; None for none."""
    names = report.operations.names
    call, range_id = int(report.bubbles.host_call_id[row]), int(report.bubbles.host_range_id[row])
    return names[call] if call != NONE else None, names[range_id] if range_id != NONE else None
