"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.cli.help import argument, option
from bubbleviz.cli.options import ADDITIONS, CSV, JOBS, KEEP_EXPORT, command, resolve_jobs
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show, show_reading_progress, show_text
from bubbleviz.errors import UsageError
from bubbleviz.sources.paths import find_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.analyses.pgle.comparison import CostComparison
    from bubbleviz.analyses.pgle.costs import Costs


#: Statistics that can be used as the cost of an instruction.
_STATISTICS = ("max", "median", "mean", "min", "p50", "p90", "p99")


@command(
    {"pbtxt": "Write costs as text.", "pb": "Write binary costs.", **CSV},
    {".pbtxt": "pbtxt", ".pb": "pb"},
)
def pgle(
    profiles: list[str] = argument(
        "PROFILES...",
        "Profiles of one JAX run, or directories that contain them: Nsight Systems exports "
        "(.sqlite) or reports (.nsys-rep), or XLA profiles (.xplane.pb, .trace.json.gz).",
    ),
    *,
    outputs: Outputs,
    against: str | None = option(
        "FILE", "Compare the measured costs with the estimates in this file.", "Selection"
    ),
    aggregate: str = option(
        "STAT",
        "Statistic to use as the cost: max, median, mean, min or pNN.",
        "Cost",
        default="p90",
        complete=_STATISTICS,
    ),
    aggregate_collectives: str | None = option(
        "STAT", "Statistic to use for collectives, if different.", "Cost", complete=_STATISTICS
    ),
    module: list[str] | None = option(
        "NAME", "Measure only this XLA module. Can be repeated.", "Selection"
    ),
    skip: int = option(
        "N", "Exclude the first N executions of each module.", "Selection", default=1, min=0
    ),
    convention: list[str] | None = ADDITIONS,
    keep_export: bool = KEEP_EXPORT,
    jobs: int | None = JOBS,
) -> None:
    """Measure instruction costs for XLA's latency-hiding scheduler.

    The cost of an instruction is a statistic (--aggregate) of its execution times on all devices.
    The command also prints the XLA flags for profiling and for using the costs.
    """
    if against is None and "csv" in outputs.formats.values():
        raise UsageError("only a comparison can be written as CSV; add --against FILE")
    files = (file.path for file in find_profiles(profiles))
    outputs.check([*files, against, *(convention or ())])
    from bubbleviz.analyses.pgle import measure_costs, text
    from bubbleviz.analyses.pgle.comparison import compare_costs, format_comparison_csv
    from bubbleviz.analyses.pgle.files import encode_costs, read_costs

    estimates = None if against is None else read_costs(against)
    with show_reading_progress() as bars:
        costs = measure_costs(
            profiles,
            aggregate=aggregate,
            aggregate_collectives=aggregate_collectives,
            modules=module or (),
            skip=skip,
            convention=convention or (),
            keep_export=keep_export,
            jobs=resolve_jobs(jobs),
            progress=bars,
        )
    comparison = None if estimates is None else compare_costs(costs.instructions, estimates)
    cost_us = {cost.name: cost.cost_us for cost in costs.instructions}
    cost_files = [file for file, name in outputs.formats.items() if name != "csv"]

    def content(_: object, name: str, __: str) -> str | bytes:
        # XLA looks up costs by instruction name, so --anonymous does not replace these names.
        if comparison is not None and name == "csv":
            return format_comparison_csv(comparison)
        return encode_costs(cost_us, name)

    outputs.deliver(
        (costs, comparison, cost_files),
        content,
        lambda shown: _print_result(*shown),
        warnings=text.list_warnings(costs.limitations),
    )


def _print_result(
    costs: Costs, comparison: CostComparison | None, cost_files: Sequence[str]
) -> None:
    """Print the instruction costs, followed by either the comparison or the XLA flags.

    If there is a comparison, or if the costs are written to a file, only a summary of the costs is
    printed.

    Args:
        costs: The costs.
        comparison: Comparison of the costs with estimates, or None if there are no estimates.
        cost_files: Paths of the files to which the costs are written.
    """
    from bubbleviz.analyses.pgle import text

    if comparison is not None:
        show_text(text.summarize_costs(costs))
        show(text.list_comparison_sections(comparison))
        return
    if cost_files:
        show_text(text.summarize_costs(costs))
    else:
        show(text.list_cost_sections(costs))
    show_text(text.describe_flags(cost_files or ["costs.pbtxt"], device=costs.device))
