"""The library's front door: read, link, interpret, align, count, report. It never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.align.pipelines import Parallel
from bubbleviz.align.run import Run, RunHints, merge_recordings
from bubbleviz.align.staging_limitations import MAYBE_MISSING
from bubbleviz.conventions.convention import Convention, globs_of
from bubbleviz.conventions.convention_file import built_in, find_convention
from bubbleviz.conventions.recognition import recognise
from bubbleviz.count.count import Counts, count
from bubbleviz.count.iterations import Iterations
from bubbleviz.count.summary import prepare
from bubbleviz.errors import MismatchError, ProfileError, UsageError
from bubbleviz.explain.explanation import Explanation, explain
from bubbleviz.explain.recognition.recognition import compared, schedule_of
from bubbleviz.explain.windowed import windowed
from bubbleviz.interpret.fleet.fleet import Fleet, Glance, Local
from bubbleviz.interpret.inspection import Inspection, look_over
from bubbleviz.interpret.limitations import INFERRED
from bubbleviz.interpret.record import ReadOptions, export_of
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.choices import ALIGNMENTS, one_of
from bubbleviz.model.operations import Limitation, ProfileSummary, RankCoverage, UnattributedKernels
from bubbleviz.model.phases import BACKWARD, Phase
from bubbleviz.model.window import Window, window_of
from bubbleviz.progress import Progress, Unwatched, unwatched
from bubbleviz.render.documents.notebook import NotebookReport
from bubbleviz.report.report import Report
from bubbleviz.schedules.files import read_plan
from bubbleviz.sources.paths import InputFile, find_profiles
from bubbleviz.sources.readers import reader_of
from bubbleviz.timing import add, step

#: Where unattributed compute can move a ratio by more than this, the report says so.
LOW_MATTERS = 0.01


def analyze(
    paths: str | Path | Sequence[str | Path],
    *,
    convention: str | Path | Sequence[str | Path] = (),
    skip: int = 0,
    cross_thread: bool = True,
    order: Sequence[int] = (),
    same_clock: Sequence[Sequence[str]] = (),
    align: str | None = None,
    parallel: Parallel | None = None,
    plan: str | Path | None = None,
    keep_export: bool = False,
    what_if: bool = False,
    window: str | Window | None = None,
    jobs: int = 1,
    dask: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Return the report on one run, recorded in one or many profiles.

    Args:
        paths: profiles; a directory stands for those in it, a pattern for its matches.
        convention: a naming convention's name or the path of a TOML file, or several, of which
            the first that knows a name decides; empty to recognise them.
        skip: how many of the first iterations the averages leave out.
        cross_thread: whether a backward may be launched by another thread than the one that
            opened its range.
        order: ranks in pipeline order, by the numbers (``Rank.index``) that they have without
            it; empty to tell it from the data.
        same_clock: groups of hostnames that share one clock (containers of one machine).
        align: how hosts are put on one clock: "causal" by what waited for what, "utc" by their
            own UTC clocks, "none" not at all. None is causal, and refuses captures more than a
            minute apart in UTC.
        parallel: how many ways the run is tensor-, pipeline- and data-parallel; None to tell it
            from the data.
        plan: a file with the order of operations that was meant, to compare with.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        what_if: simulate other schedules at the measured times, too.
        window: the part of the run that the report covers, as ``iteration:5-8`` or
            ``time:1.5s-3s``; None for all of it.
        jobs: how many threads read one profile, beside the one that links, or how many processes
            read several; a script that gives more
            than one needs ``if __name__ == "__main__":``.
        dask: address or scheduler file of a Dask cluster whose workers read the profiles, where
            they are; None reads them here.
        progress: is told how far the run is.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    one_of(align, ALIGNMENTS, "--align")
    part = window_of(window) if isinstance(window, str) else window
    meant = None if plan is None else read_plan(str(plan))
    given = [paths] if isinstance(paths, (str, Path)) else paths
    with _fleet(jobs, dask) as fleet:
        with step("find profiles"):
            files = fleet.find([str(path) for path in given])
            sizes = _refuse_twins(fleet, [file.path for file in files])
        if progress:
            progress.files(sizes)
        how = ReadOptions(_conventions(convention), cross_thread, keep_export)
        with step("profiles"):
            recordings, unreadable = _record_all(fleet, files, how, progress or Unwatched())
    with step("merge ranks"):
        run = merge_recordings(recordings, RunHints(order, parallel, same_clock, align))
    with step("count"):
        counts = count(run, skip=skip, window=part)
    with step("explain"):
        explanation = explain(run, counts)
        run, counts, explanation = windowed(part, run, counts, explanation)
        told = run.ranks, run.operations, counts.iterations
        counted = any(note.what == INFERRED for r in recordings for note in r.limitations)
        ran = schedule_of(*told, inferred=counted)
        against = None if meant is None else compared(*told, meant)
    report = _report(recordings, run, counts, explanation, unreadable)
    if ran.exact:
        # A schedule that ran from its first to its last stage lacks none.
        told_of = [note for note in report.limitations if note.what != MAYBE_MISSING]
        report = replace(report, limitations=tuple(told_of))
    if what_if:
        with step("simulate other schedules"):
            from bubbleviz.explain.alternatives import alternatives_of

            others = alternatives_of(*told[:2], counts, explanation, ran, meant)
        if others.measured is None and explanation.no_path_reason:
            others = replace(others, reason=explanation.no_path_reason)
        report = replace(report, alternatives=others)
    return replace(report, schedule=ran, plan=against)


def _fleet(jobs: int, dask: str | None) -> AbstractContextManager[Fleet]:
    """Return where the profiles are read.

    Raises:
        UsageError: there can be no such number of jobs.
    """
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one core is at work; give 1 or more")
    if dask is None:
        return nullcontext(Local(jobs, prepare))
    from bubbleviz.interpret.fleet.dask_fleet import dask_fleet

    return dask_fleet(dask)


def _record_all(
    fleet: Fleet, files: Sequence[InputFile], how: ReadOptions, progress: Progress
) -> tuple[list[Recording], tuple[Limitation, ...]]:
    """Return the recordings, and the files that could not be read where that does not end all.

    Raises:
        ProfileError: a file that was named cannot be read, or none of the others can; of several
            such files it is the first.
    """
    outcomes: dict[int, Recording | ProfileError] = {}
    bad: dict[int, ProfileError] = {}
    for number, outcome in fleet.record([file.path for file in files], how, progress):
        if isinstance(outcome, ProfileError):
            outcomes[number] = outcome
            if files[number].named and fleet.strict:
                bad[number] = outcome
        else:
            add(outcome.steps)
            outcomes[number] = outcome.recording
        first = min(bad, default=len(files))
        if bad and all(before in outcomes for before in range(first)):
            raise bad[first]
    ordered = [outcomes[number] for number in range(len(files))]
    recordings = [one for one in ordered if isinstance(one, Recording)]
    lost = [one for one in ordered if isinstance(one, ProfileError)]
    if not recordings:
        raise lost[0]
    return recordings, tuple(Limitation("a profile of the directory", str(e)) for e in lost)


def _conventions(given: str | Path | Sequence[str | Path]) -> tuple[Convention, ...]:
    several = [given] if isinstance(given, (str, Path)) else given
    return tuple(find_convention(str(one)) for one in several)


def inspect(path: str | Path, *, convention: str | Path | Sequence[str | Path] = ()) -> Inspection:
    """Return what one profile holds and how far it could be analysed.

    Args:
        path: the profile.
        convention: a naming convention's name or the path of a TOML file, or several; empty for
            all known.

    Raises:
        BubblevizError: it cannot be read at all.
    """
    file = find_profiles([str(path)])[0].path
    chosen = _conventions(convention)
    known = chosen or tuple(built_in().values())
    with export_of(file) as export:
        with reader_of(export).open_file(export, 1, unwatched) as opened:
            contents = opened.inspect(globs_of(known))
            sample = opened.sample(("*",))
        contents = replace(contents, source=replace(contents.source, path=file))
        return look_over(contents, known, sample, chosen or recognise(sample))


def _refuse_twins(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Return the bytes of each file that can be read.

    Raises:
        MismatchError: two files have the same content.
    """
    alike: dict[Glance, list[str]] = {}
    for path, seen in zip(files, fleet.glances(files), strict=True):
        # Empty files are alike, and each is refused by whoever reads it.
        if isinstance(seen, Glance) and seen.size:
            alike.setdefault(seen, []).append(path)
    asked = [path for same in alike.values() if len(same) > 1 for path in same]
    known: dict[bytes, str] = {}
    for path, digest in zip(asked, fleet.digests(asked), strict=True):
        if isinstance(digest, bytes):
            if digest in known:
                raise MismatchError(
                    f"{known[digest]} and {path}: the same profile twice; give each profile once"
                )
            known[digest] = path
    return {path: seen.size for seen, same in alike.items() for path in same}


