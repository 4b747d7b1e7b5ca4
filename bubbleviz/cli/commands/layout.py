"""``bubbleviz layout``: the assignment of layers to stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.cli import options
from bubbleviz.cli.help import argument, option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show, show_reading_progress, show_search_progress
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.analyses.layout.layer_table import MeasuredModel


@options.command(
    {**options.JSON, **options.CSV, **options.PICTURE_FILES}, {".memory.svg": "memory-plot"}
)
def layout(
    run: list[str] | None = argument(
        "RUN...",
        "Profiles of one run with a range per layer, or its JSON report. Not used with --layers.",
        None,
    ),
    *,
    layers: str | None = option(
        "FILE", "CSV file of layers: name, forward_ms, backward_ms, ...", "Layers"
    ),
    layers_per_stage: str | None = option(
        "N[,N...]", "Number of (equal) layers on each stage of a report.", "Layers"
    ),
    schedule: list[str] | None = option(
        "NAME",
        "Schedule to consider. Can be repeated [default: all]",
        "Schedule",
        complete=options.list_schedule_names,
    ),
    stages: int | None = options.STAGES,
    microbatches: int | None = options.MICROBATCHES,
    chunks: int | None = options.CHUNKS,
    memory_limit: str | None = option("SIZE", "Memory per device, e.g. 80GB.", "Schedule"),
    outputs: Outputs,
    measurement: options.MeasurementOptions,
) -> None:
    """Assign layers to stages for the shortest iteration.

    Layer times are measured from the ranges or modules of the layers, or read from --layers. For
    each schedule, the layout is optimal within --memory-limit. It is printed as options for
    Megatron and torchtitan, or for vLLM and SGLang for inference.
    """
    from bubbleviz.model.memory_sizes import parse_memory

    limit = None if memory_limit is None else parse_memory(memory_limit, "--memory-limit")
    outputs.check([*(run or ()), layers or None])
    from bubbleviz.analyses.layout.outputs import RENDERINGS
    from bubbleviz.analyses.layout.report import find_layouts
    from bubbleviz.analyses.layout.text import list_sections

    model = _read_model(run or [], layers, layers_per_stage, measurement)
    with show_search_progress() as watch:
        sizes = stages, microbatches, chunks
        report = find_layouts(model, sizes, schedule or (), limit, watch)
    outputs.deliver(
        report,
        lambda shown, name, _: RENDERINGS[name](shown),
        lambda shown: show(list_sections(shown)),
    )


def _read_model(
    run: Sequence[str],
    layers: str | None,
    layers_per_stage: str | None,
    measurement: options.MeasurementOptions,
) -> MeasuredModel:
    """Read a model's layers from a table, a report or profiles.

    Args:
        run: Paths of profiles, or the path of a single report. Empty if a table is given.
        layers: Path of a layer table, or None.
        layers_per_stage: Value of the option ``--layers-per-stage``, or None.
        measurement: Options for measuring profiles.

    Raises:
        UsageError: Both a table and a run are given, or neither is. Also raised if
            ``--layers-per-stage`` is not a list of numbers or is missing for a report, or if an
            option does not apply to a report.
        BubblevizError: An input cannot be read, or does not contain a model.
    """
    if layers is not None:
        if run or layers_per_stage is not None:
            raise UsageError(
                "--layers already defines all layers; remove the run and --layers-per-stage"
            )
        from bubbleviz.analyses.layout.layer_table import read_layers

        return read_layers(layers)
    if not run:
        raise UsageError("pass the profiles of a run, or a table of layers with --layers")
    try:
        per_stage = tuple(map(int, layers_per_stage.split(","))) if layers_per_stage else ()
    except ValueError:
        raise UsageError(
            f"--layers-per-stage {layers_per_stage}: not a number; pass one number, or one per "
            "virtual stage (2,2,3)"
        ) from None
    from bubbleviz.analyses.layout import inputs

    if measurement.recognize_run(run, "layout", "takes").is_saved:
        if not per_stage:
            raise UsageError(
                f"{run[0]}: a report contains no layer times; pass --layers-per-stage, or the "
                "profiles of the run"
            )
        return inputs.read_model_of_report(run[0], per_stage)
    with show_reading_progress() as bars:
        return inputs.measure_model(
            run,
            layers_per_stage=per_stage,
            conventions=measurement.convention or (),
            skip=measurement.skip,
            jobs=options.resolve_jobs(measurement.jobs),
            progress=bars,
        )
