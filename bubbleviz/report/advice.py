"""Advice: what the explanation of a run says, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.phase_times import Straggler
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.phases import Phase
from bubbleviz.report.report import Report

#: A change that wins less of an iteration than this is not worth a sentence.
_WORTH = 0.005
#: Changes that no one can make: they are for comparison only.
_NOT_ADVICE = frozenset({"measured", "no-delay"})
#: Of a range's name in a sentence, characters.
_LONGEST_NAME = 60
#: What to do to get a change, where that is the same for all.
_ADVICE = {
    "no-transfer": "Make transfers between stages faster, or hide them behind other microbatches",
    "no-collective": "Overlap collectives with compute, or shorten them",
    "no-profiler": "Record less (fewer traces, larger buffers): the profiler itself holds GPUs up",
    "no-latency": "Launch operations in fewer, larger pieces: it takes long until kernels begin",
}
#: Causes that lie in the schedule itself.
_INHERENT = (Cause.WARMUP, Cause.DRAIN, Cause.DEPENDENCY)


@dataclass(frozen=True)
class LongBubble:
    """An idle interval of one cause, for people.

    Attributes:
        row: of the table of gaps.
        sentence: what happened.
    """

    row: int
    sentence: str


def operation_label(report: Report, row: int) -> str:
    """Return what an operation is called: ``F3``, with its chunk where ranks have several."""
    return operation_labels(report, (row,))[0]


def operation_labels(report: Report, rows: Sequence[int]) -> list[str]:
    """Return what some operations are called."""
    several = bool((report.operations.chunk > 0).any())
    own = report.operations.take(np.array(rows, np.int64))
    columns = own.phase, own.microbatch, own.second_microbatch, own.chunk
    labels = []
    for phase, first, second, chunk in zip(*(column.tolist() for column in columns), strict=True):
        numbers = ";".join(str(number) for number in (first, second) if number >= 0)
        where = f" of chunk {chunk}" if several and chunk >= 0 else ""
        labels.append(f"{Phase(phase).label}{numbers}{where}")
    return labels


def rank_label(report: Report, rank: int) -> str:
    """Return what a rank is called in a sentence: its stage where that is one rank's alone."""
    stage = report.ranks[rank].stage
    alone = stage is not None and sum(r.stage == stage for r in report.ranks) == 1
    return f"stage {stage}" if alone else f"rank {rank} ({report.ranks[rank].label})"


def longest_bubbles(report: Report, count: int = 5) -> tuple[LongBubble, ...]:
    """Return the longest idle intervals of averaged iterations that lie not in the schedule.

    Where there are none, those that do. Of a rank's that have one cause and precede operations of
    one phase, there is only the longest.
    """
    bubbles = report.bubbles
    averaged = np.array([i.averaged for i in report.iterations] or [False])
    some = (
        np.flatnonzero(averaged[bubbles.iteration]) if averaged.any() else np.arange(len(bubbles))
    )
    avoidable = some[~np.isin(bubbles.cause[some], _INHERENT)]
    rows = avoidable if len(avoidable) else some
    length_ns = (bubbles.end_ns - bubbles.start_ns)[rows]
    rows = rows[np.argsort(-length_ns, kind="stable")]
    # Of those that come again and again, the longest stands for all.
    after = np.append(report.operations.phase, NONE)[bubbles.after[rows]]
    alike = groups_of(bubbles.rank[rows], bubbles.cause[rows], after)
    times = np.bincount(alike.of_row, minlength=len(alike))
    shown = np.sort(alike.first)[:count]
    return tuple(
        LongBubble(int(rows[at]), _sentence(report, int(rows[at]), int(times[alike.of_row[at]])))
        for at in shown.tolist()
    )


def _sentence(report: Report, row: int, times: int) -> str:
    bubbles, cause = report.bubbles, Cause(int(report.bubbles.cause[row]))
    who = rank_label(report, int(bubbles.rank[row]))
    who = who[0].upper() + who[1:]
    length = _ms(int(bubbles.end_ns[row] - bubbles.start_ns[row]))
    after, peer_operation = int(bubbles.after[row]), int(bubbles.peer_operation[row])
    upto = f" before {operation_label(report, after)}" if after != NONE else ""
    iteration = report.iterations[int(bubbles.iteration[row])].name
    idle = f"{who} is idle for {length}{upto} in iteration {iteration}: "
    often = f" (and {times - 1} more, none longer)" if times > 1 else ""
    return idle + _because(report, row, cause, peer_operation) + often


def _because(report: Report, row: int, cause: Cause, peer_operation: int) -> str:
    """Return why a rank is idle in a gap, given what the operation after it takes."""
    given = ""
    if peer_operation != NONE:
        peer = rank_label(report, int(report.operations.rank[peer_operation]))
        given = f"{operation_label(report, peer_operation)} of {peer}"
    if cause is Cause.DEPENDENCY:
        return f"it waits for {given or 'its input'}"
    if cause is Cause.COMMUNICATION:
        return f"the result of {given} is on its way" if given else "its input is on its way"
    if cause is Cause.HOST:
        return f"the host has not launched it{_doing(report, row)}"
    return {
        Cause.PROFILER: "the profiler holds the process up",
        Cause.COLLECTIVE: "a collective runs, and nothing else",
        Cause.WARMUP: "the pipeline fills",
        Cause.DRAIN: "the pipeline drains",
    }.get(cause, "nothing recorded explains it (launch latency)")


