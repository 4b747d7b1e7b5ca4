"""The function ``analyze`` of the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path

from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.count.count import count
from bubbleviz.count.draft_trial import is_drafted
from bubbleviz.errors import UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.explain.extra_work import fit_extra_work
from bubbleviz.explain.recognition.recognition import compare_with_plan
from bubbleviz.explain.windowed import select_window
from bubbleviz.interpret.fleet.dask_fleet import MAX_WAIT_S, dask_fleet
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recording, add_hosts_to_errors, list_hosts
from bubbleviz.model.choices import ALIGNMENTS, check_choice
from bubbleviz.model.durations import parse_duration
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_sizes import parse_bytes
from bubbleviz.model.texts import quote_for_shell, to_one_line
from bubbleviz.model.window import Window, parse_window
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.render.notebook import Report
from bubbleviz.report.memory_limits import collect_memory
from bubbleviz.report.other_schedules import simulate_other_schedules
from bubbleviz.report.profiling_cost import parse_unprofiled_step
from bubbleviz.report.report import add_schedule, build_report, find_schedule
from bubbleviz.schedules.communication.torch_csv import read_file
from bubbleviz.sources.paths import InputFile, find_missing_files
from bubbleviz.timing import time_step


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
    extra_work: str | None = None,
    piece: str | None = None,
    unprofiled_step: str | None = None,
    jobs: int = 1,
    dask: str | None = None,
    dask_timeout: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure the pipeline bubbles of one run, recorded in one or more profiles.

    Args:
        paths: Profiles, directories of profiles, or glob patterns.
        convention: Names of built-in range naming conventions, or paths of TOML files that define
            conventions. For each range name, the first matching convention is used. By default, the
            convention is detected automatically.
        skip: Number of initial iterations to exclude from averages.
        cross_thread: Whether a backward pass can be launched by a thread other than the one that
            opened its range.
        order: Rank indices in pipeline order. Each index is the value that ``Rank.index`` has when
            this argument is omitted. By default, the order is inferred.
        same_clock: Groups of host names. The hosts in a group share one clock, for example because
            they are containers on one machine.
        align: How to align host clocks: "causal" uses waits between ranks, "utc" uses the hosts'
            UTC clocks, and "none" leaves the clocks as they are. None means "causal", but raises an
            error for captures that are more than a minute apart in UTC.
        parallel: Tensor, pipeline and data parallel sizes, or None to infer them.
        plan: Path of a file with the planned order of operations to compare with the measured
            order, or None.
        keep_export: Whether to keep the SQLite files exported from ``.nsys-rep`` reports. They are
            stored next to the reports.
        what_if: Whether to simulate other schedules with the measured operation durations.
        ideal: Whether to simulate the run's schedule (or the plan, if given) with the measured
            operation durations.
        window: The part of the run to measure, for example ``iteration:5-8`` or ``time:1.5s-3s``,
            or None for the entire run.
        memory: Whether to read the memory allocations that the profiles recorded.
        memory_limit: Memory per device that the simulated schedules may use, for example ``80GB``.
            By default, they may use as much memory as the run did. Requires ``what_if`` and implies
            ``memory``.
        flops: Model FLOPs per iteration over all ranks and peak FLOP/s of a GPU, separated by a
            slash, for example ``4.2e15/989e12``. If given, the model FLOPs utilization (MFU) is
            computed.
        extra_work: Length of a job to run in the bubbles of every iteration, for example ``120ms``.
            If given, the report says how much of the job fits.
        piece: Length of the indivisible pieces of that job, for example ``4ms``. By default, the
            job is indivisible. Requires ``extra_work``.
        unprofiled_step: Length of a step without a profiler, for example ``29.39s``. If given, the
            report says how far the profile can be trusted.
        jobs: For a single profile, the number of threads that read it, in addition to the thread
            that links kernels to API calls. For several profiles, the number of processes that read
            them. A script that uses more than one job must protect its code with
            ``if __name__ == "__main__":``.
        dask: Address or scheduler file of a Dask cluster whose workers read the profiles, or None
            to read them on this machine.
        dask_timeout: Maximum time in seconds to wait for Dask workers that have stopped responding.
            None means 600. The logger ``bubbleviz.dask`` names an unresponsive worker after 10 s.
        progress: Object that is notified of the run's progress, or None.

    Raises:
        BubblevizError: The run cannot be measured. The message says what is wrong, where, and what
            to do next; see :mod:`bubbleviz.errors`.
    """
    check_choice(align, ALIGNMENTS, "--align")
    if skip < 0:
        raise UsageError(f"--skip {skip}: must be 0 or more")
    part = parse_window(window) if isinstance(window, str) else window
    limit = None if memory_limit is None else _parse_limit(memory_limit, what_if)
    memory = memory or limit is not None
    work = None if flops is None else _parse_flops(flops)
    job = _parse_extra_work(extra_work, piece)
    unprofiled_ns = None if unprofiled_step is None else parse_unprofiled_step(unprofiled_step)
    planned = None
    if plan is not None:
        planned = read_file(str(plan)).plan
    watched = progress or Unwatched()
    with _make_fleet(jobs, dask, dask_timeout) as fleet:
        with time_step("find profiles"):
            # The paths may be an iterator, which can be read only once.
            files = fleet.find(path_texts := _list_texts(paths))
            watched.files(refuse_same_content(fleet, [file.path for file in files]))
        options = ReadOptions(
            find_conventions(convention),
            cross_thread,
            keep_export,
            has_draft=is_drafted,
            memory=memory,
            run_paths=" ".join(map(quote_for_shell, path_texts)),
        )
        hints = RunHints(tuple(order), parallel, same_clock, align)
        recordings, run, unreadable = _read_run(fleet, files, options, hints, watched)
        with time_step("count"):
            counts = count(run, skip=skip, window=part)
        with time_step("explain"):
            explanation = explain(run, counts, fleet.map)
            run, counts, explanation = select_window(part, run, counts, explanation)
            schedule = find_schedule(recordings, run, counts)
            comparison = None
            if planned is not None:
                comparison = compare_with_plan(
                    run.ranks, run.operations, counts.iterations, planned
                )
    unread = (*unreadable, *find_missing_files(files))
    report = build_report(Report, recordings, run, counts, explanation, unread)
    report = replace(
        add_schedule(report, schedule, comparison),
        flops=work,
        planned_order=planned,
        unprofiled_step_ns=unprofiled_ns,
    )
    if memory:
        report = replace(report, memory=collect_memory(recordings, run))
    if job is not None:
        stages = [rank.stage for rank in report.ranks]
        fitted = fit_extra_work(report.bubbles, stages, report.iterations, *job)
        report = replace(report, extra_work=fitted)
    if not what_if and not ideal:
        return report
    with time_step("simulate schedules"):
        simulated = simulate_other_schedules(report, with_all_schedules=what_if, limit_bytes=limit)
        if limit is not None and simulated.limit_bytes is None:
            unused_limit = Limitation(
                f"memory limit {memory_limit} has no effect",
                "the profiles do not contain the memory use of all stages (see bubbleviz guide "
                "memory)",
                kind=LimitationKind.LIMIT_UNUSED,
            )
            report = replace(report, limitations=(*report.limitations, unused_limit))
    return replace(report, other_schedules=simulated if what_if else None, theory=simulated)


