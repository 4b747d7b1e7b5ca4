"""Outputs: written whole, under their own names, at the end, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bubbleviz.errors import OutputError


def check_outputs(outputs: Sequence[str], inputs: Sequence[str], *, force: bool) -> None:
    """Refuse before any work what could not be written after it; ``-`` is standard output.

    Raises:
        OutputError: an output exists and ``force`` is off, is an input, is named twice, or
            its directory does not exist.
    """
    profiles = {Path(path).resolve() for path in inputs if Path(path).exists()}
    seen: set[Path | str] = set()
    for output in outputs:
        place = output if output == "-" else Path(output).resolve()
        if place in seen:
            raise OutputError(f"{output}: named for two outputs; give each its own file")
        seen.add(place)
        if output == "-":
            continue
        if place in profiles:
            raise OutputError(
                f"{output}: is one of the profiles or the naming that are read; "
                "they are never written to"
            )
        if Path(output).is_dir():
            raise OutputError(f"{output}: is a directory; name a file in it")
        if not Path(output).resolve().parent.is_dir():
            raise OutputError(f"{output}: its directory does not exist; create it first")
        if Path(output).exists() and not force:
            raise OutputError(f"{output}: exists already; replace it with --force")


def write_outputs(texts: Mapping[str, str], *, force: bool) -> None:
    """Write each text to its file; all are complete before the first takes its name.

    Raises:
        OutputError: a file cannot be written; files that took their names already stay.
    """
    ready: dict[str, str] = {}
    try:
        for output, text in texts.items():
            ready[output] = _temporary(output, text)
        for output, temporary in ready.items():
            _place(temporary, output, force=force)
    finally:
        for temporary in ready.values():
            Path(temporary).unlink(missing_ok=True)


def _temporary(output: str, text: str) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix=".bubbleviz-", dir=Path(output).resolve().parent)
    except OSError as error:
        raise OutputError(f"{output}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise OutputError(f"{output}: cannot be written ({error.strerror})") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return name


def _place(temporary: str, output: str, *, force: bool) -> None:
    """Give a finished file its name; without ``force`` never over a file that came meanwhile."""
    try:
        if force:
            Path(temporary).replace(output)
        else:
            os.link(temporary, output)
    except FileExistsError as error:
        raise OutputError(f"{output}: exists already; replace it with --force") from error
    except OSError:
        # File systems without hard links.
        if Path(output).exists() and not force:
            raise OutputError(f"{output}: exists already; replace it with --force") from None
        try:
            Path(temporary).replace(output)
        except OSError as error:
            raise OutputError(f"{output}: cannot be written ({error.strerror})") from error
