"""Standard output and error: tables for people, files for programs, progress while they wait."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.streams import discard_output
from bubbleviz.errors import BubblevizError, OutputError
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.progress import Watch, unwatched
from bubbleviz.render.document import Block, Line, Span
from bubbleviz.render.text.terminal import (
    Display,
    join_plain_lines,
    mask_unprintable,
    render_lines,
    render_plain_text,
)
from bubbleviz.timing import Step

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bars
    from rich.text import Text


#: Characters of a path in a list, and how many files that names.
_LONGEST_PATH, _FILES = 100, 4
#: Columns of what is no terminal, the fewest that anything is laid out for, and the most.
PIPED, _NARROWEST, _MOST_COLUMNS = 80, 40, 10_000
#: Lines of a terminal whose size is unknown.
_PIPED_LINES = 24
#: What an encoding must have, or ASCII is printed.
_DRAWN_WITH = "█▓▒░▚▞▄▌▐·─…±≥"
#: Characters of a complaint.
_LONGEST = 800


def show(blocks: Iterable[Block]) -> None:
    """Print for a terminal with its width and colours, else as plain text.

    On a terminal, and where ``COLUMNS`` says how wide, tables are made to fit; a pipe without a
    width takes them whole. What the encoding of standard output lacks becomes ASCII.
    """
    shown_on = display()
    if sys.stdout.isatty() or shown_on.colour or _given("COLUMNS") or not shown_on.unicode:
        show_lines(render_lines(blocks, shown_on), shown_on)
        return
    _replace_unknown_characters()
    sys.stdout.write(render_plain_text(blocks))


def show_lines(lines: Iterable[Line], shown_on: Display) -> None:
    """Print lines of styled words, with rich where colours are shown."""
    if not shown_on.colour:
        _replace_unknown_characters()
        sys.stdout.write(join_plain_lines(lines))
        return
    to = console(shown_on)
    for line in lines:
        to.print(rich_text(line), no_wrap=True, crop=False, overflow="ignore")


def show_text(text: str) -> None:
    """Print a text of one or several lines, with blanks in place of unprintable characters."""
    show_lines([(Span(line),) for line in text.splitlines()], display())


def rich_text(line: Line) -> Text:
    """Convert a line to rich text, with a blank for each unprintable character."""
    from rich.text import Text

    return Text.assemble(*mask_unprintable(line))


def console(shown_on: Display) -> Console:
    """Return standard output as a console of rich."""
    from rich.console import Console

    _replace_unknown_characters()
    return Console(
        width=shown_on.width,
        force_terminal=True,
        no_color=not shown_on.colour,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _replace_unknown_characters() -> None:
    """Let standard output print ``?`` for a character that its encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def display() -> Display:
    """Return what standard output can show.

    ``COLUMNS`` and ``LINES`` hold for pipes, too; ``NO_COLOR``, ``FORCE_COLOR`` and ``TERM=dumb``
    as elsewhere.
    """
    environment = os.environ
    terminal = sys.stdout.isatty()
    dumb = environment.get("TERM") in {"dumb", "unknown"}
    forced = bool(environment.get("FORCE_COLOR"))
    colour = (forced or (terminal and not dumb)) and not environment.get("NO_COLOR")
    columns, lines = shutil.get_terminal_size((PIPED, _PIPED_LINES))
    if not terminal:
        columns = _given("COLUMNS") or PIPED
        lines = _given("LINES") or _PIPED_LINES
    return Display(max(columns, _NARROWEST), colour, not dumb and _shows_blocks(), lines)


def _given(size: str) -> int | None:
    """Return the width or height that the environment gives; None where it gives none."""
    given = os.environ.get(size, "")
    return int(given) if given.isdecimal() and 0 < int(given) < _MOST_COLUMNS else None


