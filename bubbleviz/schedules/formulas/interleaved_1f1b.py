"""1F1B-I as the Zero Bubble paper counts it.

Its transfers are ((2v-1)p-2) c; those of the order of interleaved 1F1B, simulated, are (2vp-2) c.
"""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.schedules.formulas import Formula


def cost(p: int, m: int, v: int, work: float, transfer: float) -> float:
    """Return m T + (p-1) T/v + ((2v-1)p-2) c; one stage has no transfers.

    Raises:
        UsageError: the microbatches do not fill groups of p.
    """
    if m % p:
        raise UsageError(f"1f1b-i needs microbatches in groups of the {p} stages, not {m}")
    transfers = (2 * v - 1) * p - 2 if p > 1 else 0
    return m * work + (p - 1) * work / v + transfers * transfer


FORMULA = Formula(
    name="1f1b-i",
    summary="Interleaved 1F1B by the closed form of the Zero Bubble paper's Table 5; it has no "
    "order. interleaved-1f1b is the order, simulated.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 5.3, table 5",
    chunks=2,
    cost=cost,
    text="m T + (p-1) T/v + ((2v-1)p-2) c",
    drawn="interleaved-1f1b",
)
