"""Advice on idle time: a title that summarizes the report, and sentences on what to do first."""

from __future__ import annotations

from collections import Counter

from bubbleviz.analyses.idle import copies
from bubbleviz.analyses.idle.report import MIN_IDLE_SHARE, ActivityIdle, IdleMeasurement
from bubbleviz.conventions.host_activities import UNRECORDED, UNTRACED
from bubbleviz.conventions.kinds import is_nccl, trim_signature
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.report.bubble_parts import divide_whole
from bubbleviz.report.idle_summary import HeldBackCommunication

#: Kinds of limitations that can be removed only by a new recording or export. Until the profile is
#: recorded or exported again, the causes of idle time are unknown.
_DAMAGED = frozenset(
    (
        LimitationKind.FILE_DAMAGED,
        LimitationKind.KERNELS_LEFT_OUT,
        LimitationKind.KERNELS_OVERRUN,
    )
)
#: Kinds of limitations that indicate that work is missing from the profile.
_LOSSES = frozenset((LimitationKind.KERNELS_LOST, LimitationKind.GRAPHS_LOST))
#: Maximum number of characters of an activity name.
_MAX_NAME = 60
#: An activity, exposed communication or exposed copies are mentioned if they take at least this
#: share of the time.
SHARE = 0.1
#: Advice for devices that are busy but do not compute.
_WAITING = (
    "of the time, only send and receive kernels run, waiting for other ranks. In a pipeline, this "
    "is the bubble; to measure it, run bubbleviz inspect"
)
_COMMUNICATION = (
    "of the time is exposed communication, some of which may be waiting for other ranks: overlap "
    "it with compute"
)
_UNCLEAR_WAITS = (
    "of the time, only communication runs, and part of it may be waiting until the recording of "
    "another rank began: exclude that part with --window before you change anything"
)
_LITTLE_TO_GAIN = "devices are idle for less than 1 % of the time: there is little to gain"
_COMPUTE_MAY_WAIT = (
    "devices are idle for less than 1 % of the time, but some kernels counted as compute seem to "
    "be waiting: list the communication kernels in a --convention file, and measure again"
)
#: Kinds of limitations that indicate that waiting kernels were counted as compute.
_COUNTED = frozenset((LimitationKind.COMMUNICATION_COUNTED, LimitationKind.WAITING_COUNTED))
_SINGLE_WORK = (
    "the duty cycle is unknown, because only a single kernel or copy was recorded: profile more of "
    "the run"
)
_INCOMPLETE = (
    "some work is missing from the profile, so the idle time is uncertain: profile with larger "
    "buffers or for a shorter time"
)
_COPIES = "of the time is spent on exposed copies, while no kernel runs"
#: Remedies for communication that another kernel held back until it started, or until it ended.
_MORE_CONNECTIONS = (
    "streams share a launch queue, so launch the communication first, or set "
    "CUDA_DEVICE_MAX_CONNECTIONS above 1"
)
_PRIORITY = (
    "the kernel left no room for it, so launch the communication first, or on a stream with high "
    "priority"
)
#: Maximum number of characters of a kernel name.
_MAX_KERNEL = 40
#: Remedy for copies of unknown direction and size.
_COPY_LESS = "copy less data, or copy from pinned memory on a separate stream"
#: Names of the activities in which a device waits for copies.
_OF_COPIES = ("transfer", "blocked by copies")


def make_title(measurement: IdleMeasurement) -> str:
    """Return a one-line summary: the number of devices and the fraction of time they were idle.

    The summary also contains:

    - the share of time that is unknown, if any;
    - the window and the restrictions;
    - the number of hosts that have no device.

    Args:
        measurement: The measured idle time.
    """
    # An XLA trace of a CPU has several rows per host, so hosts are counted by name.
    hosts = len({rank.host for rank in measurement.ranks if rank.is_host})
    hosts_text = f"{format_count(hosts, 'host')} without a device" if hosts else ""
    window = "" if measurement.window is None else f", in {measurement.window} only"
    if not measurement.devices:
        return f"{hosts_text}: operators were recorded, but no device work{window}"
    devices = measurement.device_count
    if measurement.span_ns:
        devices += (
            f", idle for {format_percent(measurement.idle_ns / measurement.span_ns)} of the time"
        )
        if unknown_ns := measurement.unknown_ns:
            devices += f" ({format_percent(unknown_ns / measurement.span_ns)} unknown)"
    else:
        devices += " with a single kernel or copy, so idle time cannot be measured"
    marks = "".join(f", {restriction.text}" for restriction in measurement.restrictions)
    return f"{devices}{window}{marks}" + (f"; {hosts_text}" if hosts_text else "")


