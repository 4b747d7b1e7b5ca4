"""``bubbleviz simulate``: makespan, bubble ratios and memory of a schedule in theory."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from bubbleviz.cli import options
from bubbleviz.cli.help import option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.selection import PaperOptions, parse_numbers
from bubbleviz.cli.terminal import show, show_search_progress
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import CARRIERS
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import (
    choose_sizes_and_times,
    describe_left_out,
    measure_stage_times,
)
from bubbleviz.report.saved import read_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubbleviz.render.document import Sentence
    from bubbleviz.report.run_times import Sizes
    from bubbleviz.report.summary import RunSummary
    from bubbleviz.report.view import View
    from bubbleviz.schedules.communication.transports import Transport
    from bubbleviz.schedules.ideal import Estimate, Ideal, MemoryOptions
    from bubbleviz.schedules.measured_times import StageTimes

#: Maximum number of panels in a picture.
_MAX_PANELS = 26


@dataclass(frozen=True)
class TimeOptions:
    """Command-line options for operation times."""

    tf: str | None = option("MS[,MS...]", "Forward time (F): one value, or one per stage.", "Times")
    tb: str | None = option("MS[,MS...]", "Input-gradient time (B).", "Times")
    tw: str | None = option("MS[,MS...]", "Weight-gradient time (W).", "Times")
    tcomm: float | None = option("MS", "Transfer time between two devices [default: 0]", "Times")

    def parse_times(self, *, measured: bool) -> tuple[Any, Any, Any, float | None]:
        """Return the F, B, W and transfer times in ms, or None for options that are not given.

        Args:
            measured: Whether a report provides the missing times.

        Raises:
            UsageError: A time is invalid, or there is no report and only some of the F, B and W
                times are given.
        """
        texts = {"--tf": self.tf, "--tb": self.tb, "--tw": self.tw}
        missing = [name for name, text in texts.items() if text is None]
        if 0 < len(missing) < len(texts) and not measured:
            raise UsageError(f"pass {_join_words(missing)}, or a report with --from")
        tf, tb, tw = (
            None if text is None else _parse_milliseconds(name, text)
            for name, text in texts.items()
        )
        return tf, tb, tw, self.tcomm


@dataclass(frozen=True)
class ScheduleOptions:
    """Command-line options for schedules, their sizes, and the memory limit of searched schedules.

    If any option has several values, all combinations of schedules and sizes are compared.
    """

    schedule: list[str] | None = option(
        "NAME,...",
        "Name of a schedule, as listed by bubbleviz schedules.",
        "Schedule",
        complete=options.list_schedule_names,
    )
    stages: str | None = option(
        "P,...", "Number of stages, one per device.", "Schedule", "--stages", "-p"
    )
    microbatches: str | None = option(
        "M,...", "Number of microbatches.", "Schedule", "--microbatches", "-m"
    )
    chunks: str | None = option(
        "V,...", "Chunks per stage [default: set by the schedule]", "Schedule"
    )
    memory_limit: str | None = option(
        "SIZE", "Memory per device, in the unit of --memory-b, e.g. 80GB.", "Memory"
    )
    memory_b: str | None = option(
        "M_B", "Activation memory kept from F to B [default: 1]", "Memory"
    )
    memory_w: str | None = option("M_W", "Part of --memory-b kept until W.", "Memory")

    def parse_sizes(
        self,
    ) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the values of the options for schedules, stages, microbatches and chunks.

        Each option's values are a tuple, which is empty if the option is not given.

        Raises:
            UsageError: A schedule does not exist, or a size is not a number.
        """
        from bubbleviz.schedules.ideal import check_name

        names = tuple(name for text in self.schedule or () for name in text.split(","))
        for name in names:
            check_name(name)
        sizes = {"-p": self.stages, "-m": self.microbatches, "--chunks": self.chunks}
        p, m, v = (parse_numbers(text, name) if text else () for name, text in sizes.items())
        return names, p, m, v

    def parse_memory(self) -> MemoryOptions:
        """Return the memory limit, the memory held from F to B, and the part that is held until W.

        A value is None if its option is not given.

        Raises:
            UsageError: A value is not a memory size.
        """
        from bubbleviz.model.memory_sizes import parse_memory

        texts = ("limit", self.memory_limit), ("b", self.memory_b), ("w", self.memory_w)
        limit, until_b, until_w = (
            None if text is None else parse_memory(text, f"--memory-{name}") for name, text in texts
        )
        return limit, until_b, until_w


