"""The saved report on idle time: a model of the JSON that ``bubbleviz idle -o report.json`` writes.

The fields are in the same order as the keys in the JSON. Times are in ns on each profile's clock,
and shares are fractions of 1. :func:`.idle.outputs.summarize_idle` creates the summary.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from bubbleviz.model.attribute_values import SummaryValue
from bubbleviz.model.texts import format_count, format_percent
from bubbleviz.report.memory import Count, Finite, Positive
from bubbleviz.report.summary import (
    Average,
    LatenessEntry,
    LimitationEntry,
    ProfilingCostEntry,
    RestrictionEntry,
    to_values,
)

#: Name and version of this model.
IDLE_SCHEMA = "bubbleviz.idle/1"
#: Names of the idle share for steps, and of the idle share for complete captures.
IDLE_STEPS, IDLE = "idle-steps", "idle"
Nanoseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class IdlePart(Struct, frozen=True):
    """One part of the idle time.

    Attributes:
        name: The host's activity during this part of the idle time.
        share: Fraction of the window that this part of the idle time takes up.
    """

    name: str
    share: Positive


class IdleNumbers(Struct, SummaryValue, frozen=True):
    """Statistics on the idle time of devices or of their steps.

    Attributes:
        iterations: Number of devices or steps.
        bubble_ratio: Average of each idle share over the devices or steps, keyed by name.
        window_ns: Average window length for each idle share, keyed by name.
        bubble_parts: Parts of the idle time, largest first.
    """

    iterations: Count
    bubble_ratio: dict[str, Average]
    window_ns: dict[str, Average]
    bubble_parts: list[IdlePart]


class GapExample(Struct, frozen=True, kw_only=True):
    """The gap that contains the most idle time attributed to an activity.

    Attributes:
        rank: Index of the device in the report. Omitted in the activities of a single device.
        start_ns: Start of the gap.
        end_ns: End of the gap.
        before: Name of the kernel or copy before the gap.
        after: Name of the kernel or copy after the gap.
        step: Name of the step in which the gap begins, or None if it begins outside of all steps.
        where: Ranges and calls on the launching thread that enclose the gap, outermost first.
    """

    rank: int | UnsetType = UNSET
    start_ns: int
    end_ns: int
    before: str
    after: str
    step: str | None
    where: tuple[str, ...]

    def of_rank(self, rank: int) -> GapExample:
        """Return a copy of this example that contains the index of its device."""
        return replace(self, rank=rank)


class ActivityEntry(Struct, frozen=True):
    """Idle time that is attributed to a host activity.

    Attributes:
        activity: Name of the activity.
        idle_ns: Idle time that is attributed to the activity.
        share: Fraction of all idle time, or None if there is no idle time.
        gaps: Number of gaps that contain idle time attributed to this activity.
        longest_ns: Maximum idle time attributed to this activity in a single gap.
        example: The gap with the maximum in ``longest_ns``, or None for kernel-to-kernel gaps.
    """

    activity: str
    idle_ns: int
    share: Finite | None
    gaps: Count
    longest_ns: int
    example: GapExample | None


class WorkTotal(Struct, frozen=True):
    """Totals for all kernels or copies with the same name.

    Attributes:
        name: Name of the kernels or copies.
        work_class: Class of the kernels, or ``copies``.
        count: Number of kernels or copies.
        time_ns: Sum of the durations of all kernels or copies, including those that ran
            concurrently.
    """

    name: str
    work_class: str = field(name="class")
    count: Count
    time_ns: Nanoseconds


class CopyEntry(Struct, frozen=True):
    """Totals for the copies in one direction between two kinds of memory.

    Attributes:
        direction: The direction of the copies.
        source: Kind of memory that the copies read from.
        target: Kind of memory that the copies write to.
        count: Number of copies.
        bytes: Number of bytes copied, or None if the size of any copy is unknown.
        time_ns: Sum of the durations of all copies, including those that ran concurrently.
        gb_per_s: Throughput in gigabytes per second, or None if ``bytes`` is unknown.
        exposed_ns: Part of ``time_ns`` during which no kernel ran on the copy's device, or None if
            the report contains no such time.
    """

    direction: str
    source: str
    target: str
    count: Count
    bytes: Count | None
    time_ns: int
    gb_per_s: Finite | None
    exposed_ns: int | None = None


class StepParts(Struct, frozen=True):
    """Parts of the time from the start of a step's range to the end of the step's last work.

    The time begins later if work that was launched before the step is still running.

    Attributes:
        preparing_ns: Time before the first work.
        compute_ns: Time during which a kernel other than a communication kernel ran.
        exposed_communication_ns: Time during which communication ran but compute did not.
        exposed_copy_ns: Time during which a copy or memset ran, but no kernel.
        idle_ns: Time after the first work during which nothing ran.
    """

    preparing_ns: Nanoseconds
    compute_ns: Nanoseconds
    exposed_communication_ns: Nanoseconds
    exposed_copy_ns: Nanoseconds
    idle_ns: Nanoseconds

    @property
    def total_ns(self) -> int:
        """Sum of the parts."""
        busy_ns = self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns
        return self.preparing_ns + busy_ns + self.idle_ns


class IdleStep(Struct, frozen=True):
    """A step of a device: a host range, clipped to the span of the device's work.

    Attributes:
        name: Name of the range, or None for the time outside of all steps.
        start_ns: Start of the step, or None for the time outside of all steps.
        end_ns: End of the step, or None for the time outside of all steps.
        length_ns: Length of the step, or of the time outside of all steps.
        busy_ns: Time in the step during which the device was busy.
        idle_ns: Time in the step during which the device was idle.
        duty_cycle: Busy time as a fraction of the length, or None if it is not measured.
        activities: Idle time in ns, grouped by activity, longest first.
        parts: Parts of the time until the step's last work, or None if unknown.
    """

    name: str | None
    start_ns: int | None
    end_ns: int | None
    length_ns: int
    busy_ns: int
    idle_ns: int
    duty_cycle: Finite | None
    activities: dict[str, int]
    parts: StepParts | None = None


class ProvedWait(Struct, frozen=True):
    """Waits of a stream or host for kernels or copies of the same name, proved by recorded events.

    Attributes:
        waiting: Stream that waits, or the call in which a host waits while the device is idle.
        stream: Stream of the awaited work. If the work ran on another device, the name includes
            that device.
        work: Name of the awaited kernels or copies.
        kind: Kind of the awaited work: ``compute``, ``communication`` or ``copy``.
        waits: Number of waits.
        blocked_ns: Time during which the stream's next work had been launched but was waiting, or
            during which a host was waiting while the device was idle. Several streams may wait at
            the same time.
        without_compute_ns: Part of ``blocked_ns`` during which the device was not computing.
        idle_ns: The device's idle time that is attributed to the waits.
    """

    waiting: str
    stream: str
    work: str
    kind: str
    waits: Count
    blocked_ns: int
    without_compute_ns: int
    idle_ns: int

    def order(self) -> tuple[object, ...]:
        """Return a sort key that puts waits with the most time without compute first."""
        names = self.waiting, self.stream, self.work
        return (-self.without_compute_ns, -self.blocked_ns, *names)


class HeldBackCommunication(Struct, frozen=True):
    """Communication kernels that were ready, but started only with a kernel of another stream.

    Attributes:
        communication: Name of the communication kernels.
        stream: Stream of the communication.
        behind: Name of the kernels that held the communication back.
        behind_stream: Stream of those kernels.
        moment: ``start`` or ``end``: what those kernels did when the communication started.
        count: Number of communication kernels.
        held_ns: Time from when the communication was ready to its start, summed.
    """

    communication: str
    stream: str
    behind: str
    behind_stream: str
    moment: str
    count: Count
    held_ns: Nanoseconds

    def order(self) -> tuple[object, ...]:
        """Return a sort key that puts the longest time first."""
        names = self.communication, self.stream, self.behind, self.behind_stream, self.moment
        return (-self.held_ns, *names)


class LaunchQueue(Struct, frozen=True):
    """Number of a device's kernels and copies that had been launched but had not yet started.

    Attributes:
        mean: Mean number over the device's span.
        most: Maximum number.
        empty_ns: Total time during which the number was 0.
    """

    mean: Finite
    most: Count
    empty_ns: int


class GapChunk(Struct, frozen=True):
    """A part of a gap during which the host's activity did not change.

    Attributes:
        activity: The host's activity during this part.
        start_ns: Start of the part.
        end_ns: End of the part.
    """

    activity: str
    start_ns: int
    end_ns: int


class GapEntry(Struct, frozen=True):
    """A gap in the work of a device.

    Attributes:
        start_ns: Start of the gap.
        end_ns: End of the gap.
        idle_ns: Length of the gap.
        step: Name of the step in which the gap begins, or None if it begins outside of all steps.
        activity: The host activity that takes the largest part of the gap.
        before: Name of the kernel or copy before the gap.
        after: Name of the kernel or copy after the gap.
        chunks: Parts of the gap, each of which has a single activity, sorted by start.
    """

    start_ns: int
    end_ns: int
    idle_ns: int
    step: str | None
    activity: str
    before: str
    after: str
    chunks: list[GapChunk]


class IdleRank(Struct, frozen=True):
    """A device used by a process, or a host whose CPU operators are treated as work.

    Attributes:
        index: Index of the device in the report.
        label: Name of the device, unique in the report.
        profile: Path of the profile that recorded the device.
        host: Name of the host.
        pid: Process id.
        device_id: Device number from the process's point of view.
        device: Display name of the device.
        gpu: Product name of the GPU, or None if unknown.
        start_ns: Start of the first work on the device.
        end_ns: End of the last work on the device.
        span_ns: Time from the first start to the last end.
        busy_ns: Time during which any work ran.
        idle_ns: Time during which no work ran.
        compute_ns: Time during which a kernel other than a communication kernel ran.
        communication_ns: Time during which a communication kernel ran.
        copy_ns: Time during which a copy or memset ran.
        exposed_communication_ns: Time during which communication but no compute ran.
        exposed_point_to_point_ns: Part of ``exposed_communication_ns`` during which a send or
            receive kernel ran.
        exposed_copy_ns: Time during which only copies or memsets ran.
        overlap: Fraction of the communication time that overlaps compute, or None if there was no
            communication.
        duty_cycle: Busy time as a fraction of the span, or None if it is not measured.
        compute_duty: Compute time as a fraction of the span, or None if it is not measured.
        activities: Idle time grouped by activity, longest first.
        copies: Copies grouped by direction and memory kinds, longest total time first.
        steps_by: How the steps were recognized.
        steps: The steps in order, followed by the time outside of all steps, if there is any.
        waits: Proved waits of streams and hosts. Those with the most time without compute come
            first.
        awaited_communication_ns: Time of exposed communication for which a stream is proved to have
            waited.
        awaited_copy_ns: Time of exposed copies for which a stream is proved to have waited.
        launch_queue: Number of kernels and copies that had been launched but had not yet started,
            or None if unknown.
        gaps: Number of gaps, not counting kernel-to-kernel gaps.
        longest_gaps: The longest gaps, in descending order of length.
        relative_score: The fastest device's kernel time divided by this device's kernel time, over
            kernels that ran equally often on other devices. None if there are no such kernels.
        held_back: Communication that was ready, but started only with a kernel of another stream,
            longest first.
        held_back_ns: Time during which at least one communication kernel was held back.
        are_events_recorded: Whether CUDA events were recorded. If not, ``held_back`` is an upper
            bound, because communication may have waited for an event.
        capture: Number of the capture in the order of time, starting at 1, or None if the device
            was captured once.
    """

    index: int
    label: str
    profile: str
    host: str
    pid: int
    device_id: int
    device: str
    gpu: str | None
    start_ns: int
    end_ns: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_point_to_point_ns: int
    exposed_copy_ns: int
    overlap: Finite | None
    duty_cycle: Finite | None
    compute_duty: Finite | None
    activities: list[ActivityEntry]
    copies: list[CopyEntry]
    steps_by: str
    steps: list[IdleStep]
    waits: tuple[ProvedWait, ...]
    awaited_communication_ns: int
    awaited_copy_ns: int
    launch_queue: LaunchQueue | None
    gaps: Count
    longest_gaps: list[GapEntry]
    relative_score: Finite | None
    held_back: tuple[HeldBackCommunication, ...] = ()
    held_back_ns: int = 0
    are_events_recorded: bool = False
    capture: Count | None = None


class IdleSummary(Struct, frozen=True):
    """A report on idle time, in JSON form.

    Attributes:
        schema: Name and version of this model.
        version: Version of bubbleviz that wrote the report.
        headline: Name of the primary idle share.
        iterations: Always empty, because a report on idle time does not contain pipeline
            iterations.
        summary: Statistics on the idle time.
        restrictions: Reasons why busy and idle times are uncertain, most severe first.
        definitions: Definitions, keyed by term.
        shortest_ns: Gaps shorter than this are kernel-to-kernel gaps.
        window: The analyzed part of the run, as the user wrote it, or None for the complete run.
        span_ns: Sum of the spans of all measured devices.
        idle_ns: Sum of the idle times of all measured devices.
        proved_idle_ns: Part of ``idle_ns`` during which a stream or a host is proved to have
            waited.
        what_to_do_first: The most important advice as sentences.
        activities: Idle time of all devices, grouped by activity, longest first.
        meanings: Meaning of each activity, keyed by activity.
        kernels: Kernels and copies of all devices, grouped by name, longest total time first.
        copies: Copies of all devices, grouped by direction and memory kinds, longest total time
            first.
        ranks: Devices, sorted by profile, process and device.
        limitations: Values that could not be measured, along with the reasons.
        profiling_cost: Comparison with an unprofiled step, or None if none was given.
        gpu_names: Display name of each GPU that ``lateness`` compares.
        lateness: Which GPUs arrive last at collectives, or None if unknown. Ranks are indices of
            ``gpu_names``, and iterations are indices of steps.
    """

    schema: str
    version: str
    headline: str
    iterations: tuple[()]
    summary: IdleNumbers
    restrictions: list[RestrictionEntry]
    definitions: dict[str, str]
    shortest_ns: int
    window: str | None
    span_ns: int
    idle_ns: int
    proved_idle_ns: int
    what_to_do_first: str
    activities: list[ActivityEntry]
    meanings: dict[str, str]
    kernels: list[WorkTotal]
    copies: list[CopyEntry]
    ranks: list[IdleRank]
    limitations: list[LimitationEntry]
    profiling_cost: ProfilingCostEntry | None = None
    gpu_names: tuple[str, ...] = ()
    lateness: LatenessEntry | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Profile paths, one per device."""
        return tuple(rank.profile for rank in self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names, one per device."""
        return tuple(rank.host for rank in self.ranks)

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary idle share, or None if it is unknown."""
        return self.summary.bubble_ratio[self.headline].mean

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document as dictionaries, lists and values."""
        return to_values(self)

    @property
    def has_steps(self) -> bool:
        """Whether the primary idle share is about steps instead of complete captures."""
        return self.headline != IDLE

    def __repr__(self) -> str:
        """Return the primary idle share and the sizes of the report."""
        n_devices = sum(rank.capture in (None, 1) for rank in self.ranks)
        devices = format_count(n_devices, "device")
        return f"IdleSummary({self.headline} {format_percent(self.bubble_ratio)}, {devices})"
