"""Finds the profiles to read, given the user's paths: files, directories and patterns."""

from __future__ import annotations

import errno
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import find_nearest_word, format_count, list_and_count, make_natural_key
from bubbleviz.progress import Progress, Unwatched, Watch
from bubbleviz.sources.foreign_formats import ForeignFormat
from bubbleviz.sources.gzip_files import read_head
from bubbleviz.sources.nsys import files as nsys_files
from bubbleviz.sources.readers import (
    READERS,
    describe_empty_file,
    identify_foreign_file,
    is_own_trace,
    is_recognized,
    list_missing_columns,
)

_NUMBER = re.compile(r"[0-9]+")
_PROFILE_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.(json|pb|sqlite|db)(\.gz)?$")
#: Missing numbers are reported only if there are at least this many numbered files, and if at most
#: this fraction of the numbers is missing.
_MIN_NUMBERED_FILES, _MAX_MISSING_FRACTION = 16, 0.1
#: Name of the trace that JAX writes next to XSpace files if ``create_perfetto_trace=True``.
_PERFETTO_TRACE = "perfetto_trace.json.gz"
#: Maximum number of directory entries that are examined for hints in messages.
_MAX_ENTRIES = 1000


def strip_profile_suffix(name: str) -> str:
    """Return a profile's file name without its suffix, such as ``.sqlite``, for use in labels.

    Args:
        name: File name. A name that consists only of a suffix is returned unchanged.
    """
    return _PROFILE_SUFFIX.sub("", name) or name


@dataclass(frozen=True)
class InputFile:
    """A file to read.

    Attributes:
        path: Path to the file.
        named: Whether the user named the file, directly or through a pattern. False if the user
            named only its directory.
    """

    path: str
    named: bool


#: A format whose files are read together with profiles: a noun for messages, and a test that
#: returns whether a file has the format. The test may raise a BubblevizError.
CompanionFormat: TypeAlias = tuple[str, Callable[[str], bool]]


def find_profiles(
    paths: Sequence[str], also: CompanionFormat | None = None
) -> tuple[InputFile, ...]:
    """Return the files to read for the given files, directories and patterns, in order.

    A directory is replaced with the profiles in it, and a pattern with the matching files. The
    files from a directory or pattern are in natural order (``rank2`` before ``rank10``). If a
    recording consists of several files that are read together, only its first file is returned.

    Args:
        paths: Files, directories and glob patterns.
        also: Format whose files are returned from directories in addition to profiles, or None.

    Raises:
        InputError: A path does not exist, cannot be read, or does not lead to any profile.
        MismatchError: The user named two files that contain the same run in different formats.
    """
    if not paths:
        raise InputError("no profile given; pass one or more profiles or a directory")
    files: list[InputFile] = []
    for path in paths:
        try:
            files.extend(_find_files(path, also))
        except OSError as error:
            remedy = "check the path and its permissions"
            if error.errno == errno.ENAMETOOLONG:
                remedy = "check the spelling, because no file name can be this long"
            raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    # For directories, the better of two formats was already selected, so only check named files.
    for worse, better in _find_superseded([file.path for file in files if file.named]):
        raise MismatchError(
            f"{worse} and {better} contain the same run in two formats; pass only {better}"
        )
    if len(files) > 1:
        by_path = {file.path: file for file in files}
        first_paths = list(by_path)
        # In some formats, the files of a session are read together with its first file.
        for reader in READERS:
            suffixes = (*reader.suffixes, *reader.possible_suffixes)
            if reader.sessions and any(path.endswith(suffixes) for path in first_paths):
                first_paths = list(
                    dict.fromkeys(import_module(reader.sessions).select_first_parts(first_paths))
                )
        if len(first_paths) < len(by_path):
            files = [by_path.get(path, InputFile(path, named=True)) for path in first_paths]
    return tuple(files)


def refuse_duplicates(files: Sequence[str], noun: str = "profile") -> None:
    """Raise an error if a file is given twice, because its contents would be counted twice.

    Args:
        files: Paths of the files.
        noun: Noun for a file, used in the message.

    Raises:
        MismatchError: Two paths resolve to the same file.
    """
    path_of_file: dict[Path, str] = {}
    for path in files:
        resolved = Path(path).resolve()
        if resolved in path_of_file:
            raise MismatchError(
                f"{path_of_file[resolved]} and {path} are the same {noun}; pass each {noun} once"
            )
        path_of_file[resolved] = path


