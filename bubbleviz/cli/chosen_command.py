"""The choice of a command for users who give only paths, by the content of the files."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import complain, progress_bars


def choose_command(arguments: Sequence[str], names: PrivateNames) -> list[str]:
    """Put the command that fits the given files before them, and print which one it is and why.

    Args:
        arguments: Command-line arguments that start with paths.
        names: Names to hide in what is printed.

    Returns:
        The command, followed by the arguments.

    Raises:
        InputError: A path leads to nothing that can be read.
    """
    from bubbleviz.analyses.first_look import choose_command

    first_option = next((i for i, word in enumerate(arguments) if word.startswith("-")), None)
    names.note_paths(arguments[:first_option])
    if any(word.partition("=")[0] == "--convention" for word in arguments):
        command, reason = "analyze", "--convention says how operations are named"
    else:
        with progress_bars() as bars:
            command, reason = choose_command(arguments[:first_option], bars)
    if reason and not {"-q", "--quiet"} & {*arguments}:
        complain(f"{command}, since {reason}", 0, names)
    return [command, *arguments]
