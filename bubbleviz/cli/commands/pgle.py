"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.cli.options import command, jobs_or_cores
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import pass_on, progress_bars, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.render.files import check_outputs
from bubbleviz.sources.paths import find_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.analyses.pgle.costs import CostComparison, Costs


@command()
def pgle(
    profiles: list[str],
    *,
    output: str | None = None,
    against: str | None = None,
    csv: str | None = None,
    modules: bool = False,
    aggregate: str = "p90",
    aggregate_collectives: str | None = None,
    module: list[str] | None = None,
    skip: int = 1,
    convention: list[str] | None = None,
    keep_export: bool = False,
    jobs: int | None = None,
    force: bool = False,
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
