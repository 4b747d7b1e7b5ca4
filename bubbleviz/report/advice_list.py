"""The list of advice: what would shorten iterations, the largest proven saving first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, percent
from bubbleviz.model.values import frozen

if TYPE_CHECKING:  # most commands hold no report
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
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
    from bubbleviz.report.fault_sentences import order_text, outcome

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
    from bubbleviz.report.fault_sentences import outcome, text_of

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
