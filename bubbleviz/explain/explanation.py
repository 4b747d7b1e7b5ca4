"""Explain: why there are bubbles, what bounds an iteration, and what removing delays would save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.count.rank_slices import joined_ranks, stage_and_pipeline
from bubbleviz.count.ratios import Extents, Windows
from bubbleviz.count.summary import training_overlaps
from bubbleviz.explain import phase_times
from bubbleviz.explain import stretch as stretches
from bubbleviz.explain.causes.bubbles import Bubbles, with_host_activity
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import CauseTimes, causes_of
from bubbleviz.explain.changes import Change, replay_changes
from bubbleviz.explain.dependencies import dependencies_of, inputs_of
from bubbleviz.explain.diagnosis.findings import Diagnosis, diagnosis_of
from bubbleviz.explain.path import CriticalPath, build_graph, find_critical_path
from bubbleviz.explain.phase_times import (
    ChunkCost,
    CommunicationTimes,
    PhaseTimes,
    Receives,
    Samples,
)
from bubbleviz.explain.replayed_ranks import ReplayedRanks, choose_replayed_ranks
from bubbleviz.explain.slowdown.replayed_run import (
    ExplainedRows,
    ReplayedRun,
    joined_rows,
    moved_rows,
    renumbered,
)
from bubbleviz.explain.slowdown.slowdowns import (
    Scenarios,
    Slowdowns,
    scenarios_of_run,
    slowdowns_of,
)
from bubbleviz.explain.slowdown.start_up import without_start_up
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK
from bubbleviz.model.texts import counted
from bubbleviz.model.window import Window

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

# The explanation of one stretch, and what it hands on to that of the run.
#
# :func:`explain_stretch` looks at nothing else, so that it runs wherever the ranks of a stretch
# are; what it returns is small beside them.


@dataclass(frozen=True, eq=False, repr=False)
class StretchExplanation:
    """What is explained of one stretch.

    Attributes:
        idle_ns: idle time by cause, as of :class:`.CauseTimes`.
        communication: of its ranks.
        samples: what phase times are worked out from, as of :func:`.phase_samples_of`.
        received: of each iteration, how many receives it has.
        crossing: of each iteration, whether any operation takes from another rank.
        kept: rows of the ranks that are kept, with numbers of the run.
    """

    idle_ns: Mapping[str, Ints]
    communication: CommunicationTimes
    samples: tuple[Samples, Samples, Samples]
    received: Ints
    crossing: Bools
    kept: ExplainedRows


def explain_stretch(stretch: stretches.Stretch) -> StretchExplanation:
    """Return why the ranks of a stretch were idle, and how long its operations took.

    Args:
        stretch: whole pipelines of a run.
    """
    operations = stretch.operations
    dependencies = dependencies_of(operations, stretch.ranks)
    if not stretch.stages_known:
        dependencies = dependencies.take(slice(0))
    inputs = inputs_of(
        operations,
        dependencies,
        stages_known=stretch.stages_known,
        passing=stretch.passing,
        ends_early=stretch.ends_early,
    )
    known = arrivals(operations)
    causes, bubbles, idle, tokens = causes_of(stretch, inputs, known)
    bubbles = with_host_activity(bubbles, stretch.hosts)
    receives = phase_times.receives_of(operations, inputs, known, idle)
    iterations = len(stretch.averaged)
    received = operations.iteration[receives.operation]
    crossing = np.zeros(iterations + 1, bool)
    crossing[operations.iteration[inputs.producer != NONE]] = True
    rows = ExplainedRows(dependencies, receives, idle, bubbles, tokens)
    if not stretch.kept.all():
        rows = rows.of_ranks(stretch.kept, operations.rank)
    return StretchExplanation(
        idle_ns=causes.idle_ns,
        communication=phase_times.communication_of(
            stretch, receives, causes.idle_ns[stretch.listed][:, :, Cause.COLLECTIVE]
        ),
        samples=phase_times.phase_samples_of(
            operations, receives, inputs, known, stretch.first_row
        ),
        received=np.bincount(received[received >= 0], minlength=iterations),
        crossing=crossing[:iterations],
        kept=rows.placed(
            moved_rows(stretch.first_row, len(operations), stretch.elsewhere),
            operations.take(slice(0)),
            stretch.first_rank,
        ),
    )


#: Iterations with more operations than this are not replayed: it takes seconds.
MOST_OPERATIONS = 500_000
#: Of more operations over all iterations a replay takes half a minute and several gigabytes.
MOST_REPLAYED = 5_000_000

#: Calls a function with each of some stretches, in their order; ``map``, or what is like it.
Each: TypeAlias = Callable[
    [Callable[[stretches.Stretch], StretchExplanation], Iterable[stretches.Stretch]],
    Iterable[StretchExplanation],
]


@dataclass(frozen=True)
class Explanation:
    """Why there are bubbles, and what bounds an iteration.

    Attributes:
        causes: idle time by cause.
        explained: returns the tables that have rows for single operations.
        listed_ratio: name of the ratio in whose windows bubbles are.
        received: of each iteration, how many receives it has whose input is known.
        communication: how long receives waited, and how long their transfers took.
        phase_times: how long operations take.
        path: critical path of the typical iteration; None where it is unknown.
        changes: The typical iteration under each change, or empty if they are unknown.
        no_path_reason: why these are unknown, where nothing else in the report gives the reason;
            else empty.
        slowdown_source: what slowdowns over all iterations are worked out from; None in a report
            that has none.
        replayed_ranks: Ranks that path, changes and diagnosis are worked out of, or None for all.
        replayed_source: the part of ``slowdown_source`` that these have; None for all of it.
        chunk_costs: how long forwards of so many tokens take, by virtual stage; empty where no
            name tells their tokens.
        layout: the layers of the stages; None where they are not known.
        ran: name of the schedule that ran; None where it is not known.
        period_ns: mean time from one iteration to the next, where training iterations overlap; None
            where not.
    """

    causes: CauseTimes
    explained: Callable[[], ExplainedRows]
    listed_ratio: str
    received: Ints
    communication: CommunicationTimes
    phase_times: PhaseTimes
    path: CriticalPath | None
    changes: tuple[Change, ...]
    no_path_reason: str = ""
    slowdown_source: ReplayedRun | None = None
    chunk_costs: tuple[ChunkCost, ...] = ()
    replayed_ranks: ReplayedRanks | None = None
    replayed_source: ReplayedRun | None = None
    layout: LayoutQuestion | None = None
    ran: str | None = None
    period_ns: float | None = None

    @property
    def bubbles(self) -> Bubbles:
        """The idle intervals in the headline's windows.

        Of a run of many ranks they are worked out when they are first asked for, as receives are.
        """
        return self.explained().bubbles

    @property
    def receives(self) -> Receives:
        """How long single receives waited, and how long their transfers took."""
        return self.explained().receives

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """The averaged iterations of all ranks, to be replayed; None where that is unknown.

        They are worked out when they are first asked for, which takes seconds for a million
        operations.
        """
        return None if self.slowdown_source is None else scenarios_of_run(self.slowdown_source)

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """What stragglers cost over all averaged iterations; None where that is unknown."""
        return None if self.scenarios is None else slowdowns_of(self.scenarios)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What makes the averaged iterations long; None where that is unknown."""
        part, source = self.replayed_source, self.replayed_source or self.slowdown_source
        scenarios = self.scenarios if part is None else scenarios_of_run(part)
        if source is None or scenarios is None:
            return None
        return diagnosis_of(source, scenarios, self.layout, self.ran, self.period_ns)


