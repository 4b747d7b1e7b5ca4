"""Prints tables on standard output, and messages and progress on standard error."""

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


#: Maximum length of a path in a file list, and maximum number of files in the list.
_LONGEST_PATH, _FILES = 100, 4
#: Default, minimum and maximum number of columns. The default applies when there is no terminal.
PIPED, _MIN_COLUMNS, _MAX_COLUMNS = 80, 40, 10_000
#: Default number of lines when standard output is not a terminal.
_PIPED_LINES = 24
#: If any of the following characters is missing from standard output's encoding, only ASCII is
#: printed.
_DRAWING_CHARACTERS = "█▓▒░▚▞▄▌▐·─…±≥"
#: Maximum length of a message.
_LONGEST = 800


def show(blocks: Iterable[Block]) -> None:
    """Print the blocks of a document on standard output.

    If standard output is a terminal, or if the environment variable ``COLUMNS`` is set, tables are
    fitted to the width. Otherwise tables are printed in full, as plain text. If standard output's
    encoding lacks drawing characters, ASCII is printed.
    """
    shown_on = find_text_display()
    if shown_on is not None:
        show_lines(render_lines(blocks, shown_on), shown_on)
        return
    _replace_unknown_characters()
    sys.stdout.write(render_plain_text(blocks))


def find_text_display() -> Display | None:
    """Return the display that a document must fit on, or None if it is printed in full.

    See :func:`show`.
    """
    display = describe_display()
    has_width = sys.stdout.isatty() or _read_size("COLUMNS") is not None
    return display if has_width or display.color or not display.unicode else None


def show_lines(lines: Iterable[Line], shown_on: Display) -> None:
    """Print styled lines on standard output.

    Styles are printed only if the display supports colors.
    """
    if not shown_on.color:
        _replace_unknown_characters()
        sys.stdout.write(join_plain_lines(lines))
        return
    to = make_console(shown_on)
    for line in lines:
        to.print(convert_to_rich(line), no_wrap=True, crop=False, overflow="ignore")


def show_text(text: str) -> None:
    """Print one or more lines of text. Unprintable characters are replaced with blanks."""
    show_lines([(Span(line),) for line in text.splitlines()], describe_display())


def convert_to_rich(line: Line) -> Text:
    """Convert a styled line to rich text. Each unprintable character is replaced with a blank."""
    from rich.text import Text

    return Text.assemble(*mask_unprintable(line))


