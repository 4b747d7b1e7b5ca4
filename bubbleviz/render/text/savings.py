"""Tables of possible time savings: advice, slowdowns, single changes and other schedules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.memory_sizes import describe_fit, format_memory
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.report.labels import name_rank_with_number
from bubbleviz.report.promise import format_saving
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry, join_sentences
from bubbleviz.schedules.choices import MEASURED, NO_DELAY, Choice
from bubbleviz.schedules.measured_times import MeasuredTimes

#: Maximum relative difference between iteration lengths that are treated as equal.
_SAME_BASE = 0.01


def list_advice(report: Report) -> Iterator[doc.Block]:
    """Yield a table of all advice, with the time that each piece of advice would save on its own.

    Yields nothing if there is no advice. If the simulated replay of the run does not reproduce the
    measured iteration length, the title says so, and savings are shown as unknown.
    """
    diagnosis, entries = report.explanation.diagnosis, write_all_advice(report)
    if diagnosis is None or not entries:
        return
    replayed = format_count(diagnosis.iterations, "iteration")
    if diagnosis.misses_measurement:
        base_ns = None
        title = (
            f"Changes that would shorten an iteration. A replay of {replayed} misses the measured "
            f"length by {format_percent(diagnosis.missed_ratio)}, so savings that need the replay "
            "are unknown"
        )
    else:
        base_ns = diagnosis.length_ns
        title = (
            f"Changes that would shorten an iteration ({doc.format_ms(base_ns)} ms), according to "
            f"a replay of {replayed}. Savings overlap, so they cannot be added up"
        )
    rows = [
        {
            "saves ms": doc.format_ms(advice.largest_saving_ns),
            "share": _describe_share(advice, base_ns),
            "what to do": to_one_line(_describe_action(advice)),
        }
        for advice in entries
    ]
    yield doc.Table(title, rows, left=("what to do",), wrap=("what to do",))


def _describe_action(advice: AdviceEntry) -> str:
    """Return what to do and the evidence, without the saving, which is shown in other columns.

    If there are two alternatives, both savings are included, because the other columns show only
    the larger one.
    """
    if advice.repaired_saving_ratio is None:
        return advice.action_and_evidence
    return join_sentences(advice.short, advice.evidence)


def _describe_share(advice: AdviceEntry, titled_ns: float | None) -> str:
    """Return the share of an iteration that a piece of advice saves, as text.

    The iteration's length is appended if it differs from the length in the table title by more than
    ``_SAME_BASE``, or if the title does not contain a length.

    Args:
        advice: The piece of advice.
        titled_ns: Iteration length given in the table title, in ns, or None if the title has none.
    """
    saving_ns, saving_ratio = advice.largest_saving_ns, advice.largest_saving_ratio
    is_repair = saving_ratio != advice.saving_ratio
    # A repaired GPU is the fault of a rank, whose saving is not an upper bound.
    share = (
        format_saving("rank", "", saving_ratio, advice.repaired_error_ratio)
        if is_repair
        else format_saving(advice.kind, advice.place, saving_ratio, advice.error_ratio)
    )
    if not saving_ns or not saving_ratio:
        return share
    base_ns = saving_ns / saving_ratio
    if titled_ns is not None and abs(base_ns - titled_ns) <= _SAME_BASE * titled_ns:
        return share
    return f"{share} of {doc.format_ms(base_ns)} ms"


#: Maximum number of slowdowns to list for each kind of part, such as stages or links.
_MAX_SLOWDOWNS = 3
#: Minimum slowdown that is divided into shares. Shares of a smaller slowdown would be noise.
_MIN_SLOWDOWN = 1.01


def list_slowdowns(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the slowdowns that stragglers cause over all averaged iterations.

    A slowdown of 1.1 means that iterations take 1.1 times as long as ideal iterations. For each
    kind of part (phases, stages, ranks, ...), the largest ``_MAX_SLOWDOWNS`` slowdowns are listed.
    Kinds that have a single part are left out. Notes about the slowest ranks, the last stage and
    the replay error follow. If the slowdowns are unknown, only a sentence that gives the reason is
    yielded, or nothing if no reason is known.
    """
    costs = report.slowdowns
    source = report.explanation.slowdown_source
    if costs is None:
        if source is not None and source.reason:
            yield doc.Sentence(f"\nSlowdowns are unknown: {source.reason}")
        return
    times = [("all together", costs.total)]
    for group in _group_slowdowns(report, costs):
        if len(group) > 1:
            times += sorted(group, key=lambda pair: -pair[1])[:_MAX_SLOWDOWNS]
    n_iterations = format_count(len(costs.by_iteration), "iteration")
    lengths = f"{doc.format_ms(costs.original_ns)} instead of {doc.format_ms(costs.ideal_ns)} ms"
    yield doc.Table(
        f"Slowdown relative to an ideal iteration, over {n_iterations} ({lengths})",
        [{"what": to_one_line(name, 60), "slowdown": f"{value:.3f}"} for name, value in times],
        left=("what",),
        wrap=("what",),
    )
    notes = []
    is_slowed = costs.total >= _MIN_SLOWDOWN
    if costs.worker_share is not None and is_slowed:
        notes.append(
            "share of the slowdown removed by fixing the slowest 3 % of the ranks (at least one): "
            f"{_describe_removed_share(costs.worker_share)}"
        )
    if costs.last_stage_share is not None and is_slowed:
        removed = _describe_removed_share(costs.last_stage_share)
        notes.append(f"share removed by fixing the last stage: {removed}")
    error = costs.replay_error
    errors = error.mean, error.maximum, error.mean_with_delays, error.maximum_with_delays
    notes.append(
        "replay error without launch delays and waits for an earlier iteration: {} % on average, "
        "{} % maximum; with them: {} % and {} % (-v operations measures an iteration from its "
        "first F)".format(*map(doc.format_percent_cell, errors))
    )
    yield doc.make_bullets(notes)


