"""Comparison: the costs in a file against those measured in a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bubbleviz.analyses.pgle.costs import InstructionCost
from bubbleviz.model.texts import csv_text, inert
from bubbleviz.model.values import frozen

COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")


@frozen
class CostDifference:
    """The estimated and the measured cost of an instruction.

    Attributes:
        name: the instruction.
        estimated_us: its cost in the file.
        measured_us: its cost in the profile.
        ratio: measured over estimated; None where that was 0.
        executions: number of measured ones.
    """

    name: str
    estimated_us: float
    measured_us: float
    ratio: float | None
    executions: int

    @property
    def off_us(self) -> float:
        """Measured minus estimated."""
        return self.measured_us - self.estimated_us


@frozen
class CostComparison:
    """Estimated costs against measured ones.

    Attributes:
        differences: instructions with both costs, the largest difference first.
        unmeasured: instructions of the file that are not in the profile.
        unestimated: instructions of the profile that are not in the file.
        estimated_us: sum over ``differences``, each counted once.
        measured_us: the same of what was measured.
        off_us: sum of the absolute differences.
        unmeasured_us: sum of the estimates of ``unmeasured``.
        unestimated_us: sum of the costs of ``unestimated``.
    """

    differences: tuple[CostDifference, ...]
    unmeasured: tuple[str, ...]
    unestimated: tuple[str, ...]
    estimated_us: float
    measured_us: float
    off_us: float
    unmeasured_us: float
    unestimated_us: float


def compare_costs(
    costs: Sequence[InstructionCost], estimates: Mapping[str, float]
) -> CostComparison:
    """Return the differences between estimated and measured costs.

    Args:
        costs: as measured, one a name.
        estimates: microseconds by instruction; a module's fingerprint before the name, as JAX's
            own profiler writes it (``fingerprint::fusion.1``, in
            ``xla/python/xplane_to_profile_instructions.cc``), is removed, since exports
            of nsys hold none; of several modules' estimates the last counts.
    """
    estimates = {name.rpartition("::")[2]: cost_us for name, cost_us in estimates.items()}
    measured = {cost.name: cost for cost in costs}
    both = [
        CostDifference(
            name=name,
            estimated_us=estimated_us,
            measured_us=measured[name].cost_us,
            ratio=measured[name].cost_us / estimated_us if estimated_us else None,
            executions=measured[name].executions,
        )
        for name, estimated_us in estimates.items()
        if name in measured
    ]
    both.sort(key=lambda difference: (-abs(difference.off_us), difference.name))
    unmeasured = sorted(name for name in estimates if name not in measured)
    unestimated = sorted(name for name in measured if name not in estimates)
    return CostComparison(
        differences=tuple(both),
        unmeasured=tuple(unmeasured),
        unestimated=tuple(unestimated),
        estimated_us=sum(difference.estimated_us for difference in both),
        measured_us=sum(difference.measured_us for difference in both),
        off_us=sum(abs(difference.off_us) for difference in both),
        unmeasured_us=sum(estimates[name] for name in unmeasured),
        unestimated_us=sum(measured[name].cost_us for name in unestimated),
    )


def csv_of_comparison(comparison: CostComparison) -> str:
    """Return a comparison as CSV, one row an instruction; empty cells for what is unknown."""
    return csv_text(
        COLUMNS,
        (
            (inert(d.name), d.estimated_us, d.measured_us, d.ratio, d.off_us, d.executions)
            for d in comparison.differences
        ),
    )