def _find_files(path: str, also: CompanionFormat | None) -> list[InputFile]:
    """Return the files to read for a path given by the user.

    A file is returned unchanged, and so is a columnar export, which is a directory. Any other
    directory is expanded by :func:`_find_in_directory`, and a pattern by :func:`_find_matches`.

    Raises:
        InputError: The path does not exist or does not lead to any profile.
        OSError: The file system cannot read the path.
    """
    if not path:
        raise InputError("a path is empty; pass a profile or a directory")
    if Path(path).is_dir():
        if nsys_files.is_columnar(path):
            return [InputFile(path, named=True)]
        return [InputFile(file, named=False) for file in _find_in_directory(path, also)]
    if Path(path).exists():
        if not Path(path).is_file():
            raise InputError(f"{path}: is neither a file nor a directory; pass a profile")
        if nsys_files.is_table_of_export(path):
            raise InputError(
                f"{path}: is a single table of an nsys export; pass the directory that contains it"
            )
        if not Path(path).stat().st_size:
            raise InputError(f"{path}: {describe_empty_file(path)}")
        return [InputFile(path, named=True)]
    if glob.has_magic(path):
        return [InputFile(file, named=True) for file in _find_matches(path)]
    if Path(path).is_symlink():
        raise InputError(f"{path}: is a link to a file that does not exist; check its target")
    raise _make_missing_error(path)


def _make_missing_error(path: str) -> InputError:
    """Return the error for a nonexistent path. The error suggests a similar name if possible."""
    similar = find_similar_file(path)
    if similar is None:
        return InputError(f"{path}: no such file or directory; check the path")
    return InputError(
        f"{path}: no such file or directory; did you mean {similar}?", paths=[similar]
    )


def find_similar_file(path: str) -> str | None:
    """Find the file in the same directory whose name is most similar to a missing file's name.

    The result is None if no name is similar enough, or if the directory cannot be read. At most
    ``_MAX_ENTRIES`` directory entries are compared.
    """
    folder = Path(path).parent
    try:
        names = sorted(file.name for file in islice(folder.iterdir(), _MAX_ENTRIES))
    except (OSError, ValueError):
        return None
    closest = find_nearest_word(Path(path).name, names)
    return None if closest is None else str(folder / closest)


