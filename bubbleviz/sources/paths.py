"""Paths to profiles: files, directories and patterns, in natural order."""

from __future__ import annotations

import errno
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import find_nearest_word, format_count, list_and_count, make_natural_key
from bubbleviz.progress import Progress, Unwatched, Watch
from bubbleviz.sources.gzip_files import read_head
from bubbleviz.sources.nsys import files as nsys_files
from bubbleviz.sources.readers import READERS, emptiness, is_of, is_own_trace

_NUMBER = re.compile(r"[0-9]+")
_PROFILE_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.(json|pb|sqlite|db)(\.gz)?$")
#: So many files show how they are numbered, if at most this share of the numbers is missing.
_ENOUGH, _SHARE = 16, 0.1
#: What JAX writes beside the planes of a run for Perfetto (create_perfetto_trace=True).
_OF_ALL_PLANES = "perfetto_trace.json.gz"
#: So many names of a directory are looked at for one like a name that is missing.
_MOST_BESIDE = 1000


def strip_profile_suffix(name: str) -> str:
    """Return the name of a profile without its suffix, as labels show it.

    Args:
        name: Name of a file. A name that is only a suffix is returned as it is.
    """
    return _PROFILE_SUFFIX.sub("", name) or name


@dataclass(frozen=True)
class InputFile:
    """A file to read; ``named`` on the command line, or found in a directory."""

    path: str
    named: bool


#: Files that are read beside profiles: what they are called in messages, and whether a path leads
#: to one, which may raise a BubblevizError.
CompanionFormat: TypeAlias = tuple[str, Callable[[str], bool]]


def find_profiles(
    paths: Sequence[str], also: CompanionFormat | None = None
) -> tuple[InputFile, ...]:
    """Return the files that paths stand for, in the order given.

    A directory stands for the profiles in it, a pattern for its matches, both in natural order.

    Args:
        paths: files, directories and patterns.
        also: other files of a directory to take.

    Raises:
        InputError: a path does not exist, cannot be read, or leads to no profile.
        MismatchError: two paths lead to one run in two formats.
    """
    if not paths:
        raise InputError("no profile given; name one or more profiles or a directory")
    files: list[InputFile] = []
    for path in paths:
        try:
            files.extend(_files_of(path, also))
        except OSError as error:
            remedy = "check it and its permissions"
            if error.errno == errno.ENAMETOOLONG:
                remedy = "check its spelling; no file has so long a name"
            raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    # Of a directory one of both was taken, and what companions are called means nothing.
    for less, more in _superseded([file.path for file in files if file.named]):
        raise MismatchError(
            f"{less} and {more}: the same run in two formats; give the latter alone"
        )
    if len(files) > 1:
        by_path = {file.path: file for file in files}
        first = list(by_path)
        # Some files are read with others of them.
        for reader in READERS:
            if reader.sessions and any(path.endswith(reader.suffixes) for path in first):
                first = list(dict.fromkeys(import_module(reader.sessions).first_parts(first)))
        if len(first) < len(by_path):
            files = [by_path.get(path, InputFile(path, named=True)) for path in first]
    return tuple(files)


def refuse_twins(files: Sequence[str], noun: str = "profile") -> None:
    """Refuse a file that is named twice, as its content would count twice.

    Raises:
        MismatchError: two paths lead to the same file.
    """
    seen: dict[Path, str] = {}
    for path in files:
        place = Path(path).resolve()
        if place in seen:
            raise MismatchError(
                f"{seen[place]} and {path}: the same {noun} twice; give each {noun} once"
            )
        seen[place] = path


def _files_of(path: str, also: CompanionFormat | None) -> list[InputFile]:
    """Return the files that one path stands for; an OSError is the file system's."""
    if not path:
        raise InputError("a path is empty; name a .sqlite file or a directory")
    if Path(path).is_dir():
        if nsys_files.is_columnar(path):
            return [InputFile(path, named=True)]
        return [InputFile(file, named=False) for file in _in_directory(path, also)]
    if Path(path).exists():
        if not Path(path).is_file():
            raise InputError(f"{path}: neither a file nor a directory; name a profile")
        if nsys_files.is_table_of_export(path):
            raise InputError(f"{path}: one table of an export of nsys; give its directory")
        if not Path(path).stat().st_size:
            raise InputError(f"{path}: {emptiness(path)}")
        return [InputFile(path, named=True)]
    if glob.has_magic(path):
        return [InputFile(file, named=True) for file in _matches(path)]
    if Path(path).is_symlink():
        raise InputError(f"{path}: a link that leads to no file; check where it points to")
    raise _missing(path)


def _missing(path: str) -> InputError:
    """Return the error for a path that leads nowhere."""
    near = file_near(path)
    if near is None:
        return InputError(f"{path}: no such file or directory; check the path")
    return InputError(f"{path}: no such file or directory; did you mean {near}?", paths=[near])


