"""``bubbleviz layout``: which layers go on which stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.completion import beginning, schedule_names
from bubbleviz.cli.help import LAYERS, SCHEDULE
from bubbleviz.cli.options import (
    FILE,
    CsvFile,
    Force,
    JsonFile,
    MeasurementOptions,
    Output,
    PdfFile,
    PngFile,
    SvgFile,
    formats_by_ending,
    with_anonymity,
    with_groups,
)
from bubbleviz.cli.terminal import deliver, search_bar, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from bubbleviz.analyses.layout.inputs import MeasuredModel
    from bubbleviz.model.memory_sizes import MemorySize


@frozen
class LayoutOptions:
    """What layouts are sought for: layers, sizes, schedules and memory."""

    layers: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="CSV of layers: name, forward_ms, backward_ms, ...",
            rich_help_panel=LAYERS,
        ),
    ] = None
    layers_per_stage: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Layers of each stage of a report, taken as equal.",
            rich_help_panel=LAYERS,
        ),
    ] = None
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Schedule; repeat for several [all of one order]",
            rich_help_panel=SCHEDULE,
            autocompletion=beginning(schedule_names),
        ),
    ] = None
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            "-p",
            min=1,
            metavar="P",
            help="Number of devices.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            "-m",
            min=1,
            metavar="M",
            help="Number of microbatches.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    chunks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="V",
            help="Chunks a device of schedules that have several.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of a device, such as 80GB.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None

    def numbers_of_layers(self) -> tuple[int, ...]:
        """Return the numbers of layers of stages; empty for none.

        Raises:
            UsageError: they are no numbers.
        """
        try:
            return (
                tuple(map(int, (self.layers_per_stage or "").split(",")))
                if (self.layers_per_stage)
                else ()
            )
        except ValueError:
            raise UsageError(
                f"--layers-per-stage {self.layers_per_stage}: no numbers; give one, or one a "
                "virtual stage with commas"
            ) from None

    def limit(self) -> MemorySize | None:
        """Return the memory limit; None for none.

        Raises:
            UsageError: it is no amount of memory.
        """
        from bubbleviz.model.memory_sizes import parse_memory

        given = self.memory_limit
        return None if given is None else parse_memory(given, "--memory-limit")


@with_anonymity
@with_groups
def layout(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Profiles of one run with ranges of layers, or its JSON report; none where "
            "--layers says all.",
        ),
    ] = None,
    *,
    model: LayoutOptions,
    output: Output = None,
    json: JsonFile = None,
    csv: CsvFile = None,
    svg: SvgFile = None,
    pdf: PdfFile = None,
    png: PngFile = None,
    force: Force = False,
    measurement: MeasurementOptions,
) -> None:
    """Find the layers of each stage for the shortest iteration.

    Layers are measured by their ranges or modules inside forwards and backwards, or read from
    --layers. The layout is the best of all for each schedule, within --memory-limit, and printed
    as Megatron's and torchtitan's options.
    """
    from bubbleviz.cli.outputs import check_outputs

    files = {"json": json, "csv": csv, "svg": svg, "pdf": pdf, "png": png}
    from bubbleviz.analyses.layout import documents as renderings

    outputs = formats_by_ending(files, {}, renderings.ENDINGS, output or ())
    limit = model.limit()
    inputs = [*(run or ()), *([model.layers] if model.layers else ())]
    check_outputs(list(outputs), inputs, force=force)
    from bubbleviz.analyses.layout import text
    from bubbleviz.analyses.layout.report import layouts_of, limit_of

    known = _known(run or [], model, measurement)
    question = known.question(model.stages, model.microbatches)
    measured = known.measured
    if limit is not None and limit.in_bytes and known.plain_memory:
        measured = replace(measured, in_bytes=True)
    question = replace(question, limit=limit_of(limit, measured, question.stages))
    with search_bar() as watch:
        report = layouts_of(question, measured, model.schedule or (), model.chunks, watch)
    report = anonymous(report)
    deliver(
        {file: renderings.RENDERINGS[name](report) for file, name in outputs.items()},
        lambda: show(text.sections(report)),
        inputs=inputs,
        force=force,
    )


def _known(run: list[str], model: LayoutOptions, measurement: MeasurementOptions) -> MeasuredModel:
    """Return what is known of the model: by a table, a report, or profiles.

    Raises:
        UsageError: neither a table nor a run is given, or both.
    """
    from bubbleviz.analyses.layout import inputs

    if model.layers is not None:
        if run or model.layers_per_stage is not None:
            raise UsageError("--layers holds all layers; leave out the run and --layers-per-stage")
        return inputs.of_table(model.layers)
    if not run:
        raise UsageError("give the profiles of a run, or a table of layers with --layers")
    per_stage = model.numbers_of_layers()
    if len(run) == 1 and _is_report(run[0]):
        if not per_stage:
            raise UsageError(
                f"{run[0]}: a report holds no times of layers; give --layers-per-stage, or the "
                "profiles themselves"
            )
        return inputs.of_report(run[0], per_stage)
    from bubbleviz.cli.options import jobs_or_cores
    from bubbleviz.cli.terminal import progress_bars

    with progress_bars() as bars:
        return inputs.of_profiles(
            run,
            layers_per_stage=per_stage,
            conventions=measurement.convention or (),
            skip=measurement.skip,
            jobs=jobs_or_cores(measurement.jobs),
            progress=bars,
        )


def _is_report(path: str) -> bool:
    """Tell whether a path is a saved report, or a pipe: a trace may be named ``.json``, too."""
    from bubbleviz.errors import ProfileError
    from bubbleviz.report.saved import looks_saved
    from bubbleviz.sources.readers import reader_of

    if not looks_saved(path):
        return False
    if Path(path).is_fifo() or Path(path).is_dir():
        return True
    try:
        reader_of(path)
    except ProfileError:
        return True
    return False
