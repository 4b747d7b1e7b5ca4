"""Saved reports: JSON that ``-o report.json`` wrote, read back as small values.

Only the keys that are compared and checked are read; the rest of a report may grow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import DecodeError, Raw, ValidationError, convert
from msgspec import json as msgspec_json

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.limitations import Restriction, no_pipeline
from bubbleviz.model.phases import Phase, phase_of_label
from bubbleviz.model.texts import counted, rank_name, shell_word
from bubbleviz.report.memory import Count, Finite, Positive, RunMemory, measured_memory
from bubbleviz.report.promise import SavedAdvice
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.summary import IDLE_SCHEMA, SCHEMA, SavedTimeline, StepEntry
from bubbleviz.schedules.plan import MeasuredMemory, OperationTimes

if TYPE_CHECKING:
    from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes
    from bubbleviz.schedules.workload import Workload

#: Maximum size of a report.
_MOST_BYTES = 1 << 32
#: Keys in the first bytes of traces of PyTorch and XLA, and the number of these bytes.
_OF_TRACES, _HEAD = re.compile(rb'"(traceEvents|schemaVersion|displayTimeUnit|ph)"'), 4096
_UNREADABLE = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True)
class Average:
    """A mean over iterations: None for none, and ``std`` (n - 1) None for fewer than two."""

    mean: Finite | None
    std: Positive | None
    n: Count

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other."""
        if (self.mean is None) != (self.n == 0) or (self.std is None) != (self.n < 2):
            raise ValueError(f"mean, std and n = {self.n} contradict each other")


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
    advice: tuple[SavedAdvice, ...] = ()
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
        from bubbleviz.schedules.known import SCHEDULES
        from bubbleviz.schedules.measured_times import measured_times

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
        from bubbleviz.schedules.measured_times import measured_workload

        return measured_workload(self.kinds, self.transfer_ns, self.microbatches)

    def ratio(self, name: str) -> SavedRatio | None:
        """Return the ratio of that name, or None."""
        return next((ratio for ratio in self.ratios if ratio.name == name), None)


@dataclass(frozen=True)
class SavedTime(OperationTimes):
    """Times of operations of one kind, of which none is negative."""

    median_ns: Positive
    gap_ns: Positive | None = None
    pipeline_ns: Positive | None = None
    mean_ns: Positive = 0.0
    std_ns: Positive | None = None
    n: Count = 0


#: Keys that the HTML report shows beside those that every report has.
_SHOWN = (
    "headline_reason",
    "convention",
    "profiles",
    "schedule",
    "phase_times",
    "what_if",
    "longest_bubbles",
    "coverage",
    "limitations",
    "methods",
    "what_to_do_first",
    "advice",
    "typical_iteration",
)


@dataclass(frozen=True)
class _Named:
    """A schedule, a change, a part of a bubble: what it is called, and how much it is."""

    name: str | None = None
    share: Positive = 0.0
    makespan_ns: Positive = 0.0
    time_ns: Positive = 0.0


@dataclass(frozen=True)
class _Slowdown:
    by_replica: dict[str, Positive]
    by_rank: dict[str, Positive]
    by_link: dict[str, Positive]


@dataclass(frozen=True)
class _Iteration:
    microbatches: Count | None = None
    clocks_contradict: bool = False
    clock_set: bool = False


@dataclass(frozen=True)
class _Summary:
    iterations: Count
    bubble_ratio: dict[str, Average]
    window_ns: dict[str, Average]
    bubble_interval: dict[str, tuple[Finite, Finite] | None] = field(default_factory=dict)
    kernel_time: dict[str, Any] | None = None
    launch_gap: Finite | None = None
    bubble_parts: list[_Named] = field(default_factory=list)


@dataclass(frozen=True)
class _Rank:
    index: int
    label: str = ""
    global_rank: int | None = None
    pipeline: int | None = None
    stage: int | None = None
    #: Its place among the profiles; on idle time its path.
    profile: int | str = ""


@dataclass(frozen=True)
class _Advice(SavedAdvice):
    saving_ratio: Finite | None
    error_ratio: Finite | None = None
    ranks: tuple[Count, ...] = ()

    @property
    def saved(self) -> SavedAdvice:
        """The advice, whose ranks a report's JSON names by their places."""
        columns = vars(self) | {"indices": self.ranks}
        del columns["ranks"]
        return SavedAdvice(**columns)