def _shows_blocks() -> bool:
    """Return whether the encoding of standard output has the characters that are drawn with."""
    try:
        _DRAWN_WITH.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def pass_on(content: str | bytes) -> None:
    """Write the content of a file to standard output, exactly as to disk, with text in UTF-8.

    On a terminal, unprintable characters of a text become blanks.

    Raises:
        OutputError: The content is binary, and standard output accepts only text.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if isinstance(content, str) and sys.stdout.isatty():
        show_text(content)
    elif binary is not None:
        sys.stdout.flush()
        binary.write(content.encode("utf-8") if isinstance(content, str) else content)
        binary.flush()
    elif isinstance(content, str):
        sys.stdout.write(content)
    else:
        raise OutputError("standard output takes text only; name a file")


def show_steps(steps: Sequence[Step], names: PrivateNames) -> None:
    """Print to standard error where the time went."""
    for step in steps:
        if step.files:
            sys.stderr.write(f"{'  ' * step.depth}{step.name}: {_listed(step.files, names)}\n")
            continue
        rows = f"{step.rows:>14,} rows" if step.rows else ""
        sys.stderr.write(f"{'  ' * step.depth + step.name:<44}{step.seconds:>9.3f} s{rows}\n")


def _listed(files: Sequence[str], names: PrivateNames) -> str:
    """Return the first of some files, and how many more there are."""
    first = [to_one_line(names.text(file), _LONGEST_PATH) for file in sorted(files)[:_FILES]]
    more = [f"{len(files) - _FILES} more"] if len(files) > _FILES else []
    return ", ".join((*first, *more))


def refuse(error: BubblevizError, names: PrivateNames) -> int:
    """Write the message of an error to standard error, and return its exit code."""
    names.note_error(error)
    return complain(str(error), error.exit_code, names)


def complain(message: str, code: int, names: PrivateNames) -> int:
    """Write one line without control characters to standard error, and return an exit code.

    Args:
        message: The line, with real names.
        code: The exit code.
        names: The private names to replace in it.
    """
    flat = to_one_line(names.text(message))
    if len(flat) > _LONGEST:
        # A message around an endless path keeps its head and its next step.
        flat = f"{flat[: _LONGEST // 2]} … {flat[-_LONGEST // 2 :]}"
    # Standard error may be full or closed: the exit code stays what it is, at the last flush, too.
    try:
        sys.stderr.write(f"bubbleviz: {flat}\n")
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)
    return code


@contextmanager
def printed_warnings(names: PrivateNames, *, quiet: bool) -> Iterator[None]:
    """Print the log messages of the package while a command runs, or drop them if it is quiet.

    The attribute ``hosts`` of a log record lists the host names in its message.

    Args:
        names: Private names to replace.
        quiet: Whether to drop the messages.
    """
    import logging

    class WarningPrinter(logging.Handler):
        """Prints each log record as one warning line."""

        def emit(self, record: logging.LogRecord) -> None:
            """Print a log record."""
            names.note_hosts(getattr(record, "hosts", ()))
            complain(f"warning: {record.getMessage()}", 0, names)

    logger = logging.getLogger("bubbleviz")
    handler = logging.NullHandler() if quiet else WarningPrinter()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


# Progress on standard error, on a terminal only.


#: What takes less shows no progress.
_LATE_S = 1.0
#: What goes on once profiles have been read.
_AFTER_READING = "linking, aligning, counting"


class ReadingBars:
    """A bar of the bytes of all profiles.

    Once all are read, no bar stands full: how long the rest takes is unknown, and it says so.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars, self._task = bars, bars.add_task("profiles", total=None)
        self._sizes: dict[str, int] = {}
        self._read: dict[str, float] = {}

    def files(self, sizes: Mapping[str, int]) -> None:
        """Take the profiles of the run, each with its bytes."""
        self._sizes = dict(sizes)
        what = f"{format_count(len(sizes), 'profile')}, {sum(sizes.values()) / 1e6:,.0f} MB"
        self._bars.update(self._task, total=sum(sizes.values()) or None, description=what)
        # Small files are read before the next frame.
        self._bars.refresh()

    def read(self, path: str, share: float) -> None:
        """Show how much of a profile has been read."""
        size = self._sizes.get(path, 0)
        more = share * size - self._read.get(path, 0.0)
        self._read[path] = share * size
        self._bars.advance(self._task, more)
        if all(self._read.get(file, -1.0) >= size for file, size in self._sizes.items()):
            self._bars.remove_task(self._task)
            self._task = self._bars.add_task(_AFTER_READING, total=None)


@contextmanager
def _late_bars() -> Iterator[Bars]:
    from rich.console import Console
    from rich.progress import Progress

    begun = time.monotonic()

    class LateProgress(Progress):
        """Bars that show once what they tell of has taken a second."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """Yield the bars, or nothing."""
            if time.monotonic() - begun > _LATE_S:
                yield from super().get_renderables()

    with LateProgress(console=Console(stderr=True), transient=True) as bars:
        yield bars


@contextmanager
def progress_bars() -> Iterator[ReadingBars | None]:
    """Show how much of the profiles is read, on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield None
        return
    with _late_bars() as bars:
        yield ReadingBars(bars)


@contextmanager
def search_bar() -> Iterator[Watch]:
    """Show how much of a search is done, on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    with _late_bars() as bars:
        task = bars.add_task("searching", total=1.0)
        yield lambda share: bars.update(task, completed=share)
