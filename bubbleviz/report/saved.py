"""Saved reports: JSON that ``-o report.json`` wrote, read back as small values.

Keys that a later version of bubbleviz added are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import DecodeError, Raw, ValidationError
from msgspec import json as msgspec_json

from bubbleviz.errors import InputError
from bubbleviz.model.columns import NONE
from bubbleviz.model.files import read_bounded
from bubbleviz.model.limitations import Restriction, no_pipeline
from bubbleviz.model.phases import Phase, phase_of_label
from bubbleviz.model.texts import counted, rank_name, shell_word
from bubbleviz.report.idle_summary import IDLE_SCHEMA, IdleSummary
from bubbleviz.report.memory import measured_memory
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.summary import (
    SCHEMA,
    AdviceEntry,
    Average,
    PhaseTimeEntry,
    RunSummary,
    SlowdownEntry,
)
from bubbleviz.schedules.known import SCHEDULES
from bubbleviz.schedules.measured_times import (
    StageTimes,
    measured_times,
    measured_workload,
    of_stages,
)
from bubbleviz.schedules.plan import MeasuredMemory, OperationTimes

if TYPE_CHECKING:
    from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes
    from bubbleviz.schedules.workload import Workload

#: Maximum size of a report.
_MOST_BYTES = 1 << 32
#: Keys in the first bytes of traces of PyTorch and XLA, and the number of these bytes.
_OF_TRACES, _HEAD = re.compile(rb'"(traceEvents|schemaVersion|displayTimeUnit|ph)"'), 4096
#: Schema of reports that are not read any more.
_OLD_SCHEMA = "bubbleviz.report/1"
_UNREADABLE = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True)
class SavedRatio:
    """One bubble ratio of a run: over its iterations, with the length of its window in ns.

    ``interval`` holds the clock bounds of the mean; None for unknown or exact ones.
    ``contradicted``: whether it needs clocks that contradict each other.
    """

    name: str
    bubble: Average
    window_ns: Average
    interval: tuple[float, float] | None = None
    contradicted: bool = False


@dataclass(frozen=True, repr=False)
class SavedReport:
    """The ratios of a saved report.

    Attributes:
        version: of the bubbleviz that wrote it.
        headline: name of the ratio to quote.
        ranks: number of ranks.
        iterations: number of averaged iterations.
        contradicted: whether a ratio needs clocks that contradict each other.
        ratios: in the report's order.
        restrictions: why the ratios are not those of a whole pipeline, what weighs most first.
        kernels: for how much of the time kernels ran, in words, where that stands beside the ratio.
        bubble_parts: what the primary ratio's bubble is made of, as shares of its window, the
            largest first.
        what_to_do_first: None where nothing is advised.
        first_codes: Codes of the steps of ``what_to_do_first``; see :class:`.advice.StepCode`.
        advice: all that would shorten iterations, the largest saving first.
        schedule: name of the one that ran; None where it was not recognised.
        microbatches: of the typical iteration; None where that is unknown.
        slowdowns: how many times longer iterations take for one rank or link, by its name.
        kernel_ns: of a report on idle time, how long kernels of each name take in a step.
        kinds: how long operations take.
        transfer_ns: how long a transfer takes; None where none was measured.
        memory: of its virtual stages, in bytes; None where that was not measured.
        ran_ns: how long the typical iteration took; None where that is not known.
        lengths: how many times as long as their mean the microbatches of iterations take.
        paths: Paths of its profiles.
        hosts: Names of their hosts.
        stage_of_rank: Stage of each rank, or None if it is unknown; in the report's order.
        launch_gap: Share of the time of operations in which no kernel runs, or None if unknown.
    """

    version: str
    headline: str
    ranks: int
    iterations: int
    contradicted: bool
    ratios: tuple[SavedRatio, ...]
    restrictions: tuple[Restriction, ...] = ()
    kernels: str | None = None
    bubble_parts: tuple[tuple[str, float], ...] = ()
    what_to_do_first: str | None = None
    first_codes: tuple[str, ...] = ()
    advice: tuple[AdviceEntry, ...] = ()
    schedule: str | None = None
    microbatches: int | None = None
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    kernel_ns: Mapping[str, float] = field(default_factory=dict)
    kinds: tuple[SavedTime, ...] = ()
    transfer_ns: float | None = None
    memory: MeasuredMemory | None = None
    ran_ns: int | None = None
    lengths: tuple[tuple[float, ...], ...] = ()
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    stage_of_rank: tuple[int | None, ...] = ()
    launch_gap: float | None = None

    def __dir__(self) -> list[str]:
        """Return what is public."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    @property
    def first_cause(self) -> tuple[str, float] | None:
        """The largest part of the bubble, and its share of that; None where it has none."""
        total = sum(share for _, share in self.bubble_parts)
        if not total:
            return None
        name, most = max(self.bubble_parts, key=lambda part: part[1])
        return name, most / total

    def __repr__(self) -> str:
        mean = "unknown" if self.bubble_ratio is None else f"{self.bubble_ratio:.4f}"
        return (
            f"SavedReport({self.headline} bubble ratio {mean}, "
            f"{counted(self.ranks, 'rank')}, {counted(self.iterations, 'averaged iteration')})"
        )

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary ratio; None where it is unknown."""
        ratio = self.ratio(self.headline)
        return None if ratio is None else ratio.bubble.mean

    @property
    def time_ns(self) -> dict[str, float]:
        """What a rank spends the primary ratio's window on: work first, then its bubble."""
        whole = self.of_window_ns(self.headline)
        window_ns = sum(whole.values())
        work = dict([*whole.items()][:1])
        return work | {name: share * window_ns for name, share in self.bubble_parts if whole}

    def of_window_ns(self, name: str) -> dict[str, float]:
        """Return work and bubble of a rank in the window of a ratio; nothing where it has none."""
        ratio = self.ratio(name)
        if ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
            return {}
        window_ns, bubble = ratio.window_ns.mean, ratio.bubble.mean
        work, idle = ("work", "bubble") if self.of_pipeline else ("busy", "idle")
        return {work: (1 - bubble) * window_ns, idle: bubble * window_ns}

    @property
    def of_pipeline(self) -> bool:
        """Whether it is on the bubbles of a run rather than on idle time."""
        return not self.headline.startswith("idle")

    @property
    def of_iterations(self) -> bool:
        """Whether windows of the primary ratio are iterations rather than whole captures."""
        return self.headline != "idle"

    @property
    def no_pipeline(self) -> str | None:
        """Why the ratios are none of a whole pipeline; None where they are."""
        return no_pipeline(self.restrictions)

    @cached_property
    def stage_ns(self) -> Mapping[tuple[int, str], float]:
        """Median time of each stage and phase (by label), its chunks summed."""
        total: dict[tuple[int, str], float] = {}
        for kind in self.kinds:
            key = kind.stage, kind.phase.label
            total[key] = total.get(key, 0.0) + kind.median_ns
        return total

    @cached_property
    def measured(self) -> MeasuredTimes:
        """What schedules can be simulated with.

        Raises:
            MismatchError: the time of a virtual stage is lacking.
        """
        ratio, name = self.ratio("schedule"), self.schedule or ""
        whole = None if ratio is None else ratio.window_ns
        # Of a single pipeline all iterations tell more than the typical one does.
        ran = 0 if whole is None else whole.n * (self.microbatches or 0)
        kinds = tuple(
            replace(kind, pipeline_ns=kind.mean_ns)
            if kind.n == ran and kind.pipeline_ns is not None
            else kind
            for kind in self.kinds
        )
        found = measured_times(kinds, self.transfer_ns, self.microbatches)
        found = replace(found, lengths=self.lengths)
        if name not in {rule.name for rule in SCHEDULES} or whole is None or not whole.mean:
            return found
        return replace(found, schedule=name, window_ns=(whole.mean, whole.std or 0.0, whole.n))

    @property
    def workload(self) -> Workload:
        """What virtual stages take.

        Raises:
            MismatchError: the time of one is lacking.
        """
        return measured_workload(self.kinds, self.transfer_ns, self.microbatches)

    def ratio(self, name: str) -> SavedRatio | None:
        """Return the ratio of that name, or None."""
        return next((ratio for ratio in self.ratios if ratio.name == name), None)


