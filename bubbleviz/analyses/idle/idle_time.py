"""Idle time: how long devices of a profile were busy and idle, and what hosts did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.operations import Limitation


@dataclass(frozen=True)
class Breakdown:
    """How a device spent the time from the start of its first work to the end of its last.

    ``span = compute + exposed_communication + exposed_copy + idle``, exactly. All are
    lengths of unions over streams, so that what runs twice at a time counts once.

    Attributes:
        start_ns: start of the first work.
        end_ns: end of the last.
        busy_ns: anything ran (the duty cycle of XProf: active time over all time).
        compute_ns: a kernel ran that is no communication.
        communication_ns: a communication kernel ran.
        copy_ns: a copy or fill ran.
        exposed_communication_ns: communication ran, and no compute.
        exposed_copy_ns: a copy or fill ran alone.
    """

    start_ns: int
    end_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int

    @property
    def span_ns(self) -> int:
        """From the start of the first work to the end of the last."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """How long nothing ran."""
        return self.span_ns - self.busy_ns

    @property
    def duty_cycle(self) -> float | None:
        """Busy time over the span; None where there is no time."""
        return share(self.busy_ns, self.span_ns)

    @property
    def compute_duty(self) -> float | None:
        """Compute time over the span."""
        return share(self.compute_ns, self.span_ns)

    @property
    def overlap(self) -> float | None:
        """Communication beside compute over all communication; None where there is none."""
        beside_ns = self.communication_ns - self.exposed_communication_ns
        return share(beside_ns, self.communication_ns)


def share(part_ns: int, of_ns: int) -> float | None:
    """Return a ratio; None of nothing."""
    return part_ns / of_ns if of_ns else None


@dataclass(frozen=True)
class Example:
    """The gap in which an activity took most.

    Attributes:
        start_ns: when it began.
        end_ns: when it was over.
        before: name of the work before it.
        after: name of the work after it.
        step: in which it began; None outside.
        where: ranges and calls around it on the launching thread, outermost first.
    """

    start_ns: int
    end_ns: int
    before: str
    after: str
    step: str | None
    where: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What idle time is put down to.

    Attributes:
        activity: what the host did.
        idle_ns: for so much of it.
        gaps: in so many gaps.
        longest_ns: in one of them at most.
        example: that one; None of short gaps.
        rank: index of the rank it lies in.
    """

    activity: str
    idle_ns: int
    gaps: int
    longest_ns: int
    example: Example | None
    rank: int = 0


@dataclass(frozen=True)
class StepIdle:
    """A step of a rank: the host's range, clipped to the span of the device's work.

    Attributes:
        name: of the range; None for the time outside of all steps.
        start_ns: start; 0 outside of all steps.
        end_ns: end; the length of the time outside.
        busy_ns: how long anything ran in it.
        parts: activity and idle time, the longest first.
    """

    name: str | None
    start_ns: int
    end_ns: int
    busy_ns: int
    parts: tuple[tuple[str, int], ...]

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """How long nothing ran."""
        return self.length_ns - self.busy_ns

    @property
    def duty_cycle(self) -> float | None:
        """Busy time over its length; None where there is no time."""
        return share(self.busy_ns, self.length_ns)


@dataclass(frozen=True)
class IdleGaps(Table):
    """Idle gaps that are not short, in order.

    Attributes:
        start_ns: start.
        end_ns: end.
        before: row of ``works``.
        after: row of ``works``.
        activity: row of ``activities``: what took most of it.
        step: row of the rank's steps in which it begins; -1 none.
        works: distinct names of work.
        activities: distinct names of activities.
    """

    start_ns: Ints
    end_ns: Ints
    before: Ints
    after: Ints
    activity: Ints
    step: Ints
    works: tuple[str, ...] = field(metadata={"shared": True})
    activities: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class Chunks(Table):
    """What gaps are made of, in order: the chunks of a gap add up to it.

    Attributes:
        gap: row of the gaps.
        start_ns: start.
        end_ns: end.
        activity: row of the gaps' ``activities``.
    """

    gap: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints


#: What a device did in a strip, before the activities of its host.
COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_COPY = "compute", "communication", "copies"
BUSY = (COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_COPY)


@dataclass(frozen=True)
class Strip:
    """A rank's time in slices of equal length, for a picture.

    Attributes:
        names: ``compute``, ``communication`` and ``copies``, as far as others do not hide them;
            then the activities that idle time is put down to, the longest first.
        spent_ns: int64[names, slices]; a slice's numbers add up to its length.
    """

    names: tuple[str, ...]
    spent_ns: Ints


@dataclass(frozen=True)
class RankIdle:
    """A device of a process.

    Attributes:
        label: short name for people.
        path: of its profile.
        host: where it was recorded.
        pid: process.
        device_id: device as the process numbers it.
        gpu: what it is; None unknown.
        breakdown: how it spent its time.
        parts: what its idle time is put down to, the longest first; they add up to it.
        steps: in order; the time outside last, where there is some.
        steps_by: how steps were told.
        gaps: that are not short.
        chunks: of these.
        strip: its time in slices.
    """

    label: str
    path: str
    host: str
    pid: int
    device_id: int
    gpu: str | None
    breakdown: Breakdown
    parts: tuple[Part, ...]
    steps: tuple[StepIdle, ...]
    steps_by: str
    gaps: IdleGaps
    chunks: Chunks
    strip: Strip


@dataclass(frozen=True)
class IdleReport:
    """What ``bubbleviz idle`` tells.

    Attributes:
        ranks: in the order of the profiles, then processes and devices.
        parts: what idle time of all ranks is put down to, the longest first.
        shortest_ns: shorter gaps are short ones.
        advice: what may help, by activity.
        meaning: of activities.
        limitations: what could not be told.
        window: the part of the run that was looked at, as it was asked for; None for all.
    """

    ranks: tuple[RankIdle, ...]
    parts: tuple[Part, ...]
    shortest_ns: int
    advice: Mapping[str, str]
    meaning: Mapping[str, str]
    limitations: tuple[Limitation, ...]
    window: str | None = None

    @property
    def idle_ns(self) -> int:
        """Idle time of all ranks."""
        return sum(rank.breakdown.idle_ns for rank in self.ranks)

    @property
    def span_ns(self) -> int:
        """Spans of all ranks."""
        return sum(rank.breakdown.span_ns for rank in self.ranks)
