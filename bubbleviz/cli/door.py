"""The door: a path in place of a command runs the command that fits what the files hold."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.cli.terminal import complain, progress_bars
from bubbleviz.model.private_names import hide


def entered(arguments: Sequence[str]) -> list[str]:
    """Return arguments that begin with paths behind the command that fits these, and say which.

    Raises:
        InputError: a path leads to nothing that can be read.
    """
    from bubbleviz.analyses.inspection import first_look

    if "--anonymous" in arguments:
        hide()
    first_option = next((i for i, word in enumerate(arguments) if word.startswith("-")), None)
    if any(word.partition("=")[0] == "--convention" for word in arguments):
        command, reason = "analyze", "--convention says how operations are named"
    else:
        with progress_bars() as bars:
            command, reason = first_look(arguments[:first_option], bars)
    if reason:
        complain(f"{command}, since {reason}", 0)
    return [command, *arguments]
