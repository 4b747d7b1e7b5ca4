"""``bubbleviz plan``: the best order for the measured times of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.completion import beginning
from bubbleviz.cli.help import MEMORY, OUTPUTS, SCHEDULE
from bubbleviz.cli.options import (
    FILE,
    Force,
    JsonFile,
    LoweredFile,
    MeasurementOptions,
    OrderFile,
    Output,
    PdfFile,
    PngFile,
    SvgFile,
    formats_by_ending,
    with_anonymity,
    with_groups,
)
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import deliver, search_bar, show
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import BACKWARDS, one_of
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.analyses.plan.memory import MeasuredRun, MemoryChoice


@frozen
class OrderOptions:
    """What orders are sought for."""

    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            "-m",
            min=1,
            metavar="M",
            help="Number of microbatches, if not as many as ran.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    backward: Annotated[
        str | None,
        typer.Option(
            metavar="split|fused",
            help="In its two halves, or in one [as the run]",
            rich_help_panel=SCHEDULE,
            autocompletion=beginning(BACKWARDS),
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|none",
            help="Of a device if measured, else activations: 80GB.",
            rich_help_panel=MEMORY,
        ),
    ] = None
    memory_b: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Held from F to B; else measured, or 1.",
            rich_help_panel=MEMORY,
        ),
    ] = None
    memory_w: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Part of --memory-b until W; else all.",
            rich_help_panel=MEMORY,
        ),
    ] = None

    def split(self) -> bool | None:
        """Return whether the backward is split; None for as the run has it.

        Raises:
            UsageError: the option is neither.
        """
        one_of(self.backward, BACKWARDS, "--backward")
        return None if self.backward is None else self.backward == "split"

    def memory(self) -> MemoryChoice:
        """Return the memory options as the library takes them."""
        from bubbleviz.analyses.plan.memory import MemoryChoice

        return MemoryChoice(self.memory_limit, self.memory_b, self.memory_w)


@with_anonymity
@with_groups
def plan(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="REPORT.json|PROFILES...",
            help="A report written by analyze --json, or the profiles of one run (files or a "
            "directory).",
        ),
    ],
    *,
    order: OrderOptions,
    output: Output = None,
    json: JsonFile = None,
    csv: OrderFile = None,
    comms: LoweredFile = None,
    zero_bubble: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="order for zero-bubble's runtime (.zb.json)",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    svg: SvgFile = None,
    pdf: PdfFile = None,
    png: PngFile = None,
    paper: PaperOptions,
    force: Force = False,
    measurement: MeasurementOptions,
) -> None:
    """Find the order with the shortest iteration at a run's times.

    Every virtual stage has its measured times, every link its transfers. All schedules with one
    order are simulated, and better orders searched, within the memory that the run took or
    --memory-limit; a lower bound shows what is left.
    """
    from bubbleviz.cli.outputs import check_outputs

    files = {"json": json, "csv": csv, "svg": svg, "pdf": pdf, "png": png}
    from bubbleviz.analyses.plan.documents import ENDINGS, RENDERINGS

    own = {"comms": comms, "zero-bubble": zero_bubble}
    outputs = formats_by_ending(files, own, ENDINGS, output or ())
    paper.check_drawn(outputs.values())
    check_outputs(list(outputs), run, force=force)
    split, memory = order.split(), order.memory()
    from bubbleviz.analyses.plan.memory import plan_run
    from bubbleviz.analyses.plan.text import sections
    from bubbleviz.schedules.planning import PlanOptions

    measured = _measured(run, measurement)
    with search_bar() as watch:
        planned = plan_run(
            measured,
            microbatches=order.microbatches,
            memory=memory,
            options=PlanOptions(split),
            watch=watch,
        )
    planned = anonymous(planned)
    view = paper.styled()
    deliver(
        {file: RENDERINGS[name](planned, view) for file, name in outputs.items()},
        lambda: show(sections(planned)),
        inputs=run,
        force=force,
    )


def _measured(run: Sequence[str], measurement: MeasurementOptions) -> MeasuredRun:
    """Return the run of a report, or of profiles.

    Raises:
        UsageError: there are several reports, or options of profiles for one.
    """
    from bubbleviz.analyses.plan import memory as measured_run
    from bubbleviz.report.saved import looks_saved

    if len(run) > 1 and any(map(looks_saved, run)):
        raise UsageError("plan takes one report; give a single report, or the profiles of one run")
    if looks_saved(run[0]):
        if measurement.given():
            raise UsageError(
                "--skip, --convention and --jobs apply to profiles; leave them out for a report"
            )
        return measured_run.of_saved(run[0])
    return measured_run.of_report(measurement.measure(run, memory=True), run[0])
