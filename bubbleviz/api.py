"""The library's front door: read, link, interpret, align, count, report. It never prints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.count.count import count
from bubbleviz.count.draft_trial import is_drafted
from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.explain.recognition.recognition import compare_with_plan
from bubbleviz.explain.what_if import ask_what_if
from bubbleviz.explain.windowed import windowed
from bubbleviz.interpret.fleet.dask_fleet import MAX_WAIT_S, dask_fleet
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recording, add_hosts_to_errors, list_hosts
from bubbleviz.model.choices import ALIGNMENTS, check_choice
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_sizes import parse_bytes
from bubbleviz.model.texts import quote_for_shell, to_one_line
from bubbleviz.model.window import Window, parse_window
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.render.notebook import Report
from bubbleviz.report.compared import comparison
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.memory_limits import collect_memory, find_device_memory
from bubbleviz.report.report import add_schedule, build_report, find_schedule
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import choose_sizes_and_times
from bubbleviz.report.saved import check_pipeline, is_saved_report, read_pipeline, read_saved
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary
from bubbleviz.schedules.communication.torch_csv import read_file
from bubbleviz.schedules.ideal import simulate_or_estimate
from bubbleviz.sources.paths import InputFile, find_missing_files
from bubbleviz.timing import step

if TYPE_CHECKING:  # no command needs both
    from bubbleviz.report.compared.comparison import Comparison
    from bubbleviz.schedules.ideal import Estimate, Ideal


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
    ideal: bool = False,
    window: str | Window | None = None,
    memory: bool = False,
    memory_limit: str | None = None,
    flops: str | None = None,
    jobs: int = 1,
    dask: str | None = None,
    dask_timeout: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Return the report on one run, recorded in one or many profiles.

    Args:
        paths: profiles; a directory stands for those in it, a pattern for its matches.
        convention: an NVTX convention's name or the path of a TOML file, or several, of which
            the first that knows a name decides; empty to recognise them.
        skip: how many of the first iterations the averages leave out.
        cross_thread: whether a backward may be launched by another thread than the one that
            opened its range.
        order: ranks in pipeline order, by the numbers (``Rank.index``) that they have without
            it; empty to infer it.
        same_clock: groups of hostnames that share one clock (containers of one machine).
        align: how hosts are put on one clock: "causal" by what waited for what, "utc" by their
            own UTC clocks, "none" not at all. None is causal, and refuses captures more than a
            minute apart in UTC.
        parallel: how many ways the run is tensor-, pipeline- and data-parallel; None to infer it.
        plan: a file with the planned order of operations, to compare with.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        what_if: simulate other schedules at the measured times, too.
        ideal: simulate the schedule that ran, or the plan, at these times.
        window: the part of the run that the report covers, as ``iteration:5-8`` or
            ``time:1.5s-3s``; None for all of it.
        memory: read what was allocated and freed, too, where profiles recorded it.
        memory_limit: what a device has, as ``80GB``; other schedules are then said to fit in
            that, rather than in what the run took. It goes with ``what_if``, and reads memory, too.
        flops: model FLOPs of an iteration on all ranks, and peak FLOPs per second of a GPU, as
            ``4.2e15/989e12``, for the utilization (MFU).
        jobs: how many threads read one profile, beside the one that links, or how many processes
            read several; a script that gives more than one needs ``if __name__ == "__main__":``.
        dask: address or scheduler file of a Dask cluster whose workers read the profiles, where
            they are; None reads them here.
        dask_timeout: Maximum time in seconds to wait for workers that no longer answer; None for
            600. The logger ``bubbleviz.dask`` names such workers after 10 s.
        progress: takes the progress of the run.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    check_choice(align, ALIGNMENTS, "--align")
    if skip < 0:
        raise UsageError(f"--skip {skip}: must be 0 or more")
    part = parse_window(window) if isinstance(window, str) else window
    limit = None if memory_limit is None else _limit_bytes(memory_limit, what_if)
    memory = memory or limit is not None
    work = None if flops is None else _flops(flops)
    planned = None
    if plan is not None:
        planned = read_file(str(plan)).plan
    watched = progress or Unwatched()
    with _fleet(jobs, dask, dask_timeout) as fleet:
        with step("find profiles"):
            # Iterators pass but once.
            files = fleet.find(given := _texts(paths))
            watched.files(refuse_same_content(fleet, [file.path for file in files]))
        options = ReadOptions(
            find_conventions(convention),
            cross_thread,
            keep_export,
            has_draft=is_drafted,
            memory=memory,
            run_paths=" ".join(map(quote_for_shell, given)),
        )
        hints = RunHints(tuple(order), parallel, same_clock, align)
        recordings, run, unreadable = _read_run(fleet, files, options, hints, watched)
        with step("count"):
            counts = count(run, skip=skip, window=part)
        with step("explain"):
            explanation = explain(run, counts, fleet.map)
            run, counts, explanation = windowed(part, run, counts, explanation)
            schedule = find_schedule(recordings, run, counts)
            shown = run.ranks, run.operations, counts.iterations
            comparison = None if planned is None else compare_with_plan(*shown, planned)
    unread = (*unreadable, *find_missing_files(files))
    report = build_report(Report, recordings, run, counts, explanation, unread)
    report = replace(add_schedule(report, schedule, comparison), flops=work)
    if memory:
        report = replace(report, memory=collect_memory(recordings, run))
    if not what_if and not ideal:
        return report
    with step("simulate schedules"):
        held = None
        if report.memory is not None:
            held = find_device_memory(report.memory, explanation.phase_times.kinds, limit)
        simulated = ask_what_if(
            run.ranks,
            run.operations,
            counts,
            explanation,
            schedule,
            planned,
            others=what_if,
            memory=held,
        )
        if limit is not None and held is None:
            what = f"memory limit {memory_limit} plays no part"
            reason = "profiles do not tell what all stages hold in bytes (bubbleviz guide memory)"
            note = Limitation(what, reason, kind=LimitationKind.LIMIT_UNUSED)
            report = replace(report, limitations=(*report.limitations, note))
    return replace(report, what_if=simulated if what_if else None, theory=simulated)


def _read_run(
    fleet: Fleet,
    files: Sequence[InputFile],
    options: ReadOptions,
    hints: RunHints,
    progress: Progress,
) -> tuple[tuple[Recording, ...], Run, tuple[Limitation, ...]]:
    """Read profiles and merge them into a run.

    Args:
        fleet: Machines or processes that read the files.
        files: The profiles.
        options: How to read them.
        hints: What the user states about the run.
        progress: Receives how much of each profile has been read.

    Returns:
        The recordings, the merged run, and one limitation per unreadable file.

    Raises:
        BubblevizError: A profile cannot be read, or the profiles are not from a single run.
    """
    with step("profiles"):
        read, unreadable = record_all(fleet, files, options, progress)
    with step("merge ranks"), add_hosts_to_errors(list_hosts(read.recordings)):
        return read.recordings, merge(read, hints), unreadable


def _limit_bytes(text: str, what_if: bool) -> float:
    limit = parse_bytes(text, "--memory-limit")
    if not what_if:
        raise UsageError(
            f"--memory-limit {text}: tells which other schedules fit, and none is asked for; "
            "give --what-if, too"
        )
    return limit


def _flops(text: str) -> tuple[float, float]:
    """Return FLOPs of an iteration, and peak FLOPs per second of a GPU."""
    try:
        flops, peak = map(float, text.split("/"))
    except ValueError:
        flops = peak = 0.0
    if not (0 < flops < inf and 0 < peak < inf):
        raise UsageError(
            f"--flops {to_one_line(text, 60)}: give FLOPs of an iteration, a slash, and peak FLOPs "
            "per second of a GPU, as 4.2e15/989e12"
        )
    return flops, peak


def load(path: str | Path) -> RunSummary | IdleSummary:
    """Return a report that was saved as JSON.

    Args:
        path: Path of the JSON file.

    Returns:
        The report of ``analyze``, or of ``idle``. Attributes are the keys of the JSON.

    Raises:
        InputError: The file cannot be read, or is not such a report.
    """
    return read_saved(str(path))


def compare(*runs: Report | RunSummary | IdleSummary | str | Path) -> Comparison:
    """Return the ratios of runs side by side, with what became of the advice of the first.

    Args:
        runs: Reports, measured or loaded, or paths of saved reports and of profiles.

    Raises:
        UsageError: There are fewer than two.
        InputError: A path cannot be read.
    """
    if len(runs) < 2:
        raise UsageError("compare needs two or more runs")

    compared = []
    for number, run in enumerate(runs, 1):
        title = str(run) if isinstance(run, (str, Path)) else f"run {number}"
        if isinstance(run, (str, Path)):
            run = load(run) if is_saved_report(str(run)) else analyze(run)  # noqa: PLW2901
        if isinstance(run, Report):
            summary = summarize(run, by_rank=False)
            compared.append(comparison.ComparedRun(title, title, summary, run))
        else:
            compared.append(comparison.ComparedRun(title, title, run))
    return comparison.compare(compared)


def simulate(
    schedule: str | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    *,
    report: Report | RunSummary | str | Path | None = None,
    tf: float | Sequence[float] | None = None,
    tb: float | Sequence[float] | None = None,
    tw: float | Sequence[float] | None = None,
    tcomm: float | None = None,
    chunks: int | None = None,
) -> Ideal | Estimate:
    """Return the cost, makespan, ratios and memory of a schedule in theory.

    What is not given is taken from the report; without one, times are 1 ms, and transfers 0.

    Args:
        schedule: its name (``"zb-h1"``); ``bubbleviz schedules`` lists them.
        stages: number of devices.
        microbatches: of an iteration.
        report: A report, measured or loaded, or the path of a saved one.
        tf: milliseconds of a microbatch's forward; one for all stages, or one a stage.
        tb: likewise of its backward for the input.
        tw: likewise of its backward for the weights.
        tcomm: milliseconds of a transfer.
        chunks: model chunks per device; None for the schedule's usual number.

    Raises:
        UsageError: there is no such schedule, it does not allow these sizes, or one is not known.
        InputError: the report cannot be read, or is of no whole pipeline.
    """
    run = None if report is None else _pipeline_of(report)
    given = schedule, stages, microbatches
    sizes, times = choose_sizes_and_times(run, given, tf, tb, tw, tcomm)
    named, p, m = sizes
    if named is None or p is None or m is None:
        raise UsageError("simulate needs schedule, stages and microbatches, or a report with them")
    found = simulate_or_estimate(named, p, m, times, chunks)
    return replace(found, restrictions=() if run is None else read_restrictions(run.restrictions))


def _pipeline_of(report: Report | RunSummary | str | Path) -> RunSummary:
    """Return the summary of a report, with which schedules are simulated.

    Raises:
        InputError: The report cannot be read, or is of no whole pipeline.
    """
    if isinstance(report, Report):
        report = summarize(report, by_rank=False, slowdown=False)
    if isinstance(report, RunSummary):
        return check_pipeline("the run", report)
    if isinstance(report, IdleSummary):
        raise InputError("the report is on idle time; give a report of analyze")
    return read_pipeline(str(report))


def _fleet(
    jobs: int, dask: str | None, dask_timeout: float | None
) -> AbstractContextManager[Fleet]:
    """Return the fleet that reads the profiles.

    Raises:
        UsageError: the number of jobs is below 1, or the timeout is not above 0 or goes without a
            cluster.
    """
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: must be 1 or more")
    if dask_timeout is not None and dask is None:
        raise UsageError("--dask-timeout needs --dask, the cluster whose workers are waited for")
    if dask_timeout is not None and not 0 < dask_timeout < float("inf"):
        raise UsageError(f"--dask-timeout {dask_timeout:g}: give seconds, more than 0")
    if dask is None:
        return nullcontext(Fleet(jobs))

    return dask_fleet(dask, MAX_WAIT_S if dask_timeout is None else dask_timeout)


def _texts(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Return one or several names as texts."""
    return [str(given)] if isinstance(given, (str, Path)) else [*map(str, given)]
