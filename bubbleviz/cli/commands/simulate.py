"""``bubbleviz simulate``: the makespan, bubble ratios and memory of a schedule in theory."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.option_groups import with_anonymity, with_groups
from bubbleviz.cli.options import FILE, Force, JsonFile, PdfFile, PngFile, SvgFile, formats_by_file
from bubbleviz.cli.terminal import deliver, search_bar, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedTimes
    from bubbleviz.schedules.ideal import Estimate, Ideal, MemoryOptions
    from bubbleviz.schedules.measured_times import MeasuredTimes
    from bubbleviz.schedules.stage_times import StageTimes


@frozen
class TimeOptions:
    """How long the operations of a microbatch take."""

    tf: Annotated[
        str | None,
        typer.Option(
            metavar="MS[,MS...]",
            help="Forward time of a microbatch, one for all stages or one per stage.",
        ),
    ] = None
    tb: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Backward time for the input gradients."),
    ] = None
    tw: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Backward time for the weight gradients."),
    ] = None
    tcomm: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Transfer time between two devices; 0 if not given."),
    ] = None

    def stage_times(self, measured: MeasuredTimes | None) -> StageTimes:
        """Return the given times, and measured ones for the rest.

        Raises:
            UsageError: a time is neither given nor measured.
        """
        from bubbleviz.schedules.stage_times import StageTimes

        if measured is None and None in (self.tf, self.tb, self.tw):
            raise UsageError("give the times --tf, --tb and --tw, or a report with --from")
        times = StageTimes((), (), ()) if measured is None else measured.times
        return StageTimes(
            times.forward_ms if self.tf is None else _milliseconds("--tf", self.tf),
            times.backward_ms if self.tb is None else _milliseconds("--tb", self.tb),
            times.weight_ms if self.tw is None else _milliseconds("--tw", self.tw),
            times.transfer_ms if self.tcomm is None else self.tcomm,
        )


@frozen
class ScheduleOptions:
    """A schedule by name, its sizes, and the memory that a searched one keeps within."""

    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of a schedule; see bubbleviz schedules."),
    ] = None
    stages: Annotated[
        int | None,
        typer.Option("--stages", "-p", metavar="P", help="Number of stages, one per device."),
    ] = None
    microbatches: Annotated[
        int | None,
        typer.Option("--microbatches", "-m", metavar="M", help="Number of microbatches."),
    ] = None
    chunks: Annotated[
        int | None,
        typer.Option(
            metavar="V", help="Model chunks per stage; the schedule's default if not given."
        ),
    ] = None
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Activation memory of a device for searched schedules, in the unit of --memory-b; "
            "p, 2p, (p+2)/2 and (p+4)/3 M_B for zb-1p, zb-2p, v-half and v-min if not given.",
        ),
    ] = None
    memory_b: Annotated[
        float | None,
        typer.Option(
            metavar="M_B", help="Memory a microbatch holds on a stage from F to B; 1 if not given."
        ),
    ] = None
    memory_w: Annotated[
        float | None,
        typer.Option(
            metavar="M_W",
            help="Part of it held until W; all of it if not given, 32/74 for zb-1p and zb-2p.",
        ),
    ] = None

    def memory(self) -> MemoryOptions:
        """Return the memory options as the library takes them."""
        from bubbleviz.schedules.ideal import MemoryOptions

        return MemoryOptions(self.memory_limit, self.memory_b, self.memory_w)


@with_anonymity
@with_groups
def simulate(
    *,
    times: TimeOptions,
    report: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPORT",
            help="Take missing sizes and times from a report written by analyze --json.",
        ),
    ] = None,
    sizes: ScheduleOptions,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Simulate the order in a file (PyTorch's CSV) instead of a named schedule.",
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
    from bubbleviz.cli.outputs import check_outputs

    files = {"json": json, "svg": svg, "pdf": pdf, "png": png, "csv": csv}
    outputs = formats_by_file(files)
    inputs = [file for file in (plan, report) if file is not None]
    check_outputs([file for file in files.values() if file is not None], inputs, force=force)
    from bubbleviz.render.documents import ideal_report
    from bubbleviz.report.saved import read_times

    saved = None if report is None else read_times(report)
    measured = None if saved is None else _measured(saved)
    stage_times = times.stage_times(measured)
    if plan is None:
        result = _of_schedule(sizes, stage_times, measured)
    else:
        result = anonymous(_of_plan(plan, sizes, stage_times))
    if saved is not None:
        result = replace(result, restrictions=saved.restrictions)
    deliver(
        {file: ideal_report.RENDERINGS[name](result) for file, name in outputs.items()},
        lambda: show(ideal_report.sections(result)),
        inputs=inputs,
        force=force,
    )


def _measured(saved: SavedTimes) -> MeasuredTimes:
    """Return the times as schedules are simulated with them."""
    from bubbleviz.schedules.measured_times import measured_times

    return measured_times(saved.kinds, saved.transfer_ns, saved.microbatches)


def _of_plan(plan: str, sizes: ScheduleOptions, times: StageTimes) -> Ideal:
    """Return the simulation of the order in a file.

    Raises:
        UsageError: a schedule or its sizes are given, too.
    """
    from bubbleviz.schedules.files import read_plan
    from bubbleviz.schedules.ideal import ideal_of

    if any(size is not None for size in astuple(sizes)):
        raise UsageError("--plan sets the order and its sizes; leave the other options out")
    return ideal_of(read_plan(plan), times)


def _of_schedule(
    sizes: ScheduleOptions, times: StageTimes, measured: MeasuredTimes | None
) -> Ideal | Estimate:
    """Return the simulation of a named schedule, sizes that are not given being measured ones.

    Raises:
        UsageError: there is no name, or a size is neither given nor measured.
    """
    from bubbleviz.schedules.ideal import theory

    stages, microbatches = sizes.stages, sizes.microbatches
    if measured is not None:
        stages = measured.stages if stages is None else stages
        microbatches = measured.microbatches if microbatches is None else microbatches
    if sizes.schedule is None or stages is None or microbatches is None:
        raise UsageError("give a --schedule with its sizes -p and -m, or a --plan")
    with search_bar() as watch:
        return theory(
            sizes.schedule,
            stages,
            microbatches,
            times,
            sizes.chunks,
            memory=sizes.memory(),
            watch=watch,
        )


def _milliseconds(option: str, text: str) -> tuple[float, ...]:
    """Return the times in the value of an option.

    Raises:
        UsageError: it is not a list of numbers.
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text}: not milliseconds; give one number, or one per stage with commas"
        ) from None
