"""Text output of ``bubbleviz pgle``: costs, a comparison of costs, and how to use the cost file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bubbleviz.analyses.pgle.comparison import CostComparison
from bubbleviz.analyses.pgle.costs import Costs
from bubbleviz.model.limitations import LEFT_OUT, Limitation, LimitationKind
from bubbleviz.model.profile import HOST
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render.document import Block, Sentence, Table, format_ms, truncate_name

#: Maximum number of rows in a table, and of characters in a name.
_ROWS, _NAME = 30, 60
#: Kinds of limitations that concern costs or complete profiles instead of clocks, hosts or threads.
_OF_COSTS = (
    LimitationKind.WRONG_COSTS,
    LimitationKind.COSTS,
    *LEFT_OUT,
    LimitationKind.KERNELS_LOST,
    LimitationKind.RANGE_NAMES_LOST,
    LimitationKind.PROFILE_UNREADABLE,
)

#: XLA flags for the run to profile, and for the runs that use the costs.
#: docs.nvidia.com/jax-toolbox/performance-profiling/pgle-profile-guided-latency-estimation
PROFILE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=false",
    "--xla_gpu_disable_async_collectives=allreduce,allgather,reducescatter,collectivebroadcast,alltoall,collectivepermute",
    "--xla_gpu_enable_command_buffer=",
)
USE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_pgle_profile_file_or_directory_path=",
)


def list_warnings(limitations: Sequence[Limitation]) -> tuple[str, ...]:
    """Return a sentence for each limitation that concerns costs.

    Limitations that make costs wrong come first.
    """
    of_costs = [note for note in limitations if note.kind in _OF_COSTS]
    of_costs.sort(key=lambda note: note.kind is not LimitationKind.WRONG_COSTS)
    return tuple(note.sentence for note in of_costs)


def describe_flags(paths: Sequence[str], *, device: str = "GPU") -> str:
    """Return a text with the XLA flags for the run to profile and for the runs that use the costs.

    For devices other than GPUs, the text says that XLA reads cost files only for GPUs.

    Args:
        paths: Paths to the cost files.
        device: Kind of the run's devices.
    """
    if device != "GPU":
        used = "ran on CPUs" if device == HOST else f"used {device}s"
        return f"\nThe run {used}, but XLA reads cost files (PGLE) only for GPUs.\n"
    file = to_one_line(paths[0]) if len(paths) == 1 else "FILE"
    if any(c.isspace() or c in "\"'\\" for c in file):
        # Flags in XLA_FLAGS are separated by spaces.
        file = '"' + file.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return (
        "\nXLA_FLAGS of the run to profile:\n  "
        + "\n  ".join(PROFILE_FLAGS)
        + "\nXLA_FLAGS of the runs that use the costs (leave the model, XLA and all other flags "
        "unchanged):\n  " + "\n  ".join(USE_FLAGS) + f"{file}\n"
    )


def summarize_costs(costs: Costs) -> str:
    """Return two lines on what the costs are based on and how many executions were left out."""
    collectives = sum(cost.collective for cost in costs.instructions)
    rules = f"cost: {costs.aggregate} over executions and devices"
    if costs.aggregate_collectives != costs.aggregate:
        rules += f", {costs.aggregate_collectives} for collectives"
    devices = format_count(costs.devices, _describe_device(costs, "device"))
    return (
        f"{format_count(len(costs.instructions), 'instruction')}, including "
        f"{format_count(collectives, 'collective')}; {rules} ("
        f"{format_count(costs.executions, 'execution')} on {devices})\n"
        f"left out: {format_count(costs.warm_up, 'execution')} in the warm-up of their module, "
        f"{costs.cut:,} cut by the capture, {costs.compilation:,} while XLA compiled\n"
    )


def _describe_device(costs: Costs, word: str) -> str:
    """Return a word for the devices, which mentions the CPU if XLA ran on the host."""
    return word if costs.device != HOST else "CPU" if word == HOST else f"CPU {word}"


def list_cost_sections(costs: Costs) -> Iterator[Block]:
    """Yield a cost summary, a table of modules, and a table of the costliest instructions."""
    yield Sentence(summarize_costs(costs))
    modules = [
        {
            "module": truncate_name(label, _NAME),
            "instructions": f"{instructions:,}",
            f"{_describe_device(costs, costs.device)} ms": format_ms(spent_ns),
        }
        for label, instructions, spent_ns in costs.modules[:_ROWS]
    ]
    yield Table("", modules, ("module",), n_omitted=len(costs.modules) - _ROWS)
    longest = sorted(costs.instructions, key=lambda c: (-c.cost_us, c.name))
    rows = [
        {
            "instruction": truncate_name(cost.name, _NAME),
            "us": f"{cost.cost_us:,.3f}",
            "executions": f"{cost.executions:,}",
            "kind": "collective" if cost.collective else "compute",
        }
        for cost in longest[:_ROWS]
    ]
    yield Table(
        "Instructions, longest first", rows, ("instruction", "kind"), n_omitted=len(longest) - _ROWS
    )


def list_comparison_sections(comparison: CostComparison) -> Iterator[Block]:
    """Yield a table of estimated and measured costs, the total error, and unmatched names.

    If no instruction has both an estimate and a measured cost, a sentence replaces the table.
    """

    def make_row(
        name: str, estimated_us: float, measured_us: float, executions: int
    ) -> dict[str, str]:
        """Return a row that compares an estimate with a measured cost."""
        return {
            "instruction": name,
            "estimated us": f"{estimated_us:,.3f}",
            "measured us": f"{measured_us:,.3f}",
            "ratio": f"{measured_us / estimated_us:,.3f}" if estimated_us else "-",
            "error us": f"{measured_us - estimated_us:+,.3f}",
            "executions": f"{executions:,}",
        }

    (compared, unmeasured, unestimated), off = comparison, "-"
    if compared:
        rows = [
            make_row(truncate_name(c.name, _NAME), us, c.cost_us, c.executions)
            for c, us in compared[:_ROWS]
        ]
        estimated_us = sum(us for _, us in compared)
        measured_us = sum(c.cost_us for c, _ in compared)
        executions = sum(cost.executions for cost, _ in compared)
        yield Table(
            "Estimates, largest error first (ratio: measured / estimated)",
            [
                *rows,
                {},
                make_row(f"sum of {len(compared):,}", estimated_us, measured_us, executions),
            ],
            ("instruction",),
            n_omitted=len(compared) - _ROWS,
        )
        off = f"{sum(abs(cost.cost_us - us) for cost, us in compared):,.3f} us"
    else:
        yield Sentence(
            "\nno instruction is in both the estimates and the profile, so there is nothing to "
            "compare; pass costs and a profile of the same program"
        )
    yield Sentence(
        f"\nsum of absolute errors: {off}\n"
        f"estimated, but not in the profile: {_summarize_unmatched(unmeasured)}\n"
        f"in the profile, but not estimated: {_summarize_unmatched(unestimated)}\n"
    )


def _summarize_unmatched(costs_us: Mapping[str, float]) -> str:
    """Return the number of instructions, the sum of their costs, and the names of the first three.

    Args:
        costs_us: Cost of each instruction, keyed by name.
    """
    names = [
        *(truncate_name(name, _NAME) for name in [*costs_us][:3]),
        *(["..."] if len(costs_us) > 3 else []),
    ]
    examples = f" ({', '.join(names)})" if names else ""
    count = format_count(len(costs_us), "instruction")
    return f"{count}, {sum(costs_us.values()):,.3f} us{examples}"
