"""Paths to profiles: files, directories and patterns, in natural order."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.errors import InputError, MismatchError
from bubbleviz.ordering import natural_key
from bubbleviz.raw_reports import SUFFIXES

#: The same run of XLA's profiler: what it records, and what is made of that.
_PLANES, _TRACES = ".xplane.pb", (".trace.json.gz", ".trace.json")
#: Where JAX and TensorBoard put profiles, below the directory they are told.
_LOGGED = ("plugins", "profile")


@dataclass(frozen=True)
class Found:
    """A file to read; ``named`` on the command line, or found in a directory."""

    path: str
    named: bool


@dataclass(frozen=True)
class Beside:
    """Files that count beside profiles.

    Attributes:
        name: what one is called.
        recognises: whether the file of a path is one; it may raise a BubblevizError.
    """

    name: str
    recognises: Callable[[str], bool]


def find_profiles(paths: Sequence[str], also: Beside | None = None) -> tuple[Found, ...]:
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
    found: list[Found] = []
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


def _stands_for(path: str, also: Beside | None) -> list[Found]:
    """Return the files of one path; an OSError is the file system's."""
    if not path:
        raise InputError("a path is empty; name a .sqlite file or a directory")
    if Path(path).is_dir():
        return [Found(file, named=False) for file in _in_directory(path, also)]
    if Path(path).exists():
        if not Path(path).is_file():
            raise InputError(f"{path}: neither a file nor a directory; name a profile")
        return [Found(path, named=True)]
    if glob.has_magic(path):
        return [Found(file, named=True) for file in _matches(path)]
    raise InputError(f"{path}: no such file or directory; check the path")


def _in_directory(path: str, also: Beside | None) -> list[str]:
    from bubbleviz.readers import readers

    suffixes = tuple(suffix for reader in readers() for suffix in reader.suffixes)
    inside = [str(p) for p in Path(path).iterdir() if p.is_file()]
    others = [p for p in inside if also is not None and also.recognises(p)]
    profiles = sorted({*inside} - {*others})
    files = [p for p in profiles if p.endswith(suffixes) and not _told_better(p, inside)]
    # A report that was exported already counts once.
    stems = {str(Path(p).with_suffix("")) for p in files}
    files += [
        p for p in profiles if p.endswith(SUFFIXES) and str(Path(p).with_suffix("")) not in stems
    ]
    files += others
    if not files and (below := _of_jax(path)):
        return _in_directory(below, also)
    if not files:
        looked_for = ", ".join(f"*{suffix}" for suffix in (*suffixes, *SUFFIXES))
        neither = "no profile" if also is None else f"neither {also.name} nor a profile"
        raise InputError(
            f"{path}: the directory holds {neither} (looked for {looked_for}); "
            "export with: nsys export --type sqlite REPORT.nsys-rep"
        )
    return sorted(files, key=natural_key)


def _told_better(file: str, beside: Sequence[str]) -> bool:
    """Tell whether a trace of XLA lies beside the planes that it was made of."""
    stem = next((file[: -len(s)] for s in _TRACES if file.endswith(s)), None)
    return stem is not None and f"{stem}{_PLANES}" in beside


def _of_jax(path: str) -> str | None:
    """Return the folder of profiles within a directory that JAX or TensorBoard logs to.

    Raises:
        InputError: there are several.
    """
    folder = Path(path, *_LOGGED)
    runs = sorted((str(p) for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else ())
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
