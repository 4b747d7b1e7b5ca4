"""Recordings of a run: the profiles that paths stand for, each found once, and all recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bubbleviz.errors import MismatchError, ProfileError
from bubbleviz.interpret.fleet.fleet import Fleet
from bubbleviz.interpret.fleet.glances import Glance
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recording
from bubbleviz.interpret.tables.clocks import by_clock
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_host, note_paths
from bubbleviz.progress import Progress
from bubbleviz.sources.directories import unreadable_profile
from bubbleviz.sources.paths import InputFile
from bubbleviz.timing import add


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
) -> tuple[list[Recording], tuple[Limitation, ...]]:
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
    outcomes: dict[int, Recording | ProfileError] = {}
    bad: dict[int, ProfileError] = {}
    for number, outcome in fleet.record([file.path for file in files], options, progress):
        if isinstance(outcome, ProfileError):
            outcomes[number] = outcome
            if files[number].named and fleet.strict:
                bad[number] = outcome
        else:
            add(outcome.steps)
            note_paths([outcome.recording.source.path])
            for host in _hosts(outcome.recording):
                note_host(host)
            outcomes[number] = outcome.recording
        first = min(bad, default=len(files))
        if bad and all(before in outcomes for before in range(first)):
            raise bad[first]
    ordered = [outcomes[number] for number in range(len(files))]
    recordings = [outcome for outcome in ordered if isinstance(outcome, Recording)]
    errors = [outcome for outcome in ordered if isinstance(outcome, ProfileError)]
    if not recordings:
        raise errors[0]
    recordings = [part for recording in recordings for part in by_clock(recording)]
    return recordings, tuple(unreadable_profile(str(error)) for error in errors)


def _hosts(recording: Recording) -> Iterator[str]:
    """Yield the names of hosts in a recording, and of clocks, which are mostly those of hosts."""
    if recording.source.clock is None:
        yield recording.source.host
    for told in (rank.told for rank in recording.ranks):
        if told is not None and told.host is not None:
            yield told.host
        if told is not None and told.clock is not None:
            yield told.clock.name
