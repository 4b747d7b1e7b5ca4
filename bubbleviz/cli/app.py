"""The command-line application: its commands, exit codes, and one-line error messages."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from glob import has_magic
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from bubbleviz._version import __version__
from bubbleviz.cli import terminal
from bubbleviz.cli.chosen_command import choose_command
from bubbleviz.cli.complaints import describe_usage_error
from bubbleviz.cli.help import insert_default_values
from bubbleviz.cli.private_names import ANONYMOUS, Invocation, PrivateNames
from bubbleviz.cli.streams import describe_os_error, discard_output, open_missing
from bubbleviz.errors import BubblevizError
from bubbleviz.signals import handle_signals, restore_interrupt

#: Environment variable that is set when a shell requests completions.
_COMPLETION_VARIABLE = "_BUBBLEVIZ_COMPLETE"
#: Exit codes after SIGINT (Ctrl-C), SIGHUP and SIGTERM, as in shells.
_INTERRUPTED, _HUNG_UP, _TERMINATED = 130, 129, 143
_SIGNAL_CODES = {_INTERRUPTED, _HUNG_UP, _TERMINATED}
_INCOMPLETE = "interrupted, so the results are incomplete; run the command again"
#: Options of the application itself, given without a command.
_APP_OPTIONS = ("--version", "--install-completion", "--show-completion")
#: Options whose value is a path, but not the path of a profile.
_FILE_OPTIONS = ("-o", "--output", "--convention")
#: Settings that typer uses for every command.
_SETTINGS: dict[str, list[str]] = {"help_option_names": ["-h", "--help"]}
_NO_MEMORY = "out of memory; try a smaller --jobs, fewer profiles at once, or --dask"

_MEASURE, _COMPARE, _THEORY, _READ = "Measure a run", "Compare runs", "Simulate", "Read"


#: (help panel, summary, example arguments) of each command, in the order of ``--help``. A command
#: is a function in ``bubbleviz.cli.commands``, in the module of the same name.
_COMMANDS = {
    "analyze": (
        _MEASURE,
        "Measure the pipeline bubbles of one run.",
        "*.sqlite --svg out.svg",
    ),
    "inspect": (_MEASURE, "Show what a profile contains and what is missing.", "node0.sqlite"),
    "idle": (
        _MEASURE,
        "Measure the idle time of devices, its causes, and the longest kernels.",
        "trace.json.gz",
    ),
    "view": (
        _MEASURE,
        "Open the interactive report in a browser.",
        "node*.sqlite",
    ),
    "watch": (
        _MEASURE,
        "Monitor a running job: bubble ratio, causes and slow ranks of each iteration.",
        "run/ --listen 127.0.0.1:9100",
    ),
    "nccl": (
        _MEASURE,
        "Measure NCCL operations: data, bandwidth and waiting times.",
        "trace-*.txt node*.sqlite -o operations.csv",
    ),
    "pgle": (
        _MEASURE,
        "Measure instruction costs for XLA's latency-hiding scheduler.",
        "node*.sqlite -o costs.pbtxt",
    ),
    "compare": (_COMPARE, "Show what changed between runs, and why.", "before.json after.json"),
    "gate": (
        _COMPARE,
        "Exit with code 3 if a bubble ratio or iteration time may exceed its limit.",
        "report.json --max-bubble schedule=12%",
    ),
    "simulate": (
        _THEORY,
        "Simulate a schedule: cost, bubble ratios and activations.",
        "--schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9",
    ),
    "plan": (
        _THEORY,
        "Find the order of operations with the shortest iteration for a run.",
        "report.json -o plan.csv",
    ),
    "layout": (
        _THEORY,
        "Assign layers to stages for the shortest iteration.",
        "--layers layers.csv -p 8 -m 16",
    ),
    "schedules": (_THEORY, "List the schedules that simulate supports, with references.", ""),
    "conventions": (_READ, "List the built-in conventions of range names.", ""),
    "guide": (
        _READ,
        "Print a guide, or list all guides. Piped output is plain Markdown.",
        "ratios",
    ),
    "mcp": (
        _READ,
        "Let an AI assistant query your runs (Model Context Protocol over stdio).",
        "run/",
    ),
}
#: Current names of renamed commands, keyed by former name. ``--help`` does not list former names.
_FORMER = {"gaps": "idle"}
_COMMAND_NAMES = (*_COMMANDS, *_FORMER)


def make_application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Create the typer application for a command line.

    Args:
        arguments: Arguments of the command line. If the first one is a command, only the module of
            this command is imported. Otherwise no command modules are imported, because only the
            list of commands is needed. Without arguments, all modules are imported.
    """
    app = typer.Typer(
        name="bubbleviz",
        add_completion=not arguments or arguments[0].startswith("-"),
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
        help="Measure the pipeline bubbles of a training run, and find their causes.",
        epilog="bubbleviz PATH chooses analyze, idle or nccl based on the contents of the profile.",
    )
    app.callback()(_bubbleviz)
    has_command = bool(arguments) and arguments[0] in _COMMAND_NAMES
    for name in arguments[:1] if has_command else _COMMAND_NAMES:
        command = _FORMER.get(name, name)
        panel, summary, example = _COMMANDS[command]
        is_listed_only = bool(arguments) and not has_command
        app.command(
            name,
            context_settings=_SETTINGS,
            help=summary if is_listed_only else None,
            hidden=name in _FORMER,
            rich_help_panel=panel,
            epilog=f"Example: bubbleviz {name} {example}".rstrip().replace("*", r"\*"),
        )(_do_nothing if is_listed_only else _load_command(command))
    return app