@options.command({**options.JSON, **options.LATEX, **options.PICTURE_FILES, **options.ORDER})
def simulate(
    *,
    times: TimeOptions,
    report: str | None = option(
        "REPORT",
        "JSON report that provides the times and sizes that are not passed.",
        "Times",
        "--from",
    ),
    sizes: ScheduleOptions,
    plan: str | None = option("FILE", "File with the order to simulate (PyTorch CSV).", "Schedule"),
    transport: str | None = option(
        "NAME",
        "How transfers run: streams, buffered, rendezvous or blocking [default: streams]",
        "Schedule",
        complete=CARRIERS,
    ),
    outputs: Outputs,
    paper: PaperOptions,
) -> None:
    """Simulate a schedule: cost, bubble ratios and activations.

    Times are in milliseconds per microbatch and stage. Each of V chunks takes 1/V of the time. If
    no times are given, F, B and W take 1 ms each. The default memory limit is p M_B for zb-1p, 2p
    M_B for zb-2p, (p+2)/2 M_B for v-half and (p+4)/3 M_B for v-min. The default of --memory-w is
    32/74 M_B for zb-1p and zb-2p, and M_B for other schedules.
    """
    paper.check(outputs.formats.values())
    outputs.check((plan, report))
    from bubbleviz.render import ideal as ideal_report
    from bubbleviz.schedules.communication.torch_csv import find_transport
    from bubbleviz.schedules.ideal import simulate_or_estimate

    carried = find_transport(transport)
    option_values = sizes.parse_sizes()
    saved = None if report is None else read_pipeline(report)
    given_times = times.parse_times(measured=saved is not None)
    memory = sizes.parse_memory()
    name, (p, m, v) = (
        next(iter(option_values[0]), None),
        (next(iter(own), None) for own in option_values[1:]),
    )
    default_sizes, stage_times = choose_sizes_and_times(saved, (name, p, m), *given_times)
    read = None if plan is None else _simulate_plan(plan, sizes, stage_times, carried)
    if transport is not None and (read is None or read.carried_ms is None):
        raise UsageError(
            f"--transport {transport}: only applies to a plan with sends and receives; pass such a "
            "plan with --plan FILE"
        )
    result: Ideal | Estimate
    if read is not None:
        result = read
    else:
        schedule_and_sizes = _check_sizes(default_sizes, measured=saved is not None)
        if any(len(values) > 1 for values in option_values):
            if any(memory):
                raise UsageError(
                    "the --memory options need exactly one schedule and size; remove them to "
                    "compare several"
                )
            _check_comparison(option_values, outputs)
            _compare(
                saved,
                given_times,
                schedule_and_sizes,
                stage_times,
                option_values,
                outputs,
                paper.make_view(outputs.public_formats),
            )
            return
        with show_search_progress() as watch:
            result = simulate_or_estimate(
                *schedule_and_sizes, stage_times, v, memory=memory, watch=watch
            )
    if saved is not None:
        result = replace(
            result,
            restrictions=read_restrictions(saved.restrictions),
            left_out=describe_left_out(saved, given_times),
        )
    outputs.names.note(saved)
    view = paper.make_view(outputs.public_formats)

    outputs.deliver(
        result,
        lambda shown, name, _: ideal_report.RENDERINGS[name](shown, view),
        lambda shown: show(
            [
                *ideal_report.list_sections(shown),
                *_list_default_times(given_times, measured=saved is not None),
            ]
        ),
    )


def _check_comparison(
    option_values: tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    outputs: Outputs,
) -> None:
    """Check, before the simulation, that the outputs can hold several schedules and sizes.

    Args:
        option_values: Values of the options, as returned by :meth:`ScheduleOptions.parse_sizes`.
        outputs: Outputs of the command.

    Raises:
        UsageError: An output holds a single order of operations, or a picture would have more than
            ``_MAX_PANELS`` panels.
    """
    from bubbleviz.render.ideal import DRAWN

    formats = set(outputs.formats.values())
    if "csv" in formats:
        raise UsageError(
            "a CSV file holds the order of a single schedule; pass one schedule and one of each "
            "size, or write .json or .svg"
        )
    n_panels = prod(max(len(values), 1) for values in option_values)
    if n_panels > _MAX_PANELS and formats & DRAWN:
        raise UsageError(
            f"a figure has at most {_MAX_PANELS} panels, not {n_panels:,}; pass fewer schedules "
            "or sizes"
        )


