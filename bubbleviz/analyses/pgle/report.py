"""What ``pgle`` prints and writes: costs, what estimates are off, and how to use the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bubbleviz.analyses.pgle.files import formats
from bubbleviz.analyses.pgle.instructions import GRAPHS, OVERLAP, PAIRS
from bubbleviz.model.texts import csv_text, inert, one_line
from bubbleviz.render.text.cells import ruled, shortened, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubbleviz.analyses.pgle.instruction_costs import Comparison, Costs
    from bubbleviz.model.operations import Limitation

#: Of a table, rows; of a name in it, characters.
_ROWS, _NAME = 30, 60
#: Limitations that make costs wrong, whatever else they are good for.
_WRONG = (OVERLAP, PAIRS, GRAPHS)
#: Of other limitations, those that tell of a cost: not of clocks, hosts, or threads.
_OF_COSTS = ("kernel", "CUDA", "memory", "impossible", "instruction", "module", "names of ranges")
COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")

#: Flags of the run that is profiled, and of the one that uses the costs; from
#: docs.nvidia.com/jax-toolbox/performance-profiling/pgle-profile-guided-latency-estimation.
PROFILE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=false",
    "--xla_gpu_disable_async_collectives=allreduce,allgather,reducescatter,"
    "collectivebroadcast,alltoall,collectivepermute",
    "--xla_gpu_enable_command_buffer=",
)
USE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_pgle_profile_file_or_directory_path=",
)


def warnings(limitations: Sequence[Limitation]) -> tuple[str, ...]:
    """Return a sentence for each limitation of costs, those that make them wrong first."""
    told = [own for own in limitations if any(word in own.what for word in (*_WRONG, *_OF_COSTS))]
    told.sort(key=lambda own: own.what not in _WRONG)
    return tuple(own.sentence for own in told)


def unread(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each file that XLA would not read, for it goes by the ending."""
    known = tuple(own.suffix for own in formats())
    return tuple(
        f"limitation: {path}: written as text, but XLA reads files that end with "
        f"{' or '.join(known)} alone; name it so"
        for path in paths
        if path != "-" and not path.endswith(known)
    )


def flags(paths: Sequence[str]) -> str:
    """Return the flags of the two runs.

    Args:
        paths: of the costs.
    """
    own = one_line(paths[0], None) if len(paths) == 1 else "FILE"
    return (
        "\nXLA_FLAGS of the run to profile:\n  "
        + "\n  ".join(PROFILE_FLAGS)
        + "\nXLA_FLAGS of the runs that use the costs (the model, XLA and its other flags as they "
        "were):\n  " + "\n  ".join(USE_FLAGS) + f"{own}\n"
    )


def summary(costs: Costs) -> str:
    """Return what the costs are of, in lines."""
    out = costs.left_out
    moving = sum(own.collective for own in costs.instructions)
    rules = f"{costs.aggregate} of executions and devices"
    if costs.aggregate_collectives != costs.aggregate:
        rules += f", {costs.aggregate_collectives} for collectives"
    return (
        f"{len(costs.instructions):,} instructions, of them {moving:,} collectives; {rules}: "
        f"{costs.executions:,} executions on {costs.devices:,} devices\n"
        f"left out: {out.warm_up:,} executions in the warm-up of their module, {out.cut:,} cut by "
        f"the capture, {out.compilation:,} while XLA compiled\n"
    )


def parts(costs: Costs) -> Iterator[RenderableType]:
    """Yield what to print of costs."""
    from rich.text import Text

    yield Text(summary(costs))
    modules = ruled("module", "instructions", "GPU ms", left=("module",))
    for seen in costs.modules[:_ROWS]:
        label = shortened(one_line(seen.label, None), _NAME)
        modules.add_row(label, f"{seen.instructions:,}", f"{seen.gpu_ns / 1e6:,.3f}")
    if costs.modules:
        yield modules
        yield from _rest(len(costs.modules))
    table = ruled("instruction", "us", "executions", "kind", left=("instruction", "kind"))
    dearest = sorted(costs.instructions, key=lambda own: (-own.cost_us, own.name, own.module or ""))
    for own in dearest[:_ROWS]:
        table.add_row(
            shortened(one_line(own.name, None), _NAME),
            f"{own.cost_us:,.3f}",
            f"{own.executions:,}",
            "collective" if own.collective else "compute",
        )
    yield from titled("Instructions, those that take longest first", table)
    yield from _rest(len(costs.instructions))


def comparison_parts(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield what to print of estimates held against a profile."""
    from rich.text import Text

    table = ruled(
        "instruction",
        "estimated us",
        "measured us",
        "ratio",
        "off us",
        "executions",
        left=("instruction",),
    )
    for own in comparison.differences[:_ROWS]:
        table.add_row(
            shortened(one_line(own.name, None), _NAME),
            f"{own.estimated_us:,.3f}",
            f"{own.measured_us:,.3f}",
            "-" if own.ratio is None else f"{own.ratio:,.3f}",
            f"{own.off_us:+,.3f}",
            f"{own.executions:,}",
        )
    both = comparison.differences
    if both:
        estimated = comparison.estimated_us
        table.add_section()
        table.add_row(
            f"sum of {len(both):,}",
            f"{estimated:,.3f}",
            f"{comparison.measured_us:,.3f}",
            f"{comparison.measured_us / estimated:,.3f}" if estimated else "-",
            f"{comparison.measured_us - estimated:+,.3f}",
            f"{sum(own.executions for own in both):,}",
        )
    yield from titled("Estimates, the farthest off first (ratio: measured / estimated)", table)
    yield from _rest(len(both))
    yield Text(
        f"\nsum of distances: {comparison.off_us:,.3f} us\n"
        f"estimated, not in the profile: {len(comparison.unmeasured):,} instructions, "
        f"{comparison.unmeasured_us:,.3f} us{_some(comparison.unmeasured)}\n"
        f"in the profile, not estimated: {len(comparison.unestimated):,} instructions, "
        f"{comparison.unestimated_us:,.3f} us{_some(comparison.unestimated)}\n"
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(shortened(one_line(name, None), _NAME) for name in names[:3])
    more = ", ..." if len(names) > 3 else ""
    return f" ({shown}{more})" if names else ""


def _rest(count: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if count > _ROWS:
        yield Text(f"and {count - _ROWS:,} more")


def comparison_csv(comparison: Comparison) -> str:
    """Return a comparison as CSV: one row an instruction, empty cells for what is unknown."""
    return csv_text(
        COLUMNS,
        (
            (inert(d.name), d.estimated_us, d.measured_us, d.ratio, d.off_us, d.executions)
            for d in comparison.differences
        ),
    )
