"""Schedules: the recognised order of operations, and its match with a plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.explain.phase_times import ChunkCost
from bubbleviz.explain.recognition.reasons import FORWARD_ONLY, NO_PIPELINE
from bubbleviz.explain.recognition.recognition import Deviation, Recognition
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted, listed, one_line, percent
from bubbleviz.render import document as doc
from bubbleviz.report.labels import numbered_rank, operation_label, rank_label
from bubbleviz.report.report import Report, cost_in_words, even_chunks
from bubbleviz.report.sentences import WrittenAdvice, write_all_advice
from bubbleviz.schedules.choices import MEASURED, NO_DELAY

_DEVIATIONS = 5


def orders(report: Report) -> Iterator[doc.Block]:
    """Yield the recognised schedule and the match with a plan, with some deviations of each."""
    for title, recognition in (("schedule", report.schedule), ("plan", report.plan)):
        if recognition is None:
            continue
        if recognition.reason in NO_PIPELINE:
            yield doc.Sentence(f"no {title}: {recognition.reason}")
            continue
        yield doc.Sentence(f"{title}: {recognised(recognition)}")
        yield from _deviations(report, recognition)


def plan_deviations(report: Report) -> Iterator[doc.Block]:
    """Yield some operations that are out of the plan's order, if any."""
    deviations = [] if report.plan is None else list(_deviations(report, report.plan))
    yield from [doc.heading("Out of the plan's order"), *deviations] if deviations else []


def _deviations(report: Report, recognition: Recognition) -> Iterator[doc.Block]:
    if recognition.name is not None and recognition.deviations:
        lines = [_deviation(report, each) for each in recognition.deviations[:_DEVIATIONS]]
        if recognition.deviation_count > len(lines):
            lines.append(
                f"and {recognition.deviation_count - len(lines):,} more with -o report.json"
            )
        yield doc.bullets(lines)


def recognised(recognition: Recognition) -> str:
    """Return the recognised schedule and its match, on one line."""
    if recognition.reason == FORWARD_ONLY:
        return f"none, {FORWARD_ONLY}"
    if recognition.name is None:
        return f"not recognised: {recognition.reason}"
    also = f", here the same as {' and '.join(recognition.also)}" if recognition.also else ""
    exact = sum(iteration.exact for iteration in recognition.agreeing)
    total = len(recognition.judged)
    matches = f"order matches in {exact} of {counted(total, 'iteration')}"
    if exact < total and recognition.distance is None:
        agreeing = len(recognition.agreeing)
        matches = f"by structure in {agreeing} of {counted(total, 'iteration')}"
    elif exact < total:
        matches = f"{percent(recognition.distance)} of operations out of order, {matches}"
    if recognition.inferred:
        matches += "; microbatches are numbered by order, so another schedule may look the same"
    line = f"{one_line(recognition.name, 60)}{also} ({matches})"
    names = {name for i in recognition.iterations for name in (i.name, *i.names)}
    others = sorted({name or "an order of its own" for name in names if name != recognition.name})
    return f"{line}; other iterations: {one_line(', '.join(others), 120)}" if others else line


def _deviation(report: Report, deviation: Deviation) -> str:
    """Return an operation that is out of the schedule's order, on one line."""
    rank, iteration = report.ranks[deviation.rank], report.iterations[deviation.iteration]
    chunk = f" of chunk {deviation.chunk}" if deviation.chunk > 0 else ""
    places = f" by {deviation.places}" if deviation.places else ""
    return (
        f"{one_line(rank.label, 40)}, iteration {one_line(iteration.name, 20)}: "
        f"{deviation.phase.label}{deviation.microbatch}{chunk} {deviation.what}{places}"
    )


# Memory: what each virtual stage holds, and the peaks of ranks.


#: Virtual stages that are listed.
_MOST = 64


