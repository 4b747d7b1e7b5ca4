"""``bubbleviz plan``: the best order for the measured times of a run."""

from __future__ import annotations

from typing import Annotated

from bubbleviz.cli.help import MEMORY, SCHEDULE, argument, option
from bubbleviz.cli.options import (
    JSON,
    LOWERED,
    ORDER,
    PICTURE_FILES,
    MeasurementOptions,
    Outputs,
    command,
)
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import search_bar, show
from bubbleviz.model.choices import BACKWARDS, one_of
from bubbleviz.model.private_names import anonymous

_ZERO_BUBBLE = {"zero-bubble": "order for zero-bubble's runtime (.zb.json)"}
_ENDINGS = {".comms.csv": "comms", ".zb.json": "zero-bubble", ".memory.svg": "memory-plot"}


@command({**JSON, **ORDER, **LOWERED, **_ZERO_BUBBLE, **PICTURE_FILES}, _ENDINGS)
def plan(
    run: Annotated[
        list[str],
        argument(
            "REPORT.json|PROFILES...",
            "A report written by analyze --json, or the profiles of one run (files or a "
            "directory).",
        ),
    ],
    *,
    microbatches: Annotated[
        int | None,
        option(
            "Number of microbatches, if not as many as ran.",
            SCHEDULE,
            "--microbatches",
            "-m",
            min=1,
            metavar="M",
        ),
    ] = None,
    backward: Annotated[
        str | None,
        option(
            "In its two halves, or in one [as the run]",
            SCHEDULE,
            metavar="split|fused",
            complete=BACKWARDS,
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        option("Of a device if measured, else activations: 80GB.", MEMORY, metavar="SIZE|none"),
    ] = None,
    memory_b: Annotated[
        str | None, option("Held from F to B; else measured, or 1.", MEMORY, metavar="SIZE")
    ] = None,
    memory_w: Annotated[
        str | None, option("Part of --memory-b until W; else all.", MEMORY, metavar="SIZE")
    ] = None,
    outputs: Outputs,
    paper: PaperOptions,
    measurement: MeasurementOptions,
) -> None:
    """Find the order with the shortest iteration at a run's times.

    Every virtual stage has its measured times, every link its transfers. All schedules with one
    order are simulated, and better orders searched, within the memory that the run took or
    --memory-limit; a lower bound shows what is left.
    """
    paper.check_drawn(outputs.formats.values())
    outputs.check(run)
    one_of(backward, BACKWARDS, "--backward")
    from bubbleviz.analyses.plan.documents import RENDERINGS, sections
    from bubbleviz.analyses.plan.planned_run import of_report, of_saved, plan_run

    if measurement.is_saved(run, "plan", "takes"):
        measured = of_saved(run[0])
    else:
        measured = of_report(measurement.measure(run, memory=True), run[0])
    with search_bar() as watch:
        planned = plan_run(
            measured,
            microbatches=microbatches,
            memory_limit=memory_limit,
            memory_b=memory_b,
            memory_w=memory_w,
            split=None if backward is None else backward == "split",
            watch=watch,
        )
    planned = anonymous(planned)
    view = paper.styled()
    outputs.deliver(
        lambda name: RENDERINGS[name](planned, view), lambda: show(sections(planned)), inputs=run
    )
