"""The analysis of idle time: reads profiles and returns a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bubbleviz.align.waiting_kernels import find_waiting_names
from bubbleviz.analyses.idle.advice import make_title
from bubbleviz.analyses.idle.evidence import IdleOptions
from bubbleviz.analyses.idle.outputs import summarize_idle
from bubbleviz.analyses.idle.page import format_output
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.profile_idle import MeasuredProfile, measure_profile
from bubbleviz.analyses.idle.profiled_steps import compare_steps
from bubbleviz.analyses.idle.report import ActivityIdle, IdleMeasurement, RankIdle
from bubbleviz.analyses.idle.text import make_kernel_table, render_notebook
from bubbleviz.analyses.nccl.analysis import Communication, measure_communication
from bubbleviz.conventions import convention_file
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions.kinds import OPERATION_GLOBS
from bubbleviz.errors import BubblevizError, UsageError
from bubbleviz.interpret import record, start_skew
from bubbleviz.interpret.device_captures import DeviceCapture, number_devices
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.listed_gpus import find_gpus_without_work
from bubbleviz.interpret.recording import UnknownKernels
from bubbleviz.interpret.steps import find_pattern
from bubbleviz.model import choices
from bubbleviz.model.arguments import explain_keywords
from bubbleviz.model.arrow import Kind
from bubbleviz.model.limitations import Limitation, add_up_counts
from bubbleviz.model.window import FOREVER_NS, Window, parse_window
from bubbleviz.progress import Progress, Watch
from bubbleviz.render.display import Hinting, Picture, PrintedRecords, make_rows, save_as
from bubbleviz.render.idle_causes import print_idle_causes
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.profiling_cost import parse_unprofiled_step
from bubbleviz.report.summary import to_values
from bubbleviz.sources.nsys.files import is_report
from bubbleviz.sources.paths import find_profiles, read_each, strip_profile_suffix

#: Maximum number of gaps per rank in the JSON that :meth:`IdleReport.save` writes.
_MAX_GAPS = 12
#: Maximum number of kernels that :attr:`IdleReport.kernels` prints.
_MAX_KERNELS = 20
#: Column types of :attr:`IdleReport.kernels`.
_KERNEL_KINDS: Mapping[str, Kind] = {
    "name": "string",
    "work_class": "string",
    "count": "int64",
    "time_ns": "int64",
}
#: Names of the formats that :meth:`IdleReport.save` writes.
_FORMATS = ("svg", "pdf", "png", "html", "json", "csv", "markdown", "text")
#: Hint for arguments that only the method ``plot`` of other results has.
_FIXED_SIZE = "pictures of idle time have one size, so call plot() and scale the saved picture"
#: Code to use instead of attributes that users of pandas and HTA expect, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "breakdown": "idle.causes",
    "gaps": 'idle.save("gaps.csv")',
    "get_comm_comp_overlap": "idle.ranks[0].overlap",
    "get_gpu_kernel_breakdown": "idle.kernels",
    "get_idle_time_breakdown": "idle.causes",
    "get_temporal_breakdown": "idle.ranks[0].compute_ns",
    "idle_ratio": "idle.idle_ns / idle.span_ns",
    "show": "idle.plot()",
    "steps": "idle.ranks[0].steps",
    "summary": "idle.summarize()",
    "to_csv": 'idle.save("gaps.csv")',
    "to_pandas": "idle.kernels.to_pandas()",
}


class IdleReport(IdleMeasurement, Hinting):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds tables, pictures, output files and notebook display.

    _hints = _HINTS

    def __repr__(self) -> str:
        """Return a one-line summary, because a full table could list a million gaps."""
        return f"<IdleReport: {make_title(self)}>"

    @property
    def kernels(self) -> PrintedRecords[Any]:
        """One record per kernel or copy name over all devices, longest total time first.

        The columns are ``name``, ``work_class``, ``count`` and ``time_ns``.
        ``report.kernels["sgemm"].time_ns`` is the total time of the kernels with this name.
        """
        table = make_kernel_table(self, _MAX_KERNELS, full_names=False)
        table = replace(table, hint="; to_pandas() returns all of them, with full names")
        rows = make_rows("Kernel", _KERNEL_KINDS, self.work())
        return PrintedRecords(rows, _KERNEL_KINDS, [table])

    @property
    def causes(self) -> PrintedRecords[Any]:
        """One record per host activity to which idle time is attributed, most idle time first.

        The columns are ``name``, ``share`` (of the idle time of all devices), ``idle_ns``,
        ``gaps``, ``longest_ns`` and ``meaning``. ``report.causes["launch"].idle_ns`` is the idle
        time that is attributed to the activity ``launch``.
        """
        return print_idle_causes(self, self.meaning)

    @explain_keywords(width=_FIXED_SIZE, style=_FIXED_SIZE)
    def plot(self) -> Picture:
        """Return a picture of what each device and its host did over time."""
        return Picture(draw_idle(self))

    def summarize(self, gaps: int = _MAX_GAPS) -> IdleSummary:
        """Return the report as it is saved in JSON; :func:`bubbleviz.load` returns the same.

        Args:
            gaps: Maximum number of gaps per device.
        """
        return summarize_idle(self, gaps)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document (``bubbleviz.idle/1``) as dictionaries, lists and values."""
        return to_values(self.summarize())

    def save(self, path: str | Path) -> None:
        """Write a picture (``.svg``, ``.pdf``, ``.png``), page (``.html``) or report.

        The report is JSON (``.json``), text (``.txt``), Markdown (``.md``) or a table of gaps
        (``.csv``).

        The file is written completely or not at all.

        Args:
            path: Path to the file. An existing file is replaced.

        Raises:
            UsageError: The file suffix is not supported.
            OutputError: The file cannot be written, or a required package is not installed.
        """
        save_as(path, _FORMATS, lambda name: format_output(self, name, _MAX_GAPS))

    def _repr_html_(self) -> str:
        """Return the report as HTML: advice, tables, picture and limitations."""
        return render_notebook(self)

    def _repr_svg_(self) -> str:
        """Return the picture as an SVG document."""
        return draw_idle(self)


