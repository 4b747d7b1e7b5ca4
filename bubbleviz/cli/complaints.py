"""Complaints about the command line: a sentence, with the word that was probably meant."""

from __future__ import annotations

import re
from typing import Any

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.model.texts import suggest_word, to_one_line

#: The complaint of typer about a command, with what it suggests.
_UNKNOWN_COMMAND = re.compile(r"No such command (['\"])(?P<word>.*)\1(?=\.|$)")
#: Characters of a word that is complained about.
_LONGEST_WORD = 60


def usage_complaint(error: Any, names: PrivateNames) -> str:
    """Return the sentence for one of typer's exceptions: what is wrong, and where to read on.

    What typer suggests for a word that it does not know may be far from it.
    """
    from bubbleviz.sources.paths import find_similar_file

    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    reason: str = error.format_message().rstrip(".")
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        parameters = getattr(command, "params", ())
        options = [option for p in parameters for option in (*p.opts, *p.secondary_opts)]
        near = suggest_word(error.option_name, [*options, "--help"])
        reason = str(error.message).rstrip(".") + near
    elif unknown := _UNKNOWN_COMMAND.match(reason):
        # The first word is neither a command nor a path.
        word = unknown["word"]
        near = suggest_word(word, getattr(command, "commands", ()))
        if not near:
            file = find_similar_file(word)
            near = "" if file is None else f"; did you mean {file}?"
            names.note_paths([word, file or ""])
        reason = f"{to_one_line(names.text(word), _LONGEST_WORD)!r}: no such command or file{near}"
    place = context.command_path if context else "bubbleviz"
    return reason if reason.endswith("?") else f"{reason}; see {place} --help"
