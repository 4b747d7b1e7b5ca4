"""Text on a planned run: what ``bubbleviz plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.model import memory_sizes
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render.document import Block, HangingLines, Sentence, Table, in_percent, milliseconds
from bubbleviz.schedules.simulation import Outcome

#: A saving that is smaller is none.
_SAME = 5e-5
#: Transfers that wait for each other are mentioned where they cost more than this share.
_QUEUED = 2e-3


def sections(planned: PlannedRun) -> Iterator[Block]:
    """Yield what to print."""
    work, best = planned.workload, planned.best.best
    length = milliseconds(planned.best.length_ns(best))
    saving = planned.saving
    won = "" if saving is None else f", {_compare_saving(saving)} the order that ran"
    yield Sentence(f"Best order: {best.plan.name}, {length} ms{won}", style="bold")
    chunks = f", {work.chunks} model chunks per stage" if work.chunks > 1 else ""
    yield Sentence(
        f"  {format_count(work.devices, 'stage')}, "
        f"{format_count(work.microbatches, 'microbatch', 'microbatches')}{chunks}; times of "
        f"{to_one_line(planned.run.source, 100)}"
    )
    if planned.run.restrictions:
        reasons = "; ".join(to_one_line(each.text, 200) for each in planned.run.restrictions)
        yield Sentence(f"! measured times: {reasons}", style="bold")
    yield Table(
        "Orders, simulated at the measured times", list(_order_rows(planned)), left=("order", "")
    )
    yield HangingLines([("  ", line) for line in _notes(planned)])


def _compare_saving(saving: float) -> str:
    if abs(saving) < _SAME:
        return "as long as"
    return f"{format_percent(abs(saving))} {'shorter' if saving > 0 else 'longer'} than"


def _order_rows(planned: PlannedRun) -> Iterator[dict[str, str]]:
    own, best = planned.own, planned.best

    def row(name: str, outcome: Outcome, note: str) -> dict[str, str]:
        length_ns, own_ns = best.length_ns(outcome), 0 if own is None else best.length_ns(own)
        saved = 1 - length_ns / own_ns if own_ns else None
        peak = memory_sizes.format_memory(max(outcome.peak_memory), in_bytes=planned.in_bytes)
        return {
            "order": name,
            "ms": milliseconds(length_ns),
            "saved\n%": in_percent(saved),
            "bubble\n%": in_percent(best.bubble_ratio(outcome)),
            "peak\nmemory": peak,
            "": note,
        }

    if own is not None:
        yield row(f"{planned.run.schedule or 'its order'} (ran)", own, "")
    for candidate in planned.best.candidates:
        yield row(candidate.plan.name, candidate, _why_not(planned, candidate))


def _why_not(planned: PlannedRun, candidate: Outcome) -> str:
    if candidate.allowed:
        return "best" if candidate.plan.name == planned.best.best.plan.name else ""
    reasons = [] if candidate.fits else ["more memory"]
    if candidate.plan.splits and not planned.best.split:
        reasons.append("splits the backward")
    return ", ".join(reasons)


def _notes(planned: PlannedRun) -> Iterator[str]:
    best = planned.best
    if best.proven:
        yield "no order within the memory is shorter: proven"
    else:
        yield (
            f"no order within the memory is shorter than {milliseconds(best.bound_ns)} ms: at most "
            f"{format_percent(best.left)} is left"
        )
    yield _memory_note(planned)
    yield from _communication_note(planned)
    if planned.run.overlaps:
        yield (
            "iterations of the run overlap, so the longest window of a device is compared: no "
            "period is shorter"
        )
    if planned.own is not None and planned.run.ran_ns is not None and planned.off is not None:
        yield (
            f"the run took {milliseconds(planned.run.ran_ns)} ms, its order simulated "
            f"{milliseconds(planned.own.makespan_ns)} ms ({planned.off:+.1%}); with the same error "
            f"{'the plan' if best.makespan else 'the longest window of the plan'} would take "
            f"{milliseconds(planned.expected_ns)} ms"
        )
    if best.other is not None:
        other_ns = best.length_ns(best.other)
        saved = other_ns / best.length_ns(best.best)
        yield (
            f"the run's backward is one operation; split in halves, {best.other.plan.name} would "
            f"take {milliseconds(other_ns)} ms ({saved - 1:+.1%}), if both halves "
            "are equally long: --backward split plans that"
        )


def _communication_note(planned: PlannedRun) -> Iterator[str]:
    """Yield what the order takes where transfers wait for each other, if that is more."""
    free_ns = planned.best.best.makespan_ns
    shortest = planned.best.candidates[0]
    if shortest.makespan_ns < free_ns:
        yield (
            f"chosen with its transfers: without them, {shortest.plan.name} takes "
            f"{milliseconds(shortest.makespan_ns)} ms"
        )
    _, carried_ns, own_ns = planned.communication
    if max(carried_ns, own_ns) <= free_ns * (1 + _QUEUED):
        return
    own = ""
    if carried_ns < own_ns:
        own = f"; in PyTorch's own order of sends and receives, {milliseconds(own_ns)} ms"
    yield (
        "where transfers of two ranks run one after the other (NCCL): "
        f"{milliseconds(carried_ns)} ms{own}"
    )


def _memory_note(planned: PlannedRun) -> str:
    limit = planned.workload.limit
    if limit is None:
        return "memory: no limit; give --memory-limit"
    least, most = (
        memory_sizes.format_memory(each, in_bytes=planned.in_bytes)
        for each in (min(limit), max(limit))
    )
    unit = "" if planned.in_bytes else " M_B (a microbatch on a stage)"
    amount = f"at most {most}{unit}" if least == most else f"{least} to {most}{unit}"
    if planned.of_run:
        return (
            f"memory: {amount} of activations per device, as in the order that ran; "
            "--memory-limit sets another"
        )
    rest = ", beside what it always holds" if any(planned.resident) else ""
    return f"memory: {amount} of activations per device{rest}"
