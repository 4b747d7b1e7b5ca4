"""The application: its commands, its exit codes, and one line on stderr for every refusal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from glob import has_magic
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from bubbleviz._version import __version__
from bubbleviz.cli import terminal
from bubbleviz.cli.help import spelled_out
from bubbleviz.cli.private_names import ANONYMOUS, Invocation, PrivateNames
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


#: The commands, in the order of ``--help``, each with its panel and the words of an example; the
#: function of each is in the module of ``bubbleviz.cli.commands`` that has its name.
_COMMANDS = {
    "analyze": (_MEASURE, "*.sqlite --svg out.svg"),
    "inspect": (_MEASURE, "node0.sqlite"),
    "idle": (_MEASURE, "trace.json.gz"),
    "view": (_MEASURE, "node*.sqlite"),
    "watch": (_MEASURE, "run/ --listen 127.0.0.1:9100"),
    "nccl": (_MEASURE, "trace-*.txt node*.sqlite -o operations.csv"),
    "pgle": (_MEASURE, "node*.sqlite -o costs.pbtxt"),
    "compare": (_COMPARE, "before.json after.json"),
    "gate": (_COMPARE, "report.json --max-bubble schedule=12%"),
    "simulate": (_THEORY, "--schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9"),
    "plan": (_THEORY, "report.json -o plan.csv"),
    "layout": (_THEORY, "--layers layers.csv -p 8 -m 16"),
    "schedules": (_THEORY, ""),
    "conventions": (_READ, ""),
    "guide": (_READ, "ratios"),
    "mcp": (_READ, "run/"),
}
#: Former names of commands, which ``--help`` does not list.
_FORMER = {"gaps": "idle"}
_KNOWN = (*_COMMANDS, *_FORMER)


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application, with the commands that the arguments need.

    Args:
        arguments: Arguments of the command line, or empty for an application with all commands.
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
    for name in _select_commands(arguments):
        current = _FORMER.get(name, name)
        function = getattr(import_module(f"bubbleviz.cli.commands.{current}"), current)
        panel, example = _COMMANDS[current]
        app.command(
            name,
            context_settings=_SETTINGS,
            hidden=name in _FORMER,
            rich_help_panel=panel,
            epilog=f"Example: bubbleviz {name} {example}".rstrip().replace("*", r"\*"),
        )(function)
    return app


def _select_commands(arguments: Sequence[str]) -> Sequence[str]:
    """Return the names of the commands to load. Loading all of them takes longer than most runs.

    Args:
        arguments: Arguments of the command line.
    """
    if not arguments:
        return _KNOWN
    first = arguments[0]
    if first == "--version":
        return ()
    return (first,) if first in _KNOWN else _KNOWN


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
            arguments = terminal.entered(arguments, names)
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
    terminal.open_missing()
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
        terminal.discard_output()
        return code
    except OSError as error:
        # Standard output that takes nothing more, as a full disk.
        terminal.discard_output()
        return terminal.complain(terminal.failure(error), 1, names)
    except Exception as error:
        # Typer's complaints about the command line; versions differ in their classes.
        if not hasattr(error, "format_message"):
            raise
        return terminal.complain(terminal.usage_complaint(error, names), 2, names)
