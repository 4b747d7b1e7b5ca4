"""Text: what ``bubbleviz plan`` prints: the orders that were considered, the best, what is left."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.texts import counted, one_line, percent
from bubbleviz.render.document import (
    Block,
    HangingLines,
    Sentence,
    Table,
    in_percent,
    milliseconds,
)
from bubbleviz.schedules.planning import Candidate
from bubbleviz.schedules.workload import Outcome

#: A saving that is smaller is none.
_SAME = 5e-5
#: Transfers that wait for each other are mentioned where they cost more than this share.
_QUEUED = 2e-3


def sections(planned: PlannedRun) -> Iterator[Block]:
    """Yield what to print."""
    work, best = planned.memory.workload, planned.best.best
    saving = planned.saving
    won = "" if saving is None else f", {_than(saving)} the order that ran"
    yield Sentence(
        f"Best order: {best.name}, {milliseconds(best.outcome.makespan_ns)} ms{won}", style="bold"
    )
    chunks = f", {work.chunks} model chunks a stage" if work.chunks > 1 else ""
    yield Sentence(
        f"  {counted(work.devices, 'stage')}, "
        f"{counted(work.microbatches, 'microbatch', 'microbatches')}{chunks}; times of "
        f"{one_line(planned.run.source, 100)}"
    )
    if planned.run.restrictions:
        reasons = "; ".join(one_line(each.text, 200) for each in planned.run.restrictions)
        yield Sentence(f"! measured times: {reasons}", style="bold")
    yield Table(
        "Orders, simulated at the measured times", list(_orders(planned)), left=("order", "")
    )
    yield HangingLines([("  ", line) for line in _notes(planned)])


def _than(saving: float) -> str:
    if abs(saving) < _SAME:
        return "as long as"
    return f"{percent(abs(saving))} {'shorter' if saving > 0 else 'longer'} than"


def _orders(planned: PlannedRun) -> Iterator[dict[str, str]]:
    own = planned.own

    def row(name: str, outcome: Outcome, note: str) -> dict[str, str]:
        saved = 1 - outcome.makespan_ns / own.makespan_ns if own and own.makespan_ns else None
        peak = memory_text(max(outcome.peak_memory), in_bytes=planned.memory.in_bytes)
        return {
            "order": name,
            "ms": milliseconds(outcome.makespan_ns),
            "saved\n%": in_percent(saved),
            "bubble\n%": in_percent(outcome.schedule_ratio),
            "peak\nmemory": peak,
            "": note,
        }

    if own is not None:
        yield row(f"{planned.run.schedule or 'its order'} (ran)", own, "")
    for candidate in planned.best.candidates:
        yield row(candidate.name, candidate.outcome, _why_not(planned, candidate))


def _why_not(planned: PlannedRun, candidate: Candidate) -> str:
    if candidate.allowed:
        return "best" if candidate.name == planned.best.best.name else ""
    reasons = [] if candidate.outcome.fits else ["more memory"]
    if candidate.split and not planned.best.split:
        reasons.append("splits the backward")
    return ", ".join(reasons)


def _notes(planned: PlannedRun) -> Iterator[str]:
    best = planned.best
    if best.proven:
        yield "no order within the memory is shorter: proven"
    else:
        yield (
            f"no order within the memory is shorter than {milliseconds(best.bound_ns)} ms: at most "
            f"{percent(best.left)} is left"
        )
    yield _memory_note(planned)
    yield from _communication_note(planned)
    if planned.run.overlaps:
        yield (
            "iterations of the run overlap, which orders of one iteration are not compared by: "
            "simulate --from prints the cost of each, the longest window of a device"
        )
    if planned.own is not None and planned.run.ran_ns is not None and planned.off is not None:
        yield (
            f"the run took {milliseconds(planned.run.ran_ns)} ms, its order simulated "
            f"{milliseconds(planned.own.makespan_ns)} ms ({planned.off:+.1%}); as far off, the "
            f"plan takes {milliseconds(planned.expected_ns)} ms"
        )
    if best.other is not None:
        saved = best.other.outcome.makespan_ns / best.best.outcome.makespan_ns
        yield (
            f"the run's backward is one operation; split in halves, {best.other.name} would take "
            f"{milliseconds(best.other.outcome.makespan_ns)} ms ({saved - 1:+.1%}), if both halves "
            "are equally long: --backward split plans that"
        )


def _communication_note(planned: PlannedRun) -> Iterator[str]:
    """Yield what the order takes where transfers wait for each other, if that is more."""
    free_ns = planned.best.best.outcome.makespan_ns
    shortest = planned.best.candidates[0]
    if shortest.outcome.makespan_ns < free_ns:
        yield (
            f"chosen with its transfers: without them, {shortest.name} takes "
            f"{milliseconds(shortest.outcome.makespan_ns)} ms"
        )
    carried = planned.communication
    if max(carried.makespan_ns, carried.own_ns) <= free_ns * (1 + _QUEUED):
        return
    own = ""
    if carried.makespan_ns < carried.own_ns:
        own = f"; in PyTorch's own order of sends and receives, {milliseconds(carried.own_ns)} ms"
    yield (
        "where transfers of two ranks run one after the other (NCCL): "
        f"{milliseconds(carried.makespan_ns)} ms with --comms{own}"
    )


def _memory_note(planned: PlannedRun) -> str:
    memory = planned.memory
    limit = memory.workload.limit
    if limit is None:
        return "memory: no limit; give --memory-limit"
    least, most = (memory_text(each, in_bytes=memory.in_bytes) for each in (min(limit), max(limit)))
    unit = "" if memory.in_bytes else " M_B (a microbatch on a stage)"
    amount = f"at most {most}{unit}" if least == most else f"{least} to {most}{unit}"
    if memory.of_run:
        return (
            f"memory: {amount} of activations a device, as the order that ran takes; "
            "--memory-limit sets another"
        )
    rest = ", beside what it always holds" if any(memory.resident) else ""
    return f"memory: {amount} of activations a device{rest}"