def _report(
    recordings: Sequence[Recording],
    run: Run,
    counts: Counts,
    explanation: Explanation,
    unreadable: Sequence[Limitation],
) -> Report:
    profiles: list[ProfileSummary] = []
    coverage: list[RankCoverage] = []
    kernels: list[UnattributedKernels] = []
    for recording, clock, local in zip(recordings, run.clocks, run.rank_of_local, strict=True):
        covered = recording.coverage
        profiles.append(
            ProfileSummary(
                path=recording.source.path,
                host=recording.source.host,
                format=recording.source.format,
                nsys_version=recording.source.nsys_version,
                schema_version=recording.source.schema_version,
                kernels=covered.kernels,
                linked_kernels=covered.linked_kernels,
                attributed_kernels=covered.attributed_kernels,
                cross_thread_kernels=covered.cross_thread_kernels,
                ambiguous_kernels=covered.ambiguous_kernels,
                gpu_ns=sum(r.gpu_ns for r in covered.ranks),
                attributed_gpu_ns=sum(r.attributed_gpu_ns for r in covered.ranks),
                comm_ns=sum(r.comm_ns for r in covered.ranks),
                copy_ns=sum(r.copy_ns for r in covered.ranks),
                clock_offset_ns=clock.offset_ns,
                clock_drift_ppm=clock.drift_ppm,
                clock_t0_ns=clock.t0_ns,
                clock_uncertainty_ns=clock.uncertainty_ns,
            )
        )
        place = local.tolist()
        coverage.extend(replace(r, rank=place[r.rank]) for r in covered.ranks)
        kernels.extend(replace(k, rank=place[k.rank]) for k in covered.unattributed)
    return NotebookReport(
        version=__version__,
        convention=", ".join(dict.fromkeys(r.convention for r in recordings)),
        headline=counts.headline,
        headline_reason=counts.headline_reason,
        profiles=tuple(profiles),
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
            *unreadable,
            *_limitations(recordings, run, counts),
            *_of_explanation(explanation, counts),
        ),
    )


