"""Advice: how idle devices are, and what to look at first, in a sentence each."""

from __future__ import annotations

from collections.abc import Callable

from bubbleviz.analyses.idle import copies
from bubbleviz.analyses.idle.report import MIN_IDLE_SHARE, IdleMeasurement
from bubbleviz.conventions.host_activities import UNRECORDED, UNTRACED
from bubbleviz.conventions.kinds import is_nccl
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.texts import counted, one_line, percent

#: Kinds of limitations that only another recording or export removes, so causes of idle time
#: are unknown until then.
_DAMAGED = frozenset(
    (
        LimitationKind.FILE_DAMAGED,
        LimitationKind.KERNELS_LEFT_OUT,
        LimitationKind.KERNELS_OVERRUN,
    )
)
#: Kinds of limitations that mean that work is missing.
_LOSSES = frozenset((LimitationKind.KERNELS_LOST, LimitationKind.GRAPHS_LOST))
#: Characters of an activity's name.
_NAME = 40
#: An activity, exposed communication, or exposed copies, below this share is not worth naming.
SHARE = 0.1
#: What is said of busy devices that compute nothing.
_WAITING = (
    "of the time only send and receive kernels run, waiting for other ranks: in a pipeline, its "
    "bubble; bubbleviz inspect shows how to measure it"
)
_COMMUNICATION = (
    "of the time is exposed communication, which may only wait for other ranks: overlap it with "
    "compute"
)
_UNCLEAR_WAITS = (
    "of the time only communication runs, and part of it may be waiting until the recording of "
    "another rank began: leave that out with --window before you change anything"
)
_LITTLE_TO_GAIN = "devices are idle for less than 1 % of the time: there is little to gain"
_COMPUTE_MAY_WAIT = (
    "devices are idle for less than 1 % of the time, but kernels that look like waiting count as "
    "compute: name those that communicate with --convention, and measure again"
)
_INCOMPLETE = (
    "work is missing from the profile, so the idle time is uncertain: profile with larger buffers "
    "or for a shorter time"
)
_COPIES = "of the time is exposed copies, while no kernel runs"
#: Remedy for copies of unknown direction and size.
_COPY_LESS = "copy less, or from pinned memory on a stream of its own"
#: Names of activities in which a device waits for copies.
_OF_COPIES = ("transfer", "blocked by copies")


def title_of(report: IdleMeasurement, written: Callable[[float | None], str] = percent) -> str:
    """Return how many devices were idle for how long, in one line; hosts are no devices.

    Args:
        report: of some profiles.
        written: writes a share in percent.
    """
    # A trace of XLA has a row for each device of a host's processor.
    hosts = len({rank.host for rank in report.ranks if rank.on_host})
    beside = f"{counted(hosts, 'host')} without a device" if hosts else ""
    window = "" if report.window is None else f", in {report.window} alone"
    if not report.devices:
        return f"{beside}: operators, and no work of any device{window}"
    devices = counted(len(report.devices), "device")
    if report.span_ns:
        devices += f", idle for {written(report.idle_ns / report.span_ns)} of the time"
        if unknown_ns := report.unknown_ns:
            devices += f" ({written(unknown_ns / report.span_ns)} unknown)"
        compute_ns = report.summed("compute_ns")
        # Busy is not computing: what only communicates or copies is said apart.
        if report.span_ns - report.idle_ns - compute_ns >= SHARE * report.span_ns:
            devices += f" and computing for {written(compute_ns / report.span_ns)}"
    else:
        devices += " with a single kernel or copy, which leaves no time to be idle"
    marks = "".join(f", {restriction.text}" for restriction in report.restrictions)
    return f"{devices}{window}{marks}" + (f"; {beside}" if beside else "")


def advice(report: IdleMeasurement) -> tuple[str, ...]:
    """Return what to look at, in sentences: first what takes most of the time; at least one."""
    span_ns = report.span_ns
    if not report.devices:
        record = "record their activity too (ProfilerActivity.CUDA, or that of the accelerator)"
        if {rank.format for rank in report.ranks} <= {"xplane", "xla-trace"}:
            record = (
                "XLA ran on CPUs: run the program on its accelerator (jax.devices() lists those "
                "that JAX finds), and record it again"
            )
        return (f"no device work was recorded, so idle time is unknown; {record}",)
    if not span_ns:
        return (
            "a single kernel or copy gives no window, so a duty cycle is unknown; profile more of "
            "the run",
        )
    record_again = [entry.advice for entry in report.restrictions if entry.kind in _DAMAGED]
    if record_again:
        return tuple(record_again)
    # Events and kernels of NCCL tell who is late; other libraries' tell no more than this.
    nccl = any(is_nccl(name) for rank in report.devices for name in rank.works)
    late = "; bubbleviz nccl names who is late, if communicators were recorded" if nccl else ""
    waiting_ns = report.summed("exposed_point_to_point_ns")
    communication_ns = report.summed("exposed_communication_ns")
    idle = report.idle_ns >= MIN_IDLE_SHARE * span_ns
    kinds = {limitation.kind for limitation in report.limitations}
    of_communication = [
        (waiting_ns, _WAITING),
        (communication_ns - waiting_ns, _COMMUNICATION + late),
    ]
    if LimitationKind.WAITS_UNCLEAR in kinds:
        of_communication = [(communication_ns, _UNCLEAR_WAITS)]
    found = [
        (ns, f"{percent(ns / span_ns)} {sentence}")
        for ns, sentence in (
            *of_communication,
            (
                report.summed("exposed_copy_ns"),
                f"{_COPIES}: {copies.describe_longest(report.copies()) or _COPY_LESS}",
            ),
        )
        if ns and ns >= (SHARE if idle else MIN_IDLE_SHARE) * span_ns
    ]
    if idle:
        found.append((report.idle_ns, _advice_on_idle_devices(report)))
    # The sort is stable: what stands first in a list goes first among equals.
    found.sort(key=lambda part: -part[0])
    sentences = [sentence for _, sentence in found]
    # An incomplete profile is no reason to change the program.
    is_incomplete = any(restriction.kind in _LOSSES for restriction in report.restrictions)
    if is_incomplete and not any(f'"{UNRECORDED}"' in sentence for sentence in sentences):
        sentences.insert(0, _INCOMPLETE)
    may_wait = bool(kinds & {LimitationKind.COMMUNICATION_COUNTED, LimitationKind.WAITING_COUNTED})
    return tuple(sentences) or (_COMPUTE_MAY_WAIT if may_wait else _LITTLE_TO_GAIN,)


def _advice_on_idle_devices(report: IdleMeasurement) -> str:
    longest = report.activities[0]
    share = longest.idle_ns / report.idle_ns
    if share < SHARE:
        return "no activity takes 10 % of the idle time: no single cause stands out"
    hint = report.advice.get(longest.activity, "see what runs in it, or add ranges inside it")
    if longest.activity in _OF_COPIES:
        hint = copies.describe_longest(report.copies()) or hint
    xla = {rank.format for rank in report.ranks} <= {"xplane", "xla-trace"}
    if longest.activity == UNTRACED and xla:
        hint = "name it in the program (jax.profiler.TraceAnnotation), and trace the host's Python"
    of_span = percent(longest.idle_ns / report.span_ns)
    name = one_line(longest.activity, _NAME)
    return f'{percent(share)} of the idle time ({of_span} of all) is "{name}": {hint}'
