"""Record: one profile from its file to its operations. What one process, or one machine, does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.collective_operations import OPERATION_GLOBS
from bubbleviz.conventions.convention import Convention, globs_of
from bubbleviz.conventions.convention_file import built_in, extended_kinds
from bubbleviz.conventions.range_names import understand
from bubbleviz.conventions.recognition import recognise, rounds, with_iterations
from bubbleviz.errors import BubblevizError, NothingToAnalyseError
from bubbleviz.interpret.interpretation import interpret
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.operations import Limitation, LimitationKind
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.texts import one_line, shell_word
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.raw_reports import exported
from bubbleviz.sources.readers import OpenFile, reader_of
from bubbleviz.timing import Step, noting, step

#: Characters of a range's name in a refusal, which has room for a few.
_LONGEST_NAME = 40


@frozen
class ReadOptions:
    """How profiles are read.

    Attributes:
        conventions: conventions of range names; empty to recognise them.
        cross_thread: whether a backward may be launched by another thread.
        keep_export: whether exports made of reports stay.
        jobs: how many threads read one file.
    """

    conventions: tuple[Convention, ...] = ()
    cross_thread: bool = True
    keep_export: bool = False
    jobs: int = 1


@frozen
class TimedRecording:
    """The recording of a profile, and the time that its steps took."""

    recording: Recording
    steps: tuple[Step, ...]


def record(
    path: str,
    options: ReadOptions,
    watch: Watch = unwatched,
) -> TimedRecording:
    """Read and interpret one profile; its kernels are dropped when this returns.

    Args:
        path: the profile.
        options: how to read it.
        watch: called with the share of it that has been read.

    Raises:
        ProfileError: it cannot be read, or holds nothing that can be analysed.
    """
    watch(0.0)
    with noting() as steps, export_of(path, keep=options.keep_export) as file:
        recording = _record_export(file, options, watch)
    shown = (replace(s, files=(path,) * len(s.files)) for s in steps)
    return TimedRecording(renamed(recording, file, path), tuple(shown))


def renamed(recording: Recording, path: str, shown: str) -> Recording:
    """Return a recording in which a file goes by another path."""
    if path == shown:
        return recording
    return replace(
        recording,
        source=replace(recording.source, path=shown),
        limitations=renamed_limitations(recording.limitations, path, shown),
    )


def renamed_limitations(
    notes: Iterable[Limitation], path: str, shown: str
) -> tuple[Limitation, ...]:
    """Return limitations of a file that goes by another path."""
    return tuple(replace(note, reason=note.reason.replace(path, shown)) for note in notes)


@contextmanager
def export_of(path: str, *, keep: bool = False) -> Iterator[str]:
    """Yield the export of a profile; errors of a temporary export name its report.

    Raises:
        ProfileError: there is no nsys to export with, or it fails.
        OutputError: the export is to be kept, and a file of that name exists.
    """
    with exported(path, keep=keep) as file:
        try:
            yield file
        except BubblevizError as error:
            if file == path:
                raise
            raise type(error)(str(error).replace(file, path)) from error


@contextmanager
def opened_profile(
    path: str, jobs: int = 1, watch: Watch = unwatched, *, keep_export: bool = False
) -> Iterator[tuple[OpenFile, str]]:
    """Open a profile, exported first if it is a report of nsys.

    Yields:
        The open file, and the path that it is read from, which its limitations name.

    Raises:
        ProfileError: it cannot be read.
        OutputError: the export is to be kept, and a file of that name exists.
    """
    with (
        export_of(path, keep=keep_export) as export,
        reader_of(export).open_file(export, jobs, watch) as file,
    ):
        yield file, export


def _record_export(path: str, options: ReadOptions, watch: Watch) -> Recording:
    """Read and interpret one export.

    Raises:
        NothingToAnalyseError: no range follows a convention that names forward or backward.
    """
    kinds = extended_kinds(options.conventions)
    chosen = tuple(convention for convention in options.conventions if convention.patterns)
    with reader_of(path).open_file(path, options.jobs, watch) as file:
        with step("recognise names"):
            candidates = chosen or recognise(file.sample(globs_of(tuple(built_in().values()))))
        for conventions in (chosen,) if chosen else rounds(candidates):
            last = with_iterations(conventions)
            profile = file.read((*globs_of(last), *OPERATION_GLOBS))
            with step("understand names") as rows:
                names = understand(profile.ranges.names, *last)
                rows.count = len(profile.ranges.names)
            if np.isin(names.phase[profile.ranges.name_id], COUNTED).any():
                return interpret(profile, last, names, kinds, cross_thread=options.cross_thread)
        reasons = [
            note.reason
            for note in profile.limitations
            if note.kind is LimitationKind.WITHOUT_DEVICE
        ]
        why = reasons[0].removeprefix(f"{path}: ") if reasons else ""
        reason = _nothing_named(file, candidates, path, why, given=bool(chosen))
        raise NothingToAnalyseError(f"{path}: {reason}")


def _nothing_named(
    file: OpenFile, candidates: Sequence[Convention], path: str, why: str, *, given: bool
) -> str:
    """Return the reason why nothing can be analysed, and a remedy.

    Args:
        file: the open profile.
        candidates: conventions that were tried.
        path: of the profile.
        why: why the profile can name none, and what to use instead; empty where that is unknown.
        given: whether the user chose these.
    """
    # Most profiles have names that a convention knows.
    from bubbleviz.conventions.draft import suggest
    from bubbleviz.conventions.name_words import folded

    sample = file.sample(("*",))
    shapes = folded(sample, 5)
    idle = why or f"bubbleviz idle {shell_word(path)} breaks down idle time without any"
    if given:
        remedy = f"change the patterns of the convention, or leave it: {idle}"
    elif suggest(sample) is None:
        remedy = (
            "pass your own convention with --convention FILE.toml, or name operations in the "
            f"training script (bubbleviz guide annotate); {idle}"
        )
    else:
        remedy = (
            "pass your own convention with --convention FILE.toml (bubbleviz inspect shows whether "
            f"names give a draft of one); {idle}"
        )
    frequent = ", ".join(f"{one_line(name, _LONGEST_NAME)!r} ({count})" for name, count in shapes)
    names = " or ".join(c.name for c in candidates) or "any built-in convention"
    return (
        f"no range is named as {names} would name forward and backward; the most frequent names "
        f"(# for numbers) are {frequent or 'none at all'}; "
        f"{remedy}"
    )
