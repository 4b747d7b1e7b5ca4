"""The door: a path instead of a command runs the command that fits the content of the files."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import complain, progress_bars


def entered(arguments: Sequence[str], names: PrivateNames) -> list[str]:
    """Return arguments that begin with paths behind the command that fits these, and say which.

    Raises:
        InputError: a path leads to nothing that can be read.
    """
    from bubbleviz.analyses.first_look import first_look

    first_option = next((i for i, word in enumerate(arguments) if word.startswith("-")), None)
    names.note_paths(arguments[:first_option])
    if any(word.partition("=")[0] == "--convention" for word in arguments):
        command, reason = "analyze", "--convention says how operations are named"
    else:
        with progress_bars() as bars:
            command, reason = first_look(arguments[:first_option], bars)
    if reason and not {"-q", "--quiet"} & {*arguments}:
        complain(f"{command}, since {reason}", 0, names)
    return [command, *arguments]
