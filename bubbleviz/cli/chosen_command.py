"""Chooses a command based on file contents if the user gives paths without a command."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import print_message, show_reading_progress


def choose_command(arguments: Sequence[str], names: PrivateNames) -> list[str]:
    """Choose the command for the given files, and print it along with the reason for the choice.

    With ``--convention``, the command is ``analyze``, and the files are not read. With ``--quiet``,
    nothing is printed.

    Args:
        arguments: Command-line arguments. The words before the first option are paths.
        names: Recorder of private names, which also replaces them in the message.

    Returns:
        The command, followed by the arguments.

    Raises:
        InputError: A path contains nothing readable.
    """
    from bubbleviz.analyses.first_look import choose_command

    first_option = next((i for i, word in enumerate(arguments) if word.startswith("-")), None)
    names.note_paths(arguments[:first_option])
    if any(word.partition("=")[0] == "--convention" for word in arguments):
        command, reason = "analyze", "--convention was passed"
    else:
        with show_reading_progress() as bars:
            command, reason = choose_command(arguments[:first_option], bars)
    if reason and not {"-q", "--quiet"} & {*arguments}:
        print_message(f"running {command}, because {reason}", 0, names)
    return [command, *arguments]
