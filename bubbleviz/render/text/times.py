"""Tables of operation durations and memory, and the critical path of an iteration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.explain.phase_times import PhaseTime
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import format_count, list_first, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.text.layer_moves import list_layer_moves
from bubbleviz.report.labels import format_operation, name_rank, truncate_name
from bubbleviz.report.layer_moves import find_layer_moves
from bubbleviz.report.memory import RankPeak
from bubbleviz.report.prompt_chunks import (
    describe_split_time,
    describe_unmeasured_lengths,
    explain_split_time,
    format_cost,
)
from bubbleviz.report.report import Report

#: Maximum number of critical-path parts, and of stragglers, to list.
_PARTS = 5
#: Maximum number of prompt chunks to list.
_MAX_CHUNKS = 64
#: Names used in tables for receive operations, which represent transfers.
_TRANSFERS = {"RECV_F": "F transfer", "RECV_B": "B transfer"}


def list_phase_times(report: Report) -> Iterator[doc.Block]:
    """Yield a table of busy times by operation or transfer kind, with notes below.

    The notes contain the stage imbalance, the median transfer time and the slowest stragglers. If
    token counts are known, a table of prompt chunk costs follows. Yields nothing if no busy times
    are known.
    """
    times = report.explanation.phase_times
    if not times.kinds:
        return
    rows = [_make_phase_row(kind) for kind in times.kinds]
    yield doc.Table(
        "Busy time of operations and transfers, ms (first, last: median of that microbatch)",
        doc.truncate_rows(rows, "phase", joint=""),
        left=("phase",),
        drop_order=("first", "last", "min", "n", "SD", "max"),
    )
    lines = []
    if times.imbalance:
        shares = (f"{phase} +{100 * share:.1f} %" for phase, share in times.imbalance)
        lines.append(f"slowest stage compared with the mean: {', '.join(shares)}")
    if times.transfer_ns is not None:
        lines.append(f"a transfer takes {doc.format_ms(times.transfer_ns)} ms (median)")
    for row, multiple in times.stragglers[:_PARTS]:
        rank = name_rank(report, int(report.operations.rank[row]))
        iteration = report.iterations[int(report.operations.iteration[row])].name
        lines.append(
            f"straggler: {format_operation(report, row)} of {rank} in iteration {iteration} took "
            f"{multiple:.2f} times the median of its kind"
        )
    yield (
        doc.make_bullets([to_one_line(line, 300) for line in lines]) if lines else doc.Sentence("")
    )
    yield from _list_chunk_costs(report)


def _make_phase_row(kind: PhaseTime) -> dict[str, str]:
    """Return the table cells for one kind of operation, keyed by header.

    Times are in ms. The columns ``first`` and ``last`` contain the times of the first and the last
    microbatch, as medians over iterations.
    """
    label = kind.phase.label
    times_ns = {
        "median": kind.median_ns,
        "SD": kind.std_ns,
        "min": kind.min_ns,
        "max": kind.max_ns,
        "first": kind.first_ns,
        "last": kind.last_ns,
    }
    return {
        "stage": doc.format_index(kind.stage),
        "chunk": doc.format_index(kind.chunk),
        "phase": _TRANSFERS.get(label, label),
        **{name: doc.format_ms(time_ns) for name, time_ns in times_ns.items()},
        "n": str(kind.n),
    }


def list_warm_up(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the extra time of each stage in the first iteration, and its sum.

    Yields nothing if the first iteration has little extra time, or if it is unknown.
    """
    step = report.explanation.first_step
    if step is None or not step.stages:
        return
    rows = [
        {
            "stage": str(stage.stage),
            "rank": str(stage.rank),
            "forwards ms": doc.format_ms(stage.forward_ns),
            "backwards ms": doc.format_ms(stage.backward_ns),
            "all ms": doc.format_ms(stage.extra_ns),
            "longest host activity": to_one_line(stage.activity, 40) or "-",
        }
        for stage in step.stages[: doc.MAX_ROWS]
    ]
    name = truncate_name(report.iterations[step.iteration].name)
    title = f"Iteration {name}: extra time compared with later iterations, by stage"
    yield doc.Table(title, rows, left=("longest host activity",), drop_order=("rank",))
    sentences = [
        f"iteration {name} takes {doc.format_ms(step.length_ns)} ms instead of "
        f"{doc.format_ms(step.usual_ns)} ms; the stages take {doc.format_ms(step.total_ns)} ms "
        f"longer in total, during {doc.format_ms(step.elapsed_ns)} ms, and the slowest stage takes "
        f"{doc.format_ms(step.longest_ns)} ms longer"
    ]
    if step.saving_ns:
        saving = doc.format_ms(step.saving_ns)
        sentences.append(f"warming up all stages at the same time would save up to {saving} ms")
    yield doc.make_bullets(sentences)


