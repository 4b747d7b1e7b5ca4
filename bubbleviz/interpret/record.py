"""Record: turns the file of one profile into operations, in one process of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions import convention_file
from bubbleviz.conventions.convention import Convention, collect_globs
from bubbleviz.conventions.kinds import OPERATION_GLOBS, is_nccl
from bubbleviz.conventions.layer_names import count_shapes, get_layer_globs, has_layer_names
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.conventions.recognition import (
    add_iteration_names,
    plan_rounds,
    score_conventions,
    select_conventions,
)
from bubbleviz.errors import BubblevizError, NothingToAnalyseError, ProfileError
from bubbleviz.interpret.interpretation import interpret
from bubbleviz.interpret.recording import Recordings
from bubbleviz.interpret.tables import build_recording, split_by_clock
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import list_missing_passes
from bubbleviz.model.profile import Profile
from bubbleviz.model.texts import quote_for_shell, to_one_line
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.files import export_report
from bubbleviz.sources.readers import OpenFile, OpenOperations, reader_of
from bubbleviz.timing import Step, noting, step

#: Number of rows that are sampled to recognise names, and the number of them that must name a
#: forward or backward. Otherwise the larger sample of a draft is used.
_FEW_ROWS, _ENOUGH = 1 << 12, 1 << 6
#: Maximum number of characters of a range name in an error message.
_LONGEST_NAME = 40
#: Part of the range names that XLA gives to instructions.
_INSTRUCTION = "hlo_op="
#: Files that sampling left open for the next reader, keyed by path. A trace that must be decoded as
#: a whole is then decoded only once.
_KEPT: dict[str, tuple[ExitStack, OpenFile]] = {}

#: End of the command that an error message suggests if a draft works.
_WITH_DRAFT = "--convention mine.toml"
_MOST_GIVEN = 400


def nothing_drafted(_: OpenFile, __: Mapping[str, int]) -> bool:
    """Draft nothing."""
    return False


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading profiles.

    Attributes:
        conventions: Conventions of range names; empty to recognise them.
        cross_thread: Whether a backward may be launched by another thread.
        keep_export: Whether exports made from reports are kept.
        jobs: Number of threads that read one file.
        drafted: Function that returns whether a drafted convention works on an open profile, given
            its sampled names and how often they occur. It must belong to a module, because the
            options are pickled.
        memory: Whether memory events are read.
        given: Paths of the run, quoted for a shell; empty to use the path of each profile.
    """

    conventions: tuple[Convention, ...] = ()
    cross_thread: bool = True
    keep_export: bool = False
    jobs: int = 1
    drafted: Callable[[OpenFile, Mapping[str, int]], bool] = nothing_drafted
    memory: bool = False
    given: str = ""


def record(
    path: str, options: ReadOptions, watch: Watch = unwatched
) -> tuple[Recordings, tuple[Step, ...]]:
    """Read and interpret one profile. Its kernels are not kept.

    A table of operations on several clocks becomes one recording per clock.

    Args:
        path: Path of the profile.
        options: Options for reading it.
        watch: Called with the fraction of the profile that has been read.

    Returns:
        The recording of the profile, and the time that each step took.

    Raises:
        ProfileError: The profile cannot be read, or contains nothing that can be analysed.
    """
    watch(0.0)
    with noting() as steps, export_of(path, keep=options.keep_export) as file:
        recordings = _record_export(file, options, watch)
    shown = (replace(s, files=(path,) * len(s.files)) for s in steps)
    return renamed(recordings, file, path), tuple(shown)


def renamed(read: Recordings, path: str, shown: str) -> Recordings:
    """Return recordings that name a file by another path."""
    if path == shown:
        return read
    recordings = (
        replace(
            recording,
            source=replace(recording.source, path=shown),
            limitations=renamed_limitations(recording.limitations, path, shown),
        )
        for recording in read.recordings
    )
    return replace(read, recordings=tuple(recordings))


def renamed_limitations(
    notes: Iterable[Limitation], path: str, shown: str
) -> tuple[Limitation, ...]:
    """Return limitations that name a file by another path."""
    return tuple(replace(note, reason=note.reason.replace(path, shown)) for note in notes)


