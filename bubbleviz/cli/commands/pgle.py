"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.cli.help import argument, flag, option
from bubbleviz.cli.options import ADDITIONS, FORCE, JOBS, KEEP_EXPORT, command, jobs_or_cores
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import pass_on, progress_bars, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.render.files import check_outputs
from bubbleviz.sources.paths import find_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.analyses.pgle.costs import CostComparison, Costs


#: The statistics that become a cost.
_STATISTICS = ("max", "median", "mean", "min", "p50", "p90", "p99")


@command()
def pgle(
    profiles: list[str] = argument(
        "PROFILES...",
        "Profiles of one JAX run, or directories of them: Nsight Systems exports (.sqlite) or "
        "reports (.nsys-rep), profiles of XLA (.xplane.pb, .trace.json.gz).",
    ),
    *,
    output: str | None = option(
        "FILE", "Write costs as text (.pbtxt), binary (.pb).", "Outputs", "--output", "-o"
    ),
    against: str | None = option(
        "FILE", "Compare estimates in a file with the costs.", "Selection"
    ),
    csv: str | None = option("FILE", "The comparison with --against as CSV.", "Outputs"),
    modules: bool = flag("One file per module: costs.jit_step.pbtxt.", "Outputs", "--modules"),
    aggregate: str = option(
        *("STAT", "max, median, mean, min, or pNN.", "Cost"), default="p90", complete=_STATISTICS
    ),
    aggregate_collectives: str | None = option(
        "STAT", "The same for collectives, if different.", "Cost", complete=_STATISTICS
    ),
    module: list[str] | None = option("NAME", "Only this module; repeat for several.", "Selection"),
    skip: int = option("N", "Leave out the first N executions.", "Selection", default=1, min=0),
    convention: list[str] | None = ADDITIONS,
    keep_export: bool = KEEP_EXPORT,
    jobs: int | None = JOBS,
    force: bool = FORCE,
) -> None:
    """Measure what XLA instructions take, for its scheduler.

    The latency-hiding scheduler of the compiler reads such costs. They are device times of whole
    executions, and --aggregate is the statistic over those of an instruction on all devices; the
    flags for both runs are printed with them.
    """
    if csv is not None and against is None:
        raise UsageError("--csv writes a comparison; add --against FILE")
    if modules and against is not None:
        raise UsageError(
            "--against compares with one cost file; give --module NAME instead of --modules"
        )
    if modules and output == "-":
        raise UsageError("--modules writes one file per module; name a file with -o")
    # Files of modules have their names once these are known.
    outputs = [file for file in (None if modules else output, csv) if file is not None]
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if against is None else [against]
    inputs += convention or []
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.pgle import measure_costs, text
    from bubbleviz.analyses.pgle.costs import compare_costs, contents_of, csv_of_comparison
    from bubbleviz.analyses.pgle.files import read_costs

    estimates = None if against is None else read_costs(against)
    with progress_bars() as bars:
        costs = measure_costs(
            profiles,
            aggregate=aggregate,
            aggregate_collectives=aggregate_collectives,
            modules=module or (),
            skip=skip,
            apart=modules,
            convention=convention or (),
            keep_export=keep_export,
            jobs=jobs_or_cores(jobs),
            progress=bars,
        )
    comparison = None if estimates is None else compare_costs(costs.instructions, estimates)
    contents: dict[str, str | bytes] = {}
    if output is not None:
        contents.update(contents_of(costs, output))
    cost_files = list(contents)
    if comparison is not None and csv is not None:
        contents[csv] = csv_of_comparison(comparison)
    Outputs(dict.fromkeys(contents, ""), force).deliver(
        lambda _, file: contents[file],
        lambda: _print_result(anonymous(costs), anonymous(comparison), anonymous(cost_files)),
        inputs=inputs,
        warnings=[*text.warnings(costs.limitations), *text.unread(cost_files)],
    )


def _print_result(
    costs: Costs, comparison: CostComparison | None, cost_files: Sequence[str]
) -> None:
    """Print the comparison, or the costs (their sum where a file holds them) and XLA's flags."""
    from bubbleviz.analyses.pgle import text

    if comparison is not None:
        pass_on(text.summary(costs))
        show(text.comparison_sections(comparison))
        return
    if cost_files:
        pass_on(text.summary(costs))
    else:
        show(text.sections(costs))
    pass_on(text.flags(cost_files or ["costs.pbtxt"], device=costs.device))
