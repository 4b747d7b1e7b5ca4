"""``bubbleviz watch``: the bubble of a run that runs."""

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
from bubbleviz.cli.options import command, limit_beginnings
from bubbleviz.cli.private_names import Invocation, PrivateNames
from bubbleviz.cli.terminal import complain, rich_text, show_text
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.signals import unwinding

if TYPE_CHECKING:
    from bubbleviz.analyses.watch.measurement import Observation, Watcher

#: Exit code where a ratio was above its limit for too long.
TOO_LARGE = 3
#: Events that the page shows.
_EVENTS = 4


@command()
def watch(
    folder: str = argument("RUN/", "Directory that the ranks record into."),
    *,
    invocation: Invocation,
    plain: bool = flag("Print one line per iteration instead of the page.", "Options", "--plain"),
    jsonl: str | None = option("FILE", "Append one line of JSON per iteration.", "Options"),
    listen: str | None = option(
        "HOST:PORT", "Serve Prometheus metrics, as 127.0.0.1:9100.", "Options"
    ),
    tensorboard: str | None = option("DIR", "Write scalars for TensorBoard.", "Options"),
    interval: float = option(
        "SECONDS", "Seconds between looks for new iterations.", "Options", default=1.0
    ),
    stop_after: float | None = option(
        "SECONDS", ("Stop after this long without new data."), "Options"
    ),
    max_bubble: list[str] | None = option(
        *("RATIO=LIMIT", "Highest ratio allowed: schedule=20% or =0.2.", "Limits"),
        complete=limit_beginnings,
    ),
    for_: int = option(
        "N", "Consecutive iterations above the limit.", "Limits", "--for", default=1
    ),
    run: str | None = option("COMMAND", "Run this once instead of ending.", "Limits"),
) -> None:
    """Follow a running job: its bubble ratio, causes and slow ranks, iteration by iteration.

    Ranks record with annotate.megatron(record="run/") and the like (bubbleviz guide record). The
    page needs a terminal; elsewhere one line per iteration is printed. Ctrl-C ends it. Exit codes:
    0 ended, 3 a ratio was above its limit for too long, 1 bad input, 2 wrong usage. COMMAND gets
    the reason in the environment variable BUBBLEVIZ_LIMIT.
    """
    from bubbleviz.analyses.watch.measurement import Watcher
    from bubbleviz.analyses.watch.outputs import open_outputs
    from bubbleviz.analyses.watch.text import READ
    from bubbleviz.analyses.watch.watched_iterations import make_limit_check
    from bubbleviz.sources.paths import select_profiles

    if Path(folder).exists() and not Path(folder).is_dir():
        other = (
            f", or bubbleviz analyze {quote_for_shell(folder)}" if select_profiles([folder]) else ""
        )
        raise InputError(
            f"{folder}: is not a directory, and {READ}; give the one that they record into{other}"
        )
    if not 0.0 < interval <= 3_600.0:
        raise UsageError(f"--interval {interval:g}: must be more than 0 and at most 3600 seconds")
    if stop_after is not None and not stop_after > 0.0:
        raise UsageError(f"--stop-after {stop_after:g}: must be more than 0 seconds")
    if not max_bubble and (run is not None or for_ != 1):
        extra = "--for" if run is None else "--run"
        raise UsageError(f"{extra} needs --max-bubble, which says what the limit is")
    names = invocation.names
    exceeded = make_limit_check(max_bubble or (), for_)
    start, look_after = _once(run, names)
    watcher = Watcher(folder)
    sight: Observation | None = None
    label = names.replaced(Path(folder).resolve().name)
    with open_outputs(label, jsonl, listen, tensorboard) as outputs, ExitStack() as stack:
        # Watching ends where its job does: by Ctrl-C, or by SIGTERM of a scheduler.
        with suppress(KeyboardInterrupt, BrokenPipeError, SystemExit), unwinding([signal.SIGTERM]):
            show = _shown(stack, folder, names, plain=plain)
            for sight in map(names.replaced, _looks(watcher, interval, stop_after)):
                for take in outputs:
                    take(sight)
                show(sight)
                for reason in filter(None, map(exceeded, sight.iterations)):
                    if run is None:
                        stack.close()
                        complain(reason, TOO_LARGE, names)
                        raise typer.Exit(TOO_LARGE)
                    start(reason)
                look_after()
        stack.close()
        # The reason was printed when a file could not be read.
        if sight is not None and not sight.trend and not _are_all_readable(sight, watcher, names):
            raise typer.Exit(1)


def _are_all_readable(sight: Observation, watcher: Watcher, names: PrivateNames) -> bool:
    """Print which recordings are empty, and return whether none is empty or unreadable."""
    from bubbleviz.sources.readers import describe_empty_file

    empty = watcher.list_empty_recordings()
    for path in empty:
        complain(f"{path}: {describe_empty_file(path)}", 0, names)
    return not sight.unreadable and not empty


def _looks(watcher: Watcher, interval: float, stop_after: float | None) -> Iterator[Observation]:
    """Yield what is new at each look, until nothing was for ``stop_after`` seconds."""
    from bubbleviz.analyses.watch.measurement import SILENT_S

    written_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        sight = watcher.look(now_s)
        yield sight
        written_s = now_s if sight.iterations else written_s
        if stop_after is not None and now_s - written_s >= stop_after:
            # What ranks that are missing held up is taken without them.
            yield watcher.look(now_s + SILENT_S)
            return
        time.sleep(interval)


def _shown(
    stack: ExitStack, folder: str, names: PrivateNames, *, plain: bool
) -> Callable[[Observation], None]:
    """Return what shows a sight: a page on a terminal, else lines."""
    from bubbleviz.analyses.watch.text import describe_waiting, format_line, format_page

    waited: list[str] = []

    def lines(sight: Observation) -> None:
        if not sight.trend and not sight.unreadable and not waited:
            waited.append(describe_waiting(folder))
            complain(waited[0], 0, names)
        for event in sight.events:
            complain(event, 0, names)
        for iteration in sight.iterations:
            show_text(format_line(iteration))
        if sight.iterations:
            sys.stdout.flush()

    if plain or not sys.stdout.isatty():
        return lines
    from rich.console import Group
    from rich.live import Live

    live = stack.enter_context(Live(refresh_per_second=4))
    told: deque[str] = deque(maxlen=_EVENTS)

    def page(sight: Observation) -> None:
        told.extend(sight.events)
        lines = format_page(names.replaced(folder), sight, tuple(told), live.console.width)
        live.update(Group(*map(rich_text, lines)))

    return page


def _once(
    text: str | None, names: PrivateNames
) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Return what runs a command once, with a reason, and what reports how it ended.

    The job is watched on meanwhile.
    """
    try:
        words = [] if text is None else shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text}: {error}; quote it as for a shell") from error
    if text is not None and not words:
        raise UsageError("--run: no command; give one, or leave --run out")
    running: list[subprocess.Popen[bytes]] = []

    def start(reason: str) -> None:
        command, words[:] = list(words), []
        if not command:
            return
        complain(reason, 0, names)
        environment = {**os.environ, "BUBBLEVIZ_LIMIT": reason}
        try:
            running.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
        except OSError as error:
            names.note_paths(command[:1])
            message = f"--run {command[0]}: cannot be run ({error.strerror}); give another one"
            complain(message, 0, names)

    def look() -> None:
        if running and (code := running[0].poll()) is not None:
            complain(f"--run ended with exit code {code}", 0, names)
            running.clear()

    return start, look