def _list_chunk_costs(report: Report) -> Iterator[doc.Block]:
    """Yield a table of what a prompt chunk costs on each virtual stage.

    The cost is a least-squares fit of time against tokens. If possible, a proposal follows for
    dividing a prompt into chunks that take equal time.
    """
    rows = [
        {
            "stage": doc.format_index(cost.virtual_stage),
            "tokens": f"{cost.least_tokens:,}-{cost.most_tokens:,}",
            "time of a chunk": format_cost(cost),
            "us/token": _format_per_token(cost),
            "residual ms": doc.format_ms(cost.residual_ns),
            "explained %": doc.format_percent_cell(cost.explained),
            "n": str(cost.n),
        }
        for cost in report.explanation.chunk_costs[: doc.MAX_ROWS]
    ]
    yield doc.Table(
        "Time of a chunk by number of tokens (least-squares fit)",
        rows,
        left=("time of a chunk",),
        drop_order=("n", "tokens", "explained %", "us/token"),
    )
    split = report.explanation.prompt_split
    if split is None:
        return
    tokens = split.tokens
    ellipsis = ", ..." if len(tokens) > _MAX_CHUNKS else ""
    listed_tokens = ", ".join(f"{n_tokens:,}" for n_tokens in tokens[:_MAX_CHUNKS])
    sentences = [
        f"chunks of equal time on stage {split.virtual_stage} for prompts of {sum(tokens):,} "
        f"tokens: {listed_tokens}{ellipsis} tokens; {describe_split_time(split)} "
        f"({100 * (split.even_ns / split.equal_ns - 1):+.1f} %)",
        "" if split.max_fixed_ns is None else explain_split_time(split),
        describe_unmeasured_lengths(split, report.explanation.chunk_costs),
    ]
    yield doc.make_bullets([sentence for sentence in sentences if sentence])


def _format_per_token(cost: ChunkCost) -> str:
    """Return the fitted time per token in microseconds, as text.

    The text is a range: the time per token in the shortest chunk, and in the longest chunk. If all
    chunks have the same number of tokens, the text is a single time.
    """
    token_range = np.array([cost.least_tokens, cost.most_tokens], np.float64)
    times_us = cost.time_ns(token_range) / np.maximum(token_range, 1) / 1e3
    return "-".join(f"{us:.3f}" for us in times_us[: len(set(token_range))])


def list_critical_path(report: Report) -> Iterator[doc.Block]:
    """Yield the critical path of the typical iteration, or nothing if it is unknown.

    At most ``_PARTS`` parts of the path are listed, each with its total time. The last entry lists
    the collectives on the path.
    """
    path = report.explanation.path
    if path is None or len(path.operations) == 0:
        return
    name = to_one_line(report.iterations[path.iteration].name, 60)
    yield doc.make_heading(
        f"Critical path of iteration {name}: {doc.format_ms(path.length_ns)} ms, "
        f"{format_count(len(path.operations), 'operation')}"
    )
    lines = []
    for part in path.parts[:_PARTS]:
        rank = to_one_line(name_rank(report, part.rank), 60)
        lines.append(f"{doc.format_ms(part.time_ns)} ms: {part.what} on {rank} ({part.count})")
    if path.collectives:
        collectives = []
        for step in path.collectives:
            last = name_rank(report, step.last_rank)
            on_to = (
                ""
                if step.rank == step.last_rank
                else f"; the path continues on {name_rank(report, step.rank)}"
            )
            collectives.append(f"{step.what} ({last} entered last{on_to})")
        lines.append(f"the path passes through {list_first(collectives, _PARTS)}")
    yield doc.make_bullets(lines)


