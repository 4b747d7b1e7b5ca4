"""``bubbleviz watch``: the bubbles of a running job."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bubbleviz.cli.help import argument, flag, option
from bubbleviz.cli.options import command, list_limit_prefixes
from bubbleviz.cli.private_names import Invocation, PrivateNames
from bubbleviz.cli.terminal import convert_to_rich, print_message, show_text
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.signals import handle_signals

if TYPE_CHECKING:
    from bubbleviz.analyses.watch.measurement import Observation, Watcher

#: Exit code used if a ratio exceeded its limit for too many consecutive iterations.
TOO_LARGE = 3
#: Number of recent events shown on the live page.
_EVENTS = 4


@command()
def watch(
    folder: str = argument("RUN/", "Directory in which the ranks write their recordings."),
    *,
    invocation: Invocation,
    plain: bool = flag(
        "Print one line per iteration instead of a live page.", "Options", "--plain"
    ),
    jsonl: str | None = option(
        "FILE", "Append one line of JSON per iteration to this file.", "Options"
    ),
    listen: str | None = option(
        "HOST:PORT", "Serve Prometheus metrics, e.g. on 127.0.0.1:9100.", "Options"
    ),
    tensorboard: str | None = option(
        "DIR", "Write scalars for TensorBoard to this directory.", "Options"
    ),
    interval: float = option(
        "SECONDS", "Time between checks for new iterations.", "Options", default=1.0
    ),
    stop_after: float | None = option(
        "SECONDS", "Stop after this time without new data.", "Options"
    ),
    max_bubble: list[str] | None = option(
        "RATIO=LIMIT",
        "Maximum bubble ratio, e.g. schedule=20% or schedule=0.2.",
        "Limits",
        complete=list_limit_prefixes,
    ),
    for_: int = option(
        "N",
        "Number of consecutive iterations that must exceed the limit.",
        "Limits",
        "--for",
        default=1,
    ),
    run: str | None = option(
        "COMMAND", "Run this command at the first violation, instead of stopping.", "Limits"
    ),
) -> None:
    """Monitor a running job: bubble ratio, causes and slow ranks of each iteration.

    The ranks must record themselves with annotate.megatron(record="run/") or a similar call
    (bubbleviz guide record). In a terminal, a live page is shown. Otherwise, one line is printed
    per iteration. Press Ctrl-C to stop. With --run, the environment variable BUBBLEVIZ_LIMIT tells
    COMMAND which limit was exceeded. Exit codes: 0 stopped, 1 bad input, 2 wrong usage, 3 a ratio
    was above its limit for N iterations.
    """
    from bubbleviz.analyses.watch.measurement import Watcher
    from bubbleviz.analyses.watch.outputs import open_outputs
    from bubbleviz.analyses.watch.watched_iterations import make_limit_check

    _check_folder(folder)
    if not 0.0 < interval <= 3_600.0:
        raise UsageError(f"--interval {interval:g}: must be more than 0 and at most 3600 seconds")
    if stop_after is not None and not stop_after > 0.0:
        raise UsageError(f"--stop-after {stop_after:g}: must be more than 0 seconds")
    if not max_bubble:
        _check_without_limit(for_, run)
    names = invocation.names
    exceeded = make_limit_check(max_bubble or (), for_)
    start_command, check_command = _prepare_command(run, names)
    watcher = Watcher(folder)
    sight: Observation | None = None
    has_timed_out = False
    label = names.replaced(Path(folder).resolve().name)
    with open_outputs(label, jsonl, listen, tensorboard) as outputs, ExitStack() as stack:
        # Ctrl-C, and SIGTERM from the job scheduler, are normal ways to end this command.
        with (
            suppress(KeyboardInterrupt, BrokenPipeError, SystemExit),
            handle_signals([signal.SIGTERM]),
        ):
            show = _make_printer(stack, folder, names, plain=plain)
            for sight in map(names.replaced, _iterate_sights(watcher, interval, stop_after)):
                for write in outputs:
                    write(sight)
                show(sight)
                for reason in filter(None, map(exceeded, sight.iterations)):
                    if run is None:
                        stack.close()
                        print_message(reason, TOO_LARGE, names)
                        raise typer.Exit(TOO_LARGE)
                    start_command(reason)
                check_command()
            has_timed_out = True
        stack.close()
        # Errors about unreadable files have been printed already.
        if sight is not None and not sight.trend and not _are_all_readable(sight, watcher, names):
            raise typer.Exit(1)
        if has_timed_out and not watcher.ranks:
            raise typer.Exit(1)


def _check_folder(folder: str) -> None:
    """Check that a path is a directory or does not exist yet.

    Raises:
        InputError: The path is a file. If the file is a profile, the message suggests ``analyze``.
    """
    from bubbleviz.analyses.watch.text import READ
    from bubbleviz.sources.paths import select_profiles

    if Path(folder).exists() and not Path(folder).is_dir():
        other = (
            f", or run bubbleviz analyze {quote_for_shell(folder)}"
            if select_profiles([folder])
            else ""
        )
        raise InputError(
            f"{folder}: not a directory, but {READ}; pass the directory of the recordings{other}"
        )


def _check_without_limit(for_: int, run: str | None) -> None:
    """Check that a command line without a limit has no options that need one.

    Raises:
        UsageError: ``--run`` is given, or ``--for`` is not 1.
    """
    if run is not None or for_ != 1:
        option_name = "--for" if run is None else "--run"
        raise UsageError(
            f"{option_name} has no effect without a limit; add --max-bubble RATIO=LIMIT"
        )


def _are_all_readable(sight: Observation, watcher: Watcher, names: PrivateNames) -> bool:
    """Return whether all recordings are readable and nonempty.

    A message is printed for each empty recording.

    Args:
        sight: The latest observation, which lists unreadable recordings.
        watcher: Lists empty recordings.
        names: Private names to replace in messages.
    """
    from bubbleviz.sources.readers import describe_empty_file

    empty = watcher.list_empty_recordings()
    for path in empty:
        print_message(f"{path}: {describe_empty_file(path)}", 0, names)
    return not sight.unreadable and not empty


def _iterate_sights(
    watcher: Watcher, interval: float, stop_after: float | None
) -> Iterator[Observation]:
    """Check for new iterations at regular intervals, and yield one observation per check.

    If there are no new iterations for ``stop_after`` seconds, a last observation is yielded. The
    last observation also contains iterations for which some ranks are still missing. These
    iterations are measured without the missing ranks.

    Args:
        watcher: Reads the recordings.
        interval: Time between checks, in seconds.
        stop_after: Maximum time without new iterations in seconds, or None to continue forever.
    """
    from bubbleviz.analyses.watch.measurement import SILENT_S

    written_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        sight = watcher.look(now_s)
        yield sight
        written_s = now_s if sight.iterations else written_s
        if stop_after is not None and now_s - written_s >= stop_after:
            # Pretend that more time has passed, so that the watcher stops waiting for missing
            # ranks.
            yield watcher.look(now_s + SILENT_S)
            return
        time.sleep(interval)


def _make_printer(
    stack: ExitStack, folder: str, names: PrivateNames, *, plain: bool
) -> Callable[[Observation], None]:
    """Return a function that shows an observation, either on a live page or as lines of text.

    Args:
        stack: Context that closes the live page when the command ends.
        folder: Directory that contains the recordings.
        names: Private names to replace.
        plain: Whether to print lines even if standard output is a terminal.
    """
    from bubbleviz.analyses.watch.text import describe_waiting, format_line, format_page

    has_printed_waiting = False

    def print_lines(sight: Observation) -> None:
        """Print one line per event and per iteration of an observation.

        If nothing has been measured yet, the first call also prints what the command is waiting
        for.
        """
        nonlocal has_printed_waiting
        if not sight.trend and not sight.unreadable and not has_printed_waiting:
            has_printed_waiting = True
            print_message(describe_waiting(folder), 0, names)
        for event in sight.events:
            print_message(event, 0, names)
        for iteration in sight.iterations:
            show_text(format_line(iteration))
        if sight.iterations:
            sys.stdout.flush()

    if plain or not sys.stdout.isatty():
        return print_lines
    from rich.console import Group
    from rich.live import Live

    live = stack.enter_context(Live(refresh_per_second=4))
    latest_events: deque[str] = deque(maxlen=_EVENTS)

    def update_page(sight: Observation) -> None:
        latest_events.extend(sight.events)
        lines = format_page(names.replaced(folder), sight, tuple(latest_events), live.console.width)
        live.update(Group(*map(convert_to_rich, lines)))

    return update_page


def _prepare_command(
    text: str | None, names: PrivateNames
) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Return two functions. One starts a command, and the other reports its exit code.

    Neither function waits for the command to end.

    Args:
        text: The command as entered by the user, or None for no command.
        names: Private names to replace in messages.

    Returns:
        start: Function that starts the command, passing the given reason in the environment
            variable ``BUBBLEVIZ_LIMIT``. Only the first call starts the command.
        check: Function that prints the exit code if the command has ended since the last call.

    Raises:
        UsageError: The command is empty, or its quotation marks do not match.
    """
    try:
        words = [] if text is None else shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text}: {error}; quote the command as in a shell") from error
    if text is not None and not words:
        raise UsageError("--run: the command is empty; pass a command, or remove --run")
    running: list[subprocess.Popen[bytes]] = []

    def start(reason: str) -> None:
        """Print the reason and start the command, unless it has been started before.

        If the command cannot be started, a message is printed, and there is no second attempt.
        """
        command, words[:] = list(words), []
        if not command:
            return
        print_message(reason, 0, names)
        environment = {**os.environ, "BUBBLEVIZ_LIMIT": reason}
        try:
            running.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
        except OSError as error:
            names.note_paths(command[:1])
            message = (
                f"--run {command[0]}: could not be started ({error.strerror}); check the command"
            )
            print_message(message, 0, names)

    def look() -> None:
        if running and (code := running[0].poll()) is not None:
            print_message(f"the --run command ended with exit code {code}", 0, names)
            running.clear()

    return start, look
