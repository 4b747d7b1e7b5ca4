"""The command line: parse, call the library, show what it returns."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bubbleviz._version import __version__
from bubbleviz.cli.commands.compare import compare
from bubbleviz.cli.commands.idle import gaps
from bubbleviz.cli.commands.gate import gate
from bubbleviz.cli.commands.nccl import nccl
from bubbleviz.cli.commands.pgle import pgle
from bubbleviz.cli.commands.simulate import simulate
from bubbleviz.cli.commands.view import view
from bubbleviz.errors import BubblevizError
from bubbleviz.output_options import with_outputs
from bubbleviz.render.formats import Renderer
from bubbleviz.cli.terminal import complain, pass_on, progress_bars, show, show_steps, width

if TYPE_CHECKING:
    pass

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
            help="Profiles of one run, or directories of them: Nsight Systems exports (.sqlite) or "
            "reports (.nsys-rep), traces of PyTorch (.json, .json.gz), profiles of XLA "
            "(.xplane.pb, .trace.json.gz)."
        ),
    ],
    context: typer.Context,
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
    window: Annotated[
        str | None,
        typer.Option(
            metavar="iteration:5-8|time:1.5s-3s",
            help="Look at a part of the run alone: the iterations of these names, or those that "
            "begin and end in this time of the first profile.",
        ),
    ] = None,
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
    from bubbleviz.model.choices import ROWS, one_of
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.sources.paths import find_profiles
    from bubbleviz.cli.outputs import check_outputs, write_outputs
    from bubbleviz.cli.selection import check_drawn, numbers, parallel_of, view_of
    from bubbleviz.model.window import window_of

    # What lies on other machines is looked for there.
    files = [file.path for file in find_profiles(profiles)] if dask is None else profiles
    inputs = [*files, *(convention or ()), *([] if plan is None else [plan])]
    check_outputs(list(outputs), inputs, force=force)
    part = None if window is None else window_of(window)
    ordered = numbers(order, "--order") if order else ()
    sizes = None if parallel is None else parallel_of(parallel)
    one_of(rows, ROWS, "--rows")
    check_drawn(
        {"causes": causes, "critical-path": critical_path, "heat-map": heat_map}, outputs.values()
    )
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
                window=part,
                keep_export=keep_export,
                jobs=jobs or cores(),
                dask=dask,
                progress=bars,
            )
        report = replace(report, command=context.obj or "")
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
                from bubbleviz.render.formats.table import parts

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
    from bubbleviz.sources.paths import find_profiles

    files = find_profiles(profiles)
    from bubbleviz.api import inspect as look
    from bubbleviz.cli.overview import parts

    for file in files:
        inspection = look(file.path, convention=convention or ())
        show(parts(inspection))


app.command(
    epilog="Example: bubbleviz simulate --schedule 1f1b -p 8 -m 24 --tf 18.5 --tb 18.1 --tw 9.3"
)(simulate)


@app.command(epilog="Example: bubbleviz schedules")
def schedules() -> None:
    """List the schedules that simulate knows, with their sources."""
    from bubbleviz.render.documents.ideal_report import schedule_parts

    show(schedule_parts())


@app.command(epilog="Example: bubbleviz conventions")
def conventions() -> None:
    """List the namings of ranges that are known, with examples."""
    from bubbleviz.conventions import built_in
    from bubbleviz.cli.overview import naming_parts

    show(naming_parts(built_in().values()))


app.command(epilog="Example: bubbleviz compare before.json after.json")(compare)
app.command(epilog="Example: bubbleviz view node*.sqlite")(view)
app.command(epilog="Example: bubbleviz pgle node*.sqlite -o costs.pbtxt")(pgle)
app.command(epilog="Example: bubbleviz gaps trace.json.gz")(gaps)
app.command(epilog="Example: bubbleviz nccl trace-*.txt node*.sqlite --csv operations.csv")(nccl)
app.command(epilog="Example: bubbleviz gate report.json --max-bubble schedule=0.12")(gate)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code, having told where a signal broke it off."""
    code: object
    try:
        # What is written is the same whether or not it replaces something.
        telling = (own for own in arguments if own not in {"-f", "--force"})
        typed = shlex.join(["bubbleviz", *telling])
        code = app(args=arguments, prog_name="bubbleviz", standalone_mode=False, obj=typed)
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
