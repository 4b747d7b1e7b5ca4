"""1F1B: warm up with forwards, then one forward and one backward in turn."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known.zb_h1 import one_chunk
from bubbleviz.schedules.plan import Plan, Schedule, line_plan


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: stage s holds at most p - s microbatches.

    Raises:
        UsageError: more than one chunk a device.
    """
    if chunks != 1:
        raise UsageError(f"1f1b has one chunk a device, not {chunks}; see interleaved-1f1b")
    return line_plan(
        "1f1b",
        stages,
        microbatches,
        lambda s: one_chunk(s, microbatches, ahead=stages - s, backward=Phase.BW),
    )


SCHEDULE = Schedule(
    name="1f1b",
    summary="One forward, one backward in turn; bubble (p-1)/(m+p-1), p activations at most.",
    source="Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (PipeDream-Flush), "
    "arXiv 2006.09503, section 3.2",
    chunks=1,
    plan=plan,
)
