"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bubbleviz.cli.completion import statistic_names
from bubbleviz.cli.help import COST, OUTPUTS, SELECTION, argument, option
from bubbleviz.cli.options import FILE, Additions, Force, Jobs, KeepExport, command, jobs_or_cores
from bubbleviz.cli.terminal import deliver, pass_on, progress_bars, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.analyses.pgle.costs import CostComparison, Costs


@frozen
class CostFileOptions:
    """The files of costs: to be written, and to be compared with."""

    output: Annotated[
        str | None,
        option(
            "Write costs as text (.pbtxt), binary (.pb).", OUTPUTS, "--output", "-o", metavar=FILE
        ),
    ] = None
    against: Annotated[
        str | None, option("Compare estimates in a file with the costs.", SELECTION, metavar=FILE)
    ] = None
    csv: Annotated[
        str | None, option("The comparison with --against as CSV.", OUTPUTS, metavar=FILE)
    ] = None
    modules: Annotated[
        bool, option("One file a module: costs.jit_step.pbtxt.", OUTPUTS, "--modules")
    ] = False

    def outputs(self) -> list[str]:
        """Return the outputs whose names are known before the measurement.

        Raises:
            UsageError: options contradict each other.
        """
        if self.csv is not None and self.against is None:
            raise UsageError("--csv writes a comparison; add --against FILE")
        if self.modules and self.against is not None:
            raise UsageError(
                "--against compares with one cost file; give --module NAME instead of --modules"
            )
        if self.modules and self.output == "-":
            raise UsageError("--modules writes one file a module; name a file with -o")
        files = (None if self.modules else self.output, self.csv)
        return [file for file in files if file is not None]


@command()
def pgle(
    profiles: Annotated[
        list[str],
        argument(
            "PROFILES...",
            "Profiles of one JAX run, or directories of them: Nsight Systems exports "
            "(.sqlite) or reports (.nsys-rep), profiles of XLA (.xplane.pb, .trace.json.gz).",
        ),
    ],
    *,
    files: CostFileOptions,
    aggregate: Annotated[
        str,
        option("max, median, mean, min, or pNN.", COST, metavar="STAT", complete=statistic_names),
    ] = "p90",
    aggregate_collectives: Annotated[
        str | None,
        option(
            "The same for collectives, if another.", COST, metavar="STAT", complete=statistic_names
        ),
    ] = None,
    module: Annotated[
        list[str] | None, option("Only this module; repeat for several.", SELECTION, metavar="NAME")
    ] = None,
    skip: Annotated[
        int, option("Leave out the first N executions.", SELECTION, metavar="N", min=0)
    ] = 1,
    convention: Additions = None,
    keep_export: KeepExport = False,
    jobs: Jobs = None,
    force: Force = False,
) -> None:
    """Measure what XLA instructions take, for its scheduler.

    The latency-hiding scheduler of the compiler reads such costs. They are device times of whole
    executions, and --aggregate is the statistic over those of an instruction on all devices; the
    flags for both runs are printed with them.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.sources.paths import find_profiles

    outputs = files.outputs()
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if files.against is None else [files.against]
    inputs += convention or []
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.pgle import measure_costs, text
    from bubbleviz.analyses.pgle.costs import compare_costs, contents_of, csv_of_comparison
    from bubbleviz.analyses.pgle.files import read_costs

    estimates = None if files.against is None else read_costs(files.against)
    with progress_bars() as bars:
        costs = measure_costs(
            profiles,
            aggregate=aggregate,
            aggregate_collectives=aggregate_collectives,
            modules=module or (),
            skip=skip,
            apart=files.modules,
            convention=convention or (),
            keep_export=keep_export,
            jobs=jobs_or_cores(jobs),
            progress=bars,
        )
    comparison = None if estimates is None else compare_costs(costs.instructions, estimates)
    contents: dict[str, str | bytes] = {}
    if files.output is not None:
        contents.update(contents_of(costs, files.output))
    cost_files = list(contents)
    if comparison is not None and files.csv is not None:
        contents[files.csv] = csv_of_comparison(comparison)
    deliver(
        contents,
        lambda: _print_result(anonymous(costs), anonymous(comparison), anonymous(cost_files)),
        inputs=inputs,
        force=force,
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
