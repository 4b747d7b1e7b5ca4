"""Output folders: written part by part beside their place, which they take when all are there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from bubbleviz.errors import OutputError
from bubbleviz.model.part_names import NAMES
from bubbleviz.render.parts import Parts


def check_folder(output: str, place: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Refuse a folder that cannot be written.

    Args:
        output: as it was named.
        place: its path.
        inputs: files that are read.
        force: whether a folder of parts is replaced.

    Raises:
        OutputError: it is a file, holds what is read or what is no part, exists and ``force`` is
            off, or its own folder does not exist.
    """
    if place.is_file():
        raise OutputError(f"{output}: is a file; leave the slash out, or name another folder")
    if not place.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if place == place.parent or any(place in (path, *path.parents) for path in inputs):
        raise OutputError(
            f"{output}: holds an input, and inputs are never replaced; name another folder"
        )
    if not place.exists():
        return
    strange = next((own for own in sorted(place.iterdir()) if not NAMES.fullmatch(own.name)), None)
    if strange is not None:
        raise OutputError(
            f"{output}: holds {strange.name[:60]!r}, which is no part of a report; name a folder "
            "that does not exist"
        )
    if not force:
        raise in_the_way(output)


def in_the_way(output: str) -> OutputError:
    """Return the error of an output that exists."""
    return OutputError(f"{output}: exists already; replace it with --force")


def written_folder(output: str, parts: Parts) -> str:
    """Write a folder under a temporary name beside its place, and return that name.

    Raises:
        OSError: it cannot be written.
    """
    from bubbleviz.model import temporary_files

    folder = Path(temporary_files.create_folder(Path(output).resolve().parent))
    try:
        mask = os.umask(0)
        os.umask(mask)
        for name, content in parts.files():
            file = folder / name
            file.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
            file.chmod(0o666 & ~mask)
        folder.chmod(0o777 & ~mask)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(folder)


def place_folder(temporary: str, output: str, *, force: bool) -> None:
    """Give a finished folder its name; one that is replaced goes once the new one is there.

    Raises:
        OutputError: a folder came meanwhile.
        OSError: it cannot take its name.
    """
    target = Path(output).resolve()
    if not target.exists():
        Path(temporary).rename(target)
        return
    if not force:
        raise in_the_way(output)
    check_folder(output, target, (), force=True)
    from bubbleviz.model import temporary_files

    old = Path(temporary_files.create_folder(target.parent))
    old.rmdir()
    target.rename(old)
    try:
        Path(temporary).rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
