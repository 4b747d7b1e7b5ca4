"""Complaints about the command line: a sentence, with what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bubbleviz.model.texts import one_line, suggestion

#: The complaint of typer about a command, with what it suggests.
_UNKNOWN_COMMAND = re.compile(r"No such command (['\"])(?P<word>.*)\1(?=\.|$)")
#: Characters of a word that is complained about.
_LONGEST = 60


def usage_complaint(error: Any) -> str:
    """Return the sentence for one of typer's exceptions: what is wrong, and where to read on.

    What typer suggests for a word that it does not know may be far from it.
    """
    context = getattr(error, "ctx", None)
    place = context.command_path if context else "bubbleviz"
    reason = _reason(error)
    return reason if reason.endswith("?") else f"{reason}; see {place} --help"


def _reason(error: Any) -> str:
    """Return what is wrong, in our words where a minimum is missed."""
    message: str = error.format_message().rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command", None)
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        parameters = getattr(command, "params", ())
        options = [option for p in parameters for option in (*p.opts, *p.secondary_opts)]
        said = str(error.message).rstrip(".")
        near = suggestion(error.option_name, [*options, "--help"])
        if not near and hasattr(command, "commands"):
            return f"{said} of bubbleviz itself; others follow a path or a command"
        return said + near
    if unknown := _UNKNOWN_COMMAND.match(message):
        return _unknown_word(unknown["word"], getattr(command, "commands", ()))
    parameter = getattr(error, "param", None)
    least = getattr(getattr(parameter, "type", None), "min", None)
    if parameter is None or least is None or "is not in the range" not in message:
        return message
    return f"{max(parameter.opts, key=len)} must be {least} or more"


def _unknown_word(word: str, commands: Iterable[str]) -> str:
    """Return the complaint about a first word that is neither a command nor a path."""
    from bubbleviz.sources.paths import file_like

    said = f"{one_line(word, _LONGEST)!r}: no such command or file"
    return said + (suggestion(word, commands) or file_like(word))