@dataclass(frozen=True)
class _Document:
    """What is read of a report; what it need not hold has a default.

    All that is read of a report is checked here, once: its readers take the columns for granted.
    """

    version: str
    headline: str
    ranks: list[_Rank]
    iterations: list[_Iteration]
    summary: _Summary
    restrictions: list[dict[str, str]]
    phase_times: list[dict[str, Any]] = field(default_factory=list)
    transfer_ns: Positive | None = None
    microbatch_lengths: tuple[tuple[Positive, ...], ...] = ()
    memory: RunMemory | None = None
    schedule: _Named | None = None
    what_if: list[_Named] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    limitations: list[dict[str, Any]] = field(default_factory=list)
    typical_iteration: int | None = None
    critical_path: dict[str, Any] | None = None
    what_to_do_first: str | None = None
    first: list[StepEntry] = field(default_factory=list)
    then: list[Count] = field(default_factory=list)
    advice: tuple[_Advice, ...] = ()
    slowdown: _Slowdown | None = None
    kernels: list[_Named] = field(default_factory=list)


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
    """Return the ratios of a report that ``bubbleviz analyze -o report.json`` wrote.

    Raises:
        InputError: it cannot be read, or is not such a report.
    """
    return saved_report(path, _report_bytes(path))


def saved_report(path: str, data: bytes) -> SavedReport:
    """Return what a report's JSON tells; of a path, for errors.

    Raises:
        InputError: it is none.
    """
    return _saved_report(path, _decoded(path, data, _Document, (SCHEMA, IDLE_SCHEMA)))


def read_document(path: str) -> dict[str, Any]:
    """Return the whole of a report that ``bubbleviz analyze -o report.json`` wrote.

    Raises:
        InputError: it cannot be read, is not such a report, or lacks what is shown of one.
    """
    data = _report_bytes(path)
    known = _decoded(path, data, _Document)
    _saved_report(path, known)
    document = _decoded(path, data, dict[str, Any])
    missing = [key for key in _SHOWN if key not in document]
    if missing:
        raise InputError(
            f"{path}: the report lacks {missing[0]}; write it again with bubbleviz analyze "
            "-o report.json"
        )
    return document


def saved_timeline(path: str, values: Mapping[str, Any]) -> SavedTimeline:
    """Return the timeline of a report of a path.

    Raises:
        InputError: it is of another form.
    """
    try:
        return convert(values, SavedTimeline)
    except ValidationError as error:
        raise no_timeline(path, f"is invalid ({str(error)[:200]})") from error


def no_timeline(path: str, what: str) -> InputError:
    """Return the error that a timeline is none, or contradicts itself."""
    return InputError(
        f"{path}: its timeline {what}; write the report again with bubbleviz analyze -o report.json"
    )


def read_pipeline(path: str) -> SavedReport:
    """Return a report with which schedules are simulated, as ``bubbleviz analyze`` wrote it.

    Raises:
        InputError: it cannot be read, is not such a report, or is of no whole pipeline.
    """
    return of_pipeline(path, _saved_report(path, _decoded(path, _report_bytes(path), _Document)))


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
    from bubbleviz.schedules.measured_times import StageTimes, of_stages

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


def _time(path: str, entry: dict[str, Any]) -> SavedTime:
    """Return the times of a kind of operations; what is null there is unknown."""
    known = {key: value for key, value in entry.items() if value is not None}
    try:
        return convert({**known, "phase": _phase(path, known.get("phase"))}, SavedTime)
    except ValidationError as error:
        raise _no_report(path, error) from error


def _phase(path: str, label: object) -> Phase:
    phase = phase_of_label(str(label))
    if phase is None:
        raise InputError(
            f"{path}: {str(label)[:60]!r} is not a phase; write a report with bubbleviz analyze "
            "-o report.json"
        )
    return phase


_Decoded = TypeVar("_Decoded")


def _report_bytes(path: str) -> bytes:
    """Return the bytes of a report; a pipe can be read only once.

    Raises:
        InputError: it cannot be read.
    """
    hint = "name a report that bubbleviz analyze -o report.json wrote"
    return read_bounded(path, _MOST_BYTES, "a report", hint, pipes=True)