def _group_slowdowns(report: Report, costs: Slowdowns) -> list[list[tuple[str, float]]]:
    """Return the slowdown of each part of a run, grouped by part kind.

    The kinds are phases, stages, replicas, ranks, microbatches, links and iterations, in this
    order.

    Returns:
        One list of (name, slowdown) pairs per kind. Ranks whose slowdown is unknown are left out.
    """
    iterations, slowdown_of_rank = report.iterations, report.slowness.slowdown
    ranks = np.flatnonzero(~np.isnan(slowdown_of_rank)).tolist()
    return [
        [(f"phase {name}", s) for name, s in costs.by_phase.items()],
        [(f"stage {stage}", s) for stage, s in costs.by_stage.items()],
        [(f"pipeline p{replica}", s) for replica, s in costs.by_replica.items()],
        [(name_rank_with_number(report, rank), float(slowdown_of_rank[rank])) for rank in ranks],
        [(f"microbatch {number}", s) for number, s in costs.by_microbatch.items()],
        [(f"link {ends[0]} to {ends[1]}", s) for ends, s in costs.by_link.items()],
        [(f"iteration {iterations[n].name}", s) for n, s in costs.by_iteration.items()],
    ]


def _describe_removed_share(fraction: float) -> str:
    """Format, in percent, how much of the slowdown would disappear if some ranks were fixed.

    A share below 0 % or above 100 % is followed by an explanation.

    Args:
        fraction: The share of the slowdown that would disappear. It is normally between 0 and 1.
    """
    excess = "more than all" if fraction > 1 else "none" if fraction < 0 else ""
    who = "the others take" if fraction > 1 else "it takes"
    explanation = (
        f" ({excess}, because {who} less time than the ideal, the mean of all)" if excess else ""
    )
    return f"{doc.format_percent_cell(fraction)} %{explanation}"


#: Another order of microbatches is shown only if it saves at least this fraction of the iteration.
_MIN_REORDERING_SAVING = 0.01
#: Maximum number of microbatches listed in the proposed order.
_MAX_MICROBATCHES = 8
#: Labels of the table rows that are not schedules.
_ROW_NAMES = {MEASURED: "as measured", NO_DELAY: "as measured, no delays"}