@dataclass(frozen=True)
class SavedTime(OperationTimes):
    """Times of operations of one kind, and their number."""

    n: int = 0


def looks_saved(path: str) -> bool:
    """Return whether a path is to be read as a report: a pipe, ``.json``, or text that opens ``{``.

    A path that cannot be read is not; its reader raises the error.
    """
    file = Path(path)
    try:
        if file.is_fifo():
            return True
        if not file.is_file():
            return False
        if file.suffix.lower() == ".json":
            with file.open("rb") as opened:
                return _OF_TRACES.search(opened.read(_HEAD)) is None
        if not file.stat().st_size:
            # A kernel's log looks like an empty file, and reading it waits.
            return False
        with file.open("rb") as opened:
            return opened.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def read_saved(path: str) -> SavedReport:
    """Return the numbers of a report that ``bubbleviz analyze -o report.json`` wrote.

    Raises:
        InputError: The file cannot be read, or is not such a report.
    """
    data = _report_bytes(path)
    if _schema_of(path, data) == IDLE_SCHEMA:
        return saved_idle(_checked(path, _decoded(path, data, IdleSummary)))
    return saved_run(_read_summary(path, data))


def read_summary(path: str) -> RunSummary:
    """Return a report that ``bubbleviz analyze -o report.json`` wrote.

    Raises:
        InputError: The file cannot be read, or is not such a report.
    """
    return _read_summary(path, _report_bytes(path))


