"""The saved report on idle time: a model of the JSON that ``bubbleviz idle -o report.json`` writes.

The order of the fields is the order of the keys. Times are nanoseconds on each profile's clock, and
shares are fractions of 1. :func:`.idle.outputs.summary_of_idle` creates the summary.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from bubbleviz.model.texts import format_count, format_percent
from bubbleviz.report.memory import Count, Finite, Positive
from bubbleviz.report.summary import Average, LimitationEntry, RestrictionEntry

#: Name and version of this model.
IDLE_SCHEMA = "bubbleviz.idle/1"
#: What compare and gate call the idle share of steps, and of complete captures.
IDLE_STEPS, IDLE = "idle-steps", "idle"
Nanoseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class IdlePart(Struct, frozen=True):
    """A part of the idle time.

    Attributes:
        name: Activity of the host during this idle time.
        share: Idle time as a share of the window.
    """

    name: str
    share: Positive


class IdleNumbers(Struct, frozen=True):
    """Statistics on idle time over devices or their steps. Keys are names of idle shares.

    Attributes:
        iterations: Number of devices or steps.
        bubble_ratio: Average of each idle share over the devices or steps, keyed by share name.
        window_ns: Average length of the window of each share, keyed by share name.
        bubble_parts: Parts of the idle time, the largest first.
    """

    iterations: Count
    bubble_ratio: dict[str, Average]
    window_ns: dict[str, Average]
    bubble_parts: list[IdlePart]


class GapExample(Struct, frozen=True, kw_only=True):
    """The longest gap of an activity.

    Attributes:
        rank: Index of the device in the report; left out in the activities of a single device.
        start_ns: Start of the gap.
        end_ns: End of the gap.
        before: Name of the work before the gap.
        after: Name of the work after the gap.
        step: Name of the step in which the gap begins, or None if it is in no step.
        where: Ranges and calls around the gap on the launching thread, outermost first.
    """

    rank: int | UnsetType = UNSET
    start_ns: int
    end_ns: int
    before: str
    after: str
    step: str | None
    where: tuple[str, ...]

    def of_rank(self, rank: int) -> GapExample:
        """Return this example with the index of its device."""
        return replace(self, rank=rank)


class ActivityEntry(Struct, frozen=True):
    """Idle time attributed to an activity of the host.

    Attributes:
        activity: Name of the activity.
        idle_ns: Idle time attributed to the activity.
        share: Share of all idle time, or None if there is no idle time.
        gaps: Number of gaps with idle time of this activity.
        longest_ns: Maximum idle time of this activity in one gap.
        example: The gap with this maximum, or None for kernel-to-kernel gaps.
    """

    activity: str
    idle_ns: int
    share: Finite | None
    gaps: Count
    longest_ns: int
    example: GapExample | None


class WorkTotal(Struct, frozen=True):
    """Totals of the kernels or copies with one name.

    Attributes:
        name: Name of the kernels or copies.
        work_class: Class of the kernels, or ``copies``.
        count: Number of kernels or copies.
        time_ns: Sum of their times; concurrent work counts separately.
    """

    name: str
    work_class: str = field(name="class")
    count: Count
    time_ns: Nanoseconds


class CopyEntry(Struct, frozen=True):
    """Totals of the copies in one direction between two kinds of memory.

    Attributes:
        direction: Direction of the copies.
        source: Kind of memory that the copies read.
        target: Kind of memory that the copies write.
        count: Number of copies.
        bytes: Number of bytes, or None if the size of any copy is unknown.
        time_ns: Sum of the durations; concurrent copies count separately.
        gb_per_s: Gigabytes per second, or None if bytes are unknown.
    """

    direction: str
    source: str
    target: str
    count: Count
    bytes: Count | None
    time_ns: int
    gb_per_s: Finite | None


class IdleStep(Struct, frozen=True):
    """A step of a device: the host's range, clipped to the span of the device's work.

    Attributes:
        name: Name of the range, or None for the time outside of all steps.
        start_ns: Start, or None for the time outside of all steps.
        end_ns: End, or None for the time outside of all steps.
        length_ns: Length of the step, or of the time outside of all steps.
        busy_ns: Time in the step for which anything ran.
        idle_ns: Time in the step for which nothing ran.
        duty_cycle: Busy time as a fraction of the length, or None if it is not measured.
        activities: Idle time in ns by activity, the longest first.
    """

    name: str | None
    start_ns: int | None
    end_ns: int | None
    length_ns: int
    busy_ns: int
    idle_ns: int
    duty_cycle: Finite | None
    activities: dict[str, int]


class ProvedWait(Struct, frozen=True):
    """Waits of a stream or host for work of one name on a stream, as events prove them.

    Attributes:
        waiting: Stream that waits, or the call with which a host waits while the device is idle.
        stream: Stream of the work that is waited for, with its device if that is another device.
        work: Name of the work that is waited for.
        kind: Kind of this work: ``compute``, ``communication`` or ``copy``.
        waits: Number of waits.
        blocked_ns: Time for which the stream's next work was launched and waited, or for which a
            host waited while the device was idle. Several streams may wait at a time.
        without_compute_ns: Part of ``blocked_ns`` in which the device computed nothing.
        idle_ns: Idle time of the device that is attributed to these waits.
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
        """Return the sort key that puts the most time without compute first."""
        names = self.waiting, self.stream, self.work
        return (-self.without_compute_ns, -self.blocked_ns, *names)