def _every_row(run: Run, counts: Counts) -> ExplainedRows:
    """Return the rows of all ranks of a run whose stretches were explained without most of them."""
    whole = map(explain_stretch, stretches.stretches_of(run, counts))
    return joined_rows([part.kept for part in whole], run.operations)


def _once(make: Callable[[], ExplainedRows], known: list[ExplainedRows]) -> ExplainedRows:
    """Return what is known, made when it is first asked for."""
    if not known:
        known.append(make())
    return known[0]


def explain(run: Run, counts: Counts, each: Each = map) -> Explanation:
    """Return why a run has bubbles, and what bounds its typical iteration.

    Args:
        run: the merged profiles.
        counts: its ratios.
        each: explains stretches, here or on other machines.
    """
    operations, (stage, pipeline) = run.operations, stage_and_pipeline(run.ranks)
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    part = choose_replayed_ranks(operations, run.ranks, averaged)
    chosen = None if part is None else part.chosen
    parts = list(each(explain_stretch, stretches.stretches_of(run, counts, chosen)))
    shown = typical(counts.iterations, counts.headline)
    kept = joined_rows([part.kept for part in parts], operations)
    crossing = np.logical_or.reduce([own.crossing for own in parts])
    unordered = ""
    if shown is not None:
        unordered = _unordered_reason(run, shown, crossing=bool(crossing[shown.index]))
    causes = joined_ranks([own.idle_ns for own in parts])
    communication = joined_ranks([vars(own.communication) for own in parts])
    received = np.sum([own.received for own in parts], axis=0)
    ratios = tuple(parts[0].idle_ns)
    times = phase_times.phase_times_of(operations, stage, averaged, [own.samples for own in parts])
    # Partials of functions of a module: reports are pickled.
    lacking = part is not None and len(parts) > 1
    rows = partial(_once, partial(_every_row, run, counts), [] if lacking else [kept])
    source = replayed = ReplayedRun(
        operations,
        run.ranks,
        rows,
        without_start_up(run.collectives, operations, averaged),
        averaged,
        run.hosts,
        np.arange(len(averaged)),
        _no_replay_reason(run, shown) or unordered,
        counts.extents.paused,
        run.gap_ns if run.has_kernels else None,
    )
    if part is not None:
        replayed = source.of_ranks(part.chosen, kept)
    reason = unordered
    if shown is not None:
        own = replayed.operations
        count = int(((own.iteration == shown.index) & among(own.phase, WORK)).sum())
        reason = _too_many(f"iteration {shown.name}", count, MOST_OPERATIONS) or unordered
    path: CriticalPath | None = None
    changes: tuple[Change, ...] = ()
    if not reason and shown is not None and _comparable(shown):
        graph = build_graph(replayed, shown.index)
        ranks = [r for r in indices_of(shown.ranks) if chosen is None or chosen[r]]
        path = find_critical_path(graph, replayed.explained().idle, shown.index)
        changes = replay_changes(graph, replayed.operations, len(ranks))
        if part is not None:
            # Rows of the run, of which a part is replayed.
            of_part = np.flatnonzero(part.chosen[operations.rank])
            path = replace(
                path, operations=of_part[path.operations], replayed=of_part[path.replayed]
            )
    if shown is not None:
        kinds = phase_times.of_slowest_pipeline(times.kinds, operations, pipeline, shown.index)
        times = replace(times, kinds=kinds)
    layout: LayoutQuestion | None = None
    if run.layers and shown is not None:
        # Most profiles have no ranges of layers.
        from bubbleviz.explain.stage_layers import layout_question

        layout = layout_question(run.layers, times, shown.microbatches)
    overlapping = counts.headline == "period" and training_overlaps(counts.iterations)
    return Explanation(
        causes=CauseTimes(dict(zip(ratios, causes, strict=True))),
        explained=rows,
        listed_ratio=kept.bubbles.ratio,
        received=received,
        communication=CommunicationTimes(*communication),
        phase_times=times,
        path=path,
        changes=changes,
        no_path_reason=reason,
        slowdown_source=source,
        chunk_costs=phase_times.chunk_costs_of(operations, stage, averaged),
        replayed_ranks=part,
        replayed_source=None if part is None else replayed,
        layout=layout,
        period_ns=counts.summary.window_ns["period"].mean if overlapping else None,
    )


