"""Recordings of a run: the profiles that paths stand for, each found once, and all recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bubbleviz.errors import MismatchError, ProfileError
from bubbleviz.interpret.fleet.fleet import Fleet
from bubbleviz.interpret.fleet.glances import Glance
from bubbleviz.interpret.gathered import GatheredRecordings, Part, taken_over
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_host, note_paths
from bubbleviz.progress import Progress
from bubbleviz.sources.directories import unreadable_profile
from bubbleviz.sources.paths import InputFile
from bubbleviz.timing import add

#: So many neighbouring files are gathered as soon as they are read.
_BLOCK = 64


def refuse_same_content(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Return the bytes of each file that can be read; refuse files of the same content.

    Raises:
        MismatchError: two files have the same content.
    """
    alike: dict[Glance, list[str]] = {}
    for path, seen in zip(files, fleet.glances(files), strict=True):
        # Empty files are alike, and each is refused by whoever reads it.
        if isinstance(seen, Glance) and seen.size:
            alike.setdefault(seen, []).append(path)
    candidates = [path for same in alike.values() if len(same) > 1 for path in same]
    known: dict[bytes, str] = {}
    for path, digest in zip(candidates, fleet.digests(candidates), strict=True):
        if isinstance(digest, bytes):
            if digest in known:
                raise MismatchError(
                    f"{known[digest]} and {path}: the same profile twice; give each profile once"
                )
            known[digest] = path
    return {path: seen.size for seen, same in alike.items() for path in same}


def record_all(
    fleet: Fleet, files: Sequence[InputFile], options: ReadOptions, progress: Progress
) -> tuple[GatheredRecordings, tuple[Limitation, ...]]:
    """Return the recordings, one a clock, and limitations for files that cannot be read.

    Args:
        fleet: where the files are read.
        files: named, or found in directories.
        options: how to read them.
        progress: takes how much of each file has been read.

    Raises:
        ProfileError: a file that was named cannot be read, or none of the others can; of several
            such files it is the first.
    """
    done: set[int] = set()
    errors: dict[int, ProfileError] = {}
    parts: dict[int, list[Part]] = {}
    for read in fleet.record([file.path for file in files], options, progress):
        for number, outcome in zip(read.numbers, read.outcomes, strict=True):
            if isinstance(outcome, ProfileError):
                errors[number] = outcome
            else:
                add(outcome)
        for part in read.recordings:
            _note_names(part)
        parts[read.numbers[0]] = list(read.recordings)
        done.update(read.numbers)
        _gather_block(read.numbers[0] // _BLOCK * _BLOCK, parts, done)
        bad = [number for number in errors if files[number].named and fleet.strict]
        if bad and all(before in done for before in range(min(bad))):
            raise errors[min(bad)]
    ordered = [part for number in sorted(parts) for part in parts.pop(number)]
    if not ordered:
        raise errors[0]
    limitations = (unreadable_profile(str(errors[number])) for number in sorted(errors))
    return taken_over(ordered), tuple(limitations)


def _gather_block(first: int, parts: dict[int, list[Part]], done: set[int]) -> None:
    """Gather recordings of neighbouring files once all of them are read: many small ones take more.

    Args:
        first: number of the first of these files.
        parts: recordings by the number of their first file.
        done: the files that are read.
    """
    numbers = range(first, first + _BLOCK)
    some = [part for number in numbers for part in parts.get(number, ())]
    if len(some) > 1 and done.issuperset(numbers):
        for number in numbers:
            parts.pop(number, None)
        parts[first] = [taken_over(some)]


def _note_names(part: Part) -> None:
    """Note the names of files and hosts in recordings."""
    for recording in part.recordings if isinstance(part, GatheredRecordings) else (part,):
        note_paths([recording.source.path])
        for host in _hosts(recording):
            note_host(host)


def _hosts(recording: Recording) -> Iterator[str]:
    """Yield the names of hosts in a recording, and of clocks, which are mostly those of hosts."""
    if recording.source.clock is None:
        yield recording.source.host
    for told in (rank.told for rank in recording.ranks):
        if told is not None and told.host is not None:
            yield told.host
        if told is not None and told.clock is not None:
            yield told.clock.name
