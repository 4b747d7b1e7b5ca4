"""``bubbleviz simulate``: the makespan, bubble ratios and memory of a schedule in theory."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from bubbleviz.cli import options
from bubbleviz.cli.help import option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.selection import PaperOptions, numbers
from bubbleviz.cli.terminal import search_bar, show
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import CARRIERS
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import choose_sizes_and_times, measure_stage_times
from bubbleviz.report.saved import read_pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.model.restrictions import Restriction
    from bubbleviz.report.run_times import Sizes
    from bubbleviz.report.summary import RunSummary
    from bubbleviz.schedules.choices import Choice
    from bubbleviz.schedules.communication.transports import Transport
    from bubbleviz.schedules.ideal import Estimate, Ideal, MemoryOptions
    from bubbleviz.schedules.measured_times import StageTimes

    #: Predictions of several sizes, and why they may be wrong.
    _Comparison: TypeAlias = tuple[Sequence[Choice], tuple[Restriction, ...]]


@dataclass(frozen=True)
class TimeOptions:
    """How long the operations of a microbatch take."""

    tf: str | None = option("MS[,MS...]", "Forward of a microbatch, or one per stage.", "Times")
    tb: str | None = option("MS[,MS...]", "Backward for the input gradients.", "Times")
    tw: str | None = option("MS[,MS...]", "Backward for the weight gradients.", "Times")
    tcomm: float | None = option("MS", "Transfer between two devices; else 0.", "Times")

    def given(self, *, measured: bool) -> tuple[Any, Any, Any, float | None]:
        """Return the given times, where others are measured, or else all of them.

        Raises:
            UsageError: one is not.
        """
        texts = {"--tf": self.tf, "--tb": self.tb, "--tw": self.tw}
        lacking = [name for name, text in texts.items() if text is None]
        if lacking and not measured:
            raise UsageError(f"give {_listed(lacking)}, or a report with --from")
        tf, tb, tw = (
            None if text is None else _milliseconds(name, text) for name, text in texts.items()
        )
        return tf, tb, tw, self.tcomm


@dataclass(frozen=True)
class ScheduleOptions:
    """A schedule by name, its sizes, and the memory that a searched one keeps within.

    Of several, all combinations are compared.
    """

    schedule: list[str] | None = option(
        *("NAME,...", "Name of a schedule; see bubbleviz schedules.", "Schedule"),
        complete=options.schedule_names,
    )
    stages: str | None = option(
        *("P,...", "Number of stages, one per device.", "Schedule", "--stages", "-p")
    )
    microbatches: str | None = option(
        *("M,...", "Number of microbatches.", "Schedule", "--microbatches", "-m")
    )
    chunks: str | None = option("V,...", "Chunks per stage [the schedule's usual]", "Schedule")
    memory_limit: str | None = option("SIZE", "Of a device, in M_B's unit, as 80GB.", "Memory")
    memory_b: str | None = option("M_B", "A microbatch holds from F to B; else 1.", "Memory")
    memory_w: str | None = option("M_W", "Part of M_B that is held until W.", "Memory")

    def listed(self) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the names and sizes that are given, in the order of the options.

        Raises:
            UsageError: one is none.
        """
        from bubbleviz.schedules.ideal import check_name

        names = tuple(name for text in self.schedule or () for name in text.split(","))
        for name in names:
            check_name(name)
        sizes = {"-p": self.stages, "-m": self.microbatches, "--chunks": self.chunks}
        p, m, v = (numbers(text, name) if text else () for name, text in sizes.items())
        return names, p, m, v

    def memory(self) -> MemoryOptions:
        """Return the memory that is given.

        Raises:
            UsageError: one is none.
        """
        from bubbleviz.model.memory_sizes import parse_memory

        texts = ("limit", self.memory_limit), ("b", self.memory_b), ("w", self.memory_w)
        limit, whole, rest = (
            None if text is None else parse_memory(text, f"--memory-{name}") for name, text in texts
        )
        return limit, whole, rest