def _read_run(
    fleet: Fleet,
    files: Sequence[InputFile],
    options: ReadOptions,
    hints: RunHints,
    progress: Progress,
) -> tuple[tuple[Recording, ...], Run, tuple[Limitation, ...]]:
    """Read profiles and merge them into a run.

    Args:
        fleet: Machines or processes that will read the files.
        files: The profiles.
        options: Options for reading the profiles.
        hints: Rank order, parallelism and clocks specified by the user.
        progress: Callback that is notified of read progress.

    Returns:
        The recordings, the merged run, and one limitation for each file that cannot be read.

    Raises:
        BubblevizError: A profile cannot be read, or the profiles are not from a single run.
    """
    with time_step("profiles"):
        read, unreadable = record_all(fleet, files, options, progress)
    with time_step("merge ranks"), add_hosts_to_errors(list_hosts(read.recordings)):
        return read.recordings, merge(read, hints), unreadable


def _parse_limit(text: str, what_if: bool) -> float:
    """Parse a memory limit, such as ``80GB``, and return it in bytes.

    Args:
        text: The limit.
        what_if: Whether other schedules will be simulated. The limit applies only to simulations.

    Raises:
        UsageError: The text is not a memory size, or ``what_if`` is false.
    """
    limit = parse_bytes(text, "--memory-limit")
    if not what_if:
        raise UsageError(
            f"--memory-limit {text}: only applies to simulated schedules; pass --what-if as well"
        )
    return limit


