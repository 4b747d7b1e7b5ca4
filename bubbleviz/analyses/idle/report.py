"""The report on idle time: how long devices were busy and idle, and what their hosts did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from bubbleviz.analyses.idle.waits import Awaited, ProvedWait
from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.values import frozen

#: The terms of the report; also in the JSON.
DEFINITIONS = {
    "span": "from the start of a device's first kernel, copy or memset to the end of its last",
    "busy": "union over streams of kernels, copies and memsets",
    "duty_cycle": "busy / span",
    "compute": "union of kernels that are no communication",
    "communication": "union of communication kernels",
    "exposed_communication": "communication with no compute beside it",
    "exposed_point_to_point": "exposed communication in which a send or receive kernel runs",
    "exposed_copy": "copies and memsets with no kernel beside them",
    "overlap": "communication with compute beside it / communication",
    "idle": "span - busy = span - compute - exposed_communication - exposed_copy",
    "blocked": "a stream's next work was launched, the work before it on the stream was done, and "
    "an event that the stream waited for had not completed, as CUDA events prove",
    "step": "a range of the host, clipped to the span; its device work can lag behind",
}


@frozen
class Breakdown:
    """How a device spent the time from the start of its first work to the end of its last.

    ``span = compute + exposed_communication + exposed_copy + idle``, exactly. All are lengths of
    unions over streams: work that runs on two streams at a time counts once.

    Attributes:
        start_ns: start of the first work.
        end_ns: end of the last.
        busy_ns: anything ran (the duty cycle of XProf: active time over all time).
        compute_ns: a kernel ran that is no communication.
        communication_ns: a communication kernel ran.
        copy_ns: a copy or memset ran.
        exposed_communication_ns: communication ran, and no compute.
        exposed_point_to_point_ns: the part of it in which a send or receive kernel ran.
        exposed_copy_ns: a copy or memset ran alone.
    """

    start_ns: int
    end_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_point_to_point_ns: int
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
        """Busy time over the span; None for an empty span."""
        return ratio(self.busy_ns, self.span_ns)

    @property
    def compute_duty(self) -> float | None:
        """Compute time over the span; None for an empty span."""
        return ratio(self.compute_ns, self.span_ns)

    @property
    def overlap(self) -> float | None:
        """Communication beside compute over all communication; None without communication."""
        overlapped_ns = self.communication_ns - self.exposed_communication_ns
        return ratio(overlapped_ns, self.communication_ns)


def ratio(part_ns: int, whole_ns: int) -> float | None:
    """Return a part over the whole; None where the whole is 0."""
    return part_ns / whole_ns if whole_ns else None


@frozen
class Example:
    """The longest gap of an activity.

    Attributes:
        start_ns: start.
        end_ns: end.
        before: name of the work before it.
        after: name of the work after it.
        step: the step in which it begins; None outside of all.
        where: ranges and calls around it on the launching thread, outermost first.
    """

    start_ns: int
    end_ns: int
    before: str
    after: str
    step: str | None
    where: tuple[str, ...]


@frozen
class ActivityIdle:
    """Idle time attributed to an activity of the host.

    Attributes:
        activity: what the host did.
        idle_ns: idle time attributed to it.
        gaps: number of gaps that hold some of it.
        longest_ns: the most of it in one gap.
        example: that gap; None for kernel-to-kernel gaps.
        rank: index of the rank that has this gap.
    """

    activity: str
    idle_ns: int
    gaps: int
    longest_ns: int
    example: Example | None
    rank: int = 0


@frozen
class StepIdle:
    """A step of a rank: the host's range, clipped to the span of the device's work.

    Attributes:
        name: of the range; None for the time outside of all steps.
        start_ns: start; 0 outside of all steps.
        end_ns: end; the length of the time outside.
        busy_ns: how long anything ran in it.
        activities: (activity, idle ns), the longest first.
    """

    name: str | None
    start_ns: int
    end_ns: int
    busy_ns: int
    activities: tuple[tuple[str, int], ...]

    @property
    def length_ns(self) -> int:
        """From start to end."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """How long nothing ran."""
        return self.length_ns - self.busy_ns

    @property
    def duty_cycle(self) -> float | None:
        """Busy time over the length; None for an empty step."""
        return ratio(self.busy_ns, self.length_ns)


@frozen
class IdleGaps(Table):
    """Idle gaps that are attributed to activities, in order; shape (gaps,).

    Attributes:
        start_ns: start.
        end_ns: end.
        before: row of ``works``: the work before it.
        after: row of ``works``: the work after it.
        activity: row of ``activities``: the one with most of its time.
        step: row of the rank's steps: the one in which it begins; -1 none.
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