#: Maximum number of virtual stages in the memory table.
_MAX_STAGES = 64


def list_memory(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the memory needed by a microbatch on each virtual stage.

    Yields nothing if memory was not recorded. A virtual stage has a row only if the memory of its F
    operations was measured. The last column is the maximum peak memory over the stage's ranks.
    """
    if report.memory is None:
        return
    peaks: dict[int | None, list[int]] = {}
    for peak in report.memory.ranks:
        peaks.setdefault(peak.stage, []).append(peak.peak_bytes)
    times = report.explanation.phase_times.kinds
    stage_of: dict[int | None, int] = {kind.virtual_stage: kind.stage for kind in times}
    forwards, backward_bytes = [], dict[int | None, list[float]]()
    for kind in report.memory.operations:
        if kind.phase == Phase.F.label:
            forwards.append(kind)
        else:
            backward_bytes.setdefault(kind.virtual_stage, []).append(kind.above_bytes)
    rows = []
    for forward in forwards[:_MAX_STAGES]:
        stage = forward.virtual_stage
        amounts = {
            "F leaves": forward.net_bytes,
            "kept until B": forward.held_bytes,
            "kept until W": forward.kept_bytes,
            "F needs": forward.above_bytes - forward.net_bytes,
            "backward needs": max(backward_bytes.get(stage, []), default=None),
            "rank's peak": max(peaks.get(stage_of.get(stage), []), default=None),
        }
        cells = {name: _format_bytes(amount) for name, amount in amounts.items()}
        rows.append({"virtual stage": doc.format_index(stage), **cells})
    if rows:
        yield doc.Table("Memory of a microbatch", rows)
        yield doc.Sentence(
            "kept until B: activations of a microbatch; kept until W: the part that only W frees; "
            "needs: temporary memory (see: bubbleviz guide memory)"
        )


def list_peaks(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the peak memory of each stage, and which stages have memory to spare.

    The memory to spare is the difference to the highest peak of any rank. Yields nothing if memory
    was not recorded.
    """
    if report.memory is None:
        return
    peaks: dict[int | None, list[RankPeak]] = {}
    for peak in report.memory.ranks:
        peaks.setdefault(peak.stage, []).append(peak)
    highest = max(report.memory.ranks, key=lambda peak: peak.peak_bytes)
    stages = sorted(peaks, key=lambda stage: (stage is None, stage))
    rows = []
    for stage in stages[:_MAX_STAGES]:
        sizes = [peak.peak_bytes for peak in peaks[stage]]
        resident = [p.resident_bytes for p in peaks[stage] if p.resident_bytes is not None]
        amounts = {
            "lowest peak": min(sizes),
            "highest peak": max(sizes),
            "resident": max(resident, default=None),
            "to spare": highest.peak_bytes - max(sizes),
        }
        cells = {name: _format_bytes(amount) for name, amount in amounts.items()}
        rows.append({"stage": doc.format_index(stage), "ranks": f"{len(sizes):,}", **cells})
    yield doc.Table(
        "Peak memory by stage", rows, n_omitted=len(stages) - len(rows), hint=" (-o report.json)"
    )
    name = to_one_line(name_rank(report, highest.rank), 60)
    yield doc.Sentence(
        "to spare: below the highest peak of all profiled ranks, "
        f"{_format_bytes(highest.peak_bytes)} on {name}; resident: weights, gradients and "
        "optimizer states, allocated when an iteration begins"
    )
    moves = find_layer_moves(report)
    if moves is not None:
        yield from list_layer_moves(moves)
        return
    yield doc.Sentence(
        "what moving one layer does to time and memory is unknown: the ranges of the layers or the "
        "schedule are unknown (bubbleviz guide layout)"
    )


def _format_bytes(amount: float | None) -> str:
    return "-" if amount is None else format_memory(amount)
