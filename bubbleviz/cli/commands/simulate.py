"""``bubbleviz simulate``: what a schedule takes in theory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.errors import UsageError
from bubbleviz.output_options import chosen
from bubbleviz.cli.terminal import pass_on, search_bar, show

if TYPE_CHECKING:
    from bubbleviz.schedules.ideal import StageTimes
    from bubbleviz.schedules.measured_times import Measured


def simulate(
    tf: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Forward, of all stages or of each."),
    ] = None,
    tb: Annotated[
        str | None, typer.Option(metavar="MS[,MS...]", help="Backward for the input alone.")
    ] = None,
    tw: Annotated[
        str | None, typer.Option(metavar="MS[,MS...]", help="Backward for the weights.")
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPORT",
            help="Take sizes and times that are not given from a report that analyze --json wrote.",
        ),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Schedule; bubbleviz schedules lists them.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option("--stages", "-p", metavar="P", help="Stages, one a device.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", "-m", metavar="M", help="Microbatches.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The order in a file, as PyTorch writes it (.csv), in place of a schedule and "
            "its sizes.",
        ),
    ] = None,
    tcomm: Annotated[
        float | None, typer.Option(metavar="MS", help="Latency between two devices; 0 by itself.")
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(metavar="V", help="Model chunks a stage; the usual number if not given."),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Activation memory of a device, in the unit of --memory-b, within which zb-1p, "
            "zb-2p, zb-v, v-half and v-min are searched; p, 2p, (p+2)/2 and (p+4)/3 M_B for "
            "zb-1p, zb-2p, v-half and v-min if not given.",
        ),
    ] = None,
    memory_b: Annotated[
        float | None,
        typer.Option(
            metavar="M_B", help="Held by a microbatch on a stage from F to B; 1 if not given."
        ),
    ] = None,
    memory_w: Annotated[
        float | None,
        typer.Option(
            metavar="M_W",
            help="What of it is held on to W; all if not given, 32/74 for zb-1p and zb-2p.",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the result as JSON; - for standard output."),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw it; - for standard output."),
    ] = None,
    pdf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw it as PDF; - for standard output.")
    ] = None,
    png: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw it as PNG; - for standard output.")
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the order as PyTorch's CSV; - for standard output."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
) -> None:
    """Tell what a schedule takes in theory: cost, makespan, bubble ratios, peak activations.

    Times are milliseconds for one microbatch of a stage; each of V chunks takes 1/V of them.
    """
    from bubbleviz.cli.outputs import check_outputs, write_outputs

    files = {"json": json, "svg": svg, "pdf": pdf, "png": png, "csv": csv}
    outputs = chosen(files)
    inputs = [file for file in (plan, measured) if file is not None]
    check_outputs([file for file in files.values() if file is not None], inputs, force=force)
    from bubbleviz.render.documents import ideal_report
    from bubbleviz.schedules.ideal import Estimate, Ideal, MemoryOptions, ideal_of, theory

    run = None if measured is None else _measured(measured)
    times = _stage_times(run, tf, tb, tw, tcomm)
    memory = MemoryOptions(memory_limit, memory_b, memory_w)
    if run is not None and plan is None:
        stages = run.stages if stages is None else stages
        microbatches = run.microbatches if microbatches is None else microbatches
    found: Ideal | Estimate
    if plan is not None:
        sizes = (schedule, stages, microbatches, chunks, memory_limit, memory_b, memory_w)
        if any(given is not None for given in sizes):
            raise UsageError("--plan tells the order and its sizes; leave the other ones out")
        from bubbleviz.schedules.files import read_plan

        found = ideal_of(read_plan(plan), times)
    elif schedule is None or stages is None or microbatches is None:
        raise UsageError("give a --schedule with its sizes -p and -m, or a --plan")
    else:
        own = schedule, stages, microbatches, times, chunks
        with search_bar() as watch:
            found = theory(*own, memory=memory, watch=watch)
    texts = {file: ideal_report.RENDERINGS[kind](found) for file, kind in outputs.items()}
    to_stdout = texts.pop("-", None)
    write_outputs(texts, force=force)
    if to_stdout is not None:
        pass_on(to_stdout)
    else:
        show(ideal_report.parts(found))


def _measured(path: str) -> Measured:
    """Return the times in a report."""
    from bubbleviz.schedules.measured_times import measured_times
    from bubbleviz.report.saved import read_times

    saved = read_times(path)
    return measured_times(saved.kinds, saved.transfer_ns, saved.microbatches)


def _stage_times(
    run: Measured | None, tf: str | None, tb: str | None, tw: str | None, tcomm: float | None
) -> StageTimes:
    """Return the times that are given, the others as measured.

    Raises:
        UsageError: there are neither.
    """
    from bubbleviz.schedules.ideal import StageTimes

    if run is None and (tf is None or tb is None or tw is None):
        raise UsageError("give the times --tf, --tb and --tw, or a report with --from")
    own = StageTimes((), (), ()) if run is None else run.times
    return StageTimes(
        own.forward_ms if tf is None else _times("--tf", tf),
        own.backward_ms if tb is None else _times("--tb", tb),
        own.weight_ms if tw is None else _times("--tw", tw),
        own.transfer_ms if tcomm is None else tcomm,
    )


def _times(option: str, text: str) -> tuple[float, ...]:
    """Return the times in an option.

    Raises:
        UsageError: there is something else.
    """
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise UsageError(
            f"{option} {text}: not milliseconds; give a number, or one a stage with commas between"
        ) from None
