"""``bubbleviz layout``: which layers go on which stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.cli import options
from bubbleviz.cli.help import argument, option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import progress_bars, search_bar, show
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.analyses.layout.layer_table import MeasuredModel


@options.command(
    {**options.JSON, **options.CSV, **options.PICTURE_FILES}, {".memory.svg": "memory-plot"}
)
def layout(
    run: list[str] | None = argument(
        "RUN...",
        "Profiles of one run with ranges of layers, or its JSON report; none where --layers says "
        "all.",
        None,
    ),
    *,
    layers: str | None = option(
        "FILE", "CSV of layers: name, forward_ms, backward_ms, ...", "Layers"
    ),
    layers_per_stage: str | None = option(
        "N[,N...]", "Layers of each stage of a report, taken as equal.", "Layers"
    ),
    schedule: list[str] | None = option(
        *("NAME", "Schedule; repeat for several [all of one order]", "Schedule"),
        complete=options.schedule_names,
    ),
    stages: int | None = options.STAGES,
    microbatches: int | None = options.MICROBATCHES,
    chunks: int | None = options.CHUNKS,
    memory_limit: str | None = option("SIZE", "Memory of a device, such as 80GB.", "Schedule"),
    outputs: Outputs,
    measurement: options.MeasurementOptions,
) -> None:
    """Find the layers of each stage for the shortest iteration.

    Layers are measured by their ranges or modules inside forwards and backwards, or read from
    --layers. The layout is the best of all for each schedule, within --memory-limit, and printed
    as Megatron's and torchtitan's options, of a run that only goes forward as vLLM's and SGLang's.
    """
    from bubbleviz.model.memory_sizes import parse_memory

    limit = None if memory_limit is None else parse_memory(memory_limit, "--memory-limit")
    outputs.check([*(run or ()), layers or None])
    from bubbleviz.analyses.layout.outputs import RENDERINGS
    from bubbleviz.analyses.layout.report import find_layouts
    from bubbleviz.analyses.layout.text import list_sections

    known = _measured_model(run or [], layers, layers_per_stage, measurement)
    with search_bar() as watch:
        sizes = stages, microbatches, chunks
        report = find_layouts(known, sizes, schedule or (), limit, watch)
    outputs.deliver(
        report,
        lambda shown, name, _: RENDERINGS[name](shown),
        lambda shown: show(list_sections(shown)),
    )


def _measured_model(
    run: Sequence[str],
    layers: str | None,
    layers_per_stage: str | None,
    measurement: options.MeasurementOptions,
) -> MeasuredModel:
    """Return what is known of the model: by a table, a report, or profiles.

    Raises:
        UsageError: neither a table nor a run is given, or both.
    """
    if layers is not None:
        if run or layers_per_stage is not None:
            raise UsageError("--layers holds all layers; leave out the run and --layers-per-stage")
        from bubbleviz.analyses.layout.layer_table import read_layers

        return read_layers(layers)
    if not run:
        raise UsageError("give the profiles of a run, or a table of layers with --layers")
    try:
        per_stage = tuple(map(int, layers_per_stage.split(","))) if layers_per_stage else ()
    except ValueError:
        raise UsageError(
            f"--layers-per-stage {layers_per_stage}: no numbers; give one, or one a "
            "virtual stage with commas"
        ) from None
    from bubbleviz.analyses.layout import inputs

    if measurement.is_saved(run, "layout", "takes"):
        if not per_stage:
            raise UsageError(
                f"{run[0]}: a report holds no times of layers; give --layers-per-stage, or the "
                "profiles themselves"
            )
        return inputs.read_model_of_report(run[0], per_stage)
    with progress_bars() as bars:
        return inputs.measure_model(
            run,
            layers_per_stage=per_stage,
            conventions=measurement.convention or (),
            skip=measurement.skip,
            jobs=options.jobs_or_cores(measurement.jobs),
            progress=bars,
        )
