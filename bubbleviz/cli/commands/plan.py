"""``bubbleviz plan``: the best order for the measured times of a run."""

from __future__ import annotations

from bubbleviz.cli import options
from bubbleviz.cli.help import option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import search_bar, show
from bubbleviz.model.choices import BACKWARDS, check_choice

_ENDINGS = {".memory.svg": "memory-plot"}


@options.command(
    {**options.JSON, **options.ORDER, **options.PICTURE_FILES},
    _ENDINGS,
)
def plan(
    run: list[str] = options.REPORT_OR_PROFILES,
    *,
    microbatches: int | None = options.MICROBATCHES,
    backward: str | None = option(
        *("split|fused", "In its two halves, or in one [as the run]", "Schedule"),
        complete=BACKWARDS,
    ),
    memory_limit: str | None = option(
        "SIZE|none", "Of a device if measured, else activations: 80GB.", "Memory"
    ),
    memory_b: str | None = option("SIZE", "Held from F to B; else measured, or 1.", "Memory"),
    memory_w: str | None = option("SIZE", "Part of --memory-b until W; else all.", "Memory"),
    outputs: Outputs,
    paper: PaperOptions,
    measurement: options.MeasurementOptions,
) -> None:
    """Find the order with the shortest iteration at a run's times.

    Every virtual stage has its measured times, every link its transfers. All schedules with one
    order are simulated, and better orders searched, within the memory that the run took or
    --memory-limit; a lower bound shows what is left.
    """
    paper.check(outputs.formats.values())
    outputs.check(run)
    check_choice(backward, BACKWARDS, "--backward")
    from bubbleviz.analyses.plan.documents import RENDERINGS
    from bubbleviz.analyses.plan.planned_run import extract_run, load_run, plan_run
    from bubbleviz.analyses.plan.text import sections

    if measurement.is_saved(run, "plan", "takes"):
        measured = load_run(run[0])
    else:
        report = measurement.measure(run, memory=True)
        outputs.names.note(report)
        measured = extract_run(report, run[0])
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
    view = paper.styled()
    outputs.deliver(
        planned,
        lambda shown, name, _: RENDERINGS[name](shown, view),
        lambda shown: show(sections(shown)),
    )
