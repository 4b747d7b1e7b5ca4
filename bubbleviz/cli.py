"""The command line: parse, call the library, show what it returns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bubbleviz._version import __version__
from bubbleviz.commands.compare import compare
from bubbleviz.commands.gate import gate
from bubbleviz.errors import BubblevizError, UsageError
from bubbleviz.output_options import chosen, with_outputs
from bubbleviz.renderers import Renderer
from bubbleviz.terminal import complain, pass_on, progress_bars, search_bar, show, show_steps, width

if TYPE_CHECKING:
    from bubbleviz.ideal import StageTimes
    from bubbleviz.measured import Measured

#: Exit codes after SIGINT (Ctrl-C) and SIGTERM, as shells give them.
_INTERRUPTED, _TERMINATED = 130, 143
_BROKEN_OFF = "ended by a signal before all was done; run it again for the whole result"

_NO_MEMORY = (
    "there is too little memory for this; give a smaller --jobs, fewer profiles at once, or --dask"
)

app = typer.Typer(
    name="bubbleviz",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="How large are the pipeline bubbles of a training run, where, and why.",
    epilog="Start with: bubbleviz inspect PROFILE.sqlite",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bubbleviz {__version__}")
        raise typer.Exit


@app.callback()
def _bubbleviz(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """How large are the pipeline bubbles of a training run, where, and why."""


@app.command(epilog="Example: bubbleviz analyze node*.sqlite --svg bubbles.svg")
@with_outputs
def analyze(
    outputs: dict[str, Renderer[Any]],
    profiles: Annotated[
        list[str],
        typer.Argument(
            help="Nsight Systems exports (.sqlite) or reports (.nsys-rep) of one run, or "
            "directories of them."
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
    iteration: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B|all",
            help="Iterations to draw and to list by rank; the median one if not given. Averages "
            "stay as they are.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="0-3,5", help="Ranks to draw, by index.")
    ] = None,
    stages: Annotated[str | None, typer.Option(metavar="0-3,5", help="Stages to draw.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="rank|stage",
            help="Show a row a rank, or one a stage with all its copies; by stage above 64 ranks.",
        ),
    ] = None,
    communication: Annotated[
        bool, typer.Option(help="Draw a thin lane of communication under each rank.")
    ] = False,
    causes: Annotated[
        bool, typer.Option("--causes", help="Colour idle time by its cause.")
    ] = False,
    heat_map: Annotated[
        bool,
        typer.Option("--heat-map", help="Draw below which microbatch took long on which stage."),
    ] = False,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path", help="Draw a line along the operations that bound the iteration."
        ),
    ] = False,
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Simulate the other schedules at the measured times."),
    ] = False,
    skip: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave the first N iterations out of averages.")
    ] = 0,
    convention: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|FILE", help="Naming of the ranges; recognised if not given."),
    ] = None,
    cross_thread: Annotated[
        bool,
        typer.Option(help="Give backward kernels of PyTorch's own thread to the open B range."),
    ] = True,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="2,0,1",
            help="Ranks in pipeline order, by the numbers the table gives them without this; "
            "told from the data if not given.",
        ),
    ] = None,
    same_clock: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Hosts that share one clock (containers of a machine)."),
    ] = None,
    align: Annotated[
        str | None,
        typer.Option(
            metavar="causal|utc|none",
            help="Put hosts on one clock by what waited for what (the default), by their UTC "
            "clocks, or not at all.",
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp=2,pp=4,dp=8",
            help="How parallel the run is, with ranks numbered as Megatron does; told from the "
            "data if not given.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Compare with the order in a file, as PyTorch writes it (.csv): what is late, "
            "early, missing, extra or repeated.",
        ),
    ] = None,
    keep_export: Annotated[
        bool, typer.Option("--keep-export", help="Keep the exports made of .nsys-rep reports.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="Threads on one profile, processes on several; as many as cores if not given.",
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE",
            help="Have the workers of a Dask cluster read the profiles, where these are: address "
            "of its scheduler, or its scheduler file.",
        ),
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print seconds and rows of each step.")
    ] = False,
) -> None:
    """Measure the pipeline bubbles of one run: print a table, write the files asked for."""
    from bubbleviz.choices import ROWS, one_of
    from bubbleviz.crew import cores
    from bubbleviz.inputs import find_profiles
    from bubbleviz.outputs import check_outputs, write_outputs
    from bubbleviz.selection import numbers, parallel_of, view_of

    # What lies on other machines is looked for there.
    files = [file.path for file in find_profiles(profiles)] if dask is None else profiles
    inputs = [*files, *(convention or ()), *([] if plan is None else [plan])]
    check_outputs(list(outputs), inputs, force=force)
    ordered = numbers(order, "--order") if order else ()
    sizes = None if parallel is None else parallel_of(parallel)
    one_of(rows, ROWS, "--rows")
    from bubbleviz.timing import noting, step

    with noting() as steps:
        with step("load the analysis"):
            from bubbleviz.api import analyze as run_analysis
        with progress_bars() as bars:
            report = run_analysis(
                profiles,
                convention=convention or (),
                skip=skip,
                cross_thread=cross_thread,
                order=ordered,
                same_clock=[group.split(",") for group in same_clock or ()],
                align=align,
                parallel=sizes,
                plan=plan,
                what_if=what_if or any(r.compares for r in outputs.values()),
                keep_export=keep_export,
                jobs=jobs or cores(),
                dask=dask,
                progress=bars,
            )
        view = view_of(
            report,
            iteration=iteration,
            ranks=ranks,
            stages=stages,
            communication=communication,
            rows=rows,
            causes=causes,
            heat_map=heat_map,
            critical=critical_path,
        )
        with step("render"):
            texts = {file: renderer.render(report, view) for file, renderer in outputs.items()}
        to_stdout = texts.pop("-", None)
        with step("write"):
            # Under --dask it is only now known which files were read.
            read = [profile.path for profile in report.profiles]
            check_outputs(list(outputs), [*inputs, *read], force=force)
            write_outputs(texts, force=force)
        with step("print"):
            if to_stdout is not None:
                pass_on(to_stdout)
            else:
                from bubbleviz.renderers.table import parts

                show(parts(report, view, width()))
    if timings:
        show_steps(steps)


@app.command(epilog="Example: bubbleviz inspect node0.sqlite")
def inspect(
    profiles: Annotated[list[str], typer.Argument(help="Profiles, or directories of them.")],
    convention: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|FILE", help="Naming to try; all known ones if not given."),
    ] = None,
) -> None:
    """Show what a profile holds, which naming it follows, and what is missing. Run this first."""
    from bubbleviz.inputs import find_profiles

    files = find_profiles(profiles)
    from bubbleviz.api import inspect as look
    from bubbleviz.overview import parts

    for file in files:
        inspection = look(file.path, convention=convention or ())
        show(parts(inspection))


@app.command(
    epilog="Example: bubbleviz simulate --schedule 1f1b -p 8 -m 24 --tf 18.5 --tb 18.1 --tw 9.3"
)
def simulate(
    tf: Annotated[
        str | None,
        typer.Option(metavar="MS[,MS...]", help="Forward, of all stages or of each."),
    ] = None,
    tb: Annotated[
        str | None, typer.Option(metavar="MS[,MS...]", help="Backward for the input alone.")
    ] = None,
    tw: Annotated[
        str | None, typer.Option(metavar="MS[,MS...]", help="Backward for the weights.")
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPORT",
            help="Take sizes and times that are not given from a report that analyze --json wrote.",
        ),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Schedule; bubbleviz schedules lists them.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option("--stages", "-p", metavar="P", help="Stages, one a device.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", "-m", metavar="M", help="Microbatches.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The order in a file, as PyTorch writes it (.csv), in place of a schedule and "
            "its sizes.",
        ),
    ] = None,
    tcomm: Annotated[
        float | None, typer.Option(metavar="MS", help="Latency between two devices; 0 by itself.")
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(metavar="V", help="Model chunks a stage; the usual number if not given."),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Activation memory of a device, in the unit of --memory-b, within which zb-1p, "
            "zb-2p, zb-v, v-half and v-min are searched; p, 2p, (p+2)/2 and (p+4)/3 M_B for "
            "zb-1p, zb-2p, v-half and v-min if not given.",
        ),
    ] = None,
    memory_b: Annotated[
        float | None,
        typer.Option(
            metavar="M_B", help="Held by a microbatch on a stage from F to B; 1 if not given."
        ),
    ] = None,
    memory_w: Annotated[
        float | None,
        typer.Option(
            metavar="M_W",
            help="What of it is held on to W; all if not given, 32/74 for zb-1p and zb-2p.",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the result as JSON; - for standard output."),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw it; - for standard output."),
    ] = None,
    pdf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw it as PDF; - for standard output.")
    ] = None,
    png: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw it as PNG; - for standard output.")
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the order as PyTorch's CSV; - for standard output."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
) -> None:
    """Tell what a schedule takes in theory: cost, makespan, bubble ratios, peak activations.

    Times are milliseconds for one microbatch of a stage; each of V chunks takes 1/V of them.
    """
    from bubbleviz.outputs import check_outputs, write_outputs

    files = {"json": json, "svg": svg, "pdf": pdf, "png": png, "csv": csv}
    outputs = chosen(files)
    inputs = [file for file in (plan, measured) if file is not None]
    check_outputs([file for file in files.values() if file is not None], inputs, force=force)
    from bubbleviz import ideal_report
    from bubbleviz.ideal import Estimate, Ideal, MemoryOptions, ideal_of, theory

    run = None if measured is None else _measured(measured)
    times = _stage_times(run, tf, tb, tw, tcomm)
    memory = MemoryOptions(memory_limit, memory_b, memory_w)
    if run is not None and plan is None:
        stages = run.stages if stages is None else stages
        microbatches = run.microbatches if microbatches is None else microbatches
    found: Ideal | Estimate
    if plan is not None:
        sizes = (schedule, stages, microbatches, chunks, memory_limit, memory_b, memory_w)
        if any(given is not None for given in sizes):
            raise UsageError("--plan tells the order and its sizes; leave the other ones out")
        from bubbleviz.plan_files import read_plan

        found = ideal_of(read_plan(plan), times)
    elif schedule is None or stages is None or microbatches is None:
        raise UsageError("give a --schedule with its sizes -p and -m, or a --plan")
    else:
        own = schedule, stages, microbatches, times, chunks
        with search_bar() as watch:
            found = theory(*own, memory=memory, watch=watch)
    texts = {file: ideal_report.RENDERINGS[kind](found) for file, kind in outputs.items()}
    to_stdout = texts.pop("-", None)
    write_outputs(texts, force=force)
    if to_stdout is not None:
        pass_on(to_stdout)
    else:
        show(ideal_report.parts(found))


def _measured(path: str) -> Measured:
    """Return the times in a report."""
    from bubbleviz.measured import measured_times
    from bubbleviz.saved import read_times

    saved = read_times(path)
    return measured_times(saved.kinds, saved.transfer_ns, saved.microbatches)


def _stage_times(
    run: Measured | None, tf: str | None, tb: str | None, tw: str | None, tcomm: float | None
) -> StageTimes:
    """Return the times that are given, the others as measured.

    Raises:
        UsageError: there are neither.
    """
    from bubbleviz.ideal import StageTimes

    if run is None and (tf is None or tb is None or tw is None):
        raise UsageError("give the times --tf, --tb and --tw, or a report with --from")
    own = StageTimes((), (), ()) if run is None else run.times
    return StageTimes(
        own.forward_ms if tf is None else _times("--tf", tf),
        own.backward_ms if tb is None else _times("--tb", tb),
        own.weight_ms if tw is None else _times("--tw", tw),
        own.transfer_ms if tcomm is None else tcomm,
    )


def _times(option: str, text: str) -> tuple[float, ...]:
    """Return the times in an option.

    Raises:
        UsageError: there is something else.
    """
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise UsageError(
            f"{option} {text}: not milliseconds; give a number, or one a stage with commas between"
        ) from None


@app.command(epilog="Example: bubbleviz schedules")
def schedules() -> None:
    """List the schedules that simulate knows, with their sources."""
    from bubbleviz.ideal_report import schedule_parts

    show(schedule_parts())


@app.command(epilog="Example: bubbleviz conventions")
def conventions() -> None:
    """List the namings of ranges that are known, with examples."""
    from bubbleviz.conventions import built_in
    from bubbleviz.overview import naming_parts

    show(naming_parts(built_in().values()))


app.command(epilog="Example: bubbleviz compare before.json after.json")(compare)
app.command(epilog="Example: bubbleviz gate report.json --max-bubble schedule=0.12")(gate)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code, having told where a signal broke it off."""
    code: object
    try:
        code = app(args=arguments, prog_name="bubbleviz", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except SystemExit as end:
        if end.code != _TERMINATED:
            raise
        code = _TERMINATED
    # Newer versions of typer return the code of Ctrl-C themselves, and say nothing.
    if code in {_INTERRUPTED, _TERMINATED}:
        return complain(_BROKEN_OFF, _INTERRUPTED if code == _INTERRUPTED else _TERMINATED)
    return code if isinstance(code, int) else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(given or ["--help"])
    except BubblevizError as error:
        return complain(str(error), error.exit_code)
    except MemoryError:
        return complain(_NO_MEMORY, 1)
    except BrokenPipeError:
        # The reader of a pipe (head, say) has seen enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        # Standard output that takes nothing more, as a full disk.
        return complain(
            f"cannot go on ({error.strerror or error}); see to that and run it again", 1
        )
    except Exception as error:
        # Typer's complaints about the command line; versions differ in their classes.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "bubbleviz"
        return complain(f"{error.format_message().rstrip('.')}; see {place} --help", 2)
