"""Paths to profiles: files, directories and patterns, in natural order."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.errors import InputError, MismatchError, ProfileError
from bubbleviz.model.natural_order import natural_key
from bubbleviz.sources.nsys.raw_reports import SUFFIXES


@dataclass(frozen=True)
class InputFile:
    """A file to read; ``named`` on the command line, or found in a directory."""

    path: str
    named: bool


@dataclass(frozen=True)
class CompanionFormat:
    """Files that count beside profiles.

    Attributes:
        name: what one is called.
        recognises: whether the file of a path is one; it may raise a BubblevizError.
    """

    name: str
    recognises: Callable[[str], bool]


def find_profiles(
    paths: Sequence[str], also: CompanionFormat | None = None
) -> tuple[InputFile, ...]:
    """Return the files that paths stand for, in the order given.

    A directory stands for the profiles in it, a pattern for its matches, both in natural order.

    Args:
        paths: files, directories and patterns.
        also: what else in a directory counts.

    Raises:
        InputError: a path that does not exist, cannot be looked at, or leads to no profile.
    """
    if not paths:
        raise InputError("no profile given; name one or more .sqlite files or a directory")
    found: list[InputFile] = []
    for path in paths:
        try:
            found.extend(_stands_for(path, also))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be looked at ({error.strerror}); check it and its permissions"
            ) from error
    return tuple(found)


def refuse_twins(files: Sequence[str], called: str = "profile") -> None:
    """Raise MismatchError where a file is named twice: what it holds would count twice."""
    seen: dict[Path, str] = {}
    for path in files:
        place = Path(path).resolve()
        if place in seen:
            raise MismatchError(
                f"{seen[place]} and {path}: the same {called} twice; give each {called} once"
            )
        seen[place] = path


def _stands_for(path: str, also: CompanionFormat | None) -> list[InputFile]:
    """Return the files of one path; an OSError is the file system's."""
    if not path:
        raise InputError("a path is empty; name a .sqlite file or a directory")
    if Path(path).is_dir():
        return [InputFile(file, named=False) for file in _in_directory(path, also)]
    if Path(path).exists():
        if not Path(path).is_file():
            raise InputError(f"{path}: neither a file nor a directory; name a profile")
        return [InputFile(path, named=True)]
    if glob.has_magic(path):
        return [InputFile(file, named=True) for file in _matches(path)]
    raise InputError(f"{path}: no such file or directory; check the path")


def profiles_among(files: Sequence[str]) -> list[str]:
    """Return the files that profiles are known to end like, those that tell a run again left out.

    Args:
        files: of one directory.
    """
    from bubbleviz.sources.readers import readers

    better = [(s, r.superseded_by) for r in readers() for s in r.suffixes if r.superseded_by]
    there = set(files)
    again = {
        file
        for file in files
        for suffix, others in better
        if file.endswith(suffix)
        and any(
            f"{file.removesuffix(suffix)}{other}" in there for other in others if other != suffix
        )
    }
    found = [file for file in files if file.endswith(_suffixes()) and file not in again]
    found += [file for file in files if file not in found and _looks_like_one(file)]
    # A report that was exported already counts once.
    stems = {str(Path(file).with_suffix("")) for file in found}
    reports = [file for file in files if file.endswith(SUFFIXES)]
    return [*found, *(own for own in reports if str(Path(own).with_suffix("")) not in stems)]


def _looks_like_one(file: str) -> bool:
    """Tell whether a file that may be a profile by its ending is one by its first bytes."""
    from bubbleviz.sources.gzip_files import head_of
    from bubbleviz.sources.readers import readers

    asked = [reader for reader in readers() if file.endswith(reader.possible_suffixes or "\0")]
    try:
        return bool(asked) and any(reader.recognises(head_of(file)) for reader in asked)
    except ProfileError:
        return False


def _suffixes() -> tuple[str, ...]:
    """Return the endings of files that are read as they are."""
    from bubbleviz.sources.readers import readers

    return tuple(suffix for reader in readers() for suffix in reader.suffixes)


def _in_directory(path: str, also: CompanionFormat | None) -> list[str]:
    inside = [str(own) for own in Path(path).iterdir() if own.is_file()]
    others = [own for own in inside if also is not None and also.recognises(own)]
    files = [*profiles_among([own for own in inside if own not in others]), *others]
    if files:
        return sorted(files, key=natural_key)
    below = _run_below(path)
    if below is not None:
        return _in_directory(below, also)
    looked_for = ", ".join(f"*{suffix}" for suffix in (*_suffixes(), *SUFFIXES))
    neither = "no profile" if also is None else f"neither {also.name} nor a profile"
    raise InputError(
        f"{path}: the directory holds {neither} (looked for {looked_for}); "
        "export with: nsys export --type sqlite REPORT.nsys-rep"
    )


def _run_below(path: str) -> str | None:
    """Return the folder of a run's profiles within a directory that a tool logs to; None for none.

    Raises:
        InputError: there are several.
    """
    from bubbleviz.sources.readers import readers

    known = dict.fromkeys(reader.folder for reader in readers() if reader.folder)
    folders = [Path(path, own) for own in known]
    runs = sorted(str(p) for own in folders if own.is_dir() for p in own.iterdir() if p.is_dir())
    if len(runs) > 1:
        raise InputError(
            f"{path}: holds {len(runs)} runs of the profiler; name one, such as {runs[-1]}"
        )
    return runs[0] if runs else None


def _matches(pattern: str) -> list[str]:
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - takes absolute patterns too
    files = [p for p in found if Path(p).is_file()]
    if not files:
        raise InputError(f"{pattern}: no file matches this pattern; check the directory and name")
    return sorted(files, key=natural_key)
