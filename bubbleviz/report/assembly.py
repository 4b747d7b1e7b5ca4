"""Assembly: the report, made of what every stage of the analysis handed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from bubbleviz._version import __version__
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iterations
from bubbleviz.count.lacking_operations import lacking_operations
from bubbleviz.count.rank_iterations import indices_of, lacking
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.recognition.recognition import Recognition, schedule_of
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.limitations import Limitation, LimitationKind, gathered
from bubbleviz.model.operations import ProfileSummary, RankCoverage, UnattributedKernels
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, Phase
from bubbleviz.model.run_kind import EVALUATION
from bubbleviz.model.texts import counted, listed, some_of
from bubbleviz.report.report import NOTICEABLE, Report

#: Ranks that a sentence lists; all are counted.
_LISTED = 8
#: Ranks that lack a ratio are all named, up to so many.
_NAMED = 32

ReportT = TypeVar("ReportT", bound=Report)


def assemble(
    report: type[ReportT],
    recordings: Sequence[Recording],
    run: Run,
    counts: Counts,
    explanation: Explanation,
    unreadable: Sequence[Limitation],
) -> ReportT:
    """Return the report on a run.

    Args:
        report: the kind of report.
        recordings: one a profile, in the order given.
        run: these, merged.
        counts: ratios of its iterations.
        explanation: why its ranks are idle.
        unreadable: profiles that were left out.
    """
    coverage: list[RankCoverage] = []
    kernels: list[UnattributedKernels] = []
    for recording, local in zip(recordings, run.rank_of_local, strict=True):
        place = local.tolist()
        coverage.extend(replace(r, rank=place[r.rank]) for r in recording.coverage.ranks)
        kernels.extend(replace(k, rank=place[k.rank]) for k in recording.coverage.unattributed)
    return report(
        version=__version__,
        convention=", ".join(dict.fromkeys(r.convention for r in recordings)),
        headline=counts.headline,
        headline_reason=counts.headline_reason,
        profiles=_profile_summaries(recordings, run),
        ranks=run.ranks,
        iterations=Iterations(counts.iterations),
        summary=counts.summary,
        operations=run.operations,
        busy=run.busy,
        unattributed=run.unattributed,
        coverage=tuple(sorted(coverage, key=lambda c: c.rank)),
        unattributed_kernels=tuple(sorted(kernels, key=lambda k: (k.rank, -k.gpu_ns, k.name))),
        explanation=explanation,
        limitations=(
            *gathered(unreadable),
            *_limitations(recordings, run, counts),
            *_of_explanation(explanation, counts),
        ),
        exposed=run.exposed,
        overheads=run.overheads,
        collectives=run.collectives,
        pauses=run.pauses,
    )


def schedule_ran(recordings: Sequence[Recording], run: Run, counts: Counts) -> Recognition:
    """Return which schedule a run ran, with what limits that; see :func:`schedule_of`.

    Args:
        recordings: one a profile.
        run: these, merged.
        counts: ratios of its iterations.
    """
    notes = (*run.limitations, *(note for r in recordings for note in r.limitations))
    return schedule_of(
        run.ranks,
        run.operations,
        counts.iterations,
        noted=frozenset(note.kind for note in notes),
        stages_missing=run.stages_missing,
        pipeline_unproven=run.pipeline_unproven,
    )


def with_schedule(
    report: ReportT, schedule: Recognition, plan_comparison: Recognition | None
) -> ReportT:
    """Return a report with its recognised schedule, and how the run differs from a plan, if any.

    A run that kept a schedule exactly, from its first to its last stage, lacks no stage.
    """
    limitations = tuple(
        note
        for note in report.limitations
        if not (schedule.exact and note.kind is LimitationKind.STAGES_MAY_BE_MISSING)
    )
    return replace(report, limitations=limitations, schedule=schedule, plan=plan_comparison)


def _profile_summaries(recordings: Sequence[Recording], run: Run) -> tuple[ProfileSummary, ...]:
    summaries = []
    for recording, clock in zip(recordings, run.clocks, strict=True):
        source, coverage = recording.source, recording.coverage
        summaries.append(
            ProfileSummary(
                path=source.path,
                host=source.host,
                format=source.format,
                nsys_version=source.nsys_version,
                schema_version=source.schema_version,
                kernels=coverage.kernels,
                linked_kernels=coverage.linked_kernels,
                attributed_kernels=coverage.attributed_kernels,
                cross_thread_kernels=coverage.cross_thread_kernels,
                ambiguous_kernels=coverage.ambiguous_kernels,
                gpu_ns=sum(r.gpu_ns for r in coverage.ranks),
                attributed_gpu_ns=sum(r.attributed_gpu_ns for r in coverage.ranks),
                comm_ns=sum(r.comm_ns for r in coverage.ranks),
                copy_ns=sum(r.copy_ns for r in coverage.ranks),
                clock_offset_ns=clock.offset_ns,
                clock_drift_ppm=clock.drift_ppm,
                clock_t0_ns=clock.t0_ns,
                clock_uncertainty_ns=clock.uncertainty_ns,
                session_utc_ns=source.session_utc_ns,
            )
        )
    return tuple(summaries)


def _limitations(
    recordings: Sequence[Recording], run: Run, counts: Counts
) -> tuple[Limitation, ...]:
    """Return everything that could not be measured or inferred, the most general first."""
    of_files = gathered(note for recording in recordings for note in recording.limitations)
    limitations = [*run.limitations, *of_files]
    without: dict[str, set[int]] = {}
    for iteration in counts.iterations:
        missing = zip(indices_of(iteration.ranks), lacking(iteration.ranks), strict=True)
        for rank, what in missing:
            if what and iteration.complete:
                without.setdefault(what, set()).add(rank)
    limitations.extend(
        Limitation(
            "ranks without a ratio",
            f"{what}: " + some_of([run.ranks[r].label for r in sorted(ranks)], _NAMED),
            len(ranks),
        )
        for what, ranks in sorted(without.items())
    )
    limitations.extend(_incomplete(counts))
    limitations.extend(_evaluations(counts))
    limitations.extend(_lacking(run, counts))
    if not counts.summary.iterations:
        limitations.append(Limitation("averages", counts.headline_reason))
    if not among(run.operations.phase, (*BACKWARD, Phase.FB)).any():
        limitations.append(
            Limitation(
                "backward",
                "no range is named as a backward pass, so the run counts as inference; if it "
                "trains, give its name with --convention",
            )
        )
    limitations.extend(_ambiguous_ratios(counts))
    return tuple(limitations)


def _incomplete(counts: Counts) -> Iterator[Limitation]:
    """Yield why iterations are incomplete."""
    incomplete = [i for i in counts.iterations if not i.complete]
    unmatched = sum(i.unmatched for i in incomplete)
    if unmatched:
        yield Limitation(
            "iterations in which a forward has no backward of its number",
            "their ranks went on, so the capture did not cut them; check the numbers in the names "
            "of ranges; they are listed, not averaged",
            unmatched,
        )
    if len(incomplete) > unmatched:
        yield Limitation(
            "iterations cut by the capture",
            "they are listed, not averaged",
            len(incomplete) - unmatched,
        )


def _evaluations(counts: Counts) -> Iterator[Limitation]:
    """Yield that evaluations inside a run that trains are no part of averages."""
    evaluations = [i for i in counts.iterations if i.kind == EVALUATION]
    if evaluations:
        yield Limitation(
            "evaluation iterations",
            "they only go forward; they are listed, not averaged with the training iterations",
            len(evaluations),
        )


def _lacking(run: Run, counts: Counts) -> Iterator[Limitation]:
    """Yield the limitation of ranks that lack operations which others have."""
    lacking = lacking_operations(run, counts.iterations).tolist()
    ranks = [(rank.label, count) for rank, count in zip(run.ranks, lacking, strict=True) if count]
    if ranks:
        yield Limitation(
            "operations that some ranks lack",
            "a backward without a forward of its number, or a microbatch that other stages ran; "
            "their kernels count as no work, so the true ratio may be smaller; check the names of "
            f"ranges on {listed((f'{label} ({count:,})' for label, count in ranks), _LISTED)}",
            sum(count for _, count in ranks),
            LimitationKind.OPERATIONS_LACKING,
        )


def _of_explanation(explanation: Explanation, counts: Counts) -> Iterator[Limitation]:
    """Yield limitations of the causes of idle time, and of the critical path."""
    ratio = explanation.listed_ratio
    if ratio != counts.headline and explanation.causes.idle_ns[ratio].any():
        yield Limitation(
            "idle intervals and their causes",
            f"no rank has a window of {counts.headline}, so they are those of {ratio}",
        )
    if explanation.no_path_reason:
        yield Limitation("critical path, slack and what-if", explanation.no_path_reason)
    elif part := explanation.replayed_ranks:
        yield Limitation(
            "critical path, slack, what-if and advice",
            f"{counted(part.pipelines, 'pipeline')} of {part.of:,} are replayed: the slowest, "
            "which bound the iterations, and as many of the others",
        )


def _ambiguous_ratios(counts: Counts) -> Iterator[Limitation]:
    """Yield a limitation for each ratio that unattributed compute could move noticeably."""
    for name, ratio in counts.summary.bubble_ratio.items():
        low = counts.summary.bubble_low[name].mean
        if ratio.mean is not None and low is not None and ratio.mean - low > NOTICEABLE:
            yield Limitation(
                f"the ratio {name}",
                f"lies between {low:.4f} and {ratio.mean:.4f}: compute kernels outside every "
                "operation may be work or not; the largest are listed",
            )