def _unordered_reason(run: Run, shown: Iteration, *, crossing: bool) -> str:
    """Return why it is unknown what operations of an iteration wait for; empty where it is not.

    Without known dependencies between ranks, each rank would stand alone.

    Args:
        run: the merged profiles.
        shown: the iteration.
        crossing: whether any operation of it is known to take from another rank.
    """
    if stretches.stages_contradicted(run):
        return "the order of stages contradicts the data dependencies that they rest on"
    stages = {run.ranks[rank].stage for rank in indices_of(shown.ranks)}
    if len(shown.ranks) == 1 or stages == {0}:
        return ""
    if None in stages or not crossing:
        unknown = "stages" if None in stages else "microbatches"
        return f"dependencies between ranks are unknown, since {unknown} are unknown"
    return ""


def _too_many(what: str, count: int, most: int) -> str:
    """Return why what holds so many operations is not replayed; empty where it is."""
    held = f"{what} holds {counted(count, 'operation')}; at most {most:,} are replayed"
    return held if count > most else ""


def _no_replay_reason(run: Run, shown: Iteration | None) -> str:
    """Return why iterations cannot be replayed over all ranks; empty where they can.

    It may be unknown beside that what operations wait for.
    """
    if shown is None or not shown.averaged:
        return "no complete training iteration was recorded"
    if not run.paired:
        return "iterations could not be matched across ranks"
    if not _comparable(shown):
        return "the ranks share no clock"
    return _too_many("the run", len(run.operations), MOST_REPLAYED)


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None