def file_near(path: str) -> str | None:
    """Return the file in the same directory whose name is closest to a missing file's, or None."""
    folder = Path(path).parent
    try:
        beside = sorted(file.name for file in islice(folder.iterdir(), _MOST_BESIDE))
    except (OSError, ValueError):
        return None
    near = find_nearest_word(Path(path).name, beside)
    return None if near is None else str(folder / near)


def _superseded(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield files beside which another one holds more of the same run, and that one."""
    better = [(s, other) for r in READERS for s in r.suffixes for other in r.superseded_by]
    names = set(files)
    for file in files:
        for suffix, other in better:
            if file.endswith(suffix) and (whole := file.removesuffix(suffix) + other) in names:
                yield file, whole


def profiles_among(files: Sequence[str], directories: Sequence[str] = ()) -> list[str]:
    """Return the files with the endings of profiles, without those that repeat a run.

    Args:
        files: of one directory.
        directories: beside them, each of which is one profile.
    """
    names = set(files)
    repeated = {file for file, _ in _superseded(files)}
    repeated |= {file for file in files if file.endswith(".gz") and file[:-3] in names}
    if any(file.endswith(".xplane.pb") for file in files):
        repeated |= {file for file in files if Path(file).name == _OF_ALL_PLANES}
    suffixes = tuple(suffix for reader in READERS for suffix in reader.suffixes)
    profiles = [
        file
        for file in files
        if file.endswith(suffixes)
        and file not in repeated
        and not (file.endswith(".trace.json") and _begins(file, is_own_trace))
    ]
    profiles += [file for file in files if file not in profiles and _is_profile(file)]
    for reader in READERS:
        if reader.sessions and any(file.endswith(reader.suffixes) for file in profiles):
            profiles = import_module(reader.sessions).newest_run(profiles)
    # A report that was exported already counts once, even if that was in several forms.
    stems = {str(Path(file).with_suffix("")) for file in profiles}
    for directory in sorted(directories, key=lambda name: not name.endswith(nsys_files.ENDINGS[0])):
        stem = nsys_files.find_report_stem(directory)
        if stem not in stems:
            stems.add(stem)
            profiles.append(directory)
    reports = [file for file in files if file.endswith(nsys_files.REPORT_SUFFIXES)]
    return [*profiles, *(r for r in reports if str(Path(r).with_suffix("")) not in stems)]


def _tables_among(files: Sequence[str]) -> list[str]:
    """Return the files with the endings of tables of operations that are such by their beginning.

    Those that are named like one of them, but for numbers, are meant to be tables, too: whoever
    reads them says that they are damaged.

    Args:
        files: of one directory.
    """
    tabular = [reader for reader in READERS if reader.table_suffixes]
    endings = tuple(suffix for reader in tabular for suffix in reader.table_suffixes)
    candidates = [file for file in files if file.lower().endswith(endings)]
    tables = {
        file
        for file in candidates
        if _begins(file, lambda head: any(reader.recognises(head) for reader in tabular))
    }
    named = {_NUMBER.sub("#", Path(file).name) for file in tables}
    numbered = {name for name in named if "#" in name}
    return [
        file
        for file in candidates
        if file in tables or _NUMBER.sub("#", Path(file).name) in numbered
    ]


def _begins(file: str, told: Callable[[bytes], bool]) -> bool:
    """Return what the first bytes of a file tell; false where they cannot be read."""
    with suppress(ProfileError):
        return told(read_head(file))
    return False


def _is_profile(file: str) -> bool:
    """Tell whether a file whose ending allows a profile is one by its first bytes."""
    with suppress(ProfileError):
        return any(
            is_of(reader, file)
            for reader in READERS
            if reader.possible_suffixes and file.endswith(reader.possible_suffixes)
        )
    return False


def _in_directory(path: str, also: CompanionFormat | None) -> list[str]:
    """Return the profiles, and the files beside them, that a directory stands for."""
    entries = list(Path(path).iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    content = [str(entry) for entry in entries if entry.is_file()]
    others = [file for file in content if also is not None and also[1](file)]
    directories = [str(folder) for folder in folders if nsys_files.is_columnar(str(folder))]
    profiles = [file for file in content if file not in others]
    if files := [*profiles_among(profiles, directories), *others]:
        return sorted(files, key=make_natural_key)
    # A tool may log to folders of its own, one for each run.
    logs = [Path(path, name) for name in {reader.folder for reader in READERS} - {""}]
    run_folders = [run for log in logs if log.is_dir() for run in log.iterdir() if run.is_dir()]
    runs = sorted(map(str, run_folders))
    if len(runs) == 1:
        return _in_directory(runs[0], also)
    # Or to a folder for each host, all of one run.
    endings = tuple(suffix for r in READERS if r.folder_by_host for suffix in r.suffixes)
    within = {str(own): [str(f) for f in own.iterdir() if f.is_file()] for own in folders}
    below = [file for files in within.values() for file in files]
    # Beside profiles, tables are mostly what was made of them.
    if files := [file for file in below if file.endswith(endings)] or _tables_among(
        [] if runs else content
    ):
        return sorted(files, key=make_natural_key)
    if runs := runs or _folders_below(path):
        held = format_count(len(runs), "run")
        raise InputError(f"{path}: holds {held} in folders; name one, such as {runs[-1]}")
    suffixes = [suffix for reader in READERS for suffix in reader.suffixes]
    tables = [suffix for reader in READERS for suffix in reader.table_suffixes]
    looked_for = ", ".join(
        f"*{s}" for s in (*suffixes, *nsys_files.ENDINGS, *nsys_files.REPORT_SUFFIXES, *tables)
    )
    neither = "no profile" if also is None else f"neither {also[0]} nor a profile"
    json_files = sorted((file for file in content if file.endswith(".json")), key=make_natural_key)
    remedy = "export reports of nsys with: nsys export --type sqlite REPORT.nsys-rep"
    if json_files:
        # Most of the JSON files in a folder are no traces, so they are only read by name.
        remedy = f"name JSON files themselves if they are traces, such as {json_files[0]}"
    raise InputError(f"{path}: the directory holds {neither} (looked for {looked_for}); {remedy}")


def _folders_below(path: str) -> list[str]:
    """Return the folders in a directory, however deep, that hold profiles; of very many some."""
    below = islice(Path(path).rglob("*"), _MOST_BESIDE)
    files: dict[str, list[str]] = {}
    for entry in below:
        if entry.is_file():
            files.setdefault(str(entry.parent), []).append(str(entry))
    return sorted(folder for folder, own in files.items() if profiles_among(own))


def _matches(pattern: str) -> list[str]:
    paths = glob.glob(pattern, recursive=True)  # noqa: PTH207 - takes absolute patterns too
    files = [
        path
        for path in paths
        if nsys_files.is_columnar(path)
        or (Path(path).is_file() and not nsys_files.is_table_of_export(path))
    ]
    if not files:
        raise InputError(f"{pattern}: no file matches this pattern; check the directory and name")
    return sorted(files, key=make_natural_key)


# Files of a directory, of which some may be no profiles that can be read.


T = TypeVar("T")


def read_each(
    files: Sequence[InputFile], read: Callable[[str, Watch], T], progress: Progress | None
) -> tuple[list[T], tuple[Limitation, ...]]:
    """Return the contents of each file, and limitations for files of directories without any.

    Args:
        files: named, or found in directories.
        read: a file by its path; reports how much of it has been read.
        progress: receives how much of each file has been read.

    Raises:
        ProfileError: a file that was named cannot be read, or none of the others can.
    """
    progress = progress or Unwatched()
    progress.files({file.path: nsys_files.measure_bytes(file.path) for file in files})
    contents: list[T] = []
    errors: list[ProfileError] = []
    for file in files:
        watch = partial(progress.read, file.path)
        try:
            contents.append(read(file.path, watch))
        except ProfileError as error:
            if file.named:
                raise
            errors.append(error)
        finally:
            watch(1.0)
    if errors and not contents:
        raise errors[0]
    return contents, tuple(map(unreadable_profile, errors))


def unreadable_profile(error: BubblevizError) -> Limitation:
    """Return the limitation for a file of a directory that cannot be read."""
    kind = LimitationKind.PROFILE_UNREADABLE
    return Limitation("a profile of the directory", str(error), kind=kind, hosts=error.hosts)


def missing_files(files: Sequence[InputFile]) -> tuple[Limitation, ...]:
    """Return a limitation for files that a directory lacks by the numbers of those found in it.

    That is known where their names differ by one number alone, and few numbers are left out.
    """
    found = [Path(file.path) for file in files if not file.named]
    names = [re.split(f"({_NUMBER.pattern})", path.name) for path in found]
    if (
        len(found) < _ENOUGH
        or len({(path.parent, len(name)) for path, name in zip(found, names, strict=True)}) > 1
    ):
        return ()
    varying = [texts for texts in zip(*names, strict=True) if len(set(texts)) > 1]
    if len(varying) != 1 or not all(map(_NUMBER.fullmatch, varying[0])):
        return ()
    held = set(map(int, varying[0]))
    first, last = min(held), max(held)
    # Of process ids and times most are left out, and there are very many.
    if not 0 < last - first + 1 - len(held) <= _SHARE * (last - first + 1):
        return ()
    absent = [str(number) for number in range(first, last + 1) if number not in held]
    reason = (
        f"{found[0].parent}: lacks {list_and_count(absent, 8)} of the files numbered {first} to "
        f"{last}; what they hold is not in the results"
    )
    return (Limitation("missing files", reason, len(absent)),)