def _find_superseded(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (file with less data, file with more data) pairs for files that describe the same run.

    The names of the two files differ only in their suffix. See ``superseded_by`` of
    :class:`Reader`.
    """
    replacements = [
        (suffix, better_suffix)
        for reader in READERS
        for suffix in reader.suffixes
        for better_suffix in reader.superseded_by
    ]
    names = set(files)
    for file in files:
        for suffix, other in replacements:
            if (
                file.endswith(suffix)
                and (better_file := file.removesuffix(suffix) + other) in names
            ):
                yield file, better_file


def select_profiles(files: Sequence[str], directories: Sequence[str] = ()) -> list[str]:
    """Select the profiles among the files in a directory, without duplicates in other formats.

    A file is a profile if it has one of the ``suffixes`` of a :class:`Reader`, or if
    :func:`_is_profile` returns True. Reports of nsys are selected as well. If several files contain
    the same run, only one file is selected:

    - the format that contains more data instead of the other format;
    - a file instead of its gzipped copy;
    - an SQLite export instead of a directory of tables;
    - any export instead of the nsys report that was exported.

    If the directory contains recordings of several runs, only the newest run is selected. Traces
    that bubbleviz wrote for trace viewers are left out.

    Args:
        files: Files in one directory.
        directories: Subdirectories of the same directory that are profiles themselves.
    """
    names = set(files)
    repeated = {file for file, _ in _find_superseded(files)}
    repeated |= {file for file in files if file.endswith(".gz") and file[:-3] in names}
    if any(file.endswith(".xplane.pb") for file in files):
        repeated |= {file for file in files if Path(file).name == _PERFETTO_TRACE}
    suffixes = tuple(suffix for reader in READERS for suffix in reader.suffixes)
    profiles = [
        file
        for file in files
        if file.endswith(suffixes)
        and file not in repeated
        and not (file.endswith(".trace.json") and _check_head(file, is_own_trace))
    ]
    profiles += [file for file in files if file not in profiles and _is_profile(file)]
    for reader in READERS:
        if reader.sessions and any(file.endswith(reader.suffixes) for file in profiles):
            profiles = import_module(reader.sessions).select_newest_run(profiles)
    # A report counts once, even if it was exported in several formats.
    stems = {str(Path(file).with_suffix("")) for file in profiles}
    for directory in sorted(directories, key=lambda name: not name.endswith(nsys_files.ENDINGS[0])):
        stem = nsys_files.find_report_stem(directory)
        if stem not in stems:
            stems.add(stem)
            profiles.append(directory)
    reports = [file for file in files if file.endswith(nsys_files.REPORT_SUFFIXES)]
    return [*profiles, *(r for r in reports if str(Path(r).with_suffix("")) not in stems)]


def _select_tables(files: Sequence[str]) -> list[str]:
    """Select the operation tables among the files in a directory.

    A file is selected if it has a table suffix and is recognized as a table. An unrecognized file
    with a table suffix is probably damaged if its name differs from a recognized table's name only
    in numbers. Damaged files are selected too, so that their reader reports the damage.

    Args:
        files: Files in one directory.
    """
    tabular = [reader for reader in READERS if reader.table_suffixes]
    endings = tuple(suffix for reader in tabular for suffix in reader.table_suffixes)
    candidates = [file for file in files if file.lower().endswith(endings)]
    tables = {
        file
        for file in candidates
        if _check_head(file, lambda head: any(reader.recognizes(head) for reader in tabular))
    }
    name_patterns = {_NUMBER.sub("#", Path(file).name) for file in tables}
    numbered_patterns = {name for name in name_patterns if "#" in name}
    return [
        file
        for file in candidates
        if file in tables or _NUMBER.sub("#", Path(file).name) in numbered_patterns
    ]


def _check_head(file: str, test: Callable[[bytes], bool]) -> bool:
    """Return whether a file's first bytes pass a test, or False if the file cannot be read."""
    with suppress(ProfileError):
        return test(read_head(file))
    return False


def _is_profile(file: str) -> bool:
    """Return whether a reader with a matching ``possible_suffixes`` entry recognizes a file.

    A name that only one format uses is sufficient. Otherwise, the result is False for a file that
    cannot be read.
    """
    if any(fnmatch(Path(file).name, reader.names) for reader in READERS):
        return True
    with suppress(ProfileError):
        return any(
            is_recognized(reader, file)
            for reader in READERS
            if reader.possible_suffixes and file.endswith(reader.possible_suffixes)
        )
    return False


def _find_in_directory(path: str, also: CompanionFormat | None) -> list[str]:
    """Return the files to read in a directory, in natural order.

    The first of the following sets that is not empty is returned:

    - the profiles in the directory, together with files of the format ``also``;
    - the files to read in the only run folder, if there is exactly one (see
      :func:`_list_run_folders`);
    - the profiles in subfolders that a tool created for a run's hosts or ranks;
    - the operation tables in the directory, if there are no run folders.

    Args:
        path: Path to the directory.
        also: Format whose files are returned in addition to profiles, or None.

    Raises:
        InputError: The directory contains several runs, or nothing to read.
        OSError: The directory cannot be read.
    """
    entries = list(Path(path).iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    files = [str(entry) for entry in entries if entry.is_file()]
    companions = [file for file in files if also is not None and also[1](file)]
    profile_files = [file for file in files if file not in companions]
    directories = [str(folder) for folder in folders if nsys_files.is_columnar(str(folder))]
    if selected := [*select_profiles(profile_files, directories), *companions]:
        return sorted(selected, key=make_natural_key)

    runs = _list_run_folders(path)
    if len(runs) == 1:
        return _find_in_directory(runs[0], also)
    # Tables in a folder with profiles were probably derived from the profiles.
    by_folder = _find_by_host(folders) or _find_by_rank([Path(path), *folders])
    if selected := by_folder or _select_tables([] if runs else files):
        return sorted(selected, key=make_natural_key)
    if runs := runs or _find_folders(path):
        n_runs = format_count(len(runs), "run")
        raise InputError(
            f"{path}: contains {n_runs} in subfolders; pass the folder of one run, such as "
            f"{runs[-1]}"
        )
    raise _make_no_profile_error(path, files, also)


def _list_run_folders(path: str) -> list[str]:
    """Return the run folders in a directory, sorted by path.

    Some tools create a folder with a fixed name, which contains one folder per run. The fixed name
    is the ``folder`` of a :class:`Reader`.
    """
    logs = [Path(path, name) for name in {reader.folder for reader in READERS} - {""}]
    folders = [run for log in logs if log.is_dir() for run in log.iterdir() if run.is_dir()]
    return sorted(map(str, folders))


def _find_by_host(folders: Sequence[Path]) -> list[str]:
    """Return the profiles in the folders that a tool created for a run's hosts.

    A file is returned if it has a suffix of a :class:`Reader` whose ``folder_by_host`` is True.

    Args:
        folders: The subfolders to search.
    """
    suffixes = tuple(s for reader in READERS if reader.folder_by_host for s in reader.suffixes)
    files = [str(file) for folder in folders for file in folder.iterdir() if file.is_file()]
    return [file for file in files if file.endswith(suffixes)]


def _find_by_rank(folders: Sequence[Path]) -> list[str]:
    """Return the profiles in the folders that a tool created for a run's ranks.

    A file is returned if a :class:`Reader` with a ``rank_folder`` recognizes it, and if it is in
    such a folder.

    Args:
        folders: The folders to search, one per rank.
    """
    names = {reader.rank_folder for reader in READERS} - {""}
    profile_folders = [folder / name for folder in folders for name in sorted(names)]
    files = [
        str(file)
        for folder in profile_folders
        if folder.is_dir()
        for file in folder.iterdir()
        if file.is_file()
    ]
    return [file for file in files if _is_profile(file)]


def _make_no_profile_error(
    path: str, files: Sequence[str], also: CompanionFormat | None
) -> InputError:
    """Return the error for a directory without profiles.

    If files in the directory or its subfolders have a known format that is not read, the error
    names the format and the next step. Otherwise, the error lists the profile suffixes.

    Args:
        path: Path to the directory.
        files: Files in the directory. If there are JSON files, the error suggests passing them by
            name, because most JSON files are read only if they are named.
        also: Format whose files were also searched for, or None.
    """
    missing = "no profile" if also is None else f"neither {also[0]} nor a profile"
    if found := _describe_foreign_files(path) or _describe_other_tables(files):
        return InputError(f"{path}: the directory contains {missing}; {found}")
    suffixes = [suffix for reader in READERS for suffix in reader.suffixes]
    table_suffixes = [suffix for reader in READERS for suffix in reader.table_suffixes]
    suffixes += [*nsys_files.ENDINGS, *nsys_files.REPORT_SUFFIXES, *table_suffixes]
    names = [reader.names for reader in READERS if reader.names]
    looked_for = ", ".join((*(f"*{suffix}" for suffix in suffixes), *names))
    json_files = sorted((file for file in files if file.endswith(".json")), key=make_natural_key)
    remedy = "export nsys reports with: nsys export --type sqlite REPORT.nsys-rep"
    if json_files:
        remedy = f"if the JSON files are traces, pass them by name, such as {json_files[0]}"
    return InputError(
        f"{path}: the directory contains {missing} (looked for {looked_for}); {remedy}"
    )


def _describe_foreign_files(path: str) -> str:
    """Describe the most frequent known format that is not read, with the next step.

    Args:
        path: Path to a directory. The first ``_MAX_ENTRIES`` entries at any depth are examined.

    Returns:
        A clause that names the first file with this format, or "" if there are no such files.
    """
    entries = islice(Path(path).rglob("*"), _MAX_ENTRIES)
    files = sorted((str(entry) for entry in entries if entry.is_file()), key=make_natural_key)
    by_format: dict[ForeignFormat, list[str]] = {}
    for file in files:
        if (foreign := identify_foreign_file(file)) is not None:
            by_format.setdefault(foreign, []).append(file)
    if not by_format:
        return ""
    foreign = max(by_format, key=lambda each: len(by_format[each]))
    first, *others = by_format[foreign]
    more = f" (like {format_count(len(others), 'other file')})" if others else ""
    return f"{first} is {foreign.name}{more}; {foreign.remedy}"


def _describe_other_tables(files: Sequence[str]) -> str:
    """Explain why the first table in text is not a table of operations, with the next step.

    Returns:
        A clause that names the table and the columns that it lacks, or "" if there is no table.
    """
    suffixes = tuple(suffix for reader in READERS for suffix in reader.table_suffixes)
    tables = (file for file in files if file.lower().endswith(suffixes))
    for file in sorted(tables, key=make_natural_key):
        if missing := list_missing_columns(file):
            return (
                f"{file} is not a table of operations, because it lacks {', '.join(missing)}; "
                "rename its columns as described in bubbleviz guide tables, or pass the profile "
                "from which the table was made"
            )
    return ""


def _find_folders(path: str) -> list[str]:
    """Return a sorted list of the folders, at any depth below a directory, that contain profiles.

    Only the first ``_MAX_ENTRIES`` files and folders are examined.
    """
    files: dict[str, list[str]] = {}
    for entry in islice(Path(path).rglob("*"), _MAX_ENTRIES):
        if entry.is_file():
            files.setdefault(str(entry.parent), []).append(str(entry))
    return sorted(folder for folder, content in files.items() if select_profiles(content))


def _find_matches(pattern: str) -> list[str]:
    """Return the files and columnar exports (directories) that match a pattern, in natural order.

    Individual table files in a columnar export are left out.

    Raises:
        InputError: No file matches the pattern.
    """
    paths = glob.glob(pattern, recursive=True)  # noqa: PTH207 - takes absolute patterns too
    files = [
        path
        for path in paths
        if nsys_files.is_columnar(path)
        or (Path(path).is_file() and not nsys_files.is_table_of_export(path))
    ]
    if not files:
        raise InputError(
            f"{pattern}: no file matches this pattern; check the directory and the name"
        )
    return sorted(files, key=make_natural_key)


T = TypeVar("T")


def read_each(
    files: Sequence[InputFile], read: Callable[[str, Watch], T], progress: Progress | None
) -> tuple[list[T], tuple[Limitation, ...]]:
    """Read every file, skipping unreadable files that the user did not name.

    Args:
        files: Files to read.
        read: Function that reads a file, given its path and a progress callback. The callback
            receives the fraction that has been read.
        progress: Object that is notified of the overall progress, or None.

    Returns:
        contents: Results of ``read``, in the order of the files.
        limitations: One limitation for each file that was skipped.

    Raises:
        ProfileError: A file that the user named cannot be read, or no file can be read.
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
    return contents, tuple(map(make_unreadable_limitation, errors))


def make_unreadable_limitation(error: BubblevizError) -> Limitation:
    """Return the limitation for a file that was found in a directory and cannot be read."""
    kind = LimitationKind.PROFILE_UNREADABLE
    return Limitation(
        "a profile in the directory that cannot be read", str(error), kind=kind, hosts=error.hosts
    )


def find_missing_files(files: Sequence[InputFile]) -> tuple[Limitation, ...]:
    """Return a limitation if numbered file names show that files are missing from a directory.

    Files that the user named are ignored. Missing numbers are reported only if all of the following
    conditions hold:

    - There are at least ``_MIN_NUMBERED_FILES`` files, all in the same directory.
    - The file names differ in a single number.
    - At least one number between the smallest and the largest is missing. The missing numbers are
      at most a fraction ``_MAX_MISSING_FRACTION`` of all numbers in this range.
    """
    files_found = [Path(file.path) for file in files if not file.named]
    names = [re.split(f"({_NUMBER.pattern})", path.name) for path in files_found]
    if (
        len(files_found) < _MIN_NUMBERED_FILES
        or len({(path.parent, len(name)) for path, name in zip(files_found, names, strict=True)})
        > 1
    ):
        return ()
    varying = [texts for texts in zip(*names, strict=True) if len(set(texts)) > 1]
    if len(varying) != 1 or not all(map(_NUMBER.fullmatch, varying[0])):
        return ()
    numbers = set(map(int, varying[0]))
    first, last = min(numbers), max(numbers)
    # If the numbers are process ids or times, most numbers in the range are missing.
    if not 0 < last - first + 1 - len(numbers) <= _MAX_MISSING_FRACTION * (last - first + 1):
        return ()
    absent = [str(number) for number in range(first, last + 1) if number not in numbers]
    reason = (
        f"{files_found[0].parent}: file numbers run from {first} to {last} without "
        f"{list_and_count(absent, 8)}, so the results are incomplete"
    )
    return (Limitation("missing files", reason, len(absent)),)