# Windowed: a run, its counts and their explanation, cut to the iterations of a window.
#
# Clocks, stages, overlap of iterations, and the start of the iteration after the window (where the
# last period ends) come from the whole capture. Only the contents of the report are cut.


#: Subject of the limitation for the rest of the capture.
OUTSIDE = "iterations outside the window"

IterationColumns = TypeVar("IterationColumns", Extents, Windows, CommunicationTimes)


def _rows_inside(
    explained: Callable[[], ExplainedRows], number: Ints, row: Ints, operations: Operations
) -> ExplainedRows:
    """Return bubbles and receives of a window; what is replayed has its own rows.

    Args:
        explained: returns the rows of the run.
        number: new number of each iteration; -1 for those outside, and for -1.
        row: likewise of operations.
        operations: those inside.
    """
    whole = explained()
    receives = whole.receives.take(row[whole.receives.operation] >= 0)
    bubbles = whole.bubbles.take(number[whole.bubbles.iteration] >= 0)
    # They keep no references to operations outside it.
    bubbles = renumbered(bubbles, row.__getitem__)
    bubbles = replace(bubbles, iteration=number[bubbles.iteration], operations=operations)
    receives = renumbered(receives, row.__getitem__)
    return replace(whole, bubbles=bubbles, receives=receives)


def windowed(
    window: Window | None, run: Run, counts: Counts, explanation: Explanation
) -> tuple[Run, Counts, Explanation]:
    """Return a run, its counts and their explanation, cut to the iterations inside a window.

    Args:
        window: of the report; None for the whole run.
        run: the merged profiles.
        counts: its ratios, counted with this window.
        explanation: of the run.
    """
    if window is None or counts.inside.all():
        return run, counts, explanation
    inside = counts.inside
    iterations, kept = np.flatnonzero(inside), np.append(inside, False)[run.operations.iteration]
    # The new number of each iteration and operation; -1 for others, and for -1.
    number, row = (
        np.append(np.where(some, np.cumsum(some) - 1, NONE), NONE) for some in (inside, kept)
    )
    cut = _cut_run(run, counts, iterations, number, row)
    rows = partial(_rows_inside, explanation.explained, number, row, cut.operations)
    times, path, idle_ns = explanation.phase_times, explanation.path, explanation.causes.idle_ns
    source, replayed = explanation.slowdown_source, explanation.replayed_source
    stragglers = ((int(row[operation]), many) for operation, many in times.stragglers)
    return (
        replace(cut, limitations=(_left_out(window, counts), *run.limitations)),
        replace(
            counts,
            iterations=tuple(
                replace(counts.iterations[k], index=index)
                for index, k in enumerate(iterations.tolist())
            ),
            extents=_of_iterations(counts.extents, iterations),
            windows={name: _of_iterations(w, iterations) for name, w in counts.windows.items()},
            one_clock=counts.one_clock[iterations],
            inside=inside[iterations],
            alike=counts.alike[iterations],
        ),
        replace(
            explanation,
            causes=CauseTimes({name: idle[iterations] for name, idle in idle_ns.items()}),
            explained=partial(_once, rows, []),
            received=explanation.received[iterations],
            communication=_of_iterations(explanation.communication, iterations),
            phase_times=replace(times, stragglers=tuple(stragglers)),
            path=path
            and replace(
                path,
                iteration=int(number[path.iteration]),
                operations=row[path.operations],
                replayed=row[path.replayed],
            ),
            slowdown_source=source and replace(source, numbers=number[:-1]),
            replayed_source=replayed and replace(replayed, numbers=number[:-1]),
        ),
    )