def _compare(
    saved: RunSummary | None,
    given_times: tuple[Any, Any, Any, float | None],
    sizes: tuple[str, int, int],
    times: StageTimes,
    option_values: tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    outputs: Outputs,
    view: View,
) -> None:
    """Compare all combinations of schedules and sizes, and print or write the predictions.

    Args:
        saved: Report that provides the default times, or None.
        given_times: Times given by the user, as returned by :meth:`TimeOptions.parse_times`.
        sizes: (schedule, stages, microbatches) to use for options that are not given.
        times: Duration of each operation on each stage.
        option_values: Values of the options, as returned by :meth:`ScheduleOptions.parse_sizes`.
        outputs: Outputs of the command.
        view: Style of the pictures.
    """
    from bubbleviz.render import ideal as ideal_report
    from bubbleviz.schedules.choices import simulate_sizes

    name, p, m = sizes
    schedules, stages, microbatches, chunks = option_values
    # The spread of the measured times is meaningful only if the user specified no times.
    run = None
    if saved is not None and given_times == (None,) * 4:
        run = measure_stage_times(saved)
    is_drawn = bool(ideal_report.DRAWN & set(outputs.formats.values()))
    choices, simulations = [], []
    for choice, simulation in simulate_sizes(
        times, run, schedules or (name,), stages or (p,), microbatches or (m,), chunks or (None,)
    ):
        choices.append(choice)
        if is_drawn and simulation is not None:
            simulations.append(simulation)
    result = ideal_report.SimulatedSizes(
        tuple(choices),
        () if saved is None else read_restrictions(saved.restrictions),
        tuple(simulations),
        describe_left_out(saved, given_times),
    )
    outputs.deliver(
        result,
        lambda public, name, _: ideal_report.SIZE_RENDERINGS[name](public, view),
        lambda shown: show(
            [
                *ideal_report.list_sizes(shown),
                *_list_default_times(given_times, measured=saved is not None),
            ]
        ),
    )


def _list_default_times(
    given_times: tuple[Any, Any, Any, float | None], *, measured: bool
) -> Iterator[Sentence]:
    """Yield a sentence that states the default times, if they are used.

    Args:
        given_times: Times given by the user, as returned by :meth:`TimeOptions.parse_times`.
        measured: Whether a report provides the missing times.
    """
    from bubbleviz.render.document import Sentence

    if not measured and given_times[:3] == (None,) * 3:
        yield Sentence(
            "F, B and W take 1 ms each; for other times, pass --tf, --tb and --tw, or a report "
            "with --from"
        )


def _simulate_plan(
    plan: str, sizes: ScheduleOptions, times: StageTimes, carried: Transport
) -> Ideal:
    """Simulate the order of operations in a file, including any sends and receives it contains.

    Args:
        plan: Path of the file.
        sizes: Options for schedules and sizes. They must not be combined with a plan.
        times: Duration of each operation on each stage.
        carried: How sends and receives are executed.

    Raises:
        UsageError: A schedule, size or memory option is given as well.
        MismatchError: The operations, or their sends and receives, deadlock.
    """
    from bubbleviz.schedules.communication.torch_csv import read_checked
    from bubbleviz.schedules.ideal import simulate_lowered_plan, simulate_plan

    if any(size is not None for size in astuple(sizes)):
        raise UsageError(
            "--plan already defines the schedule and its sizes; remove the options for them"
        )
    lowered = read_checked(plan, carried)
    if lowered.communicates:
        return simulate_lowered_plan(lowered, times, carried)
    return simulate_plan(lowered.plan, times)


def _check_sizes(sizes: Sizes, *, measured: bool) -> tuple[str, int, int]:
    """Return the schedule and its sizes after checking that they are known.

    Args:
        sizes: (schedule, stages, microbatches). None means unknown.
        measured: Whether a report was given, for the error message.

    Raises:
        UsageError: The schedule or a size is unknown.
    """
    size_of_option = zip(("--schedule NAME", "-p P", "-m M"), sizes, strict=True)
    name, stages, microbatches = sizes
    if name is None or stages is None or microbatches is None:
        note = "; the report does not name a schedule" if measured and name is None else ""
        missing = _join_words([option for option, size in size_of_option if size is None])
        raise UsageError(f"pass {missing}, or --plan FILE{note}")
    return name, stages, microbatches


def _join_words(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _parse_milliseconds(option: str, text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of times in ms.

    Args:
        option: Name of the option, for the error message.
        text: Value of the option.

    Raises:
        UsageError: The value is not a list of numbers.
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text}: not a time in milliseconds; pass one number, or one per stage, "
            "separated by commas"
        ) from None