def _limitations(
    recordings: Sequence[Recording], run: Run, counts: Counts
) -> tuple[Limitation, ...]:
    """Return everything that could not be told, the most general first."""
    found = [*run.limitations, *(note for r in recordings for note in r.limitations)]
    lacking: dict[str, set[int]] = {}
    for iteration in counts.iterations:
        for own in iteration.ranks:
            if own.missing and iteration.complete:
                lacking.setdefault(own.missing, set()).add(own.rank)
    found.extend(
        Limitation(
            "ranks without a ratio",
            f"{what}: " + ", ".join(run.ranks[r].label for r in sorted(ranks)),
            len(ranks),
        )
        for what, ranks in sorted(lacking.items())
    )
    partial = sum(not i.complete for i in counts.iterations)
    if partial:
        found.append(
            Limitation("iterations cut by the capture", "they are listed, not averaged", partial)
        )
    if not counts.summary.iterations:
        found.append(Limitation("averages", counts.headline_reason))
    if not np.isin(run.operations.phase, (*BACKWARD, Phase.FB)).any():
        found.append(
            Limitation(
                "backward",
                "no range is named as a backward pass, so every iteration counts as evaluation; "
                "say how it is named with --convention",
            )
        )
    found.extend(_loose_compute(counts))
    return tuple(found)


def _of_explanation(explanation: Explanation, counts: Counts) -> Iterator[Limitation]:
    """Yield what is told of why ranks are idle, and is not what one would look for."""
    bubbles = explanation.bubbles
    if bubbles.ratio != counts.headline and len(bubbles):
        yield Limitation(
            "idle intervals and their causes",
            f"no rank has a window of {counts.headline}, so they are those of {bubbles.ratio}",
        )
    if explanation.no_path_reason:
        yield Limitation("critical path, slack and what-if", explanation.no_path_reason)


def _loose_compute(counts: Counts) -> Iterator[Limitation]:
    """Yield a limitation for each ratio that unattributed compute could move noticeably."""
    for name, ratio in counts.summary.bubble_ratio.items():
        low = counts.summary.bubble_low[name].mean
        if ratio.mean is not None and low is not None and ratio.mean - low > LOW_MATTERS:
            yield Limitation(
                f"the ratio {name}",
                f"lies between {low:.4f} and {ratio.mean:.4f}: compute kernels outside every "
                "operation may be work or not; the largest are listed",
            )