@options.command({**options.JSON, **options.PICTURE_FILES, **options.ORDER})
def simulate(
    *,
    times: TimeOptions,
    report: str | None = option("REPORT", "Defaults from a JSON report.", "Times", "--from"),
    sizes: ScheduleOptions,
    plan: str | None = option("FILE", "The order in a file (PyTorch's CSV) instead.", "Schedule"),
    transport: str | None = option(
        *("NAME", "Transfers: buffered, rendezvous, blocking [streams].", "Schedule"),
        complete=CARRIERS,
    ),
    outputs: Outputs,
    paper: PaperOptions,
) -> None:
    """Simulate a schedule: cost, bubble ratios, activations.

    Times are milliseconds for one microbatch of a stage; each of V chunks takes 1/V of them.
    Without --memory-limit, zb-1p, zb-2p, v-half and v-min keep within p, 2p, (p+2)/2 and
    (p+4)/3 M_B; without --memory-w, zb-1p and zb-2p hold 32/74 of M_B until W, others all of it.
    """
    paper.check(outputs.formats.values())
    outputs.check((plan, report))
    from bubbleviz.render import ideal as ideal_report
    from bubbleviz.schedules.communication.torch_csv import transport_named
    from bubbleviz.schedules.ideal import simulate_or_estimate

    carried = transport_named(transport)
    listed = sizes.listed()
    saved = None if report is None else read_pipeline(report)
    given = times.given(measured=saved is not None)
    memory = sizes.memory()
    name, (p, m, v) = next(iter(listed[0]), None), (next(iter(own), None) for own in listed[1:])
    named, stage_times = choose_sizes_and_times(saved, (name, p, m), *given)
    read = None if plan is None else _of_plan(plan, sizes, stage_times, carried)
    if transport is not None and (read is None or read.carried_ms is None):
        raise UsageError(
            f"--transport {transport}: nothing is sent or received; give --plan FILE with sends "
            "and receives"
        )
    result: Ideal | Estimate
    if read is not None:
        result = read
    else:
        known = _known(named, measured=saved is not None)
        if any(len(each) > 1 for each in listed):
            if any(memory):
                raise UsageError(
                    "several sizes are compared whatever their memory; leave the --memory options "
                    "out, or name one of each"
                )
            _compare(saved, given, known, stage_times, listed, outputs)
            return
        with search_bar() as watch:
            result = simulate_or_estimate(*known, stage_times, v, memory=memory, watch=watch)
    if saved is not None:
        result = replace(result, restrictions=read_restrictions(saved.restrictions))
    outputs.names.note(saved)
    view = paper.styled()

    outputs.deliver(
        result,
        lambda shown, name, _: ideal_report.RENDERINGS[name](shown, view),
        lambda shown: show(ideal_report.list_sections(shown)),
    )


def _compare(
    saved: RunSummary | None,
    given: tuple[Any, Any, Any, float | None],
    sizes: tuple[str, int, int],
    times: StageTimes,
    listed: tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    outputs: Outputs,
) -> None:
    """Print and write what all combinations of sizes would take.

    Raises:
        UsageError: an output holds one order.
    """
    from bubbleviz.render import ideal as ideal_report
    from bubbleviz.schedules.choices import compare_sizes

    name, p, m = sizes
    schedules, stages, microbatches, chunks = listed
    # Where a time is given, it is not that of the run.
    run = None
    if saved is not None and given == (None,) * 4:
        run = measure_stage_times(saved)
    choices = compare_sizes(
        times, run, schedules or (name,), stages or (p,), microbatches or (m,), chunks or (None,)
    )
    restrictions = () if saved is None else read_restrictions(saved.restrictions)

    def content(shown: _Comparison, name: str, _: str) -> str:
        if name != "json":
            raise UsageError("several sizes have no one order; name one of each, or write .json")
        return ideal_report.format_sizes(*shown)

    result: _Comparison = choices, restrictions
    outputs.deliver(
        result,
        content,
        lambda shown: show(ideal_report.list_sizes(*shown)),
    )


def _of_plan(plan: str, sizes: ScheduleOptions, times: StageTimes, carried: Transport) -> Ideal:
    """Return the simulation of the order in a file.

    Raises:
        UsageError: a schedule or its sizes are given, too.
        MismatchError: the order, or its communication, deadlocks.
    """
    from bubbleviz.schedules.communication.torch_csv import read_checked
    from bubbleviz.schedules.ideal import simulate_lowered_plan, simulate_plan

    if any(size is not None for size in astuple(sizes)):
        raise UsageError("--plan sets the order and its sizes; leave the other options out")
    found = read_checked(plan, carried)
    if found.communicates:
        return simulate_lowered_plan(found, times, carried)
    return simulate_plan(found.plan, times)


def _known(sizes: Sizes, *, measured: bool) -> tuple[str, int, int]:
    """Return the name of a schedule and its sizes.

    Raises:
        UsageError: one is not known.
    """
    lacking = zip(("--schedule NAME", "-p P", "-m M"), sizes, strict=True)
    name, stages, microbatches = sizes
    if name is None or stages is None or microbatches is None:
        named = "; the report names no schedule" if measured and name is None else ""
        words = _listed([option for option, size in lacking if size is None])
        raise UsageError(f"give {words}, or --plan FILE{named}")
    return name, stages, microbatches


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


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