class LaunchQueue(Struct, frozen=True):
    """Kernels and copies of a device that were launched but had not started.

    Attributes:
        mean: Mean number over the span.
        most: Maximum number.
        empty_ns: Time for which there were none.
    """

    mean: Finite
    most: Count
    empty_ns: int


class GapChunk(Struct, frozen=True):
    """A piece of a gap.

    Attributes:
        activity: Activity of the host during the piece.
        start_ns: Start of the piece.
        end_ns: End of the piece.
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
        step: Name of the step in which it begins, or None if it is in no step.
        activity: Activity of the host that takes the largest part of the gap.
        before: Name of the work before the gap.
        after: Name of the work after the gap.
        chunks: Pieces of the gap by activity, in order of time.
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
    """A device of a process, or a host whose operators count as work.

    Attributes:
        index: Index in the report.
        label: Name that is unique in the report.
        profile: Path of its profile.
        host: Host on which it was recorded.
        pid: Process id.
        device_id: Device number as the process sees it.
        device: Display name of the device.
        gpu: Product name of the GPU, or None if it is unknown.
        start_ns: Start of its first work.
        end_ns: End of its last work.
        span_ns: Time from the first start to the last end.
        busy_ns: Time for which anything ran.
        idle_ns: Time for which nothing ran.
        compute_ns: Time for which a kernel other than communication ran.
        communication_ns: Time for which a communication kernel ran.
        copy_ns: Time for which a copy or memset ran.
        exposed_communication_ns: Time for which communication ran without compute.
        exposed_point_to_point_ns: Part of ``exposed_communication_ns`` in which a send or receive
            kernel ran.
        exposed_copy_ns: Time for which a copy or memset ran alone.
        overlap: Share of communication that overlaps compute, or None without communication.
        duty_cycle: Busy time as a fraction of the span, or None if it is not measured.
        compute_duty: Compute time as a fraction of the span, or None if it is not measured.
        activities: Idle time by activity, the longest first.
        copies: Copies by direction and kinds of memory, the longest total first.
        steps_by: How steps were recognized.
        steps: The steps in order, then the time outside of all steps, if there is any.
        waits: Proved waits of its streams and hosts, the most time without compute first.
        awaited_communication_ns: Exposed communication for which a stream is proved to have waited.
        awaited_copy_ns: Exposed copies for which a stream is proved to have waited.
        launch_queue: Work that was launched but had not started, or None if it is unknown.
        gaps: Number of gaps that are not short.
        longest_gaps: The longest gaps, the longest first.
        relative_score: Kernel time of the fastest device divided by the kernel time of this device,
            over kernels that ran equally often on other devices, or None if there are none.
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


class IdleSummary(Struct, frozen=True):
    """A report on idle time as JSON.

    Attributes:
        schema: Name and version of this model.
        version: Version of bubbleviz that wrote the report.
        headline: Name of the primary idle share.
        iterations: Always empty: a report on idle time has no iterations of a pipeline.
        summary: Statistics on idle time.
        restrictions: Why busy and idle times are uncertain, the most severe first.
        definitions: Meaning of each term.
        shortest_ns: Length below which gaps are kernel-to-kernel gaps.
        window: The analyzed part of the run, as the user wrote it, or None for the complete run.
        span_ns: Sum of the spans of all measured devices.
        idle_ns: Sum of the idle times of all measured devices.
        proved_idle_ns: Part of ``idle_ns`` in which a stream or a host is proved to have waited.
        what_to_do_first: The most important advice in words.
        activities: Idle time of all devices by activity, the longest first.
        meanings: Meaning of each activity, keyed by its name.
        kernels: Kernels and copies of all devices by name, the longest first.
        copies: Copies of all devices by direction and kinds of memory, the longest total first.
        ranks: Devices, in the order of profiles, then of processes and devices.
        limitations: Values that could not be measured, and the reasons.
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

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the profiles, one per device."""
        return tuple(rank.profile for rank in self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, one per device."""
        return tuple(rank.host for rank in self.ranks)

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary idle share, or None if it is unknown."""
        return self.summary.bubble_ratio[self.headline].mean

    @property
    def has_steps(self) -> bool:
        """Whether the primary idle share refers to steps rather than to complete captures."""
        return self.headline != IDLE

    def __repr__(self) -> str:
        """Return the primary idle share and the sizes of the report."""
        devices = format_count(len(self.ranks), "device")
        return f"IdleSummary({self.headline} {format_percent(self.bubble_ratio)}, {devices})"