def memory(report: Report) -> Iterator[doc.Block]:
    """Yield the activations of each virtual stage, where memory was read."""
    if report.memory is None:
        return
    peaks: dict[int | None, list[int]] = {}
    for peak in report.memory.ranks:
        peaks.setdefault(peak.stage, []).append(peak.peak_bytes)
    times = report.explanation.phase_times.kinds
    stage_of: dict[int | None, int] = {kind.virtual_stage: kind.stage for kind in times}
    kinds = report.memory.operations
    rows = []
    for own in [kind for kind in kinds if kind.phase == Phase.F.label][:_MOST]:
        back = [k.above_bytes for k in kinds
                if k.virtual_stage == own.virtual_stage and k.phase != Phase.F.label]  # fmt: skip
        amounts = {
            "F leaves": own.net_bytes,
            "held to B": own.held_bytes,
            "kept to W": own.kept_bytes,
            "F needs": own.above_bytes - own.net_bytes,
            "backward needs": max(back, default=None),
            "rank's peak": max(peaks.get(stage_of.get(own.virtual_stage), []), default=None),
        }
        cells = {k: "-" if amount is None else memory_text(amount) for k, amount in amounts.items()}
        rows.append({"virtual stage": doc.numbered(own.virtual_stage), **cells})
    if rows:
        yield doc.Table("Memory of a microbatch", rows)
        yield doc.Sentence(
            "held to B, kept to W: activations; needs: the most it takes beside what it leaves "
            "(bubbleviz guide memory)"
        )


# Slowdowns: how many times longer iterations take than ideal ones, and what makes them so.


#: So many of each kind are listed, the slowest.
_LISTED = 3


def slowdowns(report: Report) -> Iterator[doc.Block]:
    """Yield what stragglers cost over all averaged iterations."""
    found = report.slowdowns
    source = report.explanation.slowdown_source
    if found is None:
        if source is not None and source.reason:
            yield doc.Sentence(f"\nSlowdowns are unknown: {source.reason}")
        return
    groups = (
        [(f"phase {name}", s) for name, s in found.by_phase.items()],
        [(f"stage {stage}", s) for stage, s in found.by_stage.items()],
        [(f"replica {replica}", s) for replica, s in found.by_replica.items()],
        [(numbered_rank(report, rank), s) for rank, s in found.by_rank.items()],
        [(f"microbatch {number}", s) for number, s in found.by_microbatch.items()],
        [(f"link {ends[0]} to {ends[1]}", s) for ends, s in found.by_link.items()],
        [(f"iteration {report.iterations[n].name}", s) for n, s in found.by_iteration.items()],
    )
    times = [("all together", found.total)]
    for group in groups:
        if len(group) > 1:
            times += sorted(group, key=lambda pair: -pair[1])[:_LISTED]
    yield doc.Table(
        f"Slowdown against an ideal iteration, over {counted(len(found.by_iteration), 'iteration')}"
        f" ({doc.milliseconds(found.original_ns)} against {doc.milliseconds(found.ideal_ns)} ms)",
        [{"what": one_line(name, 60), "slowdown": f"{value:.3f}"} for name, value in times],
        left=("what",),
        wrap=("what",),
    )
    notes = []
    if found.worker_share is not None:
        notes.append(
            "share of the slowdown removed by fixing the slowest 3 % of the ranks (at least one): "
            f"{_removed(found.worker_share)}"
        )
    if found.last_stage_share is not None:
        share = _removed(found.last_stage_share)
        notes.append(f"share removed by fixing the last stage: {share}")
    error = found.replay_error
    errors = error.mean, error.maximum, error.mean_with_delays, error.maximum_with_delays
    notes.append(
        "replay error: {} % on average, {} % at most, without launch delays and waits for an "
        "earlier iteration (-v operations counts an iteration from its first F on); with these {} "
        "% and {} %".format(*map(doc.in_percent, errors))
    )
    yield doc.bullets(notes)


def _removed(share: float) -> str:
    """Return the share of a slowdown that goes; all others may be faster than the ideal."""
    beyond = "more than all" if share > 1 else "none" if share < 0 else ""
    who = "the others take" if share > 1 else "it takes"
    why = f" ({beyond}: {who} less than the mean of all, which is the ideal)" if beyond else ""
    return f"{doc.in_percent(share)} %{why}"


# Iterations that are not averaged, and their ratios.


_MOST_ITERATIONS = 12


def not_averaged(report: Report) -> Iterator[doc.Block]:
    """Yield the iterations that are not averaged, if any."""
    others = [i for i in report.iterations if not i.averaged]
    if not others:
        return
    rows = [
        {
            "iteration": one_line(iteration.name, 60),
            "kind": iteration.kind,
            "complete": "yes" if iteration.complete else "no",
            "microbatches": doc.numbered(iteration.microbatches),
            report.headline: percent(iteration.ratios[report.headline].value),
        }
        for iteration in others
    ]
    yield doc.Table(
        "Iterations not averaged",
        doc.first_rows(rows, "iteration", most=_MOST_ITERATIONS, joint=""),
        left=("iteration", "kind", "complete"),
    )