def _read_summary(path: str, data: bytes) -> RunSummary:
    schema = _schema_of(path, data)
    if schema == IDLE_SCHEMA:
        raise _without_operations(path, _decoded(path, data, IdleSummary))
    if schema != SCHEMA:
        if schema == _OLD_SCHEMA:
            raise InputError(
                f"{path}: an earlier version of bubbleviz wrote this report; analyze the profiles "
                "again with this version: bubbleviz analyze RUN -o report.json"
            )
        raise InputError(
            f"{path}: its schema is {schema[:60]!r}, not {SCHEMA}; give the profiles of the run, "
            "or a report of them: bubbleviz analyze RUN -o report.json"
        )
    return _check_parts(path, _checked(path, _decoded(path, data, RunSummary)))


def read_pipeline(path: str) -> SavedReport:
    """Return a report with which schedules are simulated, as ``bubbleviz analyze`` wrote it.

    Raises:
        InputError: The file cannot be read, is not such a report, or is of no whole pipeline.
    """
    return of_pipeline(path, saved_run(read_summary(path)))


def of_pipeline(path: str, saved: SavedReport) -> SavedReport:
    """Return a report whose times are those of all stages.

    Raises:
        InputError: it is of no whole pipeline.
    """
    if saved.no_pipeline is not None:
        raise InputError(
            f"{path}: {saved.no_pipeline}, so its times are not those of a pipeline's stages; give "
            "analyze the profiles of all stages, or simulate the times with --tf, --tb and --tw"
        )
    return saved


#: The name of a schedule, and its numbers of stages and of microbatches; None where unknown.
Sizes = tuple[str | None, int | None, int | None]


def sizes_and_times(
    run: SavedReport | None,
    sizes: Sizes,
    tf: float | Sequence[float] | None,
    tb: float | Sequence[float] | None,
    tw: float | Sequence[float] | None,
    tcomm: float | None,
) -> tuple[Sizes, StageTimes]:
    """Return with what a schedule is simulated: what is given, and for the rest that of a run.

    Args:
        run: whose sizes and times they are; None for 1 ms, and transfers of 0.
        sizes: that are given.
        tf: milliseconds of a forward; one for all stages, or one a stage; None not given.
        tb: likewise of a backward for the input.
        tw: likewise of a backward for the weights.
        tcomm: of a transfer.

    Raises:
        MismatchError: the run lacks the time of a virtual stage.
    """
    times = StageTimes((1.0,), (1.0,), (1.0,))
    if run is not None:
        known = run.measured
        schedule, stages, microbatches = sizes
        stages = known.stages if stages is None else stages
        times, sizes = (
            of_stages(known.times, stages),
            (
                run.schedule if schedule is None else schedule,
                stages,
                known.microbatches if microbatches is None else microbatches,
            ),
        )
    given: dict[str, Any] = {
        name: (float(ms),) if isinstance(ms, (int, float, Real)) else tuple(map(float, ms))
        for name, ms in (("forward_ms", tf), ("backward_ms", tb), ("weight_ms", tw))
        if ms is not None
    }
    given |= {} if tcomm is None else {"transfer_ms": tcomm}
    # Where a time is given, virtual stages do not take what they did.
    return sizes, replace(times, measured=None, **given) if given else times


