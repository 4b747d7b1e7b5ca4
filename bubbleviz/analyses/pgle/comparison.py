"""Compares the instruction costs in a file with the costs measured in a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bubbleviz.analyses.pgle.costs import InstructionCost
from bubbleviz.model import texts

COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")
#: Result of comparing measured costs with estimates, in three parts.
#: The first part contains (measured cost, estimate in us) pairs, largest difference first.
#: The second part maps instructions that were not measured to their estimates in us.
#: The third part maps instructions without an estimate to their measured costs in us.
CostComparison = tuple[
    Sequence[tuple[InstructionCost, float]], Mapping[str, float], Mapping[str, float]
]


def compare_costs(
    costs: Sequence[InstructionCost], estimates: Mapping[str, float]
) -> CostComparison:
    """Compare measured costs with estimates.

    JAX's own profiler writes a module fingerprint before each name, as in
    ``fingerprint::fusion.1`` (``xla/python/xplane_to_profile_instructions.cc``). Fingerprints are
    removed from the estimates, because nsys exports contain none. If several modules have the same
    instruction, the last estimate is used.

    Args:
        costs: Measured costs.
        estimates: Estimates in us, keyed by instruction name.

    Returns:
        compared: (measured cost, estimate in us) pairs, largest absolute difference first.
        unmeasured: Estimates in us for instructions that were not measured, keyed by name.
        unestimated: Measured costs in us for instructions without an estimate, keyed by name.
    """
    estimates = {name.rpartition("::")[2]: cost_us for name, cost_us in estimates.items()}
    compared = [(cost, estimates[cost.name]) for cost in costs if cost.name in estimates]
    compared.sort(key=lambda pair: (-abs(pair[0].cost_us - pair[1]), pair[0].name))
    measured = {cost.name: cost.cost_us for cost in costs}
    unmeasured = {n: us for n, us in sorted(estimates.items()) if n not in measured}
    unestimated = {n: us for n, us in sorted(measured.items()) if n not in estimates}
    return compared, unmeasured, unestimated


def format_comparison_csv(comparison: CostComparison) -> str:
    """Return a comparison as CSV, one row per instruction that was both estimated and measured.

    The ratio is empty if the estimate is 0.
    """
    rows = (
        (
            texts.quote_formula(cost.name),
            estimated_us,
            cost.cost_us,
            cost.cost_us / estimated_us if estimated_us else None,
            cost.cost_us - estimated_us,
            cost.executions,
        )
        for cost, estimated_us in comparison[0]
    )
    return texts.format_csv(COLUMNS, rows)
