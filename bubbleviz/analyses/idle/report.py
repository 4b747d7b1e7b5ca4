"""The idle time report: how long devices were busy and idle, and what their hosts did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.idle import copies
from bubbleviz.analyses.idle.copies import CopyTotal
from bubbleviz.analyses.idle.gaps import LaneIntervals
from bubbleviz.conventions.host_activities import UNRECORDED
from bubbleviz.explain.idle import IdleIntervals, merge_pieces
from bubbleviz.explain.late_arrivals import Lateness
from bubbleviz.explain.slowness import score_by_fastest
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.limitations import LEFT_OUT, Limitation, LimitationKind
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.texts import format_count
from bubbleviz.report.idle_summary import (
    GapExample,
    HeldBackCommunication,
    LaunchQueue,
    ProvedWait,
    StepParts,
    WorkTotal,
)
from bubbleviz.report.late_ranks import describe_lateness
from bubbleviz.report.profiling_cost import ProfilingCost
from bubbleviz.report.restrictions import drop_few_left_out, list_restrictions

#: Kinds of limitations that make the busy and idle times uncertain.
_RESTRICTING = frozenset(
    (
        LimitationKind.FILE_DAMAGED,
        *LEFT_OUT,
        LimitationKind.KERNELS_LOST,
        LimitationKind.GRAPHS_LOST,
        LimitationKind.WORK_BEFORE_CAPTURE,
        LimitationKind.KERNELS_OVERRUN,
    )
)
#: Minimum share of the span at which idle time gets advice and unknown time is a restriction.
MIN_IDLE_SHARE = 0.01
#: Definitions of the terms in the report. They are also written to the JSON.
DEFINITIONS = {
    "span": "from the start of a device's first kernel, copy or memset to the end of its last",
    "busy": "union over streams of kernels, copies and memsets",
    "duty_cycle": "busy / span",
    "compute": "union of kernels other than communication",
    "communication": "union of communication kernels",
    "exposed_communication": "communication while no compute kernel runs",
    "exposed_point_to_point": "exposed communication during which a send or receive kernel runs",
    "exposed_copy": "copies and memsets while no kernel runs",
    "overlap": "communication while a compute kernel runs / communication",
    "idle": "span - busy = span - compute - exposed_communication - exposed_copy",
    "blocked": "a stream's next work was launched and its previous work was done, but an event "
    "that it waited for had not completed, as CUDA events prove",
    "held_back": "communication was launched, the work before it was done and awaited events had "
    "completed, but it started only when a kernel of another stream started or ended",
    "queued": "kernels and copies that were launched but have not started, mean over the span",
    "step": "a host range, clipped to the span; its device work can lag behind",
}


#: Work class of copies and page migrations. All other work classes are kernel classes.
COPIES = "copies"


@dataclass(frozen=True, repr=False)
class ActivityIdle:
    """Idle time attributed to an activity of the host.

    Attributes:
        activity: Name of the activity, such as ``data loading``.
        idle_ns: Idle time attributed to the activity.
        gaps: Number of gaps that contain idle time attributed to the activity.
        longest_ns: The activity's longest idle time within a single gap.
        example: The gap in which the activity took longest, or None for kernel-to-kernel gaps.
        rank: Report index of the device to which the gap ``example`` belongs.
    """

    activity: str
    idle_ns: int
    gaps: int
    longest_ns: int
    example: GapExample | None
    rank: int = 0

    def __repr__(self) -> str:
        gaps = format_count(self.gaps, "gap")
        return f"ActivityIdle({self.activity!a}, {self.idle_ns / 1e6:,.3f} ms in {gaps})"

    def order(self) -> tuple[int, str]:
        """Return the sort key that puts the activity with the most idle time first."""
        return -self.idle_ns, self.activity


@dataclass(frozen=True)
class StepIdle:
    """A step on a device: a host range, clipped to the device's span.

    Attributes:
        name: Name of the range, or None for the time outside of all steps.
        start_ns: Start, or None for the time outside of all steps.
        end_ns: End, or None for the time outside of all steps.
        length_ns: Length of the step, or of the time outside of all steps.
        busy_ns: Time in the step during which any kernel or copy ran.
        activities: (activity, idle time in ns) pairs, longest first.
        short_ns: Idle time in the short gaps that have no rows in :attr:`RankIdle.idle`.
        parts: Parts of the time until the step's last work, or None if unknown.
    """

    name: str | None
    start_ns: int | None
    end_ns: int | None
    length_ns: int
    busy_ns: int
    activities: tuple[tuple[str, int], ...]
    short_ns: int
    parts: StepParts | None = None

    @property
    def idle_ns(self) -> int:
        """Time in the step during which nothing ran on the device."""
        return self.length_ns - self.busy_ns

    @property
    def duty_cycle(self) -> float | None:
        """Busy time as a fraction of the length, or None for an empty step."""
        return self.busy_ns / self.length_ns if self.length_ns else None


#: Kinds of device work in a strip, listed before the host activities.
BUSY = ("compute", "communication", "copies")
#: Maximum number of devices that pictures and pages show.
MAX_SHOWN_DEVICES = 32
#: Name for all activities that are not listed separately.
REST = "everything else"


@dataclass(frozen=True, repr=False)
class RankIdle:
    """A device used by a process, and how the device spent its span.

    The span extends from the start of the first work to the end of the last work. The identity
    ``span = compute + exposed_communication + exposed_copy + idle`` holds exactly. All times are
    lengths of unions over streams, so simultaneous work on two streams is counted once.

    Attributes:
        label: Short display name.
        path: Path to the profile.
        host: Name of the machine on which the profile was recorded.
        pid: Process id.
        device_id: Device number within the process.
        device_label: Display name of the device, such as ``GPU 0``.
        is_host: Whether this is a host whose operators are treated as device work. A host has no
            duty cycle, and sums over devices leave out its idle time.
        is_single: Whether this is a device that ran only one kernel or copy. A device with a single
            kernel or copy has no duty cycle, and sums over devices leave out its idle time.
        gpu: Model of the device, or None if unknown.
        start_ns: Start time of the first work.
        end_ns: End time of the last work.
        busy_ns: Time during which any kernel or copy ran. XProf's duty cycle is this time divided
            by the total time.
        compute_ns: Time during which a kernel other than a communication kernel ran.
        communication_ns: Time during which a communication kernel ran.
        copy_ns: Time during which a copy or memset ran.
        exposed_communication_ns: Time during which communication ran but compute did not.
        exposed_point_to_point_ns: Part of ``exposed_communication_ns`` during which a send or
            receive kernel ran.
        exposed_copy_ns: Time during which a copy or memset ran, but no kernel.
        activities: Idle time by activity, longest first. The times add up to ``idle_ns``.
        steps: The steps in chronological order, followed by the time outside of all steps, if any.
        steps_by: Clause that states how the steps were recognized.
        idle: Idle time, one row per piece with a single activity. A short gap has rows only if it
            overlaps profiler overhead or unrecorded time; all other short gaps are only summed in
            ``steps``. ``before`` and ``after`` are indices into ``works``, and ``activity`` is an
            index into ``activity_names``.
        works: Kernel names, followed by the name used for copies.
        activity_names: Names of the activities.
        lanes: Times of compute, communication and copies, in the order of :data:`BUSY`. ``work``
            contains indices into ``works``.
        lane_slice_ns: Time of compute, communication and copies in equal slices of the span, shape
            (3, slices). Times of simultaneous work are counted for each kind.
        slice_ns: Time in equal slices of the span, for the picture; shape (names, slices). The
            names are :data:`BUSY`, followed by the names of ``activities``. Communication and
            copies are counted only if they are exposed.
        format: Format of the profile, or "" if unknown.
        waits: Proved waits of the device's streams and of hosts, sorted by time without compute,
            longest first.
        awaited_communication_ns: Exposed communication for which a stream is proved to have waited.
        awaited_copy_ns: Exposed copies for which a stream is proved to have waited.
        held_back: Communication that was ready, but started only with a kernel of another stream,
            longest first.
        held_back_ns: Time during which at least one communication kernel was held back.
        are_events_recorded: Whether the profile contains CUDA events. If not, ``held_back`` is an
            upper bound.
        work: Count and total duration of the kernels or copies with each name. Simultaneous work is
            counted separately.
        launch_queue: Depth of the queue of work that was launched but had not started, or None if
            the device is not measured or too few launches are known.
        copies: Copies grouped by direction and memory kind, longest total first. Empty if the
            profile records no details of copies.
        has_communicators: Whether the profile records which ranks take part in its communication.
        overhead_ns: Time in the span during which the profiler recorded that it stopped the
            process.
        capture: Number of the capture in the order of time, starting at 1, or None if the device
            was captured once.
    """

    label: str
    path: str
    host: str
    pid: int
    device_id: int
    device_label: str
    is_host: bool
    is_single: bool
    gpu: str | None
    start_ns: int
    end_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_point_to_point_ns: int
    exposed_copy_ns: int
    activities: tuple[ActivityIdle, ...]
    steps: tuple[StepIdle, ...]
    steps_by: str
    idle: IdleIntervals
    works: tuple[str, ...]
    activity_names: tuple[str, ...]
    lanes: tuple[LaneIntervals, ...]
    lane_slice_ns: Ints
    slice_ns: Ints
    format: str
    waits: tuple[ProvedWait, ...]
    awaited_communication_ns: int
    awaited_copy_ns: int
    work: tuple[WorkTotal, ...]
    launch_queue: LaunchQueue | None
    copies: tuple[CopyTotal, ...] = ()
    held_back: tuple[HeldBackCommunication, ...] = ()
    held_back_ns: int = 0
    are_events_recorded: bool = False
    has_communicators: bool = False
    overhead_ns: int = 0
    capture: int | None = None

    def __repr__(self) -> str:
        idle_ms, span_ms = self.idle_ns / 1e6, self.span_ns / 1e6
        return f"RankIdle({self.label!a}, idle for {idle_ms:,.3f} of {span_ms:,.3f} ms)"

    @property
    def span_ns(self) -> int:
        """Time from the start of the first work to the end of the last work."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """Time in the span during which nothing ran on the device."""
        return self.span_ns - self.busy_ns

    @property
    def gaps(self) -> IdleIntervals:
        """The gaps that have rows in ``idle``, one row each."""
        return merge_pieces(self.idle, "interval")

    def long_gaps(self, shortest_ns: int) -> IdleIntervals:
        """Return the gaps that last at least ``shortest_ns``, one row each."""
        gaps = self.gaps
        return gaps.take(gaps.end_ns - gaps.start_ns >= shortest_ns)

    @property
    def is_measured(self) -> bool:
        """Whether this is a device rather than a host, and ran more than one kernel or copy.

        The duty cycle of all other ranks is None.
        """
        return not self.is_host and not self.is_single

    @property
    def duty_cycle(self) -> float | None:
        """Busy time as a fraction of the span, or None if not measured."""
        return self.busy_ns / self.span_ns if self.is_measured else None

    @property
    def compute_duty(self) -> float | None:
        """Compute time as a fraction of the span, or None if not measured."""
        return self.compute_ns / self.span_ns if self.is_measured else None

    @property
    def overlap(self) -> float | None:
        """Fraction of the communication time that overlaps compute, or None if undefined.

        The fraction is undefined if the device ran no communication.
        """
        total_ns = self.communication_ns
        return (total_ns - self.exposed_communication_ns) / total_ns if total_ns else None

    def sum_slices(self, names: Sequence[str]) -> Ints:
        """Return how each slice of the span divides among the given kinds of work and activities.

        Args:
            names: Names of work kinds and activities, such as ``compute``. The last name also
                gets the time of all kinds and activities that are not listed.

        Returns:
            Time in ns, shape (names, slices). The times of a slice add up to the slice's length.
        """
        slice_names = (*BUSY, *(total.activity for total in self.activities))
        index = {name: row for row, name in enumerate(names)}
        spent_ns = np.zeros((len(names), self.slice_ns.shape[1]), np.int64)
        np.add.at(
            spent_ns, [index.get(name, len(names) - 1) for name in slice_names], self.slice_ns
        )
        return spent_ns


@dataclass(frozen=True)
class IdleMeasurement:
    """Idle time of the devices of one or more profiles.

    Attributes:
        ranks: The devices, sorted by profile, process and device.
        activities: Idle time by activity, summed over all devices, longest first.
        shortest_ns: Length below which gaps are kernel-to-kernel gaps.
        advice: Advice on what to do about each activity, keyed by the activity's name.
        meaning: Explanation of each activity, keyed by the activity's name.
        limitations: What could not be measured, and why.
        window: The analyzed part of the run, as the user wrote it, or None for the complete run.
        profiling_cost: Comparison with an unprofiled step, or None if none is given.
        lateness: Which GPUs arrive last at collectives, or None if unknown. Its ranks are indices
            of ``gpu_names``.
        gpu_names: Display name of each GPU that ``lateness`` compares.
        gpu_hosts: Host of each GPU that ``lateness`` compares.
    """

    ranks: tuple[RankIdle, ...]
    activities: tuple[ActivityIdle, ...]
    shortest_ns: int
    advice: Mapping[str, str]
    meaning: Mapping[str, str]
    limitations: tuple[Limitation, ...]
    window: str | None = None
    profiling_cost: ProfilingCost | None = None
    lateness: Lateness | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_hosts: tuple[str, ...] = ()

    @property
    def late_sentence(self) -> str:
        """Description of the GPU for which others usually wait, or "" if there is none."""
        return describe_lateness(self.lateness, self.gpu_names.__getitem__, self.gpu_hosts)

    @property
    def paths(self) -> tuple[str, ...]:
        """Path to the profile of each rank."""
        return tuple(rank.path for rank in self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hostname of each rank, followed by the hostnames in limitations. Names can repeat."""
        unreadable = (host for note in self.limitations for host in note.hosts)
        return (*(rank.host for rank in self.ranks), *unreadable)

    @property
    def devices(self) -> tuple[RankIdle, ...]:
        """The ranks that are devices, without hosts."""
        return tuple(rank for rank in self.ranks if not rank.is_host)

    @property
    def device_count(self) -> str:
        """The number of devices as text, and the number of captures if it is larger."""
        n_devices = sum(rank.capture in (None, 1) for rank in self.devices)
        devices = format_count(n_devices, "device")
        n_captures = len(self.devices)
        return devices if n_captures == n_devices else f"{n_captures:,} captures of {devices}"

    @property
    def shown_ranks(self) -> tuple[RankIdle, ...]:
        """The ranks that pictures and pages show: the devices, or the hosts if there are none."""
        return self.devices or self.ranks

    def work(self) -> list[WorkTotal]:
        """Return the total for each kernel or copy name over all devices, longest total first."""
        totals = add_up_work(total for rank in self.devices for total in rank.work)
        return sorted(totals, key=lambda total: (-total.time_ns, total.name))

    def copies(self) -> tuple[CopyTotal, ...]:
        """Return copy totals of all devices by direction and memory kind, longest first."""
        return copies.merge_totals(total for rank in self.devices for total in rank.copies)

    def scores(self) -> tuple[float | None, ...]:
        """Return the relative speed of each rank's compute kernels, from 0 to 1 (the fastest).

        A score of 0.5 means that the rank is half as fast as the fastest ranks. The score is::

            sum of each kernel's time on its fastest rank / sum of the kernel times on this rank

        Both sums cover only the rank's comparable kernels. A kernel name is compared only among the
        ranks that ran it equally often; see :class:`.Slowness`.

        The score is None for hosts, for devices that ran a single kernel or copy, and for ranks
        without a comparable kernel.
        """
        kernels: dict[tuple[str, int], int] = {}
        times: dict[tuple[int, int], int] = {}
        for index, rank in enumerate(self.ranks):
            for total in rank.work if rank.is_measured else ():
                if total.work_class not in {"communication", COPIES}:
                    number = kernels.setdefault((total.name, total.count), len(kernels))
                    times[index, number] = total.time_ns
        rank_index, kernel = np.array(list(times), np.int64).reshape(-1, 2).T
        time_ns = np.array(list(times.values()), np.float64)
        is_shared = np.bincount(kernel, minlength=1)[kernel] > 1
        scores = score_by_fastest(
            rank_index[is_shared],
            kernel[is_shared],
            time_ns[is_shared],
            len(self.ranks),
        )
        return tuple(None if np.isnan(score) else score for score in scores.tolist())

    def summed(self, name: str) -> int:
        """Return the sum of a field of :class:`RankIdle` over all measured devices.

        Devices that ran a single kernel or copy are not measured.

        Args:
            name: Name of the field.
        """
        return sum(getattr(rank, name) for rank in self.ranks if rank.is_measured)

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Reasons why busy and idle times are uncertain, with the most severe reason first.

        If less than 1 % of the span is unknown, a few omitted kernels are not listed as a reason.
        """
        restricting = [note for note in self.limitations if note.kind in _RESTRICTING]
        if self.unknown_ns < MIN_IDLE_SHARE * self.span_ns:
            kernels = sum(total.count for total in self.work() if total.work_class != COPIES)
            restricting = list(drop_few_left_out(restricting, kernels))
        return list_restrictions(None, restricting, ranks_missing=False)

    @property
    def idle_ns(self) -> int:
        """Idle time of all measured devices."""
        return self.summed("idle_ns")

    @property
    def unknown_ns(self) -> int:
        """Idle time of all devices during which unrecorded work may have run."""
        unrecorded = (a.idle_ns for a in self.activities if a.activity == UNRECORDED)
        return sum(unrecorded)

    @property
    def proved_idle_ns(self) -> int:
        """Idle time of all measured devices during which a stream or host provably waited."""
        return sum(wait.idle_ns for rank in self.ranks if rank.is_measured for wait in rank.waits)

    @property
    def span_ns(self) -> int:
        """Sum of all measured devices' spans."""
        return self.summed("span_ns")

    def device_shares(self, activities: int) -> tuple[tuple[int, ...], tuple[str, ...], Floats]:
        """Return the fraction of each device's span that each kind of work and each activity takes.

        Hosts, and devices that ran a single kernel or copy, are left out.

        Args:
            activities: Maximum number of host activities that get a separate column.

        Returns:
            ranks: Index of each device in ``self.ranks``.
            names: :data:`BUSY`, the activities with the most idle time, and :data:`REST` if there
                are more.
            shares: Fractions of the span, shape (devices, names). Rows add up to 1.
        """
        devices = tuple(index for index, rank in enumerate(self.ranks) if rank.is_measured)
        main = tuple(total.activity for total in self.activities[:activities])
        names = (*BUSY, *main, *([REST] if len(self.activities) > len(main) else ()))
        spent_ns = np.zeros((len(devices), len(names)), np.int64)
        for row, index in enumerate(devices):
            spent_ns[row] = self.ranks[index].sum_slices(names).sum(axis=1)
        return devices, names, spent_ns / spent_ns.sum(axis=1, keepdims=True)


def add_up_work(totals: Iterable[WorkTotal]) -> list[WorkTotal]:
    """Add up totals that have the same name and class, in order of first appearance."""
    sums: dict[tuple[str, str], WorkTotal] = {}
    for total in totals:
        key = total.name, total.work_class
        earlier = sums.get(key)
        if earlier is None:
            sums[key] = total
        else:
            count, time_ns = earlier.count + total.count, earlier.time_ns + total.time_ns
            sums[key] = WorkTotal(*key, count, time_ns)
    return list(sums.values())