def _doing(report: Report, row: int) -> str:
    """Return what the host did in a gap."""
    call, around = host_activity(report, row)
    inside = f" inside {_shortened(around)!r}" if around else ""
    call = _shortened(call) if call else None
    if call:
        return f", its thread is in {call}{inside}"
    return f", its thread is{inside}, outside CUDA" if inside else ""


def host_activity(report: Report, row: int) -> tuple[str | None, str | None]:
    """Return (CUDA call, range) that the host was in during a gap."""
    names = report.operations.names
    call, around = int(report.bubbles.host_call_id[row]), int(report.bubbles.host_range_id[row])
    return names[call] if call != NONE else None, names[around] if around != NONE else None


def first_thing(report: Report) -> str | None:
    """Return what to do first, and what it would win; None where that cannot be told."""
    changes = {change.name: change for change in report.explanation.what_if}
    measured = changes.get("measured")
    if measured is None or measured.bubble_ratio is None or measured.makespan_ns <= 0:
        return None
    candidates = [c for name, c in changes.items() if name not in _NOT_ADVICE]
    best = min(candidates, key=lambda c: c.makespan_ns, default=measured)
    won = 1 - best.makespan_ns / measured.makespan_ns
    if won < _WORTH:
        tight = changes["no-delay"]
        together = 1 - tight.makespan_ns / measured.makespan_ns
        if together >= _WORTH:
            return (
                "No single delay stands out; without any of them the schedule ratio would be "
                f"{_percent(tight.bubble_ratio)} instead of {_percent(measured.bubble_ratio)}"
            )
        return _schedule_is_it(measured, report.summary.bubble_ratio[report.headline].mean)
    return (
        f"{_do(report, best)}: from its first F to its last backward, iteration "
        f"{_typical_name(report)} would take {_ms(best.makespan_ns)} instead of "
        f"{_ms(measured.makespan_ns)} ({-100 * won:.1f} %), and its schedule ratio be "
        f"{_percent(best.bubble_ratio)} instead of {_percent(measured.bubble_ratio)}"
    )


def _typical_name(report: Report) -> str:
    path = report.explanation.path
    return "?" if path is None else _shortened(report.iterations[path.iteration].name)


def _schedule_is_it(measured: WhatIf, quoted: float | None) -> str:
    """Return what is said where nothing but the schedule makes the bubble.

    Args:
        measured: the typical iteration, as if alone.
        quoted: mean of the headline; where iterations overlap there may be none though each one
            alone has some.
    """
    ratio = measured.bubble_ratio or 0.0
    if ratio < _WORTH or (quoted is not None and quoted < _WORTH):
        return "There is next to no bubble to win"
    # Twice the work, with the same bubble.
    twice = ratio / (2 - ratio)
    return (
        "Nothing but the schedule itself makes the bubble: twice the microbatches would bring the "
        f"schedule ratio from {_percent(ratio)} to about {_percent(twice)}, and a schedule with "
        "smaller bubbles may do better (--what-if)"
    )


def _do(report: Report, change: WhatIf) -> str:
    """Return what to do to get a change."""
    if change.name in _ADVICE:
        return _ADVICE[change.name]
    if change.name == "no-host":
        return f"Launch earlier{_latest_host(report)}"
    if change.name == "balanced":
        return f"Balance the stages{_slowest(report)}"
    worst = report.explanation.phase_times.stragglers[:1]
    return "Find what makes single operations slow" + "".join(_straggler(report, s) for s in worst)


def _latest_host(report: Report) -> str:
    """Return whose host is late the longest, and with what."""
    bubbles = report.bubbles
    late = np.flatnonzero(bubbles.cause == Cause.HOST)
    if len(late) == 0:
        return ""
    length_ns = (bubbles.end_ns - bubbles.start_ns)[late]
    total_ns = np.zeros(len(report.ranks), np.int64)
    np.add.at(total_ns, bubbles.rank[late], length_ns)
    rank = int(total_ns.argmax())
    own = late[bubbles.rank[late] == rank]
    longest = int(own[np.argmax((bubbles.end_ns - bubbles.start_ns)[own])])
    return f" on {rank_label(report, rank)}{_doing(report, longest)}"


def _slowest(report: Report) -> str:
    times = report.explanation.phase_times
    if not times.imbalance:
        return ""
    phase, more = max(times.imbalance, key=lambda pair: pair[1])
    total: dict[int, float] = {}
    for kind in times.kinds:
        if kind.phase.label == phase and kind.stage >= 0:
            total[kind.stage] = total.get(kind.stage, 0.0) + kind.median_ns
    stage = max(total, key=lambda s: (total[s], -s))
    return f" ({phase} of stage {stage} takes {100 * more:.0f} % longer than the mean)"


def _straggler(report: Report, straggler: Straggler) -> str:
    rank = rank_label(report, int(report.operations.rank[straggler.operation]))
    label = operation_label(report, straggler.operation)
    return f" ({label} of {rank} took {straggler.times:.1f} times its median)"


def _shortened(name: str) -> str:
    """Return a name that fits into a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.3f} ms"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
