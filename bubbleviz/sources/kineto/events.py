"""Events of PyTorch's profiler (Kineto): their categories, and the arguments that are used."""

from __future__ import annotations

from typing import Any

import msgspec

from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import encodable
from bubbleviz.sources.trace_events.events import ExactTraceEvent, TraceEvent

KERNEL, COPY, CALL, ANNOTATION, OPERATOR, PYTHON, OVERHEAD = range(7)
#: Work and calls of accelerators that are named otherwise.
MTIA_WORK, XPU_CALL, OTHER_CALL = range(7, 10)
#: Waits of streams and hosts, and records of events: neither work nor ranges.
WAIT, RECORD = 10, 11
#: What these are the same as.
SAME_AS = {MTIA_WORK: KERNEL, XPU_CALL: CALL, OTHER_CALL: CALL}
#: What devices are called in traces with such events; the first that occurs decides.
DEVICES = {MTIA_WORK: "MTIA", XPU_CALL: "XPU", OTHER_CALL: "accelerator"}
KINDS = range(10)
#: Their events have a duration.
LASTING = frozenset((KERNEL, COPY, CALL, ANNOTATION, OPERATOR, *SAME_AS))
#: By the category of the event in lower case; some are those of older versions, or of the forks of
#: Kineto for other accelerators (libkineto/include/ActivityType.h).
CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "driver": CALL,
    "hip_runtime": CALL,
    "hip_driver": CALL,
    "mtia_runtime": CALL,
    "mtia_ccp_events": MTIA_WORK,
    "xpu_runtime": XPU_CALL,
    "xpu_driver": XPU_CALL,
    "hpu_op": OTHER_CALL,
    "glow_runtime": OTHER_CALL,
    "privateuse1_runtime": OTHER_CALL,
    "privateuse1_driver": OTHER_CALL,
    "gcu_runtime": OTHER_CALL,
    "gcu_driver": OTHER_CALL,
    "gcu_memcpy": COPY,
    "gcu_memset": COPY,
    "musa_runtime": OTHER_CALL,
    "musa_driver": OTHER_CALL,
    "user_annotation": ANNOTATION,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
    "cuda_sync": WAIT,
    "cuda_event": RECORD,
}
#: Categories that nothing is made of: repetitions of others, arrows between them, marks.
UNUSED = frozenset(
    (
        *("trace", "gpu_user_annotation", "external_correlation", "cpu_instant_event"),
        *("cuda_profiler_range", "collective_comm", "gpu_pm_counter"),
        *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd"),
        *("mtia_insight", "mtia_workloadd", "mtia_counters"),
    )
)
#: Kinds of events in the format of traces, beside complete ones: begin and end, instants, counters,
#: asynchronous ones, flows, metadata, objects, memory, marks. None has a duration.
PHASES = frozenset("BEiICbneSTpFstfMNODPvVRrc()")
#: Blocks that contain this hold events of collectives.
COLLECTIVE_MARK = b'"Collective name"'
#: Waits, and records of events, which have arguments of their own.
SYNCHRONISATION_CATEGORIES = frozenset(("cuda_sync", "cuda_event"))


class KinetoArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    correlation: int | None = None
    device: int | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    name: str | None = None


class CollectiveArgs(KinetoArgs, gc=False):
    """The same with the arguments of collectives, of any type."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    split: Any = msgspec.field(default=None, name="In split size")
    datatype: Any = msgspec.field(default=None, name="dtype")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    size: Any = msgspec.field(default=None, name="Group size")
    start: Any = msgspec.field(default=None, name="Global rank start")
    stride: Any = msgspec.field(default=None, name="Global rank stride")
    rank: Any = msgspec.field(default=None, name="Rank")
    origin: Any = msgspec.field(default=None, name="Src Rank")
    target: Any = msgspec.field(default=None, name="Dst Rank")
    sequence: Any = msgspec.field(default=None, name="Seq")


class SynchronisationArgs(CollectiveArgs, gc=False):
    """The same with the arguments of waits and records of events."""

    stream: Any = None
    event: Any = msgspec.field(default=None, name="event_id")
    waited: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    recorded_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    recorded: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class KinetoEvent(TraceEvent, gc=False):
    """An event with the arguments that are used."""

    args: KinetoArgs | None = None


class CollectiveEvent(KinetoEvent, gc=False):
    """The same with the arguments of collectives, which take a quarter longer to read."""

    args: CollectiveArgs | None = None


class SynchronisationEvent(KinetoEvent, gc=False):
    """The same with the arguments of waits and records of events."""

    args: SynchronisationArgs | None = None


class ExactKinetoEvent(ExactTraceEvent, gc=False):
    """The same, with times as the decimals that the file holds."""

    args: CollectiveArgs | None = None


class ExactSynchronisationEvent(ExactKinetoEvent, gc=False):
    """The same with the arguments of waits and records of events."""

    args: SynchronisationArgs | None = None


def either(args: CollectiveArgs, operator: CollectiveArgs, field: str) -> object:
    """Return an argument of a kernel, or else of the operator that launched it."""
    value: object = getattr(args, field)
    other: object = getattr(operator, field)
    return other if value is None else value


def whole_number(value: object, below: int) -> int:
    """Return a number from 0 up to ``below``; -1 for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if known and isinstance(value, int) else NONE


def text_of(value: object) -> str:
    """Return a text, or a number as text; "" for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else ""
    return encodable(value) if isinstance(value, str) else ""