def describe_division(measurement: IdleMeasurement) -> str:
    """Return a line that divides the devices' time into parts, which add up to exactly 100 %.

    The idle share is rounded as in the title.

    Args:
        measurement: The measured idle time, with a span that is not 0.
    """
    parts = {
        "compute": "compute_ns",
        "exposed comm.": "exposed_communication_ns",
        "exposed copies": "exposed_copy_ns",
        "idle": "idle_ns",
    }
    span_ns = measurement.span_ns
    *busy_shares, idle_share = (measurement.summed(name) / span_ns for name in parts.values())
    shares = divide_whole(busy_shares, idle_share)
    terms = (f"{part} {share}" for part, share in zip(parts, shares, strict=True))
    return f"{' + '.join(terms)} = 100 %"


def advice(measurement: IdleMeasurement) -> tuple[str, ...]:
    """Return sentences of advice (at least one), sorted by the time they concern, longest first.

    Idle time, exposed communication and exposed copies each get a sentence if they are long enough.
    If all of them are too short, a single sentence states that there is little to gain.

    If work is missing from a profile, advice on the missing work comes first, unless the sentence
    on idle time already covers it.

    In three cases, advice on the recording replaces all other advice: no device was recorded, all
    devices ran a single kernel or copy, or a recording is damaged.
    """
    if not measurement.devices:
        remedy = describe_device_recording(measurement)
        return (f"no device work was recorded, so idle time is unknown: {remedy}",)
    if not measurement.span_ns:
        return (_SINGLE_WORK,)
    record_again = [entry.advice for entry in measurement.restrictions if entry.kind in _DAMAGED]
    if record_again:
        return tuple(record_again)
    is_idle = measurement.idle_ns >= MIN_IDLE_SHARE * measurement.span_ns
    parts = _advise_on_busy_time(measurement, SHARE if is_idle else MIN_IDLE_SHARE)
    if is_idle:
        parts.append((measurement.idle_ns, _advise_on_idle_time(measurement)))
    # The sort is stable, so the order of parts with equal times is preserved.
    parts.sort(key=lambda part: -part[0])
    sentences = [sentence for _, sentence in parts]
    # An incomplete profile is no reason to change the program.
    is_incomplete = any(restriction.kind in _LOSSES for restriction in measurement.restrictions)
    main_activity = _find_main_activity(measurement) if is_idle else None
    is_named = main_activity is not None and main_activity.activity == UNRECORDED
    if is_incomplete and not is_named:
        sentences.insert(0, _INCOMPLETE)
    if sentences:
        return tuple(sentences)
    kinds = {limitation.kind for limitation in measurement.limitations}
    return (_LITTLE_TO_GAIN if kinds.isdisjoint(_COUNTED) else _COMPUTE_MAY_WAIT,)


def describe_device_recording(measurement: IdleMeasurement) -> str:
    """Return how to record devices, for profiles that contain only hosts.

    If a file is damaged, the advice is to copy it again. If XLA recorded all profiles, the advice
    is to run the program on an accelerator.
    """
    if any(entry.kind == LimitationKind.FILE_DAMAGED for entry in measurement.restrictions):
        return (
            "a file is cut short or damaged, so GPU work, which is written last, may be missing "
            "(copy the file again)"
        )
    if _is_of_xla(measurement):
        return (
            "XLA ran on CPUs, so run the program on its accelerator (jax.devices() lists the "
            "devices that JAX finds) and record it again"
        )
    return "record device activity as well (ProfilerActivity.CUDA, or your accelerator's activity)"


def _is_of_xla(measurement: IdleMeasurement) -> bool:
    """Return whether XLA recorded all profiles."""
    return {rank.format for rank in measurement.ranks} <= {"xplane", "xla-trace"}


def _advise_on_busy_time(measurement: IdleMeasurement, min_share: float) -> list[tuple[int, str]]:
    """Advise on exposed communication, held-back communication and exposed copies.

    Sends and receives get one sentence, and other communication gets another. If kernels may only
    have been waiting for another rank's recording to begin, one sentence covers all communication.

    Args:
        measurement: The measured idle time.
        min_share: Minimum share of the span for which advice is given.

    Returns:
        (exposed time in ns, sentence of advice) pairs.
    """
    waiting_ns = measurement.summed("exposed_point_to_point_ns")
    communication_ns = measurement.summed("exposed_communication_ns")
    kinds = {limitation.kind for limitation in measurement.limitations}
    if LimitationKind.WAITS_UNCLEAR in kinds:
        times = [(communication_ns, _UNCLEAR_WAITS)]
    else:
        other_ns = communication_ns - waiting_ns
        times = [(waiting_ns, _WAITING), (other_ns, _COMMUNICATION + _suggest_nccl(measurement))]
    remedy = copies.describe_longest(measurement.copies(), exposed=True) or _COPY_LESS
    times.append((measurement.summed("exposed_copy_ns"), f"{_COPIES}: {remedy}"))
    times.append((get_proved_held_back_ns(measurement), _describe_held_back(measurement)))
    span_ns = measurement.span_ns
    return [
        (time_ns, f"{format_percent(time_ns / span_ns)} {sentence}")
        for time_ns, sentence in times
        if time_ns and time_ns >= min_share * span_ns
    ]


