"""``bubbleviz pgle``: instruction costs for XLA's profile-guided latency estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.errors import UsageError
from bubbleviz.cli.terminal import complain, pass_on, progress_bars, show

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
            metavar="FILE",
            help="Write the costs, as text (.pbtxt) or binary (.pb); - for standard output.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Compare the estimates in a file of costs with what the profiles show.",
        ),
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="With --against: write every row of it; - for standard output."
        ),
    ] = None,
    aggregate: Annotated[
        str,
        typer.Option(
            metavar="max|median|mean|min|pNN",
            help="How executions on devices become one cost; the default is a percentile that "
            "JAX takes over profiling runs, of each the mean.",
        ),
    ] = "p90",
    aggregate_collectives: Annotated[
        str | None,
        typer.Option(
            metavar="max|median|mean|min|pNN", help="The same for collectives; as for compute."
        ),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Take this module alone; several times for several."),
    ] = None,
    modules: Annotated[
        bool,
        typer.Option(
            "--modules", help="Keep modules apart: one file each, as costs.jit_step.pbtxt."
        ),
    ] = False,
    skip: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Leave the first N executions of each module on each device out, as its warm-up.",
        ),
    ] = 1,
    keep_export: Annotated[
        bool, typer.Option("--keep-export", help="Keep the exports made of .nsys-rep reports.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Threads on a profile.")
    ] = None,
) -> None:
    """Measure what each XLA instruction takes, for the compiler's latency-hiding scheduler.

    Costs are device times of whole executions; the flags of the two runs are printed below.
    """
    from bubbleviz.sources.paths import find_profiles
    from bubbleviz.cli.outputs import check_outputs, write_outputs

    _check(output, against, csv, modules=modules)
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if against is None else [against]
    named = [file for file in (None if modules else output, csv) if file is not None]
    check_outputs(named, inputs, force=force)
    from bubbleviz.analyses.pgle import report as pgle_report
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.analyses.pgle.instruction_costs import compared
    from bubbleviz.analyses.pgle.analysis import contents_of, measure_costs
    from bubbleviz.analyses.pgle.files import read_costs

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
    found = None if estimates is None else compared(costs.instructions, estimates)
    written = {} if output is None else dict(contents_of(costs, output))
    contents = {**written, **_table(found, csv)}
    to_stdout = contents.pop("-", None)
    check_outputs(list(contents), inputs, force=force)
    write_outputs(contents, force=force)
    told = *pgle_report.warnings(costs.limitations), *pgle_report.unread(list(written))
    for sentence in told:
        complain(sentence, 0)
    if to_stdout is not None:
        pass_on(to_stdout)
        return
    if found is not None:
        pass_on(pgle_report.summary(costs))
        show(pgle_report.comparison_parts(found))
    elif output is None:
        show(pgle_report.parts(costs))
    else:
        pass_on(pgle_report.summary(costs))
    if found is None:
        pass_on(pgle_report.flags(list(written) or ["costs.pbtxt"]))


def _check(output: str | None, against: str | None, csv: str | None, *, modules: bool) -> None:
    """Refuse options that contradict each other, before any work.

    Raises:
        UsageError: they do.
    """
    if csv is not None and against is None:
        raise UsageError("--csv writes a comparison; give the estimates with --against FILE")
    if modules and against is not None:
        raise UsageError(
            "--against compares with one file of costs; take one module with --module NAME in "
            "place of --modules"
        )
    if modules and output == "-":
        raise UsageError("--modules writes a file for each module; name a file with -o")


def _table(found: Comparison | None, csv: str | None) -> Mapping[str, bytes]:
    from bubbleviz.cli.outputs import encoded
    from bubbleviz.analyses.pgle.report import comparison_csv

    return {} if found is None or csv is None else {csv: encoded(comparison_csv(found))}