def _parse_flops(text: str) -> tuple[float, float]:
    """Parse FLOPs per iteration and peak FLOP/s of a GPU, such as ``4.2e15/989e12``.

    Raises:
        UsageError: The text is not two numbers separated by a slash, or a number is not positive
            and finite.
    """
    try:
        flops, peak = map(float, text.split("/"))
    except ValueError:
        flops = peak = 0.0
    if not (0 < flops < inf and 0 < peak < inf):
        raise UsageError(
            f"--flops {to_one_line(text, 60)}: must be the FLOPs per iteration, a slash, and the "
            "peak FLOPs per second of a GPU, e.g. 4.2e15/989e12"
        )
    return flops, peak


def _parse_extra_work(extra_work: str | None, piece: str | None) -> tuple[int, int] | None:
    """Parse the length of a job and of its pieces, and return both in ns, or None if not given.

    Raises:
        UsageError: A length is malformed, a piece is longer than the job, or only the piece is
            given.
    """
    if extra_work is None:
        if piece is not None:
            raise UsageError(
                f"--piece {to_one_line(piece, 60)}: only applies to extra work; pass --extra-work "
                "as well"
            )
        return None
    work_ns = parse_duration(extra_work, "--extra-work")
    piece_ns = work_ns if piece is None else parse_duration(piece, "--piece")
    if piece_ns > work_ns:
        raise UsageError(
            f"--piece {piece}: longer than --extra-work {extra_work}; pass a shorter piece"
        )
    return work_ns, piece_ns


def _make_fleet(
    jobs: int, dask: str | None, dask_timeout: float | None
) -> AbstractContextManager[Fleet]:
    """Return a context manager for the processes or the Dask cluster that read the profiles.

    Args:
        jobs: Number of local processes or threads, at least 1.
        dask: Address or scheduler file of a Dask cluster, or None to read with local processes.
        dask_timeout: Maximum time in seconds to wait for unresponsive Dask workers, or None for
            ``MAX_WAIT_S``.

    Raises:
        UsageError: ``jobs`` is less than 1, the timeout is not positive and finite, or a timeout is
            given without a cluster.
    """
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: must be 1 or more")
    if dask_timeout is not None and dask is None:
        raise UsageError("--dask-timeout only applies to a Dask cluster; pass --dask as well")
    if dask_timeout is not None and not 0 < dask_timeout < float("inf"):
        raise UsageError(
            f"--dask-timeout {dask_timeout:g}: must be a number of seconds greater than 0"
        )
    if dask is None:
        return nullcontext(Fleet(jobs))

    return dask_fleet(dask, MAX_WAIT_S if dask_timeout is None else dask_timeout)


def _list_texts(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """Return one or more paths as a list of strings."""
    return [str(paths)] if isinstance(paths, (str, Path)) else [*map(str, paths)]
