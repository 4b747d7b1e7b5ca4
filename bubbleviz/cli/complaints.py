"""Error messages for incorrect command lines, which suggest the word that was probably meant."""

from __future__ import annotations

import re
from typing import Any

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.model.texts import suggest_word, to_one_line

#: Matches typer's error message for an unknown command.
_UNKNOWN_COMMAND = re.compile(r"No such command (['\"])(?P<word>.*)\1(?=\.|$)")
#: Matches typer's error message for an option without its value.
_MISSING_VALUE = re.compile(r"Option '(?P<option>--[\w-]+)' requires an argument")
#: Maximum length of an unknown word in a message.
_LONGEST_WORD = 60


def describe_usage_error(error: Any, names: PrivateNames) -> str:
    """Return the error message for a typer exception.

    The message states the problem, along with a suggestion such as "did you mean --jobs?" or a
    reference to the help. Typer's suggestions are not used, because they can differ greatly from
    the word that the user typed.

    Args:
        error: The exception.
        names: Recorder for the file names in the message.
    """
    from bubbleviz.render.formats import list_renderers
    from bubbleviz.sources.paths import find_similar_file

    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    reason: str = error.format_message().rstrip(".")
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        parameters = getattr(command, "params", ())
        options = [option for p in parameters for option in (*p.opts, *p.secondary_opts)]
        suggestion = suggest_word(error.option_name, [*options, "--help"])
        reason = str(error.message).rstrip(".") + suggestion
    elif missing := _MISSING_VALUE.match(reason):
        option = missing["option"]
        if option.removeprefix("--") in {renderer.name for renderer in list_renderers()}:
            reason = f"{option} needs a file; to print the output instead, pass {option} -"
    elif unknown := _UNKNOWN_COMMAND.match(reason):
        # The first word is neither a command nor an existing path.
        word = unknown["word"]
        suggestion = suggest_word(word, getattr(command, "commands", ()))
        if not suggestion:
            file = find_similar_file(word)
            suggestion = "" if file is None else f"; did you mean {file}?"
            names.note_paths([word, file or ""])
        reason = (
            f"{to_one_line(names.text(word), _LONGEST_WORD)!r}: no such command or file{suggestion}"
        )
    command_path = context.command_path if context else "bubbleviz"
    return reason if reason.endswith("?") else f"{reason}; see {command_path} --help"
