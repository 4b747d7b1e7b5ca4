"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.options import FILE, Force, Jobs, KeepExport
from bubbleviz.cli.terminal import complain, pass_on, progress_bars, show
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubbleviz.analyses.pgle.instruction_costs import Comparison


def pgle(
    profiles: Annotated[
        list[str],
        typer.Argument(
            help="Profiles of one JAX run, or directories of them: Nsight Systems exports "
            "(.sqlite) or reports (.nsys-rep), profiles of XLA (.xplane.pb, .trace.json.gz)."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar=FILE,
            help="Write the costs, as text (.pbtxt) or binary (.pb); - for standard output.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Compare the estimates in a cost file with the measured times.",
        ),
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(
            metavar=FILE, help="With --against: write the comparison as CSV; - for standard output."
        ),
    ] = None,
    aggregate: Annotated[
        str,
        typer.Option(
            metavar="max|median|mean|min|pNN",
            help="Statistic over the executions of an instruction on all devices that becomes its "
            "cost.",
        ),
    ] = "p90",
    aggregate_collectives: Annotated[
        str | None,
        typer.Option(
            metavar="max|median|mean|min|pNN",
            help="The same for collectives; as --aggregate if not given.",
        ),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Use only this module; repeat for several."),
    ] = None,
    modules: Annotated[
        bool,
        typer.Option("--modules", help="Write one file a module, as costs.jit_step.pbtxt."),
    ] = False,
    skip: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Leave out the first N executions of each module on each device (warm-up).",
        ),
    ] = 1,
    keep_export: KeepExport = False,
    force: Force = False,
    jobs: Jobs = None,
) -> None:
    """Measure what each XLA instruction takes, for the compiler's latency-hiding scheduler.

    Costs are device times of whole executions; the flags for both runs are printed with them.
    """
    from bubbleviz.cli.outputs import check_outputs, write_outputs
    from bubbleviz.sources.paths import find_profiles

    _check(output, against, csv, modules=modules)
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if against is None else [against]
    outputs = [file for file in (None if modules else output, csv) if file is not None]
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.pgle import report as pgle_report
    from bubbleviz.analyses.pgle.analysis import contents_of, measure_costs
    from bubbleviz.analyses.pgle.files import read_costs
    from bubbleviz.analyses.pgle.instruction_costs import compared
    from bubbleviz.interpret.fleet.process_pool import cores

    estimates = None if against is None else read_costs(against)
    with progress_bars() as bars:
        costs = measure_costs(
            profiles,
            aggregate=aggregate,
            aggregate_collectives=aggregate_collectives,
            modules=module or (),
            apart=modules,
            skip=skip,
            keep_export=keep_export,
            jobs=jobs or cores(),
            progress=bars,
        )
    comparison = None if estimates is None else compared(costs.instructions, estimates)
    written = {} if output is None else dict(contents_of(costs, output))
    contents = {**written, **_table(comparison, csv)}
    to_stdout = contents.pop("-", None)
    check_outputs(list(contents), inputs, force=force)
    write_outputs(contents, force=force)
    warnings = *pgle_report.warnings(costs.limitations), *pgle_report.unread(list(written))
    for sentence in warnings:
        complain(sentence, 0)
    if to_stdout is not None:
        pass_on(to_stdout)
        return
    if comparison is not None:
        pass_on(pgle_report.summary(costs))
        show(pgle_report.comparison_parts(comparison))
    elif output is None:
        show(pgle_report.parts(costs))
    else:
        pass_on(pgle_report.summary(costs))
    if comparison is None:
        pass_on(pgle_report.flags(list(written) or ["costs.pbtxt"]))


def _check(output: str | None, against: str | None, csv: str | None, *, modules: bool) -> None:
    """Check for options that contradict each other.

    Raises:
        UsageError: some do.
    """
    if csv is not None and against is None:
        raise UsageError("--csv writes a comparison; add --against FILE")
    if modules and against is not None:
        raise UsageError(
            "--against compares with one cost file; give --module NAME instead of --modules"
        )
    if modules and output == "-":
        raise UsageError("--modules writes one file a module; name a file with -o")


def _table(comparison: Comparison | None, csv: str | None) -> Mapping[str, bytes]:
    from bubbleviz.analyses.pgle.report import comparison_csv
    from bubbleviz.cli.outputs import encoded

    if comparison is None or csv is None:
        return {}
    return {csv: encoded(comparison_csv(comparison))}