def _load_command(name: str) -> Callable[..., Any]:
    """Import the module of a command, and return its function."""
    function: Callable[..., Any] = getattr(import_module(f"bubbleviz.cli.commands.{name}"), name)
    return function


def _do_nothing() -> None:
    """Do nothing. Placeholder function for a command that is only listed in the help."""


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"bubbleviz {__version__}")
        raise typer.Exit


def _bubbleviz(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Measure the pipeline bubbles of a training run, and find their causes."""


def _move_command_first(arguments: list[str]) -> list[str]:
    """Move the command, or else the first path, to the front of a command line.

    For example, ``help analyze`` becomes ``analyze --help``, and ``-v run/`` becomes ``run/ -v``.
    """
    first, *rest = arguments
    if first in {"help", *_SETTINGS["help_option_names"]}:
        # If the word is an unknown command, an error is reported later.
        word = next((word for word in rest[:1] if not word.startswith("-")), "help")
        return ["--help"] if word == "help" or _is_path(word) else [word, "--help"]
    if first.startswith("-") and not first.startswith(_APP_OPTIONS):
        candidates = (i for i, w in enumerate(arguments) if w in _COMMAND_NAMES or _is_path(w))
        start = next((i for i in candidates if arguments[i - 1] not in _FILE_OPTIONS), 0)
        paths = takewhile(lambda word: not word.startswith("-"), arguments[start:])
        stop = start + len(list(paths))
        return [*arguments[start:stop], *arguments[:start], *arguments[stop:]]
    return arguments


def _is_path(word: str) -> bool:
    """Return whether a word is an existing path or a glob pattern, and not an option."""
    try:
        return not word.startswith("-") and (has_magic(word) or Path(word).exists())
    except (OSError, ValueError):  # raised if the word is too long to be a file name
        return False


def _run(arguments: list[str], names: PrivateNames) -> int:
    """Run the command on a command line, and return its exit code.

    If the command line starts with a path, the command is chosen based on the content of the files.
    If a signal ends the command, a message says that the output is incomplete, and the signal
    determines the exit code.

    Args:
        arguments: The command line without the word ``bubbleviz``. Must not be empty.
        names: Recorder of private names, which also replaces them in messages.
    """
    code: object
    try:
        restore_interrupt()
        arguments = _move_command_first(arguments)
        if arguments[0] not in _COMMAND_NAMES and _is_path(arguments[0]):
            arguments = choose_command(arguments, names)
        # Outputs contain the command line without --force, which does not affect the content.
        recorded = (word for word in arguments if word not in {"-f", "--force"})
        command_line = shlex.join(["bubbleviz", *recorded])
        app = make_application(() if _COMPLETION_VARIABLE in os.environ else arguments)
        code = app(
            args=insert_default_values(arguments),
            prog_name="bubbleviz",
            standalone_mode=False,
            obj=Invocation(command_line, names),
        )
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except SystemExit as end:
        # Typer raises SystemExit(1) if standard output is a pipe closed by its reader.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        if end.code not in _SIGNAL_CODES:
            raise
        code = end.code
    exit_code = code if isinstance(code, int) else 0
    # Newer versions of typer return the exit code of Ctrl-C without printing anything.
    if exit_code in _SIGNAL_CODES:
        return terminal.print_message(_INCOMPLETE, exit_code, names)
    return exit_code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    Args:
        arguments: Arguments without the program name, or None for ``sys.argv[1:]``.
    """
    open_missing()
    arguments = sys.argv[1:] if arguments is None else arguments
    return _run_reporting_errors(arguments, PrivateNames(hidden=ANONYMOUS in arguments))


def _run_reporting_errors(arguments: list[str], names: PrivateNames) -> int:
    """Run the command line, print expected errors as single lines, and return the exit code.

    Expected errors are bubbleviz exceptions, wrong usage, out-of-memory errors, and operating
    system errors. All other exceptions are raised. If standard output is a closed pipe, no error is
    printed.
    """
    code = 0
    try:
        with handle_signals():
            code = _run(arguments or ["--help"], names)
        # Flush now, so that a full disk is reported as an error before the interpreter exits.
        sys.stdout.flush()
        return code
    except BubblevizError as error:
        return terminal.report_error(error, names)
    except MemoryError:
        return terminal.print_message(_NO_MEMORY, 1, names)
    except BrokenPipeError:
        # The program that reads standard output, such as head, has closed the pipe.
        discard_output()
        return code
    except OSError as error:
        # Standard output cannot be written, for example because the disk is full.
        discard_output()
        return terminal.print_message(describe_os_error(error), 1, names)
    except Exception as error:
        # Usage errors are typer exceptions, whose classes depend on the typer version.
        if not hasattr(error, "format_message"):
            raise
        return terminal.print_message(describe_usage_error(error, names), 2, names)
