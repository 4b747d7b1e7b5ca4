"""``bubbleviz plan``: the best order of operations for the measured times of a run."""

from __future__ import annotations

from bubbleviz.cli import options
from bubbleviz.cli.help import option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import show, show_search_progress
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
        "split|fused",
        "Split backwards into B and W, or keep them fused [default: as recorded]",
        "Schedule",
        complete=BACKWARDS,
    ),
    memory_limit: str | None = option(
        "SIZE|none",
        "Memory per device, or activation memory if not measured, e.g. 80GB; none: no limit.",
        "Memory",
    ),
    memory_b: str | None = option(
        "SIZE", "Activation memory kept from F to B [default: measured, or 1]", "Memory"
    ),
    memory_w: str | None = option(
        "SIZE", "Part of --memory-b kept until W [default: all]", "Memory"
    ),
    outputs: Outputs,
    paper: PaperOptions,
    measurement: options.MeasurementOptions,
) -> None:
    """Find the order of operations with the shortest iteration for a run.

    All known schedules are simulated with the measured times of each virtual stage and each link,
    and a search looks for better orders. No order needs more memory than the run did, or than
    --memory-limit. A lower bound shows how much could still be gained.
    """
    paper.check(outputs.formats.values())
    outputs.check(run)
    check_choice(backward, BACKWARDS, "--backward")
    from bubbleviz.analyses.plan.documents import RENDERINGS
    from bubbleviz.analyses.plan.planned_run import extract_run, load_run, plan_run
    from bubbleviz.analyses.plan.text import sections

    if measurement.recognize_run(run, "plan", "takes").is_saved:
        measured = load_run(run[0])
    else:
        report = measurement.measure(run, memory=True)
        outputs.names.note(report)
        measured = extract_run(report, run[0])
    with show_search_progress() as watch:
        planned = plan_run(
            measured,
            microbatches=microbatches,
            memory_limit=memory_limit,
            memory_b=memory_b,
            memory_w=memory_w,
            split=None if backward is None else backward == "split",
            watch=watch,
        )
    view = paper.make_view()
    outputs.deliver(
        planned,
        lambda shown, name, _: RENDERINGS[name](shown, view),
        lambda shown: show(sections(shown)),
    )
