"""The application: its commands, its exit codes, and one line on stderr for every refusal."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from bubbleviz._version import __version__
from bubbleviz.cli.details import spelled_out
from bubbleviz.cli.streams import discard_output, failure, open_missing
from bubbleviz.cli.terminal import complain
from bubbleviz.errors import BubblevizError
from bubbleviz.model.private_names import scope
from bubbleviz.model.texts import nearest
from bubbleviz.sources.signals import interrupt, unwinding

#: Exit codes after SIGINT (Ctrl-C), SIGHUP and SIGTERM, as shells give them.
_INTERRUPTED, _HUNG_UP, _TERMINATED = 130, 129, 143
_ENDED = {_INTERRUPTED, _HUNG_UP, _TERMINATED}
_INCOMPLETE = "interrupted; results are incomplete, run again"
#: The complaint of typer about a command, with what it suggests.
_UNKNOWN_COMMAND = re.compile(r"No such command .(.*?).(?=\.|$)")
_NO_MEMORY = "out of memory; give a smaller --jobs, fewer profiles at once, or --dask"

#: Commands with the words of an example, in the order of ``--help``; the function of each is in the
#: module of ``bubbleviz.cli.commands`` that has its name.
_EXAMPLES = {
    "analyze": "node*.sqlite --svg bubbles.svg",
    "inspect": "node0.sqlite",
    "idle": "trace.json.gz",
    "compare": "before.json after.json",
    "view": "node*.sqlite",
    "gate": "report.json --max-bubble schedule=0.12",
    "simulate": "--schedule 1f1b -p 8 -m 24 --tf 18.5 --tb 18.1 --tw 9.3",
    "nccl": "trace-*.txt node*.sqlite --csv operations.csv",
    "pgle": "node*.sqlite -o costs.pbtxt",
    "schedules": "",
    "conventions": "",
    "guide": "ratios",
}
#: Former names of commands, which ``--help`` does not list.
_FORMER = {"gaps": "idle"}


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application that runs some arguments: with the command they name, else with all.

    A command is a signature of many options, and a module; most starts need one of them.
    """
    app = typer.Typer(
        name="bubbleviz",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="How large are the pipeline bubbles of a training run, where, and why.",
        epilog="Start with: bubbleviz inspect PROFILE.sqlite",
    )
    app.callback()(_bubbleviz)
    known = (*_EXAMPLES, *_FORMER)
    for name in arguments[:1] if arguments and arguments[0] in known else known:
        current = _FORMER.get(name, name)
        function = getattr(import_module(f"bubbleviz.cli.commands.{current}"), current)
        app.command(
            name,
            hidden=name in _FORMER,
            epilog=f"Example: bubbleviz {name} {_EXAMPLES[current]}".rstrip(),
        )(function)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bubbleviz {__version__}")
        raise typer.Exit


def _bubbleviz(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """How large are the pipeline bubbles of a training run, where, and why."""


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code; a signal that ended it is reported."""
    code: object
    try:
        interrupt()
        # An output is the same whether or not it replaces a file.
        recorded = (word for word in arguments if word not in {"-f", "--force"})
        command_line = shlex.join(["bubbleviz", *recorded])
        app = application(arguments)
        code = app(
            args=spelled_out(arguments),
            prog_name="bubbleviz",
            standalone_mode=False,
            obj=command_line,
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
    return complain(_INCOMPLETE, exit_code) if exit_code in _ENDED else exit_code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_missing()
    with scope():
        return _answer(sys.argv[1:] if arguments is None else arguments)


def _answer(given: list[str]) -> int:
    """Run the command line and return its exit code; whatever ends it is a sentence."""
    code = 0
    try:
        with unwinding():
            code = _run(given or ["--help"])
        # A full disk is noticed here at the latest.
        sys.stdout.flush()
        return code
    except BubblevizError as error:
        return complain(str(error), error.exit_code)
    except MemoryError:
        return complain(_NO_MEMORY, 1)
    except BrokenPipeError:
        # The reader of a pipe (head, say) has seen enough.
        discard_output()
        return code
    except OSError as error:
        # Standard output that takes nothing more, as a full disk.
        discard_output()
        return complain(failure(error), 1)
    except Exception as error:
        # Typer's complaints about the command line; versions differ in their classes.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "bubbleviz"
        return complain(f"{_usage(error)}; see {place} --help", 2)


def _suggestion(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def _usage(error: Any) -> str:
    """Return the complaint about the command line, in our words where a minimum is missed.

    What typer suggests for a word that it does not know may be far from it.
    """
    message: str = error.format_message().rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command", None)
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        parameters = getattr(command, "params", ())
        options = [option for parameter in parameters for option in parameter.opts]
        return str(error.message).rstrip(".") + _suggestion(error.option_name, options)
    if unknown := _UNKNOWN_COMMAND.match(message):
        return unknown[0] + _suggestion(unknown[1], getattr(command, "commands", ()))
    parameter = getattr(error, "param", None)
    least = getattr(getattr(parameter, "type", None), "min", None)
    if parameter is None or least is None or "is not in the range" not in message:
        return message
    return f"{max(parameter.opts, key=len)} must be {least} or more"