def _of_iterations(columns: IterationColumns, iterations: Ints) -> IterationColumns:
    """Return columns of shape (iterations, ...) of some iterations."""
    some: dict[str, Any] = {
        n: None if column is None else column[iterations] for n, column in vars(columns).items()
    }
    return replace(columns, **some)


def _left_out(window: Window, counts: Counts) -> Limitation:
    """Return the limitation for the rest of the capture."""
    start_ns = np.array([i.start_ns for i in counts.iterations], np.int64)
    end_ns = np.array([i.end_ns for i in counts.iterations], np.int64)
    cut = int((window.touches(start_ns, end_ns) & ~counts.inside).sum())
    partly = f" ({cut} of them lie partly in it)" if cut else ""
    reason = (
        f"--window {window.text} leaves them out{partly}; numbers of whole profiles, such as "
        "coverage, are of the whole capture"
    )
    return Limitation(OUTSIDE, reason, int((~counts.inside).sum()))


def _cut_run(run: Run, counts: Counts, iterations: Ints, number: Ints, row: Ints) -> Run:
    """Return a run of some iterations.

    Args:
        run: all of it.
        counts: its ratios.
        iterations: that are kept.
        number: new number of each iteration; -1 for others, and for -1.
        row: likewise of each operation.
    """
    # From the first start to the last end of the windows of all ratios.
    extents, present = counts.extents, counts.extents.present & counts.inside[:, None]
    starts, ends = [extents.first_ns[present]], [extents.step_last_ns[present]]
    for window in counts.windows.values():
        known = present & window.known[:, None]
        starts.append(window.start_ns[known])
        ends.append(window.end_ns[known])
    extent_ns = (
        (int(np.concatenate(starts).min()), int(np.concatenate(ends).max()))
        if present.any()
        else (0, 0)
    )

    def clipped(times: RankIntervals) -> RankIntervals:
        start_ns, end_ns = np.clip(times.start_ns, *extent_ns), np.clip(times.end_ns, *extent_ns)
        some = end_ns > start_ns
        return RankIntervals(times.rank[some], start_ns[some], end_ns[some])

    operations = run.operations.take(row[:-1] >= 0)
    busy = run.busy.take(row[run.busy.operation] >= 0)
    hosts = run.hosts.take((run.hosts.operation == NONE) | (row[run.hosts.operation] >= 0))
    met = run.collectives.take(number[run.collectives.iteration] >= 0)
    return replace(
        run,
        operations=operations.changed(iteration=number[operations.iteration]),
        busy=replace(busy, operation=row[busy.operation]),
        active_ns=run.active_ns[iterations],
        kernel_ns=run.kernel_ns[iterations],
        gap_ns=run.gap_ns[iterations],
        collective_gap_ns=run.collective_gap_ns[iterations],
        unattributed=clipped(run.unattributed),
        exposed=clipped(run.exposed),
        collectives=met.changed(iteration=number[met.iteration], operation=row[met.operation]),
        overheads=clipped(run.overheads),
        unrecorded=clipped(run.unrecorded),
        pauses=clipped(run.pauses),
        hosts=replace(hosts, operation=row[hosts.operation]),
        iteration_names=tuple(run.iteration_names[k] for k in iterations.tolist()),
    )