def get_proved_held_back_ns(measurement: IdleMeasurement) -> int:
    """Return the time during which communication was proved to be held back, on all devices.

    Devices whose profiles contain no CUDA events do not count, because their times are only upper
    bounds.
    """
    return sum(
        rank.held_back_ns
        for rank in measurement.devices
        if rank.is_measured and rank.are_events_recorded
    )


def _describe_held_back(measurement: IdleMeasurement) -> str:
    """Describe the longest kind of held-back communication, and say what to do about it."""
    held = [
        entry
        for rank in measurement.devices
        if rank.is_measured and rank.are_events_recorded
        for entry in rank.held_back
    ]
    if not held:
        return ""
    longest = min(held, key=HeldBackCommunication.order)
    communication, behind = (
        to_one_line(trim_signature(to_one_line(name, None)), _MAX_KERNEL)
        for name in (longest.communication, longest.behind)
    )
    remedy = _MORE_CONNECTIONS if longest.moment == "start" else _PRIORITY
    return (
        f"of the time, communication that was ready had not started: {communication} "
        f"({longest.stream}) started only at the {longest.moment} of {behind} "
        f"({longest.behind_stream}); {remedy}"
    )


def _suggest_nccl(measurement: IdleMeasurement) -> str:
    """Return a clause on how to find the rank that is late.

    The clause is "" if the profiles do not show the rank, or if the report names it already.

    The late rank can only be determined for NCCL, if the members of each operation are known. They
    are known if communicators were recorded, or if all devices of a single profile ran the same
    number of kernels.
    """
    counts_of_device = [
        Counter({total.name: total.count for total in rank.work if is_nccl(total.name)})
        for rank in measurement.devices
    ]
    if measurement.late_sentence:
        return ""
    with_nccl = [
        rank for rank, counts in zip(measurement.devices, counts_of_device, strict=True) if counts
    ]
    if not with_nccl:
        return ""
    has_communicators = all(rank.has_communicators for rank in with_nccl)
    if has_communicators and len(with_nccl) == 1:
        return "; to see which rank is late, run bubbleviz nccl with the profiles of all ranks"
    is_one_profile = len(set(measurement.paths)) == 1 and len(with_nccl) > 1
    is_paired = is_one_profile and all(counts == counts_of_device[0] for counts in counts_of_device)
    if has_communicators or is_paired:
        return "; to see which rank is late, run bubbleviz nccl"
    return ""


def _find_main_activity(measurement: IdleMeasurement) -> ActivityIdle | None:
    """Return the activity with the most idle time, or None if its share is below ``SHARE``."""
    longest = measurement.activities[0]
    return longest if longest.idle_ns / measurement.idle_ns >= SHARE else None


def _advise_on_idle_time(measurement: IdleMeasurement) -> str:
    """Return a sentence on what to do about the activity that accounts for the most idle time.

    If no activity takes at least 10 % of the idle time, the sentence states this.
    """
    main = _find_main_activity(measurement)
    if main is None:
        return "no single cause stands out: no activity accounts for 10 % of the idle time"
    hint = measurement.advice.get(
        main.activity, "check what runs during this activity, or add ranges inside it"
    )
    if main.activity in _OF_COPIES:
        # Copies behind kernels rarely delay the device, so exposed copies are described first.
        hint = (
            copies.describe_longest(measurement.copies(), exposed=True)
            or copies.describe_longest(measurement.copies())
            or hint
        )
    if main.activity == UNTRACED and _is_of_xla(measurement):
        hint = (
            "name this work in the program (jax.profiler.TraceAnnotation), and trace Python on "
            "the host"
        )
    share_text = format_percent(main.idle_ns / measurement.idle_ns)
    of_span = format_percent(main.idle_ns / measurement.span_ns)
    name = to_one_line(main.activity, _MAX_NAME)
    return f'{share_text} of the idle time ({of_span} of the span) is "{name}": {hint}'
