"""The list of advice: what would shorten iterations, the largest proven saving first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import counted, listed, percent
from bubbleviz.model.values import frozen
from bubbleviz.report.labels import numbered_rank, shortened

if TYPE_CHECKING:
    from bubbleviz.explain.diagnosis.faults import Fault
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
    from bubbleviz.explain.recognition.recognition import Recognition
    from bubbleviz.report.report import Report


#: What nothing is slow for has to save so much, and so much more than what is.
BOUND, _BOUND_COUNTS = 0.05, 2 / 3
#: Another schedule that saves less is not worth the change.
_LEAST_OF_SCHEDULE = 0.02
#: Nor is an order back to the planned one for less.
_LEAST_OF_ORDER = 0.001
#: A saving within this share of another is the same.
_SAME = 0.95
#: So much advice is listed.
_LISTED = 5


@frozen
class Advice:
    """One thing to do, and what it saves.

    Attributes:
        kind: shape of what it removes; several joined by ``+`` where they save more together.
        ranks: that it is about; empty for all, or none.
        stage: likewise.
        saving_ns: mean over the averaged iterations.
        saving_ratio: the same as a share of their mean length.
        iterations: how many of them it shortens.
        action: what to do, and what shows it.
        text: the same, and what it saves.
    """

    kind: str
    ranks: tuple[int, ...]
    stage: int | None
    saving_ns: int
    saving_ratio: float
    iterations: int
    action: str
    text: str


def advice_of(report: Report, worth: float = 0.0) -> tuple[Advice, ...]:
    """Return what to do, the largest saving first.

    Args:
        report: of the run.
        worth: the share of an iteration that advice is to save.
    """
    diagnosis = report.explanation.diagnosis
    listed = []
    if diagnosis is not None:
        listed = [
            (_weight(finding), _advice(report, diagnosis, finding))
            for finding in ranked(diagnosis)[: _LISTED + 1]
            if finding.saving_ratio >= worth
        ]
    other = _schedule(report)
    if other is not None and other.saving_ratio >= max(worth, _LEAST_OF_SCHEDULE):
        listed.append((other.saving_ratio, other))
    planned = _planned_order(report)
    if planned is not None and planned.saving_ratio >= max(worth, _LEAST_OF_ORDER):
        listed.append((planned.saving_ratio, planned))
    listed.sort(key=lambda pair: -pair[0])
    return tuple(advice for _, advice in listed[:_LISTED])


def _schedule(report: Report) -> Advice | None:
    """Return the advice to run the fastest schedule that fits in the same memory, if that is known.

    Other schedules are simulated without any delay, so they are held against the same order
    without any.
    """
    others = report.alternatives
    rows = {} if others is None else {row.name: row for row in others.rows}
    measured, same = rows.pop("measured", None), rows.pop("no-delay", None)
    if others is None or measured is None or same is None or others.window != "schedule":
        return None
    whole_ms, same_ms = measured.makespan_ms, same.makespan_ms
    known = [r for r in rows.values() if r.fits and r.makespan_ms is not None]
    best = min(known, key=lambda row: row.makespan_ms or 0.0, default=None)
    if best is None or best.makespan_ms is None or not whole_ms or same_ms is None:
        return None
    saving_ms = same_ms - best.makespan_ms
    action = f"Run the schedule {best.name}, which fits in the same memory"
    what = (
        f"at the measured times and without any delay an iteration would take "
        f"{best.makespan_ms:,.3f} ms instead of {same_ms:,.3f} ms "
        f"(-{percent(saving_ms / same_ms)}) from its first F to its last backward"
    )
    return Advice(
        kind="schedule",
        ranks=(),
        stage=None,
        saving_ns=round(1e6 * saving_ms),
        saving_ratio=saving_ms / whole_ms,
        iterations=report.summary.iterations,
        action=action,
        text=f"{action}: {what}",
    )


def _planned_order(report: Report) -> Advice | None:
    """Return the advice to run what deviates in the order of the plan or schedule, if it saves."""
    recognition = report.schedule if report.plan is None else report.plan
    source = report.explanation.slowdown_source
    if recognition is None or source is None or not recognition.deviations:
        return None
    # Of very many not all are known.
    if recognition.name is None or recognition.deviation_count > len(recognition.deviations):
        return None
    from bubbleviz.explain.what_if import reordered

    found = reordered(source, recognition.deviations)
    if found is None or found.saving_ns <= 0:
        return None
    # Orders are replayed without what hosts launched late, which other advice counts.
    diagnosis = report.explanation.diagnosis
    length_ns = found.length_ns if diagnosis is None else diagnosis.length_ns
    text = order_text(report, recognition)
    saves = outcome(length_ns, found.saving_ns, len(report.ranks))
    ranks = tuple(sorted({deviation.rank for deviation in recognition.deviations}))
    stages = {report.ranks[rank].stage for rank in ranks}
    return Advice(
        kind="order",
        ranks=ranks,
        stage=stages.pop() if len(stages) == 1 else None,
        saving_ns=round(found.saving_ns),
        saving_ratio=found.saving_ns / length_ns,
        iterations=found.iterations,
        action=f"{text.action}. {text.evidence}",
        text=f"{text.action}: {saves}. {text.evidence}",
    )


def ranked(diagnosis: Diagnosis) -> list[Finding]:
    """Return the findings that are worth a sentence, one of each family.

    Args:
        diagnosis: whose findings stand by their savings, the largest first.
    """
    findings = [f for f in diagnosis.findings if not _bound(f) or f.saving_ratio >= BOUND]
    findings = [f for place, f in enumerate(findings) if not _contained(place, findings)]
    return sorted(findings, key=lambda finding: -_weight(finding))


def _weight(finding: Finding) -> float:
    """Return the share that a finding saves, less where no work can get that fast."""
    return finding.saving_ratio * (_BOUND_COUNTS if _bound(finding) else 1)


def _bound(finding: Finding) -> bool:
    """Return whether nothing in a finding is slow against its like."""
    return all(fault.bound for fault in finding.faults)


def _contained(place: int, findings: list[Finding]) -> bool:
    """Return whether another finding tells the same: its whole, or a part that is nearly all.

    Of parts that save about the same the first stays, so that one of them does.
    """
    finding = findings[place]
    families = {fault.family for fault in finding.faults}
    for at, other in enumerate(findings):
        if at == place or families != {fault.family for fault in other.faults}:
            continue
        wider = _reach(other) - _reach(finding)
        if wider > 0 and finding.saving_ns < _SAME * other.saving_ns:
            return True
        earlier = wider < 0 or at < place
        if wider <= 0 and earlier and other.saving_ns >= _SAME * finding.saving_ns:
            return True
    return False


def _reach(finding: Finding) -> int:
    return sum(len(fault.ranks) for fault in finding.faults)


def _advice(report: Report, diagnosis: Diagnosis, finding: Finding) -> Advice:
    faults = finding.faults
    seen = f"{finding.saved_iterations} of {counted(diagnosis.iterations, 'iteration')}"
    texts = [text_of(report, fault, seen) for fault in faults]
    first, *others = [text.action for text in texts]
    action = ", and ".join((first, *(other[:1].lower() + other[1:] for other in others)))
    shown = [text.evidence for text in texts] + [text.next_step for text in texts]
    reasons = ". ".join(reason for reason in shown if reason)
    saves = outcome(diagnosis.length_ns, finding.saving_ns, len(report.ranks))
    return Advice(
        kind="+".join(fault.kind for fault in faults),
        ranks=tuple(sorted({rank for fault in faults for rank in fault.ranks})),
        stage=faults[0].stage if len(faults) == 1 else None,
        saving_ns=round(finding.saving_ns),
        saving_ratio=finding.saving_ratio,
        iterations=finding.saved_iterations,
        action=f"{action}. {reasons}" if reasons else action,
        text=f"{action}: {saves}" + (f". {reasons}" if reasons else ""),
    )


# Fault sentences: what to do about each shape of slowness, for people.
#
# A new shape gets its sentence in ``_SENTENCES``.


#: What to do where nothing is slow against its like, but transfers, or the profiler, take time.
FASTER_TRANSFERS = "Make transfers between stages faster, or overlap them with other microbatches"
RECORD_LESS = "Record less (fewer traces, larger buffers): profiler overhead delays the GPUs"
#: So many names stand in a sentence.
_NAMED = 3


@frozen
class FaultText:
    """A fault in words.

    Attributes:
        action: what to do, as the beginning of a sentence.
        evidence: what shows the fault, as a sentence without its end; empty where the action tells.
        next_step: what to look at, likewise.
    """

    action: str
    evidence: str = ""
    next_step: str = ""


def text_of(report: Report, fault: Fault, seen: str) -> FaultText:
    """Return what to do about a fault, and what shows it.

    Args:
        report: of the run.
        fault: the fault.
        seen: in how many iterations it shows, as ``3 of 4 iterations``.
    """
    return _SENTENCES[fault.kind](report, fault, seen)


def _rank(report: Report, fault: Fault, seen: str) -> FaultText:
    if len(fault.ranks) > 1:
        number = report.ranks[fault.ranks[0]].pipeline
        return FaultText(
            f"Find out why replica {number} is slow, all of its "
            f"{counted(len(fault.ranks), 'rank')}",
            f"{_phases(fault)} as long as on the other replicas, in {seen}",
            "Look at what its hosts have in common",
        )
    others = f"the other ranks of stage {fault.stage}" if fault.stage is not None else "its peers"
    return FaultText(
        f"Find out why {numbered_rank(report, fault.ranks[0])} is slow",
        f"{_phases(fault)} as long as on {others}, in {seen}",
        "Look at its clocks, its temperature and what else runs on its host",
    )


def _host(report: Report, fault: Fault, seen: str) -> FaultText:
    return FaultText(
        f"Find out why host {report.ranks[fault.ranks[0]].host} is slow",
        f"On all of its {counted(len(fault.ranks), 'rank')} {_phases(fault)} as long as elsewhere, "
        f"in {seen}",
        "Look at its clocks, its cooling and what else runs on it",
    )


def _stage(report: Report, fault: Fault, seen: str) -> FaultText:
    copies = sum(rank.stage == fault.stage for rank in report.ranks)
    where = f", {numbered_rank(report, fault.ranks[0])}," if copies == 1 else ""
    return FaultText(
        f"Balance the stages, stage {fault.stage} is slow",
        f"{_phases(fault)} as long on stage {fault.stage}{where} as on the others, in {seen}",
        "Move layers away from it",
    )


def _microbatch(_: Report, fault: Fault, __: str) -> FaultText:
    times = f"{fault.phases[0][1]:.2f} times"
    if fault.what:
        return FaultText(
            "Balance the lengths of the microbatches",
            f"On every stage the longest twentieth takes {times} as long as the shortest",
        )
    numbers = sorted({microbatch for _, microbatch in fault.microbatches})
    named = listed([str(number) for number in numbers], _NAMED)
    word = "microbatch" if len(numbers) == 1 else "microbatches"
    return FaultText(
        f"Look at the sequence lengths of {word} {named}",
        f"On every stage they take {times} as long as the others "
        f"({len(fault.microbatches):,} in all)",
    )


def _iteration(report: Report, fault: Fault, _: str) -> FaultText:
    named = listed([shortened(report.iterations[k].name) for k in fault.iterations], _NAMED)
    times = f"{fault.phases[0][1]:.1f} times"
    share = f"{counted(len(fault.iterations), 'iteration')} ({named})"
    if not fault.what:
        return FaultText(
            f"Find out what slows all ranks in {share}",
            f"Operations take {times} as long as in the others{_during(report, fault)}",
        )
    some = counted(len(fault.ranks), "rank")
    who = numbered_rank(report, fault.ranks[0]) if len(fault.ranks) == 1 else some
    return FaultText(
        f"Find out why single operations of {who} are slow in {share}",
        f"They take {times} as long as their like{_during(report, fault)}",
        ""
        if fault.host != (NONE, NONE)
        else "Look for garbage collection, checkpoints and data loading at these times",
    )


def _link(_: Report, fault: Fault, seen: str) -> FaultText:
    if fault.link is None:
        return FaultText(FASTER_TRANSFERS)
    low, high = fault.link
    return FaultText(
        f"Find out why the link between stages {low} and {high} is slow",
        f"Transfers take {fault.phases[0][1]:.1f} times as long as between others, in {seen}",
    )


def _collective(_: Report, fault: Fault, __: str) -> FaultText:
    what = fault.what.rsplit(" ", 1)[0] if fault.what else "collectives"
    return FaultText(
        f"Overlap {what} with compute, or shorten it", "Its data moves while ranks are idle"
    )


def _drift(report: Report, fault: Fault, _: str) -> FaultText:
    who = "all ranks" if fault.what else _ranks(report, fault.ranks)
    return FaultText(
        f"Find out why {who} {_become(fault)} slower and slower",
        f"Operations take {fault.phases[0][1]:.2f} times as long in the last iteration as in the "
        "first",
        "Look at temperature and clocks",
    )


def _become(fault: Fault) -> str:
    return "becomes" if len(fault.ranks) == 1 and not fault.what else "become"


def _slowed(report: Report, fault: Fault, _: str) -> FaultText:
    who = "all ranks" if fault.what else _ranks(report, fault.ranks)
    since = shortened(report.iterations[fault.iterations[0]].name)
    return FaultText(
        f"Find out what changed on {who} before iteration {since}",
        f"From then on operations take {fault.phases[0][1]:.2f} times as long as before",
        "Look at clocks, temperature and what else began to run there",
    )


def _launch(report: Report, fault: Fault, seen: str) -> FaultText:
    from bubbleviz.report.standouts import latest_host

    if fault.what:
        return FaultText(RECORD_LESS)
    if fault.collective:
        who = _ranks(report, fault.ranks)
        return FaultText(
            f"Launch {fault.collective} earlier on {who}{_thread(report, fault)}",
            f"The other members wait for it in {seen}",
        )
    # Optimizers can be late outside the windows that bubbles are counted in.
    late = latest_host(report, fault.ranks)
    late = late or f" on {_ranks(report, fault.ranks)}{_thread(report, fault)}"
    return FaultText(
        f"Launch earlier{late}",
        f"Operations start late in {seen}, though their input is there",
    )


def _launch_gaps(report: Report, fault: Fault, _: str) -> FaultText:
    some = len(fault.ranks) < len(report.ranks)
    where = f" of {_ranks(report, fault.ranks)}" if some else ""
    return FaultText(
        f"Launch fewer, larger kernels inside operations{where} (fused, or as graphs)",
        f"No kernel runs for {percent(fault.phases[0][1])} of their time",
    )


def order_text(report: Report, recognition: Recognition) -> FaultText:
    """Return the advice to run in the order of a schedule or plan, and what is out of place."""
    deviations = recognition.deviations
    ranks = sorted({deviation.rank for deviation in deviations})
    iterations = counted(len({deviation.iteration for deviation in deviations}), "iteration")
    first = deviations[0]
    where = f"{first.phase.label} of microbatch {first.microbatch} is {first.what}"
    if first.places:
        where += f" by {counted(first.places, 'operation')}"
    return FaultText(
        f"Run {_ranks(report, ranks)} in the order of {recognition.name}",
        f"{counted(recognition.deviation_count, 'operation')} in {iterations} are not where it has "
        f"them ({where} in iteration {shortened(report.iterations[first.iteration].name)})",
    )


def _token(_: Report, fault: Fault, seen: str) -> FaultText:
    depth = int(fault.phases[0][1])
    one = "one chunk more" if fault.what == "one" else "more chunks"
    return FaultText(
        f"Keep {one} in flight",
        "The first stage waits for the token of an earlier step, with "
        f"{counted(depth, 'chunk')} in the pipeline, in {seen}",
        "Let the scheduler run ahead, or divide the requests into more batches",
    )


_SENTENCES: Mapping[str, Callable[[Report, Fault, str], FaultText]] = {
    "rank": _rank,
    "host": _host,
    "stage": _stage,
    "microbatch": _microbatch,
    "iteration": _iteration,
    "link": _link,
    "collective": _collective,
    "drift": _drift,
    "slowed": _slowed,
    "launch": _launch,
    "launch-gaps": _launch_gaps,
    "token": _token,
}


def _during(report: Report, fault: Fault) -> str:
    """Return what the host did in the longest of a fault; empty where that is unknown."""
    state = _thread(report, fault)
    return f"; in the longest{state}" if state else ""


def _thread(report: Report, fault: Fault) -> str:
    from bubbleviz.report.standouts import thread_state

    names = [None if at < 0 else report.operations.names[at] for at in fault.host]
    return thread_state(*names)


def _ranks(report: Report, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return numbered_rank(report, ranks[0])
    return f"ranks {listed([str(rank) for rank in ranks], _NAMED)}"


def _phases(fault: Fault) -> str:
    """Return how much longer each phase takes: ``F takes 2.50 and BW 2.27 times``."""
    first, *others = [f"{phase} takes {ratio:.2f}" for phase, ratio in fault.phases[:_NAMED]]
    rest = [text.replace(" takes", "") for text in others]
    joined = first if not rest else f"{', '.join([first, *rest[:-1]])} and {rest[-1]}"
    return f"{joined} times"


def outcome(length_ns: float, saving_ns: float, ranks: int) -> str:
    """Return what a saving is: in ms an iteration, percent, and GPU-hours a day."""
    share = saving_ns / length_ns if length_ns else 0.0
    hours = 24 * ranks * share
    return (
        f"an iteration would take {(length_ns - saving_ns) / 1e6:,.3f} ms instead of "
        f"{length_ns / 1e6:,.3f} ms (-{percent(share)}; {hours:,.1f} GPU-hours a day on "
        f"{counted(ranks, 'rank')})"
    )
