"""The analysis of idle time, from profiles to a report. It never prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bubbleviz.analyses.idle.ranks import IdleOptions, ranks_of
from bubbleviz.analyses.idle.report import ActivityIdle, IdleReport, RankIdle
from bubbleviz.conventions.convention_file import extended_kinds, find_conventions
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.errors import UsageError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.iterations import pattern_of
from bubbleviz.interpret.record import opened_profile, renamed_limitations
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_host
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.paths import find_profiles, read_each

# Notebooks: the report on idle time that IPython shows as a fragment of HTML.


#: Devices and activities that are listed, at most.
_MOST_ROWS = 32


class NotebookIdleReport(IdleReport):
    """A report with the display methods of IPython; drawing code is loaded when they are called."""

    def __repr__(self) -> str:
        """Return the report in a line; ``print`` and the prompt show no table of a million gaps."""
        from bubbleviz.analyses.idle.report import title_of

        return f"<IdleReport: {title_of(self)}>"

    def _repr_html_(self) -> str:
        """Return shares of devices, activities of hosts, picture and advice as HTML."""
        from bubbleviz.analyses.idle.outputs import activity_table, device_table, wait_table
        from bubbleviz.analyses.idle.picture import draw_idle
        from bubbleviz.analyses.idle.report import advice, title_of
        from bubbleviz.render.document import Sentence, html
        from bubbleviz.render.notebook import framed

        tables = (
            replace(device_table(self, _MOST_ROWS), title="Devices"),
            *([activity_table(self, _MOST_ROWS)] if self.activities else []),
            wait_table(self, _MOST_ROWS),
        )
        above = html([*map(Sentence, (title_of(self), *advice(self))), *tables])
        below = html(Sentence(limitation.sentence) for limitation in self.limitations)
        return framed(above, draw_idle(self), below)

    def _repr_svg_(self) -> str:
        """Return the picture as an SVG document."""
        from bubbleviz.analyses.idle.picture import draw_idle

        return draw_idle(self)


def idle(
    paths: str | Path | Sequence[str | Path],
    *,
    step: str | None = None,
    shortest_us: float = SHORTEST_US,
    activities: str | Path | None = None,
    convention: str | Path | Sequence[str | Path] = (),
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> IdleReport:
    """Return the busy and idle time of devices, with idle time attributed to what hosts did.

    Args:
        paths: profiles of any kind; a directory stands for those in it, a pattern for its matches.
        step: name of the ranges that are steps, or a regex on the whole name; recognised if not
            given.
        shortest_us: shorter gaps are kernel-to-kernel gaps, and are not attributed.
        activities: a TOML file of host activities, matched before the built-in ones.
        convention: conventions whose lists of communication kernels extend the built-in one: names,
            or paths of TOML files.
        window: the part of the run to analyse, of steps by their numbers, or of time on each
            profile's own clock; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each profile has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    if not 0 <= shortest_us < 1e12:
        raise UsageError(f"--shortest {shortest_us:g}: give microseconds, 0 or more")
    known = default_activities()
    options = IdleOptions(
        shortest_ns=round(shortest_us * 1000),
        step=None if step is None else pattern_of(step),
        activities=known if activities is None else known.extended(activities),
        kinds=extended_kinds(find_conventions(convention)),
        window=window,
    )
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_profiles([str(path) for path in inputs])
    refuse_same_content(Fleet(jobs), [file.path for file in files])

    def read(path: str, watch: Watch) -> tuple[tuple[RankIdle, ...], tuple[Limitation, ...]]:
        with opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
            ranks, lost = ranks_of(file.read((), partial=True), options)
        # A temporary export goes by its report's name.
        named = tuple(replace(rank, path=path) for rank in ranks)
        return named, renamed_limitations(lost, export, path)

    profiles, unreadable = read_each(files, read, progress)
    ranks = _labelled([rank for of_profile, _ in profiles for rank in of_profile])
    for rank in ranks:
        note_host(rank.host)
    counts: Counter[tuple[str, str]] = Counter()
    for limitation in (*unreadable, *(note for _, lost in profiles for note in lost)):
        counts[limitation.what, limitation.reason] += limitation.count
    totals = _summed(ranks)
    shown = {total.activity: options.activities.named(total.activity) for total in totals}
    known_activities = {name: activity for name, activity in shown.items() if activity}
    return NotebookIdleReport(
        ranks=ranks,
        activities=totals,
        shortest_ns=options.shortest_ns,
        advice={name: a.advice for name, a in known_activities.items() if a.advice},
        meaning={name: a.meaning for name, a in known_activities.items() if a.meaning},
        limitations=tuple(Limitation(*key, count) for key, count in counts.items()),
        window=None if window is None else window.text,
    )


def _labelled(ranks: Sequence[RankIdle]) -> tuple[RankIdle, ...]:
    """Return ranks with the shortest labels that differ."""
    candidates = [
        [f"{rank.host} {rank.place}" for rank in ranks],
        [f"{rank.host} pid {rank.pid} {rank.place}" for rank in ranks],
        [f"{Path(rank.path).name} pid {rank.pid} {rank.place}" for rank in ranks],
        [f"{rank.path} pid {rank.pid} {rank.place}" for rank in ranks],
    ]
    labels = next((texts for texts in candidates if len(set(texts)) == len(texts)), candidates[-1])
    return tuple(replace(rank, label=label) for rank, label in zip(ranks, labels, strict=True))


def _summed(ranks: Sequence[RankIdle]) -> tuple[ActivityIdle, ...]:
    """Return the idle time of all devices by activity, the longest first."""
    by_activity: dict[str, list[ActivityIdle]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for total in () if rank.on_host else rank.activities:
            by_activity[total.activity].append(replace(total, rank=index))
    summed = (
        replace(
            max(totals, key=lambda total: total.longest_ns),
            idle_ns=sum(total.idle_ns for total in totals),
            gaps=sum(total.gaps for total in totals),
        )
        for totals in by_activity.values()
    )
    return tuple(sorted(summed, key=ActivityIdle.order))
