"""Late hosts: which hosts launched late, and what they did instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import NONE
from bubbleviz.report.labels import rank_label, shortened
from bubbleviz.report.report import Report


def latest_host(report: Report, ranks: Sequence[int] | None = None) -> str:
    """Return which rank's host is late the longest, and where its thread is then.

    Args:
        report: of the run.
        ranks: among which it is looked for; None for all.
    """
    bubbles = report.bubbles
    late = np.flatnonzero(bubbles.cause == Cause.HOST)
    if ranks is not None:
        late = late[np.isin(bubbles.rank[late], ranks)]
    if len(late) == 0:
        return ""
    length_ns = (bubbles.end_ns - bubbles.start_ns)[late]
    total_ns = np.zeros(len(report.ranks), np.int64)
    np.add.at(total_ns, bubbles.rank[late], length_ns)
    rank = int(total_ns.argmax())
    rows = late[bubbles.rank[late] == rank]
    longest = int(rows[np.argmax((bubbles.end_ns - bubbles.start_ns)[rows])])
    others = "" if ranks is None or len(ranks) < 2 else f" and {len(ranks) - 1} more"
    return f" on {rank_label(report, rank)}{others}{host_state(report, longest)}"


def host_state(report: Report, row: int) -> str:
    """Return where the launching thread was in a bubble; empty where that is unknown."""
    return thread_state(*host_activity(report, row))


def thread_state(call: str | None, range_name: str | None) -> str:
    """Return where a launching thread was, as the end of a sentence; empty for nowhere."""
    inside = f" inside {shortened(range_name)!r}" if range_name else ""
    call = shortened(call) if call else None
    if call:
        return f", its thread is in {call}{inside}"
    return f", its thread is{inside}, outside API calls" if inside else ""


def host_activity(report: Report, row: int) -> tuple[str | None, str | None]:
    """Return (CUDA call, range) that the host was in during a bubble; None for none."""
    names = report.operations.names
    call, range_id = int(report.bubbles.host_call_id[row]), int(report.bubbles.host_range_id[row])
    return names[call] if call != NONE else None, names[range_id] if range_id != NONE else None
