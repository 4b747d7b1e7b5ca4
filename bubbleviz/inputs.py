"""Paths to profiles: files, directories and patterns, in natural order."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.errors import InputError


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``rank2`` before ``rank10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    )


@dataclass(frozen=True)
class Found:
    """A file to read; ``named`` on the command line, or found in a directory."""

    path: str
    named: bool


def find_profiles(paths: Sequence[str]) -> tuple[Found, ...]:
    """Return the files that paths stand for, in the order given.

    A directory stands for the profiles in it, a pattern for its matches, both in natural order.

    Raises:
        InputError: a path that does not exist or leads to no profile.
    """
    if not paths:
        raise InputError("no profile given; name one or more .sqlite files or a directory")
    found: list[Found] = []
    for path in paths:
        if Path(path).is_dir():
            found.extend(Found(file, named=False) for file in _in_directory(path))
        elif Path(path).exists():
            found.append(Found(path, named=True))
        elif glob.has_magic(path):
            found.extend(Found(file, named=True) for file in _matches(path))
        else:
            raise InputError(f"{path}: no such file or directory; check the path")
    return tuple(found)


def _in_directory(path: str) -> list[str]:
    from bubbleviz.readers import readers

    suffixes = tuple(suffix for reader in readers() for suffix in reader.suffixes)
    files = [str(p) for p in Path(path).iterdir() if p.name.endswith(suffixes) and p.is_file()]
    if not files:
        raise InputError(
            f"{path}: the directory holds no profile (looked for *{', *'.join(suffixes)}); "
            "export with: nsys export --type sqlite REPORT.nsys-rep"
        )
    return sorted(files, key=natural_key)


def _matches(pattern: str) -> list[str]:
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - takes absolute patterns too
    files = [p for p in found if Path(p).is_file()]
    if not files:
        raise InputError(f"{pattern}: no file matches this pattern; check the directory and name")
    return sorted(files, key=natural_key)