# Advice: what would shorten iterations, and by how much a replay of them proves.


#: Lengths that differ by less than this share of the first are the same base of a saving.
_SAME_BASE = 0.01


def advice_table(report: Report) -> Iterator[doc.Block]:
    """Yield what saves most, then at most four more; savings overlap and do not add up."""
    diagnosis, listed = report.explanation.diagnosis, write_all_advice(report)
    if diagnosis is None or not listed:
        return
    replayed = counted(diagnosis.iterations, "iteration")
    if diagnosis.misses_measurement:
        base_ns = None
        title = (
            f"What would shorten an iteration; a replay of {replayed} misses their measured length "
            f"by {percent(diagnosis.missed_ratio)}, so the savings that rest on it are unknown"
        )
    else:
        base_ns = diagnosis.length_ns
        title = (
            f"What would shorten an iteration ({doc.milliseconds(base_ns)} ms), by a replay of "
            f"{replayed}; savings do not add up"
        )
    rows = [
        {
            "saves ms": doc.milliseconds(advice.saving_ns),
            "share": _share_of_base(advice, base_ns),
            # The saving has its own columns.
            "what to do": one_line(advice.action, 400),
        }
        for advice in listed
    ]
    yield doc.Table(title, rows, left=("what to do",), wrap=("what to do",))


def _share_of_base(advice: WrittenAdvice, titled_ns: float | None) -> str:
    """Return the share that advice saves, followed by its base if that is not in the title.

    Args:
        advice: Any advice.
        titled_ns: Length of an iteration in the title; None if the title has none.
    """
    if not advice.saving_ns or not advice.saving_ratio:
        return advice.share
    base_ns = advice.saving_ns / advice.saving_ratio
    if titled_ns is not None and abs(base_ns - titled_ns) <= _SAME_BASE * titled_ns:
        return advice.share
    return f"{advice.share} of {doc.milliseconds(base_ns)} ms"


# Bubble ratios over the averaged iterations, a row each.


#: Columns that go first where a terminal is narrow.
_GIVING_WAY = (
    *("window\nSD ms", "bubble /\ncompute", "min", "max", "n", "window", "lower\nbound"),
    *("SD", "window\nms", "clock\nbounds"),
)


def ratios(report: Report) -> doc.Table:
    """Return the table of bubble ratios, without columns that are empty."""
    summary = report.summary
    rows = []
    for definition in ratio_definitions():
        ratio, low = summary.bubble_ratio[definition.name], summary.bubble_low[definition.name]
        window = summary.window_ns[definition.name]
        mark = " !" if report.contradicted(definition.name) else ""
        rows.append(
            {
                "ratio": definition.name,
                "mean": doc.in_percent(ratio.mean) + mark,
                "lower\nbound": doc.in_percent(low.mean) if low.mean != ratio.mean else "",
                "clock\nbounds": doc.between(summary.bubble_interval[definition.name])
                if definition.common_clock
                else "not needed",
                "SD": doc.in_percent(ratio.std),
                "min": doc.in_percent(ratio.min),
                "max": doc.in_percent(ratio.max),
                "n": str(ratio.n),
                "bubble /\ncompute": doc.in_percent(summary.bubble_overhead[definition.name].mean),
                "window\nms": doc.milliseconds(window.mean),
                "window\nSD ms": doc.milliseconds(window.std),
                "window": definition.summary,
            }
        )
    nothing = {"lower\nbound": ("",), "clock\nbounds": ("", "not needed")}
    columns = [c for c in rows[0] if any(row[c] not in nothing.get(c, ()) for row in rows)]
    return doc.Table(
        "Bubble ratios over the averaged iterations, in %",
        [{column: row[column] for column in columns} for row in rows],
        left=("ratio", "window"),
        wrap=("window",),
        giving_way=_GIVING_WAY,
    )


# Times: how long operations take, and the path that bounds an iteration.


#: So many parts of the critical path, and stragglers, are listed.
_PARTS = 5
#: So many chunks of a prompt, or microbatches, are listed.
_MOST_CHUNKS = 8
#: What transfers are called beside operations.
_TRANSFERS = {"RECV_F": "F transfer", "RECV_B": "B transfer"}


