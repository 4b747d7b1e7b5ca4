"""Comparison: the costs in a file against the costs measured in a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bubbleviz.analyses.pgle.costs import InstructionCost
from bubbleviz.model import texts

COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")
#: Estimated costs against measured ones: the measured cost of each instruction with both and the
#: estimated one, in microseconds, the largest difference first; estimates of instructions that are
#: not in the profile, by name; and costs of instructions that are not in the file.
CostComparison = tuple[
    Sequence[tuple[InstructionCost, float]], Mapping[str, float], Mapping[str, float]
]


def compare_costs(
    costs: Sequence[InstructionCost], estimates: Mapping[str, float]
) -> CostComparison:
    """Return the differences between estimated and measured costs.

    Args:
        costs: as measured.
        estimates: microseconds by instruction; a module's fingerprint before the name, as JAX's
            own profiler writes it (``fingerprint::fusion.1``, in
            ``xla/python/xplane_to_profile_instructions.cc``), is removed, since exports
            of nsys hold none; of several modules' estimates the last counts.
    """
    estimates = {name.rpartition("::")[2]: cost_us for name, cost_us in estimates.items()}
    both = [(cost, estimates[cost.name]) for cost in costs if cost.name in estimates]
    both.sort(key=lambda pair: (-abs(pair[0].cost_us - pair[1]), pair[0].name))
    measured = {cost.name: cost.cost_us for cost in costs}
    unmeasured = {n: us for n, us in sorted(estimates.items()) if n not in measured}
    unestimated = {n: us for n, us in sorted(measured.items()) if n not in estimates}
    return both, unmeasured, unestimated


def csv_of_comparison(comparison: CostComparison) -> str:
    """Return a comparison as CSV, one row an instruction; empty cells for what is unknown."""
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