_Summary = TypeVar("_Summary", RunSummary, IdleSummary)


def _report_bytes(path: str) -> bytes:
    """Return the bytes of a report; a pipe can be read only once.

    Raises:
        InputError: it cannot be read.
    """
    hint = "name a report that bubbleviz analyze -o report.json wrote"
    return read_bounded(path, _MOST_BYTES, "a report", hint, pipes=True)


def _schema_of(path: str, data: bytes) -> str:
    """Return the schema that the JSON of a report names.

    Raises:
        InputError: The data is not JSON, or names no schema.
    """
    try:
        values = msgspec_json.decode(data, type=dict[str, Raw])
        return msgspec_json.decode(values["schema"], type=str)
    except KeyError:
        raise _no_report(path, "it names no schema") from None
    except _UNREADABLE as error:
        if data.startswith(b"\x1f\x8b"):
            raise InputError(f"{path}: is packed; unpack it with gunzip") from error
        raise _no_report(path, error) from error


def _decoded(path: str, data: bytes, kind: type[_Summary]) -> _Summary:
    """Return the summary in the JSON of a report.

    Raises:
        InputError: The values do not fit the model.
    """
    try:
        return msgspec_json.decode(data, type=kind)
    except _UNREADABLE as error:
        raise _no_report(path, error) from error


def _checked(path: str, summary: _Summary) -> _Summary:
    """Return a summary whose parts fit each other.

    Raises:
        InputError: They do not.
    """
    numbers = summary.summary
    missing = sorted(set(numbers.bubble_ratio) - set(numbers.window_ns))
    if summary.headline not in numbers.bubble_ratio or missing:
        what = f"the window of {missing[0][:60]!r}" if missing else "its headline among its ratios"
        raise InputError(
            f"{path}: the report lacks {what}; write it again with bubbleviz analyze -o report.json"
        )
    return summary


def _check_parts(path: str, summary: RunSummary) -> RunSummary:
    """Return a summary whose advice is listed and whose phases exist.

    Raises:
        InputError: Advice is missing, or a phase is unknown.
    """
    steps = [step.advice for step in summary.first if step.advice is not None]
    if any(index >= len(summary.advice) for index in (*steps, *summary.then)):
        raise InputError(
            f"{path}: the report lacks advice that it gives first; write it again with bubbleviz "
            "analyze -o report.json"
        )
    labels = [entry.phase for entry in summary.phase_times]
    if summary.memory is not None:
        labels += [operations.phase for operations in summary.memory.operations]
    for label in labels:
        if phase_of_label(label) is None:
            raise InputError(
                f"{path}: {label[:60]!r} is not a phase; write a report with bubbleviz analyze "
                "-o report.json"
            )
    return summary


def _without_operations(path: str, idle: IdleSummary) -> InputError:
    """Return the error for a report on idle time, which names what shows its profiles."""
    profiles = dict.fromkeys(rank.profile for rank in idle.ranks if rank.profile)
    shown = " ".join(map(shell_word, profiles))
    way = f"for a page run bubbleviz view {shown}"
    if not profiles or not all(Path(profile).exists() for profile in profiles):
        way = "a page needs its profiles, which are no longer where they were: give them to view"
    return InputError(
        f"{path}: a report on idle time, without operations; compare and gate take it, and {way}"
    )


def _no_report(path: str, why: object) -> InputError:
    return InputError(
        f"{path}: is not a bubbleviz report ({str(why)[:300]}); write one with bubbleviz "
        "analyze -o report.json"
    )