def phase_times(report: Report) -> Iterator[doc.Block]:
    """Yield the busy times of operations and transfers, with imbalance and stragglers."""
    times = report.explanation.phase_times
    if not times.kinds:
        return
    rows = [
        {
            "stage": doc.numbered(kind.stage),
            "chunk": doc.numbered(kind.chunk),
            "phase": _TRANSFERS.get(kind.phase.label, kind.phase.label),
            "median": doc.milliseconds(kind.median_ns),
            "SD": doc.milliseconds(kind.std_ns),
            "min": doc.milliseconds(kind.min_ns),
            "max": doc.milliseconds(kind.max_ns),
            "first": doc.milliseconds(kind.first_ns),
            "last": doc.milliseconds(kind.last_ns),
            "n": str(kind.n),
        }
        for kind in times.kinds
    ]
    yield doc.Table(
        "Busy time of operations and transfers, ms (first, last: medians of those microbatches)",
        doc.first_rows(rows, "phase", joint=""),
        left=("phase",),
        giving_way=("first", "last", "min", "n", "SD", "max"),
    )
    lines = []
    if times.imbalance:
        shares = (f"{phase} +{100 * share:.1f} %" for phase, share in times.imbalance)
        lines.append(f"slowest stage over the mean: {', '.join(shares)}")
    if times.transfer_ns is not None:
        lines.append(f"a transfer takes {doc.milliseconds(times.transfer_ns)} ms (median)")
    lines.extend(
        f"straggler: {operation_label(report, row)} of "
        f"{rank_label(report, int(report.operations.rank[row]))} in iteration "
        f"{report.iterations[int(report.operations.iteration[row])].name} took "
        f"{many:.2f} times the median of its kind"
        for row, many in times.stragglers[:_PARTS]
    )
    yield doc.bullets([one_line(line, 300) for line in lines]) if lines else doc.Sentence("")
    rows = [
        {
            "stage": doc.numbered(cost.virtual_stage),
            "tokens": f"{cost.least_tokens:,}-{cost.most_tokens:,}",
            "time of a chunk": cost_in_words(cost),
            "us/token": _per_token(cost),
            "residual ms": doc.milliseconds(cost.residual_ns),
            "explained %": doc.in_percent(cost.explained),
            "n": str(cost.n),
        }
        for cost in report.explanation.chunk_costs[: doc.MOST_ROWS]
    ]
    yield doc.Table(
        "Time of a chunk by its tokens: the fit with the least squares",
        rows,
        left=("time of a chunk",),
        giving_way=("n", "tokens", "explained %", "us/token"),
    )
    if (even := even_chunks(report.explanation.chunk_costs)) is not None:
        stage, tokens, equal_ns, even_ns = even
        shown = ", ".join(f"{own:,}" for own in tokens[:_MOST_CHUNKS])
        yield doc.bullets([
            f"prompts of {sum(tokens):,} tokens in chunks that take as long on stage {stage} as "
            f"their first: {shown}{', ...' if len(tokens) > _MOST_CHUNKS else ''}; "
            f"{doc.milliseconds(even_ns)} in place of {doc.milliseconds(equal_ns)} ms "
            f"({100 * (even_ns / equal_ns - 1):+.1f} %)"
        ])  # fmt: skip


def _per_token(cost: ChunkCost) -> str:
    """Return the fitted times of the shortest and the longest chunk, by token."""
    ends = np.array([cost.least_tokens, cost.most_tokens], np.float64)
    times_us = cost.time_ns(ends) / np.maximum(ends, 1) / 1e3
    return "-".join(f"{us:.3f}" for us in times_us[: len(set(ends))])


def critical_path(report: Report) -> Iterator[doc.Block]:
    """Yield the critical path of the typical iteration."""
    path = report.explanation.path
    if path is None or len(path.operations) == 0:
        return
    name = one_line(report.iterations[path.iteration].name, 60)
    yield doc.heading(
        f"Critical path of iteration {name}: {doc.milliseconds(path.length_ns)} ms, "
        f"{counted(len(path.operations), 'operation')}"
    )
    lines = [
        f"{doc.milliseconds(part.time_ns)} ms: {part.what} on "
        f"{one_line(rank_label(report, part.rank), 60)} ({part.count})"
        for part in path.parts[:_PARTS]
    ]
    if path.collectives:
        passed = []
        for own in path.collectives:
            on_to = f", on to {rank_label(report, own.rank)}" if own.rank != own.last_rank else ""
            passed.append(f"{own.what} ({rank_label(report, own.last_rank)} entered last{on_to})")
        lines.append(f"it passes {listed(passed, _PARTS)}")
    yield doc.bullets(lines)