def _decoded(
    path: str, data: bytes, kind: type[_Decoded], schemas: Sequence[str] = (SCHEMA,)
) -> _Decoded:
    """Return the decoded report of some bytes.

    Raises:
        InputError: they are not a report.
    """
    try:
        schema = msgspec_json.decode(
            msgspec_json.decode(data, type=dict[str, Raw])["schema"], type=str
        )
        if schema in schemas:
            return msgspec_json.decode(data, type=kind)
        if schema == IDLE_SCHEMA:
            raise _without_operations(path, msgspec_json.decode(data, type=_Document))
    except KeyError:
        raise _no_report(path, "it names no schema") from None
    except _UNREADABLE as error:
        if data.startswith(b"\x1f\x8b"):
            raise InputError(f"{path}: is packed; unpack it with gunzip") from error
        raise _no_report(path, error) from error
    raise InputError(
        f"{path}: its schema is {schema[:60]!r}, not {SCHEMA}; give the profiles of the run, or a "
        "report of them: bubbleviz analyze RUN -o report.json"
    )


def _without_operations(path: str, idle: _Document) -> InputError:
    """Return the error for a report on idle time, which names what shows its profiles."""
    profiles = dict.fromkeys(str(rank.profile) for rank in idle.ranks if rank.profile)
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


def _check_advice(path: str, document: _Document) -> None:
    """Check that the advice to follow first and next is listed.

    Raises:
        InputError: It is not.
    """
    first = (step.advice for step in document.first if step.advice is not None)
    if any(index >= len(document.advice) for index in (*first, *document.then)):
        raise InputError(
            f"{path}: the report lacks advice that it gives first; write it again with bubbleviz "
            "analyze -o report.json"
        )


def _saved_report(path: str, document: _Document) -> SavedReport:
    summary = document.summary
    missing = sorted(set(summary.bubble_ratio) - set(summary.window_ns))
    if document.headline not in summary.bubble_ratio or missing:
        what = f"the window of {missing[0][:60]!r}" if missing else "its headline among its ratios"
        raise InputError(
            f"{path}: the report lacks {what}; write it again with bubbleviz analyze -o report.json"
        )
    _check_advice(path, document)
    told = (summary.kernel_time or {}).get("sentence")
    contradicted = any(i.clocks_contradict for i in document.iterations)
    clock_set = any(i.clock_set for i in document.iterations)
    iterations, memory = enumerate(document.iterations), document.memory
    shown = [own for number, own in iterations if number == document.typical_iteration]
    for own in () if memory is None else memory.operations:
        _phase(path, own.phase)
    kinds = tuple(_time(path, time) for time in document.phase_times)
    virtual = {time.virtual_stage: time.stage for time in kinds}
    return SavedReport(
        version=document.version,
        headline=document.headline,
        ranks=len(document.ranks),
        launch_gap=summary.launch_gap,
        stage_of_rank=tuple(rank.stage for rank in document.ranks),
        iterations=summary.iterations,
        contradicted=contradicted,
        ratios=tuple(
            SavedRatio(
                name,
                bubble,
                summary.window_ns[name],
                summary.bubble_interval.get(name),
                # Bounds, be they unknown, are those of ratios that need a common clock.
                contradicted=clock_set or (contradicted and name in summary.bubble_interval),
            )
            for name, bubble in summary.bubble_ratio.items()
        ),
        restrictions=read_restrictions(document.restrictions),
        kernels=None if told is None else str(told),
        bubble_parts=tuple((part.name or "", part.share) for part in summary.bubble_parts),
        what_to_do_first=document.what_to_do_first,
        first_codes=tuple(step.code for step in document.first),
        advice=tuple(own.saved for own in document.advice),
        schedule=None if document.schedule is None else document.schedule.name,
        microbatches=shown[0].microbatches if shown else None,
        slowdowns={} if document.slowdown is None else _slowdowns(document, document.slowdown),
        kernel_ns={
            own.name or "": own.time_ns / max(summary.iterations, 1) for own in document.kernels
        },
        kinds=kinds,
        transfer_ns=document.transfer_ns,
        memory=None if memory is None else measured_memory(memory, virtual),
        lengths=document.microbatch_lengths,
        ran_ns=next((int(c.makespan_ns) for c in document.what_if if c.name == "measured"), None),
        paths=tuple(str(profile.get("path", "")) for profile in document.profiles),
        hosts=tuple(str(profile.get("host", "")) for profile in document.profiles),
    )


def _slowdowns(document: _Document, told: _Slowdown) -> dict[str, float]:
    """Return the slowdowns of ranks, where these are not those of stages, and of links, by name."""
    names = {
        str(rank.index): rank_name(rank.global_rank, rank.index, rank.label)
        for rank in document.ranks
    }
    by_rank = {names[key]: times for key, times in told.by_rank.items() if key in names}
    links = {f"transfers of stages {ends}": times for ends, times in told.by_link.items()}
    return {**(by_rank if len(told.by_replica) > 1 else {}), **links}
