"""Standard output and error: tables for people, files for programs, progress while they wait."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Of a complaint, characters.
_LONGEST = 800


def width() -> int:
    """Return how wide a table should be: as the terminal, or as usual."""
    from bubbleviz.renderers.table import WIDTH

    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def show(parts: Iterator[RenderableType]) -> None:
    """Print for a terminal with its width and colours, else as plain text.

    What the encoding of standard output lacks becomes a question mark.
    """
    from bubbleviz.renderers.table import plain_text, print_parts

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if not sys.stdout.isatty():
        sys.stdout.write(plain_text(parts))
        return
    from rich.console import Console

    print_parts(Console(highlight=False, markup=False, emoji=False), parts)


def pass_on(text: str) -> None:
    """Write a file to standard output as it would be written to disk: in UTF-8."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    binary.write(text.encode("utf-8"))
    binary.flush()


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None] | None]:
    """Show progress on standard error, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total, path: bar.update(
            task, completed=done, total=total, description=Path(path).name or "counting"
        )


def complain(message: str, code: int) -> int:
    """Return the exit code, having written one line without control characters to stderr."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if len(flat) > _LONGEST:
        # Of a message around an endless path both the head and the next step are kept.
        flat = f"{flat[: _LONGEST // 2]} … {flat[-_LONGEST // 2 :]}"
    sys.stderr.write(f"bubbleviz: {flat}\n")
    return code