def saved_run(summary: RunSummary) -> SavedReport:
    """Return the numbers of a report on the bubbles of a run."""
    numbers, memory, typical = summary.summary, summary.memory, summary.typical
    is_contradicted = any(entry.clocks_contradict for entry in summary.iterations)
    is_clock_set = any(entry.clock_set for entry in summary.iterations)
    kinds = tuple(map(_saved_time, summary.phase_times))
    stage_of_virtual = {kind.virtual_stage: kind.stage for kind in kinds}
    return SavedReport(
        version=summary.version,
        headline=summary.headline,
        ranks=len(summary.ranks),
        launch_gap=numbers.launch_gap,
        stage_of_rank=tuple(rank.stage for rank in summary.ranks),
        iterations=numbers.iterations,
        contradicted=is_contradicted,
        ratios=tuple(
            SavedRatio(
                name,
                bubble,
                numbers.window_ns[name],
                numbers.bubble_interval.get(name),
                # Ratios that need a common clock have bounds, even if these are unknown.
                contradicted=is_clock_set or (is_contradicted and name in numbers.bubble_interval),
            )
            for name, bubble in numbers.bubble_ratio.items()
        ),
        restrictions=read_restrictions(summary.restrictions),
        kernels=numbers.kernel_time.sentence,
        bubble_parts=tuple((part.name, part.share) for part in numbers.bubble_parts),
        what_to_do_first=summary.what_to_do_first,
        first_codes=tuple(step.code for step in summary.first),
        advice=tuple(summary.advice),
        schedule=None if summary.schedule is None else summary.schedule.name,
        microbatches=None if typical is None else typical.microbatches,
        slowdowns={} if summary.slowdown is None else _slowdowns(summary, summary.slowdown),
        kinds=kinds,
        transfer_ns=summary.transfer_ns,
        memory=None if memory is None else measured_memory(memory, stage_of_virtual),
        lengths=summary.microbatch_lengths,
        ran_ns=summary.makespan_ns,
        paths=summary.paths,
        hosts=summary.hosts,
    )


def saved_idle(summary: IdleSummary) -> SavedReport:
    """Return the numbers of a report on idle time."""
    numbers = summary.summary
    return SavedReport(
        version=summary.version,
        headline=summary.headline,
        ranks=len(summary.ranks),
        iterations=numbers.iterations,
        contradicted=False,
        ratios=tuple(
            SavedRatio(name, share, numbers.window_ns[name])
            for name, share in numbers.bubble_ratio.items()
        ),
        restrictions=read_restrictions(summary.restrictions),
        bubble_parts=tuple((part.name, part.share) for part in numbers.bubble_parts),
        what_to_do_first=summary.what_to_do_first,
        kernel_ns={
            kernels.name: kernels.time_ns / max(numbers.iterations, 1)
            for kernels in summary.kernels
        },
        stage_of_rank=(None,) * len(summary.ranks),
    )


def _saved_time(entry: PhaseTimeEntry) -> SavedTime:
    """Return the times of a kind of operations, with -1 for a number that is unknown."""
    return SavedTime(
        phase=phase_of_label(entry.phase) or Phase.F,
        median_ns=entry.median_ns,
        stage=NONE if entry.stage is None else entry.stage,
        chunk=NONE if entry.chunk is None else entry.chunk,
        virtual_stage=NONE if entry.virtual_stage is None else entry.virtual_stage,
        gap_ns=entry.gap_ns,
        pipeline_ns=entry.pipeline_ns,
        mean_ns=entry.mean_ns,
        std_ns=entry.std_ns,
        n=entry.n,
    )


def _slowdowns(summary: RunSummary, slowdown: SlowdownEntry) -> dict[str, float]:
    """Return the slowdowns of ranks, where these are not those of stages, and of links, by name."""
    names = {
        rank.index: rank_name(rank.global_rank, rank.index, rank.label) for rank in summary.ranks
    }
    ranks, links = slowdown.by_rank, slowdown.by_link
    by_rank = {
        names[index]: times
        for index, times in zip(ranks.number, ranks.slowdown, strict=True)
        if index in names
    }
    by_link = {
        f"transfers of stages {source}-{target}": times
        for source, target, times in zip(links.source, links.target, links.slowdown, strict=True)
    }
    return {**(by_rank if len(slowdown.by_replica.number) > 1 else {}), **by_link}
