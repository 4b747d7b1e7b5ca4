"""Gaps: how long devices of any profile were idle, and what their hosts did. It never prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bubbleviz.analyses.idle.idle_ranks import Asked, ranks_of
from bubbleviz.analyses.idle.idle_time import IdleReport, Part, RankIdle
from bubbleviz.conventions.host_activities import ActivityList, default_activities
from bubbleviz.conventions.kinds import default_kinds
from bubbleviz.errors import UsageError
from bubbleviz.interpret.record import export_of, told_of
from bubbleviz.interpret.steps import pattern_of
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.model.operations import Limitation
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Unwatched, Watch
from bubbleviz.sources.paths import find_profiles, refuse_twins
from bubbleviz.sources.readers import reader_of


def idle(
    paths: str | Path | Sequence[str | Path],
    *,
    step: str | None = None,
    shortest_us: float = SHORTEST_US,
    activities: str | Path | None = None,
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> IdleReport:
    """Return how long devices were busy and idle, and what their hosts did in the gaps.

    Args:
        paths: profiles of any kind; a directory stands for those in it, a pattern for its matches.
        step: name of the ranges that are steps, or a regex on the whole name; told if not given.
        shortest_us: shorter gaps are summed as short ones.
        activities: a TOML file with names of one's own.
        window: the part of the run to look at, of steps by their numbers, or of time on each
            profile's own clock; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: how many threads read a profile.
        progress: is told how far it is.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    if not 0 <= shortest_us < 1e12:
        raise UsageError(f"--shortest {shortest_us:g}: give microseconds, 0 or more")
    known = default_activities()
    asked = Asked(
        shortest_ns=round(shortest_us * 1000),
        step=None if step is None else pattern_of(step),
        activities=known if activities is None else known.extended(activities),
        kinds=default_kinds(),
        window=window,
    )
    given = [paths] if isinstance(paths, (str, Path)) else paths
    files = [found.path for found in find_profiles([str(path) for path in given])]
    refuse_twins(files)
    told = progress or Unwatched()
    told.files({path: Path(path).stat().st_size for path in files})
    ranks: list[RankIdle] = []
    limitations: list[Limitation] = []
    for path in files:
        watch = partial(told.read, path)
        found, lost = _of_profile(path, asked, jobs, watch, keep_export=keep_export)
        ranks.extend(found)
        limitations.extend(lost)
        watch(1.0)
    report = _report(_labelled(ranks), asked.activities, asked.shortest_ns, limitations)
    return replace(report, window=None if window is None else window.text)


def _of_profile(
    path: str, asked: Asked, jobs: int, watch: Watch, *, keep_export: bool
) -> tuple[tuple[RankIdle, ...], tuple[Limitation, ...]]:
    with (
        export_of(path, keep=keep_export) as export,
        reader_of(export).open_file(export, jobs, watch) as file,
    ):
        ranks, lost = ranks_of(file.read((), partial=True), asked)
    # A temporary export goes by its report's name.
    return (
        tuple(replace(rank, path=path) for rank in ranks),
        told_of(lost, export, path),
    )


def _labelled(ranks: Sequence[RankIdle]) -> tuple[RankIdle, ...]:
    """Return ranks with the shortest labels that tell them apart."""
    labels = [
        [f"{rank.host} GPU {rank.device_id}" for rank in ranks],
        [f"{rank.host} pid {rank.pid} GPU {rank.device_id}" for rank in ranks],
        [f"{Path(rank.path).name} pid {rank.pid} GPU {rank.device_id}" for rank in ranks],
        [f"{rank.path} pid {rank.pid} GPU {rank.device_id}" for rank in ranks],
    ]
    best = next((own for own in labels if len(set(own)) == len(own)), labels[-1])
    return tuple(replace(rank, label=label) for rank, label in zip(ranks, best, strict=True))


def _report(
    ranks: tuple[RankIdle, ...],
    activities: ActivityList,
    shortest_ns: int,
    limitations: Sequence[Limitation],
) -> IdleReport:
    parts = _summed(ranks)
    known = {part.activity: activities.named(part.activity) for part in parts}
    merged: Counter[tuple[str, str]] = Counter()
    for note in limitations:
        merged[note.what, note.reason] += note.count
    return IdleReport(
        ranks=ranks,
        parts=parts,
        shortest_ns=shortest_ns,
        advice={name: own.advice for name, own in known.items() if own and own.advice},
        meaning={name: own.meaning for name, own in known.items() if own and own.meaning},
        limitations=tuple(Limitation(*key, count) for key, count in merged.items()),
    )


def _summed(ranks: Sequence[RankIdle]) -> tuple[Part, ...]:
    """Return the parts of all ranks together, the longest first."""
    by_activity: dict[str, list[Part]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for part in rank.parts:
            by_activity[part.activity].append(replace(part, rank=index))
    summed = (
        replace(
            max(own, key=lambda part: part.longest_ns),
            idle_ns=sum(part.idle_ns for part in own),
            gaps=sum(part.gaps for part in own),
        )
        for own in by_activity.values()
    )
    return tuple(sorted(summed, key=lambda part: (-part.idle_ns, part.activity)))