@frozen
class Chunks(Table):
    """Gaps cut by activity, in order; the chunks of a gap add up to it.

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


@frozen
class Strip:
    """A rank's time in slices of equal length, for a picture.

    Attributes:
        names: ``compute``, ``communication`` and ``copies``, each where none before it ran; then
            the activities of idle time, the longest first.
        spent_ns: shape (names, slices); the values of a slice add up to its length.
    """

    names: tuple[str, ...]
    spent_ns: Ints

    def gathered(self, names: Sequence[str]) -> Ints:
        """Return what is spent on each of some names, of which the last takes all others.

        Args:
            names: distinct, one at least.

        Returns:
            Nanoseconds; shape (names, slices).
        """
        place = {name: at for at, name in enumerate(names)}
        spent_ns = np.zeros((len(names), self.spent_ns.shape[1]), np.int64)
        np.add.at(spent_ns, [place.get(name, len(names) - 1) for name in self.names], self.spent_ns)
        return spent_ns


@frozen
class RankIdle:
    """A device of a process.

    Attributes:
        label: short name for people.
        path: of its profile.
        host: on which it was recorded.
        pid: process.
        device_id: device as the process numbers it.
        place: the device in words, ``GPU 0``.
        on_host: whether it is a host, whose operators stand for the work of a device: it has no
            duty cycle, and its idle time counts in no sum.
        single: whether it is a device that ran a single kernel or copy: its span is that one's, so
            it has no duty cycle, and counts in no sum.
        gpu: model of the device; None unknown.
        breakdown: how it spent its time.
        activities: its idle time by activity, the longest first; they add up to it.
        steps: in order; the time outside of them last, if there is any.
        steps_by: how steps were recognised.
        gaps: those that are attributed to activities.
        chunks: these gaps, cut by activity.
        strip: its time in slices.
        format: of its profile; "" unknown.
        waits: what its streams and hosts waited for, as far as it is proved, the most time
            without compute first.
        awaited: how much of its exposed time held up launched work, as far as it is proved.
    """

    label: str
    path: str
    host: str
    pid: int
    device_id: int
    place: str
    on_host: bool
    single: bool
    gpu: str | None
    breakdown: Breakdown
    activities: tuple[ActivityIdle, ...]
    steps: tuple[StepIdle, ...]
    steps_by: str
    gaps: IdleGaps
    chunks: Chunks
    strip: Strip
    format: str = ""
    waits: tuple[ProvedWait, ...] = ()
    awaited: Awaited = Awaited(0, 0)

    @property
    def duty_cycle(self) -> float | None:
        """Busy time over the span; None for an empty span, a host, and a single kernel or copy."""
        return None if self.on_host or self.single else self.breakdown.duty_cycle

    @property
    def compute_duty(self) -> float | None:
        """Compute time over the span; None where there is no duty cycle."""
        return None if self.on_host or self.single else self.breakdown.compute_duty


@frozen
class IdleReport:
    """Idle time of the devices of some profiles.

    Attributes:
        ranks: in the order of the profiles, then processes and devices.
        activities: idle time of all devices by activity, the longest first.
        shortest_ns: shorter gaps are kernel-to-kernel gaps.
        advice: what may help, by activity.
        meaning: of activities.
        limitations: what could not be measured, and why.
        window: the analysed part of the run, as the user wrote it; None for all.
    """

    ranks: tuple[RankIdle, ...]
    activities: tuple[ActivityIdle, ...]
    shortest_ns: int
    advice: Mapping[str, str]
    meaning: Mapping[str, str]
    limitations: tuple[Limitation, ...]
    window: str | None = None

    @property
    def devices(self) -> tuple[RankIdle, ...]:
        """The ranks that are devices, not hosts."""
        return tuple(rank for rank in self.ranks if not rank.on_host)

    @property
    def idle_ns(self) -> int:
        """Idle time of all devices."""
        return sum(rank.breakdown.idle_ns for rank in self.devices if not rank.single)

    @property
    def proved_idle_ns(self) -> int:
        """Idle time of all devices in which a stream or a host is proved to have waited."""
        ranks = (rank for rank in self.devices if not rank.single)
        return sum(wait.idle_ns for rank in ranks for wait in rank.waits)

    @property
    def span_ns(self) -> int:
        """Spans of all devices that ran more than a single kernel or copy."""
        return sum(rank.breakdown.span_ns for rank in self.devices if not rank.single)
