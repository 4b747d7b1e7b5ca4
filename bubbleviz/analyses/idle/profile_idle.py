"""Measures the device idle time in one profile, and notes what could not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bubbleviz.analyses.idle.device_idle import measure_device
from bubbleviz.analyses.idle.evidence import Evidence, IdleOptions, gather_evidence
from bubbleviz.analyses.idle.gaps import find_devices
from bubbleviz.analyses.idle.report import RankIdle
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.interpret import communication, start_skew
from bubbleviz.interpret.collectives import has_communicators
from bubbleviz.interpret.listed_gpus import ListedGpu, list_gpus
from bubbleviz.interpret.process_steps import find_extent
from bubbleviz.interpret.recording import UnknownKernels
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.window import FOREVER_NS

#: Remedy if a window of iterations is given, but no ranges are recognized as steps.
_NO_STEPS_REMEDY = (
    "specify their name (bubbleviz idle --step NAME), or select by time, such as "
    "--window time:1.5s-3s"
)


@dataclass(frozen=True)
class MeasuredProfile:
    """Idle time of the devices in a profile, and data for comparing the profile to others.

    Attributes:
        ranks: The profile's devices and their idle time.
        limitations: What the measurements could not cover, and why.
        recorded: For each device, when its recording started, and its first and its longest
            communication kernel.
        unknown_kernels: Kernels whose names are not in any list of known kernels. Their times are
            in UTC if it is recorded, otherwise on the profile's own clock.
        session_utc_ns: UTC time at time 0 of the profile, or None if unknown.
        is_host_known: Whether the profile records the name of its host.
        listed_gpus: GPUs that the profile lists.
    """

    ranks: tuple[RankIdle, ...]
    limitations: tuple[Limitation, ...]
    recorded: tuple[start_skew.RecordedDevice, ...]
    unknown_kernels: tuple[UnknownKernels, ...]
    session_utc_ns: int | None
    is_host_known: bool
    listed_gpus: tuple[ListedGpu, ...]


def measure_profile(profile: Profile, options: IdleOptions) -> MeasuredProfile:
    """Measure the idle time of the devices in a profile.

    If a window is given, only the idle time in the window is measured.

    Raises:
        InputError: The window contains no step.
        NothingToAnalyzeError: All work has zero duration, or no work is in the window.
        UsageError: No range matches the step name that the user gave.
    """
    profile, evidence = gather_evidence(profile, options)
    losses = *profile.limitations, *evidence.limitations
    window_ns = None
    if options.window is not None:
        window_ns = low_ns, high_ns = find_extent(
            profile, options.window, evidence.steps, _NO_STEPS_REMEDY
        )
        window_devices = find_devices(profile, evidence.unrecorded, options.shortest_ns, window_ns)
        evidence = replace(
            evidence,
            devices=tuple(window_devices),
            steps={p: table.within(low_ns, high_ns) for p, table in evidence.steps.items()},
        )
        if not evidence.devices:
            raise NothingToAnalyzeError(
                f"{profile.source.path}: no device work in --window {options.window.text}; choose "
                "another window"
            )
        longest_ns = _measure_longest_queueing(profile.activities, evidence)
        losses = tuple(note.outside(low_ns, high_ns, longest_ns) for note in losses)
    if any(note.times_ns is not None for note in losses):
        # Events lost before the measured time do not affect busy or idle times.
        first_ns = min(device.span_ns[0] for device in evidence.devices)
        longest_ns = _measure_longest_queueing(profile.activities, evidence)
        losses = tuple(
            note.outside(first_ns, FOREVER_NS, longest_ns, where="the measured time")
            for note in losses
        )
    ranks = [measure_device(device, profile, evidence, options) for device in evidence.devices]
    if any(rank.communication_ns for rank in ranks) and has_communicators(profile):
        ranks = [replace(rank, has_communicators=True) for rank in ranks]
    return MeasuredProfile(
        ranks=tuple(ranks),
        limitations=(*losses, *_find_limitations(profile, evidence, ranks)),
        recorded=evidence.recorded,
        unknown_kernels=_find_unknown_kernels(profile, options.kinds, window_ns),
        session_utc_ns=profile.source.session_utc_ns,
        is_host_known=profile.source.host_known,
        listed_gpus=list_gpus(profile),
    )


def _measure_longest_queueing(activities: Activities, evidence: Evidence) -> int:
    """Return the longest time from a launch to the start of its work in ns, or 0 if unknown."""
    is_launched = evidence.call != NONE
    waited_ns = activities.start_ns[is_launched] - evidence.launched_ns[is_launched]
    return max(int(waited_ns.max(initial=0)), 0)


def _find_unknown_kernels(
    profile: Profile, kinds: Kinds, window_ns: tuple[int, int] | None
) -> tuple[UnknownKernels, ...]:
    """Return the kernels in a window whose names are not in any list of known kernels.

    Only kernels that run completely inside the window are returned. Times are in UTC, or on the
    profile's own clock if the profile does not record UTC.

    Args:
        profile: The profile.
        kinds: Name patterns that identify communication kernels.
        window_ns: Start and end of the window, or None for the complete profile.
    """
    activities = profile.activities
    if window_ns is not None:
        is_inside = (activities.start_ns >= window_ns[0]) & (activities.end_ns <= window_ns[1])
        profile = replace(profile, activities=activities.chosen(is_inside))
    utc_ns = profile.source.session_utc_ns or 0
    return tuple(
        replace(kernels, start_ns=kernels.start_ns + utc_ns, end_ns=kernels.end_ns + utc_ns)
        for kernels in communication.find_unknown_kernels(profile, kinds)
    )


def _find_limitations(
    profile: Profile, evidence: Evidence, ranks: Sequence[RankIdle]
) -> Iterator[Limitation]:
    """Yield reasons why idle time could not be attributed completely.

    There are four reasons:

    - A device ran a single kernel or copy.
    - More than half of the stream waits were for events that were not recorded.
    - The launching call of the work after a gap is unknown.
    - The host was not traced, that is, no range of a host overlaps idle time.
    """
    path, waiting = profile.source.path, evidence.waiting
    single = sum(rank.is_single for rank in ranks)
    if single:
        yield Limitation(
            "duty cycle",
            f"{path}: only one kernel or copy ran on this device, so the totals exclude the device",
            single,
        )
    if 2 * waiting.n_unrecorded > waiting.n_waits:
        yield Limitation(
            "what streams waited for",
            f"{path}: most waits refer to events that are not in the profile, so this idle time "
            "counts as stream or rank dependency",
            waiting.n_unrecorded,
            LimitationKind.CAUSES_UNKNOWN,
        )
    totals = [total for rank in ranks for total in rank.activities]
    unlinked = [total for total in totals if total.activity == known.UNLINKED]
    if unlinked:
        yield Limitation(
            "launches after gaps",
            f"{path}: the launching calls are not in the profile, so this idle time is not "
            "attributed",
            sum(total.gaps for total in unlinked),
            LimitationKind.CAUSES_UNKNOWN,
        )
    untraced = any(total.activity == known.UNTRACED for total in totals)
    if untraced and len(evidence.ranges) == 0:
        yield Limitation(
            "host activity outside of API calls",
            f"{path}: no range (NVTX, ROCTx, record_function, operators) overlaps the idle time, "
            'so this time counts as "no host trace"',
            kind=LimitationKind.CAUSES_UNKNOWN,
        )