# What-if: the iteration without each delay, and other schedules at the measured times.


_MEMORY = "fits in the same memory"
#: An order of microbatches that saves less is not worth a sentence.
_REORDERED = 0.01


def changes(report: Report) -> Iterator[doc.Block]:
    """Yield the length of the typical iteration without each delay."""
    replayed = report.explanation.changes
    if not replayed:
        return
    whole = replayed[0].makespan_ns
    rows = [
        {
            "what if": change.change,
            "iteration ms": doc.milliseconds(change.makespan_ns),
            "time saved %": doc.in_percent(1 - change.makespan_ns / whole if whole else None),
            "schedule %": doc.in_percent(change.bubble_ratio),
        }
        for change in replayed
    ]
    yield doc.Table(
        "Typical iteration without each delay, all else as measured",
        rows,
        left=("what if",),
        wrap=("what if",),
        giving_way=("schedule %",),
    )
    if report.headline == "period":
        yield doc.Sentence(
            "The iteration as if alone: consecutive iterations overlap, so training waits for the "
            "period, which may change less"
        )


def what_if(report: Report) -> Iterator[doc.Block]:
    """Yield what other schedules would take, where the report has them."""
    others = report.what_if
    if others is None:
        return
    if others.measured is None:
        yield doc.Sentence(f"\nOther schedules cannot be compared: {one_line(others.reason, 300)}")
        return
    by_stage = others.window == "stage"
    # Most reports compare no other schedules.

    in_bytes = any(row.peak_bytes is not None for row in others.rows)
    limit = others.limit_bytes
    fits = _MEMORY if limit is None else f"fits in {memory_text(limit)}"
    called = {MEASURED: "as measured", NO_DELAY: "the same order, without any delay"}
    ran = report.schedule.name if report.schedule is not None else None
    rows = []
    for row in others.rows:
        time_ms = row.cost_ms if by_stage else row.makespan_ms
        peak = "-" if row.peak_bytes is None else memory_text(row.peak_bytes)
        activations = "-" if row.peak_activations is None else f"{row.peak_activations:.2f}"
        known = time_ms is not None
        cells = {
            "stage window ms" if by_stage else "iteration ms": f"{time_ms or 0:,.3f}",
            "time saved %": doc.in_percent(row.speedup),
            "stage %" if by_stage else "schedule %": doc.in_percent(row.bubble_ratio),
            "activations": activations,
            **({"peak memory": peak} if in_bytes else {}),
        }
        why = doc.shortened(one_line(row.reason, 200), 40)
        name = called.get(row.schedule, row.schedule)
        rows.append(
            {
                "order": f"{name} (this one)" if row.schedule == ran else name,
                **(cells if known else dict.fromkeys(cells, "-")),
                fits: why if not known else "yes" if row.fits else "no",
            }
        )
    yield doc.Table(
        "Schedules at the measured times: this run as measured, other schedules with no delay but "
        "transfers",
        rows,
        left=("order", fits),
        wrap=(fits,),
    )
    measured = others.measured
    if others.reordered is not None and others.reordered[1] >= _REORDERED:
        order, saved = others.reordered
        numbers = ", ".join(map(str, order[:_MOST_CHUNKS]))
        yield doc.Sentence(
            f"Microbatches of unequal length, in the order {numbers}"
            f"{', ...' if len(order) > _MOST_CHUNKS else ''} of their numbers: "
            f"{doc.in_percent(saved)} % less (short ones first and last; whole order with "
            "-o report.json)"
        )
    if by_stage:
        yield doc.Sentence(
            "Consecutive iterations overlap, so the longest rank's window (stage) is compared: no "
            "period is shorter"
        )
    yield doc.Sentence(
        f"Times of {counted(measured.stages, 'stage')} and "
        f"{counted(measured.microbatches, 'microbatch', 'microbatches')} are the means of the "
        f"pipeline that takes longest; a transfer takes {measured.times.transfer_ms:,.3f} ms; "
        "activations: the most microbatches that a stage holds, each from F to W; fits in the same "
        "memory: no more activations than measured, and the weights once. Searched orders are "
        f"those of the shortest {'window' if by_stage else 'iteration'}."
        + (
            ""
            if measured.split
            else " The backward was measured as one operation: half of it counts as W."
        )
    )
