"""Operations that a tracer inside the training program wrote, as events of Chrome's format.

An event names its operation by a word of a pass, and counts it in ``args``. MegaScan, the tracer of
MegatronApp (megatron/training/trace.py, scripts/aggregate.py), writes two events, of which the
second has the counts, or one with a duration::

    {"name": "forward", "ph": "B", "ts": 770, "pid": 0, "tid": 0, "args": {"iteration": 10}}
    {"name": "forward", "ph": "E", "ts": 5188, "pid": 0, "tid": 0, "args":
        {"iteration": 10, "microbatch": 0, "model_chunk": 0, "pp_rank": 0}}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from bubbleviz.conventions.name_words import phase_in
from bubbleviz.model.grouping import CodedTexts, Numbering
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.sources.tables.cells import Cells, NumberColumn, stripped
from bubbleviz.sources.trace_events import ThreadName, TraceEvent, opened_trace, times_ns

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None


def _named(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class OperationArgs(msgspec.Struct, gc=False):
    """Counts of an operation: the words of the tracer's code, and its abbreviations."""

    iteration: _Count = None
    microbatch: _Count = None
    chunk: _Count = _named("model_chunk")
    pp_rank: _Count = None
    pp_rk: _Count = None
    dp_rank: _Count = None
    dp_rk: _Count = None
    g_rk: _Count = None


_TracedEvent: TypeAlias = TraceEvent[OperationArgs]


def _pairs(
    events: Sequence[_TracedEvent], open_events: dict[ThreadName, list[_TracedEvent]]
) -> Iterator[tuple[_TracedEvent, _TracedEvent]]:
    """Yield the events that begin and that end something; one with a duration does both."""
    for event in events:
        thread = (event.pid, event.tid)
        if event.ph == "X":
            yield event, event
        elif event.ph == "B":
            open_events[thread].append(event)
        elif event.ph == "E" and open_events[thread]:
            yield open_events[thread].pop(), event


def read_traced(path: str, watch: Watch) -> Cells:
    """Return the operations of a trace as the columns of a table.

    Optimizer steps, and all that counts microbatches, are operations; other events are left out.

    Raises:
        ProfileError: the trace cannot be read.
    """
    rows: list[tuple[_TracedEvent, _TracedEvent, OperationArgs, Phase]] = []
    open_events: dict[ThreadName, list[_TracedEvent]] = defaultdict(list)
    with opened_trace(path, OperationArgs, watch) as file:
        for block in file.blocks():
            for begin, end in _pairs(block, open_events):
                args, phase = end.args or OperationArgs(), phase_in(begin.name)
                counted = args.microbatch is not None or phase is Phase.OPTIMIZER
                if phase is not None and counted:
                    rows.append((begin, end, args, phase))
    begins, ends, every, phases = zip(*rows, strict=True) if rows else ((), (), (), ())
    ended_ns = times_ns([end.ts for end in ends]) + times_ns([end.dur for end in ends])
    pids = [begin.pid if isinstance(begin.pid, int) else None for begin in begins]
    numbers = {
        "rank": _numbers(_first(every, "g_rk", pids)),
        "stage": _numbers(_first(every, "pp_rank", _first(every, "pp_rk"))),
        "pipeline": _numbers(_first(every, "dp_rank", _first(every, "dp_rk"))),
        "start_ns": _numbers(times_ns([begin.ts for begin in begins]).tolist()),
        "end_ns": _numbers(ended_ns.tolist()),
    }
    texts = {
        "phase": _texts([phase.label for phase in phases]),
        "name": _texts([begin.name for begin in begins]),
        **{name: _texts(_first(every, name)) for name in ("iteration", "microbatch", "chunk")},
    }
    return Cells(
        path,
        len(rows),
        {name: column for name, column in numbers.items() if column.filled.any()},
        {name: column for name, column in texts.items() if column.known.any()},
    )


def _first(
    every: Sequence[OperationArgs], name: str, otherwise: Sequence[int | None] = ()
) -> list[int | None]:
    """Return a count of each operation, or else another."""
    counts = [getattr(args, name) for args in every]
    return [
        other if count is None else count
        for count, other in zip(counts, otherwise or [None] * len(counts), strict=True)
    ]


def _numbers(values: Sequence[int | None]) -> NumberColumn:
    filled = np.array([value is not None for value in values], bool)
    return NumberColumn(np.array([value or 0 for value in values], np.int64), filled)


def _texts(values: Sequence[int | str | None]) -> CodedTexts:
    texts = Numbering[str]()
    code = texts.numbers(["" if value is None else str(value) for value in values])
    return stripped(code, texts.values)