def make_console(shown_on: Display) -> Console:
    """Return a rich console that prints to standard output.

    The console has the width and colors of the display, and treats standard output as a terminal.
    Markup, highlighting and emoji codes are switched off.
    """
    from rich.console import Console

    _replace_unknown_characters()
    return Console(
        width=shown_on.width,
        force_terminal=True,
        no_color=not shown_on.color,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _replace_unknown_characters() -> None:
    """Configure standard output to print ``?`` for characters that its encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def describe_display() -> Display:
    """Return the size and display capabilities of standard output.

    The environment variables ``COLUMNS``, ``LINES``, ``NO_COLOR``, ``FORCE_COLOR`` and ``TERM``
    have their usual meanings. ``COLUMNS`` and ``LINES`` are used even if standard output is not a
    terminal.
    """
    environment = os.environ
    terminal = sys.stdout.isatty()
    dumb = environment.get("TERM") in {"dumb", "unknown"}
    forced = bool(environment.get("FORCE_COLOR"))
    color = (forced or (terminal and not dumb)) and not environment.get("NO_COLOR")
    columns, lines = shutil.get_terminal_size((PIPED, _PIPED_LINES))
    if not terminal:
        columns = _read_size("COLUMNS") or PIPED
        lines = _read_size("LINES") or _PIPED_LINES
    has_height = terminal or _read_size("LINES") is not None
    unicode = not dumb and _has_drawing_characters()
    return Display(max(columns, _MIN_COLUMNS), color, unicode, lines, has_height)


def _read_size(variable: str) -> int | None:
    """Return a width or height from an environment variable, or None if it is unset or invalid."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and 0 < int(text) < _MAX_COLUMNS else None


def _has_drawing_characters() -> bool:
    """Return whether the encoding of standard output contains all ``_DRAWING_CHARACTERS``."""
    try:
        _DRAWING_CHARACTERS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write_content(content: str | bytes) -> None:
    """Write the content of an output file to standard output.

    The bytes are the same as in a file, with text encoded as UTF-8. If standard output is a
    terminal, unprintable characters in text are replaced with blanks.

    Raises:
        OutputError: The content is binary, but standard output accepts only text.
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
        raise OutputError("standard output accepts only text; write to a file instead")


def show_steps(steps: Sequence[Step], names: PrivateNames) -> None:
    """Print the recorded steps on standard error, one line per step.

    Each line shows the step's files, or else its duration and number of rows. Nested steps are
    indented.

    Args:
        steps: The steps, each followed by its nested steps.
        names: Private names to replace in the paths of files.
    """
    for step in steps:
        if step.files:
            sys.stderr.write(f"{'  ' * step.depth}{step.name}: {_list_files(step.files, names)}\n")
            continue
        rows = f"{step.rows:>14,} rows" if step.rows else ""
        sys.stderr.write(f"{'  ' * step.depth + step.name:<44}{step.seconds:>9.3f} s{rows}\n")


def _list_files(files: Sequence[str], names: PrivateNames) -> str:
    """Return the alphabetically first files and the number of remaining files, as text."""
    first = [to_one_line(names.text(file), _LONGEST_PATH) for file in sorted(files)[:_FILES]]
    omitted = [f"{len(files) - _FILES} more"] if len(files) > _FILES else []
    return ", ".join((*first, *omitted))


def report_error(error: BubblevizError, names: PrivateNames) -> int:
    """Print an error's message on standard error, and return the error's exit code."""
    names.note_error(error)
    return print_message(str(error), error.exit_code, names)


def print_message(message: str, code: int, names: PrivateNames) -> int:
    """Print a message on standard error, on one line and without control characters.

    A very long message is shortened in the middle. If standard error cannot be written, the error
    is ignored.

    Args:
        message: The message, in which private names have not been replaced.
        code: Exit code to return.
        names: Private names to replace in the message.

    Returns:
        ``code``.
    """
    flat = to_one_line(names.text(message))
    if len(flat) > _LONGEST:
        # The reason is usually a very long path. Cut the middle, so that the advice at the end is
        # still shown.
        flat = f"{flat[: _LONGEST // 2]} … {flat[-_LONGEST // 2 :]}"
    # The exit code must not change if writing to or flushing standard error fails.
    try:
        sys.stderr.write(f"bubbleviz: {flat}\n")
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)
    return code


@contextmanager
def print_warnings(names: PrivateNames, *, quiet: bool) -> Iterator[None]:
    """Print the package's log messages as warnings inside this context.

    If a log record has the attribute ``hosts``, it lists the host names in the message.

    Args:
        names: Recorder of private names, which also replaces them in the messages.
        quiet: Whether to discard the messages instead of printing them.
    """
    import logging

    class WarningPrinter(logging.Handler):
        """Prints each log record as one warning line."""

        def emit(self, record: logging.LogRecord) -> None:
            """Print a log record's message as a warning."""
            names.note_hosts(getattr(record, "hosts", ()))
            print_message(f"warning: {record.getMessage()}", 0, names)

    logger = logging.getLogger("bubbleviz")
    handler = logging.NullHandler() if quiet else WarningPrinter()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


#: Time at which the command line was loaded, on the monotonic clock.
_STARTED_S = time.monotonic()
#: Progress bars are shown only if the command has run for this time, in seconds.
_LATE_S = 1.0
#: Description shown by the progress bar after all profiles have been read.
_AFTER_READING = "analyzing"


class ReadingBars:
    """A progress bar that shows how many bytes of all profiles have been read.

    When all profiles have been read, an indeterminate bar replaces it, because the duration of the
    remaining work is unknown.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars, self._task = bars, bars.add_task("profiles", total=None)
        self._sizes: dict[str, int] = {}
        self._read: dict[str, float] = {}

    def files(self, sizes: Mapping[str, int]) -> None:
        """Receive the size of each profile in bytes, keyed by path."""
        self._sizes = dict(sizes)
        description = f"{format_count(len(sizes), 'profile')}, {sum(sizes.values()) / 1e6:,.0f} MB"
        self._bars.update(self._task, total=sum(sizes.values()) or None, description=description)
        # Refresh now, because small files may be read before the next automatic refresh.
        self._bars.refresh()

    def read(self, path: str, fraction: float) -> None:
        """Receive the fraction of a profile that has been read, and advance the bar.

        Args:
            path: Path of the profile.
            fraction: Fraction of the profile that has been read, from 0 to 1.
        """
        size = self._sizes.get(path, 0)
        n_new_bytes = fraction * size - self._read.get(path, 0.0)
        self._read[path] = fraction * size
        self._bars.advance(self._task, n_new_bytes)
        if all(self._read.get(file, -1.0) >= size for file, size in self._sizes.items()):
            self._bars.remove_task(self._task)
            self._task = self._bars.add_task(_AFTER_READING, total=None)


@contextmanager
def _show_late_bars() -> Iterator[Bars]:
    """Show progress bars on standard error, but only if the command takes ``_LATE_S`` seconds.

    The bars are removed when the context ends.
    """
    from rich.console import Console
    from rich.progress import Progress

    class LateProgress(Progress):
        """Progress bars that are hidden for the first ``_LATE_S`` seconds of the command."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """Yield the bars, or nothing while they are hidden."""
            if time.monotonic() - _STARTED_S > _LATE_S:
                yield from super().get_renderables()

    with LateProgress(console=Console(stderr=True), transient=True) as bars:
        yield bars


@contextmanager
def show_reading_progress() -> Iterator[ReadingBars | None]:
    """Show on standard error how much of the profiles has been read.

    Yields the progress bar, or None if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with _show_late_bars() as bars:
        yield ReadingBars(bars)


@contextmanager
def show_activity(description: str) -> Iterator[None]:
    """Show on standard error that work of unknown duration is in progress.

    Nothing is shown if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    with _show_late_bars() as bars:
        bars.add_task(description, total=None)
        yield


@contextmanager
def show_search_progress() -> Iterator[Watch]:
    """Show the progress of a search on standard error, if standard error is a terminal.

    Yields a function that receives the completed fraction of the search, from 0 to 1.
    """
    if not sys.stderr.isatty():
        yield unwatched
        return
    with _show_late_bars() as bars:
        task = bars.add_task("searching", total=1.0)
        yield lambda share: bars.update(task, completed=share)
