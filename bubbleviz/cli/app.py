"""The application: its commands, its exit codes, and one line on stderr for every refusal."""

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
from bubbleviz.cli.complaints import usage_complaint
from bubbleviz.cli.help import spelled_out
from bubbleviz.cli.private_names import ANONYMOUS, Invocation, PrivateNames
from bubbleviz.cli.streams import discard_output, failure, open_missing
from bubbleviz.errors import BubblevizError
from bubbleviz.signals import interrupt, unwinding

#: Where typer's scripts for shells say that completions are wanted.
_ASKED = "_BUBBLEVIZ_COMPLETE"
#: Exit codes after SIGINT (Ctrl-C), SIGHUP and SIGTERM, as shells give them.
_INTERRUPTED, _HUNG_UP, _TERMINATED = 130, 129, 143
_ENDED = {_INTERRUPTED, _HUNG_UP, _TERMINATED}
_INCOMPLETE = "interrupted; results are incomplete, run again"
#: Options of the application itself begin with these.
_OWN = ("--version", "--install-completion", "--show-completion")
#: Options whose values are files that may be there, and are no profiles.
_OF_FILES = ("-o", "--output", "--convention")
#: Of every command.
_SETTINGS: dict[str, list[str]] = {"help_option_names": ["-h", "--help"]}
_NO_MEMORY = "out of memory; give a smaller --jobs, fewer profiles at once, or --dask"

_MEASURE, _COMPARE, _THEORY, _READ = "Measure a run", "Compare runs", "Simulate", "Read"


#: Panel, summary and example arguments of each command, in the order of ``--help``. The function of
#: a command is in the module of ``bubbleviz.cli.commands`` that has its name.
_COMMANDS = {
    "analyze": (
        _MEASURE,
        "Measure the bubbles of one run: a summary, and files.",
        "*.sqlite --svg out.svg",
    ),
    "inspect": (_MEASURE, "Show what a profile holds, names and lacks.", "node0.sqlite"),
    "idle": (
        _MEASURE,
        "Show how long devices were idle, what their hosts did, and which kernels ran longest.",
        "trace.json.gz",
    ),
    "view": (
        _MEASURE,
        "Open the interactive report in a browser, until Ctrl-C.",
        "node*.sqlite",
    ),
    "watch": (
        _MEASURE,
        "Follow a running job: its bubble ratio, causes and slow ranks, iteration by iteration.",
        "run/ --listen 127.0.0.1:9100",
    ),
    "nccl": (
        _MEASURE,
        "Show what NCCL moved, how fast, and who waited.",
        "trace-*.txt node*.sqlite -o operations.csv",
    ),
    "pgle": (
        _MEASURE,
        "Measure what XLA instructions take, for its scheduler.",
        "node*.sqlite -o costs.pbtxt",
    ),
    "compare": (_COMPARE, "Tell what changed between runs, and why.", "before.json after.json"),
    "gate": (
        _COMPARE,
        "Fail where a bubble ratio, or an iteration, is or may be above its limit.",
        "report.json --max-bubble schedule=12%",
    ),
    "simulate": (
        _THEORY,
        "Simulate a schedule: cost, bubble ratios, activations.",
        "--schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9",
    ),
    "plan": (
        _THEORY,
        "Find the order with the shortest iteration at a run's times.",
        "report.json -o plan.csv",
    ),
    "layout": (
        _THEORY,
        "Find the layers of each stage for the shortest iteration.",
        "--layers layers.csv -p 8 -m 16",
    ),
    "schedules": (_THEORY, "List the schedules that simulate knows, with their sources.", ""),
    "conventions": (_READ, "List the built-in conventions of range names.", ""),
    "guide": (
        _READ,
        "Read a guide, or list the guides; plain Markdown when piped.",
        "ratios",
    ),
    "mcp": (
        _READ,
        "Serve an AI assistant over the Model Context Protocol (stdio).",
        "run/",
    ),
}
#: Former names of commands, which ``--help`` does not list.
_FORMER = {"gaps": "idle"}
_KNOWN = (*_COMMANDS, *_FORMER)


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application for a command line.

    Args:
        arguments: Arguments of the command line. If they begin with a command, only its module is
            loaded, otherwise none: what does not run a command needs only the list of commands. If
            there are no arguments, all commands are loaded.
    """
    app = typer.Typer(
        name="bubbleviz",
        add_completion=not arguments or arguments[0].startswith("-"),
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
        help="How large are the pipeline bubbles of a training run, where, and why.",
        epilog="bubbleviz PATH looks at a profile, then runs analyze, idle or nccl.",
    )
    app.callback()(_bubbleviz)
    has_command = bool(arguments) and arguments[0] in _KNOWN
    for name in arguments[:1] if has_command else _KNOWN:
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
    """Return the function of a command."""
    function: Callable[..., Any] = getattr(import_module(f"bubbleviz.cli.commands.{name}"), name)
    return function


def _do_nothing() -> None:
    """Stand for a command that is only listed."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bubbleviz {__version__}")
        raise typer.Exit


