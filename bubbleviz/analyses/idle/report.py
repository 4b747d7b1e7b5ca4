"""What ``gaps`` prints and writes: devices, steps, and what hosts did while devices were idle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bubbleviz._version import __version__
from bubbleviz.conventions.host_activities import SHORT
from bubbleviz.model.texts import csv_text, inert, one_line
from bubbleviz.render.text.cells import (
    in_percent,
    listed,
    milliseconds,
    percent,
    ruled,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from bubbleviz.analyses.idle.idle_time import (
        Breakdown,
        Example,
        IdleReport,
        Part,
        RankIdle,
        StepIdle,
    )

SCHEMA = "bubbleviz.idle/1"
COLUMNS = (
    "rank",
    "host",
    "pid",
    "device_id",
    "step",
    "start_ns",
    "end_ns",
    "idle_ns",
    "activity",
    "before",
    "after",
    "chunks",
)
#: What the words of the report mean; also in the JSON.
DEFINITIONS = {
    "span": "from the start of a device's first kernel, copy or fill to the end of its last",
    "busy": "union over streams of kernels, copies and fills",
    "duty_cycle": "busy / span",
    "compute": "union of kernels that are no communication",
    "communication": "union of communication kernels",
    "exposed_communication": "communication with no compute beside it",
    "exposed_copy": "copies and fills with no kernel beside them",
    "overlap": "communication with compute beside it / communication",
    "idle": "span - busy = span - compute - exposed_communication - exposed_copy",
    "step": "a range of the host, clipped to the span; its device work can lag behind",
}
#: Of names in tables and lists, characters.
_NAME, _KERNEL, _PATH = 40, 44, 160
#: Less idle time than this is not worth a word of advice.
_LITTLE, _SHARE = 0.01, 0.1


def parts(report: IdleReport, top: int) -> Iterator[RenderableType]:
    """Yield what to print.

    Args:
        report: to be shown.
        top: how many rows of a table are shown at most.
    """
    from rich.text import Text

    yield Text(_headline(report))
    yield from titled("Devices", _devices(report.ranks[:top]))
    yield from _more(len(report.ranks), top)
    if report.parts:
        yield from titled("What hosts did while devices were idle", _activities(report, top))
        yield from _more(len(report.parts), top)
        meanings = [_meaning(report, part) for part in report.parts[:top]]
        yield from _listed("", [text for text in meanings if text])
        examples = [_told(report, part) for part in report.parts[:top] if part.example]
        yield from _listed("The gap that each took most of", examples)
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    if any(step.name is not None for _, step in steps):
        by = ", ".join(dict.fromkeys(rank.steps_by for rank in report.ranks))
        shown = _most_idle(steps, top)
        yield from titled(f"Steps ({by}); those with most idle time", _steps(shown))
        yield from _more(len(steps), top)
    yield Text("\n" + "\n".join((advice(report), *_spinning(report))) + "\n")


def _headline(report: IdleReport) -> str:
    idle = report.idle_ns / report.span_ns if report.span_ns else None
    count = len(report.ranks)
    part = "" if report.window is None else f", in {report.window} alone"
    return (
        f"{count} device{'s' * (count != 1)}, idle for {percent(idle)} of the time{part}\n"
        f"duty cycle: busy / span. busy: {DEFINITIONS['busy']}.\nspan: {DEFINITIONS['span']}.\n"
        "span = compute + exposed communication + exposed copies + idle."
    )


def _more(count: int, top: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if count > top:
        yield Text(f"and {count - top:,} more (--top {count}, --json)")


def _listed(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    from rich.text import Text

    if lines:
        yield Text(f"\n{title}", style="bold") if title else Text("")
        yield listed(lines)


def _devices(ranks: Sequence[RankIdle]) -> Table:
    table = ruled(
        "device",
        "span ms",
        "duty %",
        "compute %",
        "exp. comm. %",
        "exp. copy %",
        "idle %",
        "idle ms",
        "comm. ms",
        "overlap %",
        left=("device",),
    )
    for rank in ranks:
        own = rank.breakdown
        shares = (own.compute_ns, own.exposed_communication_ns, own.exposed_copy_ns, own.idle_ns)
        table.add_row(
            shortened(one_line(rank.label, None), _NAME),
            milliseconds(own.span_ns),
            in_percent(own.duty_cycle),
            *(in_percent(part / own.span_ns if own.span_ns else None) for part in shares),
            milliseconds(own.idle_ns),
            milliseconds(own.communication_ns),
            in_percent(own.overlap),
        )
    return table


def _activities(report: IdleReport, top: int) -> Table:
    table = ruled(
        "activity", "idle ms", "of idle %", "of span %", "gaps", "longest ms", left=("activity",)
    )
    for part in report.parts[:top]:
        table.add_row(
            shortened(one_line(part.activity, None), _NAME),
            milliseconds(part.idle_ns),
            in_percent(part.idle_ns / report.idle_ns),
            in_percent(part.idle_ns / report.span_ns),
            f"{part.gaps:,}",
            milliseconds(part.longest_ns),
        )
    table.add_section()
    table.add_row(
        f"sum of {len(report.parts)}",
        milliseconds(report.idle_ns),
        "100.00",
        in_percent(report.idle_ns / report.span_ns),
        "",
        "",
    )
    return table


def _meaning(report: IdleReport, part: Part) -> str:
    if part.activity == SHORT:
        return (
            f"{SHORT}: of less than {report.shortest_ns / 1000:g} us, too short to be put down to "
            "anything: the device goes from one kernel to the next"
        )
    said = report.meaning.get(part.activity)
    return f"{part.activity}: {said}" if said else ""


def _told(report: IdleReport, part: Part) -> str:
    """Return where the longest gap of an activity is."""
    own: Example | None = part.example
    if own is None:
        return ""
    rank = report.ranks[part.rank]
    at = milliseconds(own.start_ns - rank.breakdown.start_ns)
    step = "" if own.step is None else f", in {one_line(own.step, _NAME)}"
    device = f" of {one_line(rank.label, _NAME)}" if len(report.ranks) > 1 else ""
    where = " > ".join(one_line(name, _NAME) for name in own.where)
    inside = f"; the host in {shortened(where, _PATH)}" if where else ""
    return (
        f"{one_line(part.activity, _NAME)}: {milliseconds(part.longest_ns)} ms of the "
        f"{milliseconds(own.end_ns - own.start_ns)} ms from {at} ms into the span{device}{step}; "
        f"between {_kernel(own.before)} and {_kernel(own.after)}{inside}"
    )


def _kernel(name: str) -> str:
    return shortened(one_line(name, None), _KERNEL)


def _most_idle(
    steps: Sequence[tuple[RankIdle, StepIdle]], top: int
) -> list[tuple[RankIdle, StepIdle]]:
    """Return the steps with most idle time, in their own order."""
    order = sorted(range(len(steps)), key=lambda at: (-steps[at][1].idle_ns, at))[:top]
    return [steps[at] for at in sorted(order)]


def _steps(steps: Sequence[tuple[RankIdle, StepIdle]]) -> Table:
    left = ("device", "step", "most of it")
    table = ruled("device", "step", "length ms", "duty %", "idle ms", "most of it", left=left)
    for rank, step in steps:
        most = step.parts[:2]
        told = ", ".join(
            f"{shortened(one_line(name, None), _NAME)} {milliseconds(spent)}"
            for name, spent in most
        )
        name = "(outside of steps)" if step.name is None else step.name
        table.add_row(
            shortened(one_line(rank.label, None), _NAME),
            shortened(one_line(name, None), _NAME),
            milliseconds(step.length_ns),
            in_percent(step.duty_cycle),
            milliseconds(step.idle_ns),
            told,
        )
    return table


def advice(report: IdleReport) -> str:
    """Return what to look at first, in a sentence."""
    if not report.span_ns or report.idle_ns < _LITTLE * report.span_ns:
        return "devices are idle for less than 1 % of the time: there is little to win here"
    part = report.parts[0]
    share = part.idle_ns / report.idle_ns
    if share < _SHARE:
        return "no activity takes a tenth of the idle time: there is no one thing to mend"
    said = report.advice.get(part.activity, "see what runs in it, or add ranges inside it")
    of_all = percent(part.idle_ns / report.span_ns)
    name = one_line(part.activity, _NAME)
    return f'{percent(share)} of the idle time ({of_all} of all) goes to "{name}": {said}'


def _spinning(report: IdleReport) -> Iterator[str]:
    """Yield that communication may be waiting, where much of the time goes to it."""
    exposed_ns = sum(rank.breakdown.exposed_communication_ns for rank in report.ranks)
    if report.span_ns and exposed_ns >= _SHARE * report.span_ns:
        share = percent(exposed_ns / report.span_ns)
        yield (
            f"{share} of the time is communication alone, which is busy time here, though its "
            "kernels may only wait for others: see bubbleviz analyze for pipelines"
        )


def json_text(report: IdleReport, top: int) -> str:
    """Return a report as JSON; of each rank the ``top`` longest gaps are listed."""
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "definitions": DEFINITIONS,
        "shortest_ns": report.shortest_ns,
        "window": report.window,
        "span_ns": report.span_ns,
        "idle_ns": report.idle_ns,
        "advice": advice(report),
        "activities": [_part(part, report.idle_ns, rank=True) for part in report.parts],
        "meanings": dict(report.meaning),
        "ranks": [_rank(index, rank, top) for index, rank in enumerate(report.ranks)],
        "limitations": [
            {"what": own.what, "reason": own.reason, "count": own.count}
            for own in report.limitations
        ],
    }
    return json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _rank(index: int, rank: RankIdle, top: int) -> dict[str, Any]:
    return {
        "index": index,
        "label": rank.label,
        "profile": rank.path,
        "host": rank.host,
        "pid": rank.pid,
        "device_id": rank.device_id,
        "gpu": rank.gpu,
        **_breakdown(rank.breakdown),
        "activities": [_part(part, rank.breakdown.idle_ns) for part in rank.parts],
        "steps_by": rank.steps_by,
        "steps": [_step(step) for step in rank.steps],
        "gaps": len(rank.gaps),
        "longest_gaps": _longest(rank, top),
    }


def _breakdown(own: Breakdown) -> dict[str, Any]:
    return {
        "start_ns": own.start_ns,
        "end_ns": own.end_ns,
        "span_ns": own.span_ns,
        "busy_ns": own.busy_ns,
        "idle_ns": own.idle_ns,
        "duty_cycle": own.duty_cycle,
        "compute_ns": own.compute_ns,
        "compute_duty": own.compute_duty,
        "communication_ns": own.communication_ns,
        "copy_ns": own.copy_ns,
        "exposed_communication_ns": own.exposed_communication_ns,
        "exposed_copy_ns": own.exposed_copy_ns,
        "overlap": own.overlap,
    }


def _part(part: Part, idle_ns: int, *, rank: bool = False) -> dict[str, Any]:
    own = part.example
    example = own and {
        **({"rank": part.rank} if rank else {}),
        "start_ns": own.start_ns,
        "end_ns": own.end_ns,
        "before": own.before,
        "after": own.after,
        "step": own.step,
        "where": list(own.where),
    }
    return {
        "activity": part.activity,
        "idle_ns": part.idle_ns,
        "share": part.idle_ns / idle_ns if idle_ns else None,
        "gaps": part.gaps,
        "longest_ns": part.longest_ns,
        "example": example,
    }


def _step(step: StepIdle) -> dict[str, Any]:
    inside = step.name is not None
    return {
        "name": step.name,
        "start_ns": step.start_ns if inside else None,
        "end_ns": step.end_ns if inside else None,
        "length_ns": step.length_ns,
        "busy_ns": step.busy_ns,
        "idle_ns": step.idle_ns,
        "duty_cycle": step.duty_cycle,
        "activities": dict(step.parts),
    }


def _longest(rank: RankIdle, top: int) -> list[dict[str, Any]]:
    import numpy as np

    gaps = rank.gaps
    length_ns = gaps.end_ns - gaps.start_ns
    rows = np.argsort(-length_ns, kind="stable")[:top]
    first = np.searchsorted(rank.chunks.gap, rows)
    last = np.searchsorted(rank.chunks.gap, rows, side="right")
    return [
        {
            "start_ns": int(gaps.start_ns[row]),
            "end_ns": int(gaps.end_ns[row]),
            "idle_ns": int(length_ns[row]),
            "step": _step_name(rank, int(gaps.step[row])),
            "activity": gaps.activities[int(gaps.activity[row])],
            "before": gaps.works[int(gaps.before[row])],
            "after": gaps.works[int(gaps.after[row])],
            "chunks": [
                {"activity": gaps.activities[activity], "start_ns": start, "end_ns": end}
                for activity, start, end in zip(
                    rank.chunks.activity[low:high].tolist(),
                    rank.chunks.start_ns[low:high].tolist(),
                    rank.chunks.end_ns[low:high].tolist(),
                    strict=True,
                )
            ],
        }
        for row, low, high in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True)
    ]


def _step_name(rank: RankIdle, step: int) -> str | None:
    return None if step < 0 else rank.steps[step].name


def gaps_csv(report: IdleReport) -> str:
    """Return every gap that is not short as CSV; its chunks are a JSON object in a cell."""
    return csv_text(
        COLUMNS, (row for index, rank in enumerate(report.ranks) for row in _rows(index, rank))
    )


def _rows(index: int, rank: RankIdle) -> Iterator[tuple[object, ...]]:
    import numpy as np

    gaps, chunks = rank.gaps, rank.chunks
    works = [inert(name) for name in gaps.works]
    told = [inert(name) for name in gaps.activities]
    steps = ["" if step.name is None else inert(step.name) for step in rank.steps]
    bounds = np.searchsorted(chunks.gap, np.arange(len(gaps) + 1)).tolist()
    activity, spent = chunks.activity.tolist(), (chunks.end_ns - chunks.start_ns).tolist()
    own = (gaps.start_ns, gaps.end_ns, gaps.activity, gaps.before, gaps.after, gaps.step)
    columns = zip(*(column.tolist() for column in own), strict=True)
    for row, (start, end, main, before, after, step) in enumerate(columns):
        spans: dict[str, int] = {}
        for at in range(bounds[row], bounds[row + 1]):
            name = gaps.activities[activity[at]]
            spans[name] = spans.get(name, 0) + spent[at]
        yield (
            index,
            inert(rank.host),
            rank.pid,
            rank.device_id,
            "" if step < 0 else steps[step],
            start,
            end,
            end - start,
            told[main],
            works[before],
            works[after],
            json.dumps(spans, ensure_ascii=True),
        )
