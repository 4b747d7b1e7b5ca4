"""Standard output and error: tables for people, files for programs, progress while they wait."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.errors import OutputError
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.texts import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubbleviz.render.parts import Parts
    from bubbleviz.render.text.display import Display, Line
    from bubbleviz.timing import Step

#: Characters of a path in a list, and how many files that names.
_LONGEST_PATH, _FILES = 100, 4
#: Columns of what is no terminal, the fewest that anything is laid out for, and the most.
PIPED, _NARROWEST, _MOST_COLUMNS = 80, 40, 10_000
#: What an encoding must have, or ASCII is printed.
_DRAWN_WITH = "█▓▒░▚▞▄▌▐·─…±≥"
#: Characters of a complaint.
_LONGEST = 800


def width() -> int:
    """Return the width of tables in characters: that of the terminal, else a fixed one."""
    from bubbleviz.render.text.console import WIDTH

    if sys.stdout.isatty():
        return shutil.get_terminal_size((WIDTH, 24)).columns
    return _given_columns() or WIDTH


def deliver(
    contents: Mapping[str, str | bytes | Parts],
    print_result: Callable[[], None],
    *,
    inputs: Sequence[str],
    force: bool,
    warnings: Sequence[str] = (),
) -> None:
    """Write the requested files, print warnings, then fill standard output.

    Args:
        contents: by file; - stands for standard output, which then takes nothing else.
        print_result: prints the result where standard output is free.
        inputs: files that no output may replace.
        force: whether files are replaced.
        warnings: lines for standard error.

    Raises:
        OutputError: a file cannot be written.
    """
    from bubbleviz.cli.outputs import check_outputs, encoded, write_outputs
    from bubbleviz.render.parts import Parts
    from bubbleviz.timing import step

    files = {file: content for file, content in contents.items() if file != "-"}
    with step("write"):
        folders = [file for file, content in files.items() if isinstance(content, Parts)]
        check_outputs(list(files), inputs, force=force, folders=folders)
        write_outputs(files, force=force)
    for warning in warnings:
        complain(warning, 0)
    with step("print"):
        piped = contents.get("-")
        if isinstance(piped, (str, bytes)):
            pass_on(encoded(piped))
        else:
            print_result()


def show(parts: Iterator[RenderableType]) -> None:
    """Print for a terminal with its width and colours, else as plain text.

    On a terminal, and where ``COLUMNS`` says how wide, tables are made to fit; a pipe without a
    width takes them whole. What the encoding of standard output lacks becomes ASCII.
    """
    from bubbleviz.render.text.console import plain_text, print_sections

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    shown_on = display()
    if not shown_on.colour and not sys.stdout.isatty():
        whole = shown_on.unicode and not _given_columns()
        fitted = shown_on if _given_columns() else replace(shown_on, width=width())
        sys.stdout.write(plain_text(parts, None if whole else fitted))
        return
    from rich.console import Console

    console = Console(
        width=shown_on.width,
        force_terminal=True,
        no_color=not shown_on.colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    print_sections(console, parts, shown_on)


def display() -> Display:
    """Return what standard output can show.

    ``COLUMNS`` holds for pipes, too; ``NO_COLOR``, ``FORCE_COLOR`` and ``TERM=dumb`` as elsewhere.
    """
    from bubbleviz.render.text.display import Display

    environment = os.environ
    terminal = sys.stdout.isatty()
    dumb = environment.get("TERM") in {"dumb", "unknown"}
    forced = bool(environment.get("FORCE_COLOR"))
    colour = (forced or (terminal and not dumb)) and not environment.get("NO_COLOR")
    columns = shutil.get_terminal_size((PIPED, 24)).columns if terminal else _given_columns()
    columns = columns or PIPED
    return Display(max(columns, _NARROWEST), colour, not dumb and _shows_blocks())


def _given_columns() -> int | None:
    """Return the width that the environment gives; None where it gives none."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and 0 < int(given) < _MOST_COLUMNS else None


def _shows_blocks() -> bool:
    """Return whether the encoding of standard output has the characters that are drawn with."""
    try:
        _DRAWN_WITH.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show_lines(lines: Iterable[Line], shown_on: Display) -> None:
    """Print lines of styled words, with rich where colours are shown."""
    from bubbleviz.render.text.display import plain_lines

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if not shown_on.colour:
        sys.stdout.write(plain_lines(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(
        width=shown_on.width, force_terminal=True, highlight=False, markup=False, emoji=False
    )
    for line in lines:
        text = Text.assemble(*line, end="\n")
        console.print(text, no_wrap=True, crop=False, overflow="ignore")


def pass_on(content: str | bytes) -> None:
    """Write a file to standard output as it would be written to disk: text in UTF-8.

    Raises:
        OutputError: the content is binary, and standard output takes only text.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None and isinstance(content, str):
        sys.stdout.write(content)
        return
    if binary is None:
        raise OutputError("standard output takes text only; name a file")
    from bubbleviz.cli.outputs import encoded

    sys.stdout.flush()
    binary.write(encoded(content))
    binary.flush()


def show_steps(steps: Sequence[Step]) -> None:
    """Print to standard error where the time went."""
    for step in steps:
        if step.files:
            sys.stderr.write(f"{'  ' * step.depth}{step.name}: {_listed(step.files)}\n")
            continue
        rows = f"{step.rows:>14,} rows" if step.rows else ""
        sys.stderr.write(f"{'  ' * step.depth + step.name:<44}{step.seconds:>9.3f} s{rows}\n")


def _listed(files: Sequence[str]) -> str:
    """Return the first of some files, and how many more there are."""
    first = [one_line(anonymous(file), _LONGEST_PATH) for file in sorted(files)[:_FILES]]
    more = [f"{len(files) - _FILES} more"] if len(files) > _FILES else []
    return ", ".join((*first, *more))


def complain(message: str, code: int) -> int:
    """Return the exit code, having written one line without control characters to stderr."""
    flat = one_line(anonymous(message))
    if len(flat) > _LONGEST:
        # A message around an endless path keeps its head and its next step.
        flat = f"{flat[: _LONGEST // 2]} … {flat[-_LONGEST // 2 :]}"
    # Standard error may be full or closed: the exit code stays what it is.
    with suppress(OSError):
        sys.stderr.write(f"bubbleviz: {flat}\n")
    return code