def _bubbleviz(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How large are the pipeline bubbles of a training run, where, and why."""


def _meant(arguments: list[str]) -> list[str]:
    """Return a command line with its command first, as ``help analyze`` and ``-v run/`` mean it."""
    first, *others = arguments
    if first in {"help", *_SETTINGS["help_option_names"]}:
        # A word that is no command is refused, as it is without help.
        word = next((word for word in others[:1] if not word.startswith("-")), "help")
        return ["--help"] if word == "help" or _is_path(word) else [word, "--help"]
    if first.startswith("-") and not first.startswith(_OWN):
        known = (i for i, w in enumerate(arguments) if w in _KNOWN or _is_path(w))
        at = next((i for i in known if arguments[i - 1] not in _OF_FILES), 0)
        paths = takewhile(lambda word: not word.startswith("-"), arguments[at:])
        behind = at + len(list(paths))
        return [*arguments[at:behind], *arguments[:at], *arguments[behind:]]
    return arguments


def _is_path(word: str) -> bool:
    """Tell whether a word that is no command is a path, or a pattern of paths."""
    try:
        return not word.startswith("-") and (has_magic(word) or Path(word).exists())
    except (OSError, ValueError):  # a name that is too long for one
        return False


def _run(arguments: list[str], names: PrivateNames) -> int:
    """Run a command and return its exit code; a signal that ended it is reported."""
    code: object
    try:
        interrupt()
        arguments = _meant(arguments)
        if arguments[0] not in _KNOWN and _is_path(arguments[0]):
            arguments = choose_command(arguments, names)
        # An output is the same whether or not it replaces a file.
        recorded = (word for word in arguments if word not in {"-f", "--force"})
        command_line = shlex.join(["bubbleviz", *recorded])
        app = application(() if _ASKED in os.environ else arguments)
        code = app(
            args=spelled_out(arguments),
            prog_name="bubbleviz",
            standalone_mode=False,
            obj=Invocation(command_line, names),
        )
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except SystemExit as end:
        # Typer ends with 1 where the reader of a pipe has gone.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        if end.code not in _ENDED:
            raise
        code = end.code
    exit_code = code if isinstance(code, int) else 0
    # Newer versions of typer return the code of Ctrl-C themselves, and print nothing.
    return terminal.complain(_INCOMPLETE, exit_code, names) if exit_code in _ENDED else exit_code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_missing()
    given = sys.argv[1:] if arguments is None else arguments
    return _answer(given, PrivateNames(hidden=ANONYMOUS in given))


def _answer(given: list[str], names: PrivateNames) -> int:
    """Run the command line and return its exit code; whatever ends it is a sentence."""
    code = 0
    try:
        with unwinding():
            code = _run(given or ["--help"], names)
        # A full disk is noticed here at the latest.
        sys.stdout.flush()
        return code
    except BubblevizError as error:
        return terminal.refuse(error, names)
    except MemoryError:
        return terminal.complain(_NO_MEMORY, 1, names)
    except BrokenPipeError:
        # The reader of a pipe (head, say) has seen enough.
        discard_output()
        return code
    except OSError as error:
        # Standard output that takes nothing more, as a full disk.
        discard_output()
        return terminal.complain(failure(error), 1, names)
    except Exception as error:
        # Typer's complaints about the command line; versions differ in their classes.
        if not hasattr(error, "format_message"):
            raise
        return terminal.complain(usage_complaint(error, names), 2, names)
