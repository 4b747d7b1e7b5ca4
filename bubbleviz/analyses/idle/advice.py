"""Advice: how idle devices are, and what to look at first, in a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bubbleviz.analyses.idle.report import Breakdown, IdleReport
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import percent

#: Characters of an activity's name.
_NAME = 40
#: Idle time below this share of the span needs no advice.
_LITTLE = 0.01
#: An activity, exposed communication, or exposed copies, below this share is not worth naming.
_SHARE = 0.1
#: What is said of busy devices that compute nothing.
_WAITING = (
    "of the time only send and receive kernels run, which wait for other ranks: in a pipeline this "
    "is its bubble, and bubbleviz analyze measures it and its causes"
)
_COMMUNICATION = (
    "of the time is exposed communication; it counts as busy, though its kernels may only wait for "
    "other ranks: overlap it with compute, and see bubbleviz nccl for who is late"
)
_COPIES = (
    "of the time is exposed copies; they count as busy, though no kernel runs: copy less, or copy "
    "from pinned memory on a stream of its own, beside compute"
)


def title_of(report: IdleReport, written: Callable[[float | None], str] = percent) -> str:
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
        compute_ns = sum(rank.breakdown.compute_ns for rank in report.devices if not rank.single)
        # Busy is not computing: what only communicates or copies is said apart.
        if report.span_ns - report.idle_ns - compute_ns >= _SHARE * report.span_ns:
            devices += f" and computing for {written(compute_ns / report.span_ns)}"
    else:
        devices += " with a single kernel or copy, which gives no time to be idle in"
    return f"{devices}{window}" + (f"; {beside}" if beside else "")


def advice(report: IdleReport) -> tuple[str, ...]:
    """Return what to look at, in sentences: first what takes most of the time; at least one."""
    if not report.devices:
        return (
            "no work of any device was recorded: how long devices were idle is unknown; "
            f"{_how_to_record(report)}",
        )
    if not report.span_ns:
        return (
            "a single kernel or copy gives no window, so a duty cycle is unknown; profile more of "
            "the run",
        )
    times = [device.breakdown for device in report.devices if not device.single]
    waiting_ns = sum(time.exposed_point_to_point_ns for time in times)
    exposed_ns = [
        (waiting_ns, _WAITING),
        (sum(time.exposed_communication_ns for time in times) - waiting_ns, _COMMUNICATION),
        (sum(time.exposed_copy_ns for time in times), _COPIES),
    ]
    found = [
        (ns, f"{percent(ns / report.span_ns)} {sentence}")
        for ns, sentence in exposed_ns
        if ns >= _SHARE * report.span_ns
    ]
    if report.idle_ns >= _LITTLE * report.span_ns:
        found.append((report.idle_ns, _advice_on_idle_devices(report)))
    # The sort is stable: what stands first in the list goes first among equals.
    found.sort(key=lambda part: -part[0])
    return tuple(sentence for _, sentence in found) or (_advice_on_busy_devices(times),)


def _advice_on_idle_devices(report: IdleReport) -> str:
    longest = report.activities[0]
    share = longest.idle_ns / report.idle_ns
    if share < _SHARE:
        return "no activity takes a tenth of the idle time: there is no single cause to remove"
    hint = report.advice.get(longest.activity, "see what runs in it, or add ranges inside it")
    of_span = percent(longest.idle_ns / report.span_ns)
    name = one_line(longest.activity, _NAME)
    return f'{percent(share)} of the idle time ({of_span} of all) goes to "{name}": {hint}'


def _how_to_record(report: IdleReport) -> str:
    """Return how the work of devices is recorded by the profilers that recorded hosts alone."""
    if {rank.format for rank in report.ranks} <= {"xplane", "xla-trace"}:
        return (
            "XLA ran on CPUs: run the program on its accelerator (jax.devices() lists those that "
            "JAX finds), and record it again"
        )
    return "record their activity too (ProfilerActivity.CUDA, or that of the accelerator)"


def _advice_on_busy_devices(times: Sequence[Breakdown]) -> str:
    """Return the advice on devices that are hardly idle: overlap what no compute covers."""
    span_ns = sum(time.span_ns for time in times)
    exposed = [
        (sum(time.exposed_communication_ns for time in times), "communicate", "communication"),
        (sum(time.exposed_copy_ns for time in times), "copy or fill memory", "copies"),
    ]
    exposed = [part for part in exposed if part[0] and part[0] >= _LITTLE * span_ns]
    exposed.sort(key=lambda part: -part[0])
    if not exposed:
        return "devices are idle for less than 1 % of the time: there is little to win here"
    shares = (f"only {verb} for {percent(ns / span_ns)}" for ns, verb, _ in exposed)
    return (
        f"devices are idle for less than 1 % of the time, and {' and '.join(shares)} of it: "
        f"overlap {' and '.join(noun for _, _, noun in exposed)} with compute"
    )