@contextmanager
def export_of(path: str, *, keep: bool = False) -> Iterator[str]:
    """Yield the export of a profile; errors of a temporary export name its report.

    Raises:
        ProfileError: nsys is not installed, or the export fails.
        OutputError: The export is to be kept, but a file of that name exists.
    """
    with export_report(path, keep=keep) as file:
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
        The open file, and the path that it is read from. Limitations contain this path.

    Raises:
        ProfileError: The profile cannot be read.
        OutputError: The export is to be kept, but a file of that name exists.
    """
    with export_of(path, keep=keep_export) as export, opened_file(export, jobs, watch) as file:
        yield file, export


@contextmanager
def opened_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[OpenFile]:
    """Open a file, or return the one that :func:`sampled_names` left open.

    Raises:
        ProfileError: No reader knows the file, or it cannot be read.
    """
    kept = _KEPT.pop(path, None)
    if kept is not None:
        with kept[0]:
            yield kept[1]
        return
    with reader_of(path).open_file(path, jobs, watch) as file:
        yield file


def sampled_names(path: str, globs: Sequence[str], watch: Watch = unwatched) -> Mapping[str, int]:
    """Count the names in a sample of a file's ranges; see :class:`OpenFile`.

    Raises:
        ProfileError: No reader knows the file, or it cannot be read.
    """
    reader = reader_of(path)
    with ExitStack() as stack:
        file = stack.enter_context(reader.open_file(path, 1, watch))
        names = file.sample(globs)
        if reader.decoded_whole:
            forget()
            _KEPT[path] = stack.pop_all(), file
    return names


def forget() -> None:
    """Close files that were left open and not used since."""
    while _KEPT:
        _KEPT.popitem()[1][0].close()


class _NothingNamedError(NothingToAnalyseError):
    """No range names forward or backward; the message says which commands to use instead."""


def _record_export(path: str, options: ReadOptions, watch: Watch) -> Recordings:
    """Read and interpret one export.

    Raises:
        NothingToAnalyseError: No range name follows a convention for forward and backward.
    """
    with opened_file(path, options.jobs, watch) as file:
        if isinstance(file, OpenOperations):
            return split_by_clock(build_recording(file.operations()))
        try:
            return _interpret_file(file, path, options)
        except _NothingNamedError:
            raise
        except NothingToAnalyseError as error:
            others = _suggest_commands(file, path)
            raise NothingToAnalyseError(f"{error}; {others}") from error


def _interpret_file(file: OpenFile, path: str, options: ReadOptions) -> Recordings:
    """Read and interpret an open file; see :func:`_record_export`."""
    chosen = tuple(convention for convention in options.conventions if convention.patterns)
    with step("recognise names"):
        known = chosen or tuple(convention_file.built_in().values())
        sampled = file.sample((*collect_globs(known), *get_layer_globs()), _FEW_ROWS)
        candidates = chosen or _recognise_conventions(file, known, sampled)
        # Most profiles have no ranges of layers.
        layers = has_layer_names(sampled)
    further = (*OPERATION_GLOBS, *(get_layer_globs() if layers else ()))
    for conventions in (chosen,) if chosen else plan_rounds(candidates):
        last = add_iteration_names(conventions)
        profile = file.read((*collect_globs(last), *further))
        with step("understand names") as rows:
            names = parse_range_names(profile.ranges.names, *last)
            rows.count = len(profile.ranges.names)
        lacking = list_missing_passes(names.phase[find_distinct(profile.ranges.name_id)].tolist())
        if len(lacking) == 1 and not chosen and options.drafted(file, file.sample(("*",))):
            # One pass alone gives no ratio of training, and a draft names both.
            break
        if len(lacking) < 2:
            kinds = convention_file.collect_kinds((*options.conventions, *last))
            return interpret(
                profile,
                last,
                names,
                kinds,
                cross_thread=options.cross_thread,
                layers=layers,
                memory=options.memory,
            )
    reasons = [
        note.reason for note in profile.limitations if note.kind is LimitationKind.WITHOUT_DEVICE
    ]
    why = reasons[0].removeprefix(f"{path}: ") if reasons else ""
    tried = " or ".join(c.name for c in candidates) or "any built-in convention"
    reason = _explain_missing_names(file, tried, path, why, options, lacking)
    raise _NothingNamedError(f"{path}: {reason}")


def _recognise_conventions(
    file: OpenFile, known: Sequence[Convention], names: Mapping[str, int]
) -> tuple[Convention, ...]:
    """Return the conventions that range names follow.

    A small sample is enough if most of its ranges are operations.

    Args:
        file: The open file.
        known: Conventions to choose from.
        names: Number of occurrences of each name in the small sample.
    """
    scores = score_conventions(names, known)
    if max(score.complete for score in scores) < _ENOUGH:
        scores = score_conventions(file.sample(collect_globs(known)), known)
    return select_conventions(scores)


def _suggest_commands(file: OpenFile, path: str) -> str:
    """Return a clause that suggests commands for a profile without operations.

    An error message must suggest a command, but none that refuses the same profile. If the profile
    has no work, ``inspect`` may show what went wrong.
    """
    work = work_in(file)
    # Without work, no command needs the names.
    names = () if work is None else file.sample((f"*{_INSTRUCTION}*",))
    others = other_commands(work, path, names)
    return others or f"bubbleviz inspect {quote_for_shell(path)} shows what it holds"


def work_in(file: OpenFile) -> Profile | None:
    """Return the profile of an open file without its ranges, or None if it has no work."""
    try:
        return file.read((), partial=True)
    except ProfileError:
        return None


def other_commands(profile: Profile | None, path: str, names: Iterable[str] = ()) -> str:
    """Return a clause that suggests commands that need no operations, or "" if none works.

    Args:
        profile: The profile with its work, or None without any.
        path: Path to use in the commands.
        names: Names of its ranges.
    """
    if profile is None:
        return ""
    activities, file = profile.activities, quote_for_shell(path)
    working = activities.end_ns > activities.start_ns
    if not working.any() or np.bincount(activities.rank[working]).max() < 2:
        # Between the start of the first and the end of the last there is no idle time.
        return ""
    clauses = [f"bubbleviz idle {file} breaks down idle time"]
    used = find_distinct(activities.name_id[: activities.kernels]).tolist()
    kernels = [activities.names[number] for number in used]
    if any(map(is_nccl, kernels)):
        clauses.append(f"bubbleviz nccl {file} shows what NCCL did")
    if any(_INSTRUCTION in name for name in names):
        clauses.append(f"bubbleviz pgle {file} measures each instruction of XLA")
    *first, last = clauses
    return f"{', '.join(first)}, and {last}" if first else last


def _explain_missing_names(
    file: OpenFile, known: str, path: str, why: str, options: ReadOptions, lacking: Sequence[str]
) -> str:
    """Return the reason why nothing can be analysed, and a remedy.

    Args:
        file: The open profile.
        known: Names of the conventions that were tried.
        path: Path of the profile.
        why: Reason why the profile contains no such names, or "" if unknown.
        options: Options for reading the profile.
        lacking: Those of forward and backward that no range names.
    """
    sample = file.sample(("*",))
    shapes = count_shapes(sample, 5)
    has_next_step = False
    if why:
        remedy = why
    elif any(convention.patterns for convention in options.conventions):
        remedy = "change the patterns of the convention, or leave it out"
    elif len(lacking) == 1 or options.drafted(file, sample):
        # A long message is cut, and a command with many paths would be cut with it.
        given = options.given if 0 < len(options.given) <= _MOST_GIVEN else quote_for_shell(path)
        remedy = (
            f"draft a convention with bubbleviz inspect {given} -o mine.toml, then run "
            f"bubbleviz analyze {given} {_WITH_DRAFT}"
        )
        has_next_step = True
    else:
        commands = _suggest_commands(file, path)
        remedy = (
            f"{commands}; to measure a pipeline, write a convention and pass it "
            "with --convention FILE.toml (bubbleviz guide conventions), or name operations in the "
            "training script (bubbleviz guide annotate)"
        )
        has_next_step = True
    frequent = ", ".join(
        f"{to_one_line(name, _LONGEST_NAME)!r} ({count})" for name, count in shapes
    )
    seen = f"; the most frequent names (# for numbers) are {frequent}" if frequent else ""
    reason = f"no range names {' and '.join(lacking)} as {known} does; {remedy}{seen}"
    return reason if has_next_step else f"{reason}; {_suggest_commands(file, path)}"
