"""``bubbleviz simulate``: the makespan, bubble ratios and memory of a schedule in theory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.options import FILE, Force, JsonFile, PdfFile, PngFile, SvgFile, formats_by_file
from bubbleviz.cli.terminal import pass_on, search_bar, show
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.schedules.ideal import StageTimes
    from bubbleviz.schedules.measured_times import Measured


def simulate(
    tf: Annotated[
        str | None,
        typer.Option(
            metavar="MS[,MS...]",
            help="Forward time of a microbatch, one for all stages or one a stage.",
        ),
    ] = None,
    tb: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Backward time for the input gradients."),
    ] = None,
    tw: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Backward time for the weight gradients."),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPORT",
            help="Take missing sizes and times from a report written by analyze --json.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of a schedule; see bubbleviz schedules."),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option("--stages", "-p", metavar="P", help="Number of stages, one a device."),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option("--microbatches", "-m", metavar="M", help="Number of microbatches."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Simulate the order in a file (PyTorch's CSV) instead of a named schedule.",
        ),
    ] = None,
    tcomm: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Transfer time between two devices; 0 if not given."),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(
            metavar="V", help="Model chunks a stage; the schedule's default if not given."
        ),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Activation memory of a device for searched schedules, in the unit of --memory-b; "
            "p, 2p, (p+2)/2 and (p+4)/3 M_B for zb-1p, zb-2p, v-half and v-min if not given.",
        ),
    ] = None,
    memory_b: Annotated[
        float | None,
        typer.Option(
            metavar="M_B", help="Memory a microbatch holds on a stage from F to B; 1 if not given."
        ),
    ] = None,
    memory_w: Annotated[
        float | None,
        typer.Option(
            metavar="M_W",
            help="Part of it held until W; all of it if not given, 32/74 for zb-1p and zb-2p.",
        ),
    ] = None,
    json: JsonFile = None,
    svg: SvgFile = None,
    pdf: PdfFile = None,
    png: PngFile = None,
    csv: Annotated[
        str | None,
        typer.Option(metavar=FILE, help="Write the order as PyTorch's CSV; - for standard output."),
    ] = None,
    force: Force = False,
) -> None:
    """Simulate a schedule: cost, makespan, bubble ratios and peak activations.

    Times are milliseconds for one microbatch of a stage; each of V chunks takes 1/V of them.
    """
    from bubbleviz.cli.outputs import check_outputs, write_outputs

    files = {"json": json, "svg": svg, "pdf": pdf, "png": png, "csv": csv}
    outputs = formats_by_file(files)
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
    result: Ideal | Estimate
    if plan is not None:
        sizes = (schedule, stages, microbatches, chunks, memory_limit, memory_b, memory_w)
        if any(given is not None for given in sizes):
            raise UsageError("--plan sets the order and its sizes; leave the other options out")
        from bubbleviz.schedules.files import read_plan

        result = ideal_of(read_plan(plan), times)
    elif schedule is None or stages is None or microbatches is None:
        raise UsageError("give a --schedule with its sizes -p and -m, or a --plan")
    else:
        with search_bar() as watch:
            result = theory(
                schedule, stages, microbatches, times, chunks, memory=memory, watch=watch
            )
    texts = {file: ideal_report.RENDERINGS[name](result) for file, name in outputs.items()}
    to_stdout = texts.pop("-", None)
    write_outputs(texts, force=force)
    if to_stdout is not None:
        pass_on(to_stdout)
    else:
        show(ideal_report.sections(result))


def _measured(path: str) -> Measured:
    """Return the measured times of a saved report."""
    from bubbleviz.report.saved import read_times
    from bubbleviz.schedules.measured_times import measured_times

    saved = read_times(path)
    return measured_times(saved.kinds, saved.transfer_ns, saved.microbatches)


def _stage_times(
    run: Measured | None, tf: str | None, tb: str | None, tw: str | None, tcomm: float | None
) -> StageTimes:
    """Return the given times, and measured ones for the rest.

    Raises:
        UsageError: a time is neither given nor measured.
    """
    from bubbleviz.schedules.ideal import StageTimes

    if run is None and (tf is None or tb is None or tw is None):
        raise UsageError("give the times --tf, --tb and --tw, or a report with --from")
    measured = StageTimes((), (), ()) if run is None else run.times
    return StageTimes(
        measured.forward_ms if tf is None else _times("--tf", tf),
        measured.backward_ms if tb is None else _times("--tb", tb),
        measured.weight_ms if tw is None else _times("--tw", tw),
        measured.transfer_ms if tcomm is None else tcomm,
    )


def _times(option: str, text: str) -> tuple[float, ...]:
    """Return the times in the value of an option.

    Raises:
        UsageError: it is not a list of numbers.
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text}: not milliseconds; give one number, or one a stage with commas"
        ) from None
