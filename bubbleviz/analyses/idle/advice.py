"""Advice: how idle devices are, and what to look at first, in a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bubbleviz.analyses.idle.report import IdleReport
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import percent

#: Characters of an activity's name.
_NAME = 40
#: Idle time below this share of the span needs no advice.
_LITTLE = 0.01
#: An activity, exposed communication, or exposed copies, below this share is not worth naming.
_SHARE = 0.1


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
    else:
        devices += " with a single kernel or copy, which gives no time to be idle in"
    return f"{devices}{window}" + (f"; {beside}" if beside else "")


def advice(report: IdleReport) -> str:
    """Return the first thing to look at."""
    if not report.devices:
        return (
            "no work of any device was recorded: how long devices were idle is unknown; "
            f"{_how_to_record(report)}"
        )
    if not report.span_ns:
        return (
            "a single kernel or copy gives no window, so a duty cycle is unknown; profile more of "
            "the run"
        )
    if report.idle_ns < _LITTLE * report.span_ns:
        return _advice_on_busy_devices(report)
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


def _advice_on_busy_devices(report: IdleReport) -> str:
    """Return the advice on devices that are hardly idle: overlap what no compute covers."""
    communication_ns, copy_ns = _exposed_ns(report)
    exposed = [
        (communication_ns, "communicate", "communication"),
        (copy_ns, "copy or fill memory", "copies"),
    ]
    exposed = [part for part in exposed if part[0] and part[0] >= _LITTLE * report.span_ns]
    exposed.sort(key=lambda part: -part[0])
    if not exposed:
        return "devices are idle for less than 1 % of the time: there is little to win here"
    shares = (f"only {verb} for {percent(ns / report.span_ns)}" for ns, verb, _ in exposed)
    return (
        f"devices are idle for less than 1 % of the time, and {' and '.join(shares)} of it: "
        f"overlap {' and '.join(noun for _, _, noun in exposed)} with compute"
    )


def _exposed_ns(report: IdleReport) -> tuple[int, int]:
    """Return the exposed communication and the exposed copies of the devices with a span."""
    times = [rank.breakdown for rank in report.devices if not rank.single]
    return (
        sum(time.exposed_communication_ns for time in times),
        sum(time.exposed_copy_ns for time in times),
    )


def exposure_advice(report: IdleReport) -> Iterator[str]:
    """Yield that busy devices compute nothing, where much of the time is exposed."""
    communication_ns, copy_ns = _exposed_ns(report)
    if report.span_ns and communication_ns >= _SHARE * report.span_ns:
        yield (
            f"{percent(communication_ns / report.span_ns)} of the time is exposed communication; "
            "it counts as busy, though its kernels may only wait for other ranks: see bubbleviz "
            "analyze for pipelines"
        )
    if report.span_ns and copy_ns >= _SHARE * report.span_ns:
        yield (
            f"{percent(copy_ns / report.span_ns)} of the time is exposed copies; they count as "
            "busy, though no kernel runs: copy less, or copy from pinned memory on a stream of "
            "its own, beside compute"
        )
