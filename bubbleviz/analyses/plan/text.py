"""The text that ``bubbleviz plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.model import memory_sizes
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render.document import (
    Block,
    HangingLines,
    Sentence,
    Table,
    format_ms,
    format_percent_cell,
)
from bubbleviz.schedules.known import list_plans
from bubbleviz.schedules.planning import EAGER
from bubbleviz.schedules.simulation import Outcome

#: Minimum saving that is reported, as a fraction.
_MIN_SAVING = 5e-5
#: Minimum cost of queued transfers that is mentioned, as a fraction of the makespan.
_MIN_QUEUEING_COST = 2e-3


def sections(planned: PlannedRun) -> Iterator[Block]:
    """Yield the blocks of the text output: the best order, a table of all orders, and notes."""
    work, best = planned.workload, planned.best.best
    length = format_ms(planned.best.length_ns(best))
    saving = planned.saving
    won = "" if saving is None else f", {_compare_saving(saving)} the order that ran"
    yield Sentence(f"Best order: {best.plan.name}, {length} ms{won}", style="bold")
    chunks = f", {work.chunks} model chunks per stage" if work.chunks > 1 else ""
    yield Sentence(
        f"  {format_count(work.devices, 'stage')}, "
        f"{format_count(work.microbatches, 'microbatch', 'microbatches')}{chunks}; times from "
        f"{to_one_line(planned.run.source, 100)}"
    )
    if planned.run.restrictions:
        reasons = "; ".join(to_one_line(each.text, 200) for each in planned.run.restrictions)
        yield Sentence(f"! measured times: {reasons}", style="bold")
    yield Table(
        "Orders, simulated with the measured times",
        list(_list_order_rows(planned)),
        left=("order", ""),
    )
    yield HangingLines([("  ", line) for line in _list_notes(planned)])


def _compare_saving(saving: float) -> str:
    """Return a phrase such as ``3.1 % shorter than``, given the fraction that is saved."""
    if abs(saving) < _MIN_SAVING:
        return "as long as"
    return f"{format_percent(abs(saving))} {'shorter' if saving > 0 else 'longer'} than"


def _list_order_rows(planned: PlannedRun) -> Iterator[dict[str, str]]:
    """Yield the table rows: the order that the run used (if known), then all candidates.

    If a candidate has the name of the run's schedule and the same cells as the order that ran, they
    share a row.
    """
    executed, best = planned.executed, planned.best
    executed_ns = 0 if executed is None else best.length_ns(executed)

    def make_row(name: str, outcome: Outcome, note: str) -> dict[str, str]:
        """Return the table row for an order, which is compared with the order that the run used."""
        length_ns = best.length_ns(outcome)
        saved = 1 - length_ns / executed_ns if executed_ns else None
        peak = memory_sizes.format_memory(max(outcome.peak_memory), in_bytes=planned.in_bytes)
        return {
            "order": name,
            "ms": format_ms(length_ns),
            "saved\n%": format_percent_cell(saved),
            "bubble\n%": format_percent_cell(best.bubble_ratio(outcome)),
            "peak\nmemory": peak,
            "": note,
        }

    candidates = {
        candidate.plan.name: make_row(
            candidate.plan.name, candidate, _describe_rejection(planned, candidate)
        )
        for candidate in best.candidates
    }
    if executed is not None:
        schedule = planned.run.schedule or "its order"
        same_row = candidates.get(schedule)
        note = "" if same_row is None else same_row[""]
        executed_row = make_row(schedule, executed, note)
        if executed_row == same_row:
            del candidates[schedule]
        else:
            executed_row[""] = ""
        yield executed_row | {"order": f"{schedule} (ran)"}
    yield from candidates.values()


def _describe_rejection(planned: PlannedRun, candidate: Outcome) -> str:
    """Return the note on a candidate: "best", the reasons why it is not allowed, or "".

    A candidate is not allowed if it needs too much memory, or if it splits the backward although
    splitting is not allowed.
    """
    if candidate.allowed:
        return "best" if candidate.plan.name == planned.best.best.plan.name else ""
    reasons = [] if candidate.fits else ["more memory"]
    if candidate.plan.splits and not planned.best.split:
        reasons.append("splits the backward")
    return ", ".join(reasons)


def _list_notes(planned: PlannedRun) -> Iterator[str]:
    """Yield the notes below the table: optimality, memory, communication and accuracy."""
    best = planned.best
    if best.is_proven:
        yield "proven optimal: no order that fits in memory is shorter"
    else:
        yield (
            f"no order that fits in memory can be shorter than {format_ms(best.lower_bound_ns)} ms "
            f"(a possible gain of up to {format_percent(best.max_improvement)})"
        )
    yield _describe_memory(planned)
    yield _describe_placement(planned)
    yield from _describe_communication(planned)
    if planned.run.overlaps:
        yield (
            "iterations of the run overlap, so orders are compared by the longest window of any "
            "device, which is a lower bound on the period"
        )
    measured_ns, error = planned.measured_ns, planned.simulation_error
    if planned.executed is not None and measured_ns is not None and error is not None:
        simulated = format_ms(best.length_ns(planned.executed))
        prefix = "the" if best.by_makespan else "the longest window of the"
        note = (
            f"{prefix} run took {format_ms(measured_ns)} ms, and simulating its order gives "
            f"{simulated} ms ({_format_change(error)})"
        )
        if not planned.has_overlapped_operations:
            expected = format_ms(planned.expected_ns)
            note += f". With the same error, {prefix} plan would take {expected} ms"
        yield note
    if best.best_split is not None:
        split_ns = best.length_ns(best.best_split)
        change = split_ns / best.length_ns(best.best) - 1
        yield (
            "the run's backward is a single operation. If it were split into two equal halves, "
            f"{best.best_split.plan.name} would take {format_ms(split_ns)} ms "
            f"({_format_change(change)}); to plan for this, pass --backward split"
        )


def _format_change(ratio: float) -> str:
    """Return a relative change in percent, with its sign. A change that rounds to 0 is positive."""
    return f"{round(100 * ratio, 1) + 0.0:+.1f} %"


def _describe_communication(planned: PlannedRun) -> Iterator[str]:
    """Yield notes on how queued transfers change the best order and its makespan.

    The first note is yielded if another order would be shorter without transfers. The second note
    is yielded if transfers cost more than ``_MIN_QUEUEING_COST`` of the makespan.
    """
    makespan_ns = planned.best.best.makespan_ns
    shortest = planned.best.candidates[0]
    if shortest.makespan_ns < makespan_ns:
        yield (
            f"the ranking includes transfers; without them, {shortest.plan.name} would be shorter "
            f"({format_ms(shortest.makespan_ns)} ms)"
        )
    _, reordered_ns, pytorch_ns = planned.communication
    if max(reordered_ns, pytorch_ns) <= makespan_ns * (1 + _MIN_QUEUEING_COST):
        return
    pytorch = ""
    if reordered_ns < pytorch_ns:
        pytorch = f", or {format_ms(pytorch_ns)} ms in PyTorch's own order of sends and receives"
    yield (
        "if transfers between two ranks run one after the other, as with NCCL, the plan takes "
        f"{format_ms(reordered_ns)} ms{pytorch}"
    )


def _describe_placement(planned: PlannedRun) -> str:
    """Explain why schedules with other numbers of chunks are missing, and define ``EAGER``."""
    chunks = format_count(planned.workload.chunks, "model chunk")
    note = f"orders keep the run's {chunks} per stage; analyze --what-if also compares others"
    if any(order.plan.name == EAGER for order in planned.best.candidates):
        note += f". {EAGER}: interleaved-1f1b with 1 chunk"
    candidate_names = {order.plan.name for order in planned.best.candidates}
    work = planned.workload
    overlapping = [
        plan.name
        for plan in list_plans(work.placement, work.microbatches)
        if plan.together and plan.name in candidate_names
    ]
    if overlapping:
        note += (
            f". {', '.join(overlapping)}: one operation at a time; analyze --what-if and simulate "
            "overlap forwards with backwards"
        )
    return note


def _describe_memory(planned: PlannedRun) -> str:
    """Describe the size of the memory limit and where the limit comes from."""
    limit = planned.workload.limit
    if limit is None:
        return "memory: no limit; to set one, pass --memory-limit"
    low, high = (
        memory_sizes.format_memory(amount, in_bytes=planned.in_bytes)
        for amount in (min(limit), max(limit))
    )
    unit = "" if planned.in_bytes else " M_B (a microbatch on a stage)"
    amount = f"at most {high}{unit}" if low == high else f"{low} to {high}{unit}"
    if planned.limit_is_from_run:
        return (
            f"memory: {amount} of activations per device, the peak of the order that ran; to set "
            "another limit, pass --memory-limit"
        )
    besides = ", in addition to its resident memory" if any(planned.resident) else ""
    return f"memory: {amount} of activations per device{besides}"