def list_changes(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the simulated length of the typical iteration after each single change.

    The first row is the replay without any change, and all savings are relative to it. Yields
    nothing if no changes were simulated.
    """
    replayed = report.explanation.changes
    if not replayed:
        return
    measured_ns, rows = replayed[0].makespan_ns, []
    for change in replayed:
        saved_ratio = 1 - change.makespan_ns / measured_ns if measured_ns else None
        rows.append(
            {
                "change": change.change,
                "iteration ms": doc.format_ms(change.makespan_ns),
                "time saved %": doc.format_percent_cell(saved_ratio),
                "schedule %": doc.format_percent_cell(change.bubble_ratio),
            }
        )
    yield doc.Table(
        "Typical iteration after single changes, all else as measured",
        rows,
        left=("change",),
        wrap=("change",),
        drop_order=("schedule %",),
    )
    if report.headline == "period":
        yield doc.Sentence(
            "These are lengths of a single iteration. Consecutive iterations overlap, so the "
            "training time depends on the period, which may change less"
        )


def list_schedules(report: Report) -> Iterator[doc.Block]:
    """Yield a table of other schedules, simulated with the measured times, followed by notes.

    If the times could not be measured, only a sentence that gives the reason is yielded. Yields
    nothing if the report does not compare schedules.
    """
    comparison = report.other_schedules
    if comparison is None:
        return
    if comparison.measured is None:
        yield doc.Sentence(
            f"\nOther schedules cannot be compared: {to_one_line(comparison.reason, 300)}"
        )
        return
    yield _make_schedule_table(report, comparison)
    if comparison.reordered is not None and comparison.reordered[1] >= _MIN_REORDERING_SAVING:
        order, saved = comparison.reordered
        numbers = ", ".join(map(str, order[:_MAX_MICROBATCHES]))
        ellipsis = ", ..." if len(order) > _MAX_MICROBATCHES else ""
        yield doc.Sentence(
            f"Reordering the microbatches, which have unequal lengths, as {numbers}{ellipsis} "
            f"saves {doc.format_percent_cell(saved)} % (short ones first and last; -o report.json "
            "has the complete order)"
        )
    if comparison.window == "stage":
        yield doc.Sentence(
            "Consecutive iterations overlap, so schedules are compared by the longest window of a "
            "rank (ratio: stage). This window is a lower bound on the period"
        )
    yield doc.Sentence(_describe_simulation(comparison, comparison.measured))


def _describe_simulation(comparison: WhatIf, measured: MeasuredTimes) -> str:
    """Return sentences about the times that the schedules are simulated with.

    Args:
        comparison: The simulated schedules.
        measured: The measured times.
    """
    is_by_stage = comparison.window == "stage"
    n_stages = format_count(measured.stages, "stage")
    n_microbatches = format_count(measured.microbatches, "microbatch", "microbatches")
    length = "window" if is_by_stage else "iteration"
    has_more_chunks = any(row.chunks > measured.chunks for row in comparison.rows)
    chunks_note = " If a schedule has more chunks, they take equal parts of a stage."
    chunks = chunks_note if has_more_chunks else ""
    baseline = "" if is_by_stage else " Time saved: compared with this order without delays."
    sentence = (
        f"The times are means over the slowest pipeline, with {n_stages} and {n_microbatches}. A "
        f"transfer takes {measured.times.transfer_ms:,.3f} ms.{baseline}{chunks} Activations: "
        "maximum number of microbatches in the memory of a stage, each from F to W. Fits in the "
        "same memory: no more activations than measured, and a single copy of the weights. "
        f"Searched orders have the shortest {length} found."
    )
    if not measured.split:
        sentence += (
            " The backward was measured as one operation, and half of its time is assigned to W."
        )
    return sentence


def _make_schedule_table(report: Report, comparison: WhatIf) -> doc.Table:
    """Return the table of schedules simulated with the measured times.

    If the duration of a schedule is unknown, its cells contain dashes, and the last column contains
    the reason.
    """
    fits = describe_fit(comparison.limit_bytes)
    ran = None if report.schedule is None else report.schedule.name
    rows = []
    for row in comparison.rows:
        name = _ROW_NAMES.get(row.schedule, row.schedule)
        cells = _make_schedule_cells(comparison, row)
        reason = doc.truncate_middle(to_one_line(row.reason, 200), 40)
        is_known = _get_compared_ms(comparison, row) is not None
        rows.append(
            {
                "order": f"{name} (this one)" if row.schedule == ran else name,
                **(cells if is_known else dict.fromkeys(cells, "-")),
                fits: ("yes" if row.fits else "no") if is_known else reason,
            }
        )
    return doc.Table(
        "Schedules at the measured times: this run as measured, other schedules without delays "
        "except transfers",
        rows,
        left=("order", fits),
        wrap=(fits,),
    )


def _get_compared_ms(comparison: WhatIf, row: Choice) -> float | None:
    """Return the time in ms by which schedules are compared, or None if unknown.

    If ``comparison.window`` is ``stage``, schedules are compared by their cost, which is the
    longest window on any rank. Otherwise schedules are compared by their makespan.
    """
    return row.cost_ms if comparison.window == "stage" else row.makespan_ms


def _make_schedule_cells(comparison: WhatIf, row: Choice) -> dict[str, str]:
    """Return the table cells for a schedule: time, saving, ratio and memory, keyed by header.

    The time and the ratio describe the iteration. If ``comparison.window`` is ``stage``, they
    describe the longest window on any rank instead. If no schedule's peak memory is known, there is
    no cell for the peak memory.
    """
    is_by_stage = comparison.window == "stage"
    activations = "-" if row.peak_activations is None else f"{row.peak_activations:.2f}"
    cells = {
        "stage window ms"
        if is_by_stage
        else "iteration ms": f"{_get_compared_ms(comparison, row) or 0:,.3f}",
        "time saved %": doc.format_percent_cell(row.speedup),
        "stage %" if is_by_stage else "schedule %": doc.format_percent_cell(row.bubble_ratio),
        "activations": activations,
    }
    if any(other.peak_bytes is not None for other in comparison.rows):
        cells["peak memory"] = "-" if row.peak_bytes is None else format_memory(row.peak_bytes)
    return cells
