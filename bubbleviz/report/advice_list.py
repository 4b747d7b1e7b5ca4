"""The list of advice: what would shorten iterations, the largest proven saving first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

if TYPE_CHECKING:  # most commands hold no report
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
    from bubbleviz.report.report import Report

#: What nothing is slow for has to save so much, and so much more than what is.
BOUND, _BOUND_COUNTS = 0.02, 2 / 3
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
    if diagnosis is None:
        return ()
    chosen = [f for f in _ranked(diagnosis) if f.saving_ratio >= worth]
    return tuple(_advice(report, diagnosis, finding) for finding in chosen[:_LISTED])


def _ranked(diagnosis: Diagnosis) -> list[Finding]:
    """Return the findings that are worth a sentence, one of each family."""
    findings = [f for f in diagnosis.findings if not _bound(f) or f.saving_ratio >= BOUND]
    findings = [f for f in findings if not _contained(f, findings)]
    return sorted(findings, key=lambda f: -f.saving_ns * (_BOUND_COUNTS if _bound(f) else 1))


def _bound(finding: Finding) -> bool:
    """Return whether nothing in a finding is slow against its like."""
    return all(fault.bound for fault in finding.faults)


def _contained(finding: Finding, findings: list[Finding]) -> bool:
    """Return whether another finding tells the same: its whole, or a part that is nearly all."""
    mine = {fault.name for fault in finding.faults}
    for other in findings:
        family = {fault.family for fault in finding.faults} == {f.family for f in other.faults}
        if other is finding or not family or mine == {f.name for f in other.faults}:
            continue
        wider = _reach(other) > _reach(finding)
        if wider and finding.saving_ns < _SAME * other.saving_ns:
            return True
        if not wider and other.saving_ns >= _SAME * finding.saving_ns:
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
    reasons = ". ".join(reason for text in texts for reason in text.reasons)
    saves = outcome(diagnosis.length_ns, finding.saving_ns, len(report.ranks))
    return Advice(
        kind="+".join(fault.kind.value for fault in faults),
        ranks=tuple(sorted({rank for fault in faults for rank in fault.ranks})),
        stage=faults[0].stage if len(faults) == 1 else None,
        saving_ns=round(finding.saving_ns),
        saving_ratio=finding.saving_ratio,
        iterations=finding.saved_iterations,
        action=f"{action}. {reasons}" if reasons else action,
        text=f"{action}: {saves}" + (f". {reasons}" if reasons else ""),
    )