def idle(
    paths: str | Path | Sequence[str | Path],
    *,
    step: str | None = None,
    shortest_us: float = choices.SHORTEST_US,
    activities: str | Path | None = None,
    convention: str | Path | Sequence[str | Path] = (),
    window: str | Window | None = None,
    unprofiled_step: str | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> IdleReport:
    """Measure how long devices were busy and idle, and attribute the idle time to host activities.

    A device may seem to wait only because the recording of another device had not begun. In this
    case, the time before that recording began is left out of all profiles that share a clock. The
    report lists this as a limitation. If ``window`` is given, no time inside it is left out.

    Args:
        paths: Profiles of any kind, directories of profiles, or glob patterns.
        step: Name of the ranges that mark training loop steps, or a regex that matches the complete
            name. If omitted, steps are recognized automatically.
        shortest_us: Minimum length in microseconds of a gap that is attributed to host activities.
            Shorter gaps are reported as kernel-to-kernel gaps.
        activities: TOML file of host activities, to be matched before the built-in ones.
        convention: Names of conventions, or paths to TOML files, whose lists of communication
            kernels extend the built-in list.
        window: Part of the run to analyze, in the format of the option ``--window``: a range of
            step numbers, or of times on each profile's own clock. None selects the complete run.
        unprofiled_step: Length of a step without a profiler, for example ``29.39s``. If given, the
            report says how far the profile can be trusted.
        keep_export: Whether to keep the files exported from ``.nsys-rep`` reports, next to the
            reports.
        jobs: Number of threads used to read a profile.
        progress: Callback that receives the progress of reading each profile.

    Raises:
        BubblevizError: The profiles cannot be analyzed. The message states what happened, where,
            and what to do next; see :mod:`bubbleviz.errors`.
    """
    if not 0 <= shortest_us < 1e12:
        raise UsageError(f"--shortest {shortest_us:g}: must be a number of microseconds, 0 or more")
    window = parse_window(window) if isinstance(window, str) else window
    unprofiled_ns = None if unprofiled_step is None else parse_unprofiled_step(unprofiled_step)
    builtin = known.default_activities()
    options = IdleOptions(
        shortest_ns=round(shortest_us * 1000),
        step=None if step is None else find_pattern(step),
        activities=builtin if activities is None else builtin.add_from_file(activities),
        kinds=convention_file.collect_kinds(convention_file.find_conventions(convention)),
        window=window,
    )
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_profiles([str(path) for path in inputs])
    refuse_same_content(Fleet(jobs), [file.path for file in files])
    read = partial(
        _read_profile, options=options, jobs=jobs, keep_export=keep_export, n_files=len(files)
    )
    profiles, unreadable = read_each(files, read, progress)
    recorded = [device for profile in profiles for device in profile.recorded]
    skew: tuple[Limitation, ...] = ()
    if window is None:
        skew = tuple(start_skew.find_unclear_waits(recorded))
        start_ns = start_skew.find_common_start(recorded)
        if start_ns is not None:
            profiles, unreadable = read_each(files, partial(read, since_ns=start_ns), progress)
            excluded = start_skew.describe_skew(recorded, start_ns, "{} before that are excluded")
            skew = (excluded, *skew)
    report = _make_report(profiles, options, (*unreadable, *skew))
    if unprofiled_ns is not None:
        report = replace(report, profiling_cost=compare_steps(report.ranks, unprofiled_ns))
    if not _may_meet(report):
        return report
    communication = _read_communication(
        [file.path for file in files], convention, window, jobs, progress
    )
    if communication is None:
        return report
    return replace(
        report,
        lateness=communication.lateness,
        gpu_names=communication.gpu_names,
        gpu_hosts=communication.gpu_hosts,
    )


def _may_meet(report: IdleMeasurement) -> bool:
    """Return whether the profiles may show which devices meet in collectives.

    Reports that nsys must export are not read a second time, because the export takes long.

    The members of collectives are known if communicators were recorded, or if all devices are in
    one profile. In a pipeline, devices also wait for their inputs, so their lateness is not
    measured.
    """
    communicating = [rank for rank in report.devices if rank.communication_ns]
    if any(map(is_report, report.paths)):
        return False
    has_pipeline = any(rank.exposed_point_to_point_ns for rank in communicating)
    if len(communicating) < 2 or has_pipeline:
        return False
    has_communicators = all(rank.has_communicators for rank in communicating)
    return has_communicators or len({rank.path for rank in communicating}) == 1


def _read_communication(
    paths: Sequence[str],
    convention: str | Path | Sequence[str | Path],
    window: Window | None,
    jobs: int,
    progress: Progress | None,
) -> Communication | None:
    """Read the communication of profiles that have been read before, or None if there is none.

    Args:
        paths: Paths of the profiles.
        convention: Conventions whose communication kernels extend the built-in list.
        window: Part of the run to analyze, or None for the complete run.
        jobs: Number of threads used to read a profile.
        progress: Callback that receives the progress of reading each profile.
    """
    try:
        return measure_communication(
            paths, convention=convention, window=window, jobs=jobs, progress=progress
        )
    except BubblevizError:
        return None


def _make_report(
    profiles: Sequence[MeasuredProfile], options: IdleOptions, limitations: Iterable[Limitation]
) -> IdleReport:
    """Make the report on all devices of the measured profiles.

    Args:
        profiles: The measured profiles.
        options: Options of the analysis.
        limitations: Limitations of the run, listed before the limitations of the individual
            profiles.
    """
    ranks = _label_ranks(_number_captures(profiles))
    waiting = _find_waiting_names(profiles)
    profile_limitations = [note for profile in profiles for note in profile.limitations]
    without_work = find_gpus_without_work(gpu for each in profiles for gpu in each.listed_gpus)
    totals = _add_up(ranks)
    found_activities = {total.activity: options.activities.find(total.activity) for total in totals}
    activities_by_name = {name: found for name, found in found_activities.items() if found}
    return IdleReport(
        ranks=ranks,
        activities=totals,
        shortest_ns=options.shortest_ns,
        advice={name: a.advice for name, a in activities_by_name.items() if a.advice},
        meaning={name: a.meaning for name, a in activities_by_name.items() if a.meaning},
        limitations=tuple(
            add_up_counts((*limitations, *waiting, *profile_limitations, *without_work))
        ),
        window=None if options.window is None else options.window.text,
    )


def _read_profile(
    path: str,
    watch: Watch,
    *,
    options: IdleOptions,
    jobs: int,
    keep_export: bool,
    n_files: int,
    since_ns: int | None = None,
) -> MeasuredProfile:
    """Read and measure a profile.

    Args:
        path: Path to the profile.
        watch: Callback that receives the progress of reading the profile.
        options: Options of the analysis.
        jobs: Number of threads used to read the profile.
        keep_export: Whether to keep an export made of a ``.nsys-rep`` report next to the report.
        n_files: Number of profiles in the run.
        since_ns: Start of the window, in UTC or on the clock of a single profile, or None to use
            the window in ``options``. With several profiles, ``since_ns`` is ignored if this
            profile does not record UTC.
    """
    with record.open_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        profile = file.read(OPERATION_GLOBS, partial=True)
        utc_ns = profile.source.session_utc_ns
        # Without UTC, times are on the profile's own clock, which suffices for a single file.
        is_timed = utc_ns is not None or n_files == 1
        if since_ns is not None and is_timed:
            options = replace(options, window=_make_window_since(since_ns - (utc_ns or 0)))
        measured = measure_profile(profile, options)
    # The report names the given file, not a temporary export of it.
    return replace(
        measured,
        ranks=tuple(replace(rank, path=path) for rank in measured.ranks),
        limitations=record.rename_limitations(measured.limitations, export, path),
    )


def _number_unknown_kernels(profiles: Sequence[MeasuredProfile]) -> Iterator[UnknownKernels]:
    """Yield the kernels with unknown names, with ranks numbered over all profiles."""
    first_rank = 0
    for profile in profiles:
        for kernels in profile.unknown_kernels:
            yield replace(kernels, rank=first_rank + kernels.rank)
        first_rank += 1 + max((kernels.rank for kernels in profile.unknown_kernels), default=-1)


def _make_window_since(start_ns: int) -> Window:
    """Return a window that starts at a time on a profile's clock and has no end."""
    return Window(f"time:{max(start_ns, 0)}ns-", times_ns=(start_ns, FOREVER_NS))


def _number_captures(profiles: Sequence[MeasuredProfile]) -> list[RankIdle]:
    """Return the ranks of all profiles, with the captures of each device numbered by time."""
    ranks = [rank for profile in profiles for rank in profile.ranks]
    captures = []
    for profile in profiles:
        utc_ns = profile.session_utc_ns if profile.is_host_known else None
        captures += [
            DeviceCapture(
                rank.host,
                rank.pid,
                rank.device_id,
                None if utc_ns is None else (rank.start_ns + utc_ns, rank.end_ns + utc_ns),
            )
            for rank in profile.ranks
        ]
    rows_of_device = defaultdict[int, list[int]](list)
    for row, device in enumerate(number_devices(captures)):
        rows_of_device[device].append(row)
    for rows in rows_of_device.values():
        if len(rows) > 1:
            in_time = sorted(rows, key=lambda row: captures[row].span_ns or (0, 0))
            for number, row in enumerate(in_time, 1):
                ranks[row] = replace(ranks[row], capture=number)
    return ranks


def _label_ranks(ranks: Sequence[RankIdle]) -> tuple[RankIdle, ...]:
    """Label each rank with its host, device and capture, adding details if labels would be equal.

    If any two labels are equal, the process id is added to all labels. If labels are still equal,
    the host is replaced with the profile's file name, and finally with the profile's path.
    """
    # If a trace names no host, its file name without the suffix is used as the host.
    hosts = [
        strip_profile_suffix(rank.host) if rank.host == Path(rank.path).name else rank.host
        for rank in ranks
    ]
    devices = [
        rank.device_label if rank.capture is None else f"{rank.device_label} capture {rank.capture}"
        for rank in ranks
    ]
    labels = [f"{host} {device}" for host, device in zip(hosts, devices, strict=True)]
    for locations in (
        hosts,
        [Path(rank.path).name for rank in ranks],
        [rank.path for rank in ranks],
    ):
        if len(set(labels)) < len(labels):
            details = zip(locations, ranks, devices, strict=True)
            labels = [f"{where} pid {rank.pid} {device}" for where, rank, device in details]
    return tuple(replace(rank, label=label) for rank, label in zip(ranks, labels, strict=True))


def _add_up(ranks: Sequence[RankIdle]) -> tuple[ActivityIdle, ...]:
    """Sum the idle time of all devices by activity, longest total first. Hosts are left out.

    The example for an activity is taken from the device with that activity's longest single gap.
    """
    by_activity: dict[str, list[ActivityIdle]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for total in () if rank.is_host else rank.activities:
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


def _find_waiting_names(profiles: Sequence[MeasuredProfile]) -> Iterator[Limitation]:
    """Yield limitations about kernels that wait for each other but are counted as compute.

    Profiles that record UTC are checked together. A profile that does not record UTC has no clock
    in common with other profiles, so it is checked separately.
    """
    timed = [profile for profile in profiles if profile.session_utc_ns is not None]
    groups = [timed, *([profile] for profile in profiles if profile.session_utc_ns is None)]
    for group in groups:
        kernels = _number_unknown_kernels(group)
        yield from find_waiting_names(kernels, "exposed communication is too small")
