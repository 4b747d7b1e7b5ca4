"""Reading one profile and turning it into operations, within a single process."""

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
from bubbleviz.errors import BubblevizError, NothingToAnalyzeError, ProfileError
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
from bubbleviz.sources.readers import OpenFile, OpenOperations, find_reader
from bubbleviz.timing import Step, record_steps, time_step

#: Number of rows that are sampled to recognize range names, and the minimum number of complete
#: forwards and backwards among them. With fewer, the larger default sample is used.
_SMALL_SAMPLE, _MIN_OPERATIONS = 1 << 12, 1 << 6
#: Maximum length of a range name in an error message, in characters.
_MAX_NAME_LENGTH = 40
#: Substring of the range names that XLA gives to instructions.
_INSTRUCTION = "hlo_op="
#: Files that :func:`sample_names` left open for :func:`open_file`, keyed by path. A trace that must
#: be decoded completely is thus decoded only once.
_OPEN_FILES: dict[str, tuple[ExitStack, OpenFile]] = {}

#: End of the command that an error message suggests if a drafted convention works.
_WITH_DRAFT = "--convention mine.toml"
_MAX_PATHS_LENGTH = 400


def draft_nothing(_: OpenFile, __: Mapping[str, int], ___: bool) -> bool:
    """Return False. This is the default of ``ReadOptions.has_draft``: no draft is tried."""
    return False


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading profiles.

    Attributes:
        conventions: Conventions for range names. If empty, the built-in conventions are tried.
        cross_thread: Whether backward kernels may be launched from a thread without ranges.
        keep_export: Whether to keep the exports that are made from nsys reports.
        jobs: Number of threads that read one file.
        has_draft: Function that returns whether a drafted convention works for a profile. Its
            arguments are the open profile, how often each sampled name occurs, and whether a draft
            without backwards is sufficient. It must be a module-level function, because the options
            are pickled.
        memory: Whether to read memory events.
        run_paths: Paths of the run, quoted for a shell, to use in suggested commands. If empty, the
            path of each profile is used.
    """

    conventions: tuple[Convention, ...] = ()
    cross_thread: bool = True
    keep_export: bool = False
    jobs: int = 1
    has_draft: Callable[[OpenFile, Mapping[str, int], bool], bool] = draft_nothing
    memory: bool = False
    run_paths: str = ""


def record(
    path: str, options: ReadOptions, watch: Watch = unwatched
) -> tuple[Recordings, tuple[Step, ...]]:
    """Read and interpret one profile. The kernels are not kept in memory.

    A table of operations with several clocks becomes one recording per clock.

    Args:
        path: Path of the profile.
        options: Options for reading it.
        watch: Callback that is notified of the fraction of the profile that has been read.

    Returns:
        recordings: The recordings of the profile.
        steps: The steps of reading the profile, with the time that each took.

    Raises:
        ProfileError: The profile cannot be read, or contains nothing that can be analyzed.
    """
    watch(0.0)
    with record_steps() as steps, export_of(path, keep=options.keep_export) as file:
        recordings = _record_export(file, options, watch)
    renamed_steps = (replace(s, files=(path,) * len(s.files)) for s in steps)
    return rename_path(recordings, file, path), tuple(renamed_steps)


def rename_path(read: Recordings, path: str, new_path: str) -> Recordings:
    """Replace the path of a file in the sources and limitations of recordings.

    Args:
        read: The recordings of the file.
        path: Path to replace.
        new_path: Path to use instead.
    """
    if path == new_path:
        return read
    recordings = (
        replace(
            recording,
            source=replace(recording.source, path=new_path),
            limitations=rename_limitations(recording.limitations, path, new_path),
        )
        for recording in read.recordings
    )
    return replace(read, recordings=tuple(recordings))


def rename_limitations(
    notes: Iterable[Limitation], path: str, new_path: str
) -> tuple[Limitation, ...]:
    """Replace every occurrence of a path in the reasons of limitations."""
    return tuple(replace(note, reason=note.reason.replace(path, new_path)) for note in notes)


@contextmanager
def export_of(path: str, *, keep: bool = False) -> Iterator[str]:
    """Export an nsys report, and yield the path of the export.

    A file that is not an nsys report needs no export, so ``path`` itself is yielded. In messages of
    errors raised in the ``with`` block, the path of the export is replaced by the path of the
    report.

    Raises:
        ProfileError: nsys is not installed, or the export fails.
        OutputError: The export is to be kept, but a file with its name already exists.
    """
    with export_report(path, keep=keep) as file:
        try:
            yield file
        except BubblevizError as error:
            if file == path:
                raise
            raise type(error)(str(error).replace(file, path)) from error


@contextmanager
def open_profile(
    path: str, jobs: int = 1, watch: Watch = unwatched, *, keep_export: bool = False
) -> Iterator[tuple[OpenFile, str]]:
    """Open a profile. An nsys report is exported first.

    Yields:
        file: The open file.
        path: Path from which the file is read. Limitations contain this path.

    Raises:
        ProfileError: The profile cannot be read.
        OutputError: The export is to be kept, but a file with its name already exists.
    """
    with export_of(path, keep=keep_export) as export, open_file(export, jobs, watch) as file:
        yield file, export


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[OpenFile]:
    """Open a file, or use the file that :func:`sample_names` left open.

    Raises:
        ProfileError: No reader supports the file, or the file cannot be read.
    """
    open_entry = _OPEN_FILES.pop(path, None)
    if open_entry is not None:
        with open_entry[0]:
            yield open_entry[1]
        return
    with find_reader(path).open_file(path, jobs, watch) as file:
        yield file


def sample_names(path: str, globs: Sequence[str], watch: Watch = unwatched) -> Mapping[str, int]:
    """Count how often each name occurs in a sample of a file's ranges.

    If the reader must decode the file completely, the file is left open for :func:`open_file`.

    Raises:
        ProfileError: No reader supports the file, or the file cannot be read.
    """
    reader = find_reader(path)
    with ExitStack() as stack:
        file = stack.enter_context(reader.open_file(path, 1, watch))
        names = file.sample(globs)
        if reader.is_decoded_at_once:
            close_open_files()
            _OPEN_FILES[path] = stack.pop_all(), file
    return names


def close_open_files() -> None:
    """Close the files that :func:`sample_names` left open and that were not used again."""
    while _OPEN_FILES:
        _OPEN_FILES.popitem()[1][0].close()


class _NothingNamedError(NothingToAnalyzeError):
    """No range name denotes a forward or backward; the message suggests commands to use instead."""


def _record_export(path: str, options: ReadOptions, watch: Watch) -> Recordings:
    """Read and interpret one exported file.

    A table of operations becomes one recording per clock. If nothing can be analyzed, the error
    suggests other commands that can read the profile.

    Raises:
        NothingToAnalyzeError: No range name denotes a forward or backward, or the times of all
            kernels are invalid.
    """
    with open_file(path, options.jobs, watch) as file:
        if isinstance(file, OpenOperations):
            return split_by_clock(build_recording(file.operations()))
        try:
            return _interpret_file(file, path, options)
        except _NothingNamedError:
            raise
        except NothingToAnalyzeError as error:
            suggestion = _suggest_commands(file, path)
            raise NothingToAnalyzeError(f"{error}; {suggestion}") from error


def _interpret_file(file: OpenFile, path: str, options: ReadOptions) -> Recordings:
    """Read and interpret an open file, with the conventions that its range names follow.

    If the user gave conventions with patterns, those conventions are used. Otherwise, the
    conventions that match a sample of the names are tried in rounds. The first round that
    recognizes a forward or a backward is used. The file is refused if this round recognizes only
    one of the two passes but a drafted convention works.

    Raises:
        NothingToAnalyzeError: No convention recognizes a forward or backward, or the times of all
            kernels are invalid.
        ProfileError: The file cannot be read, or it contains two runs of the same ranks.
    """
    requested = tuple(convention for convention in options.conventions if convention.patterns)
    with time_step("recognize names"):
        candidates, layers = _choose_conventions(file, requested)
    further = (*OPERATION_GLOBS, *(get_layer_globs() if layers else ()))
    for conventions in (requested,) if requested else plan_rounds(candidates):
        last = add_iteration_names(conventions)
        profile = file.read((*collect_globs(last), *further))
        with time_step("understand names") as rows:
            names = parse_range_names(profile.ranges.names, *last)
            rows.count = len(profile.ranges.names)
        missing_passes = list_missing_passes(
            names.phase[find_distinct(profile.ranges.name_id)].tolist()
        )
        if (
            len(missing_passes) == 1
            and not requested
            and options.has_draft(file, file.sample(("*",)), False)
        ):
            # The convention recognizes only one pass, so no ratio can be computed. A draft
            # recognizes both.
            break
        if len(missing_passes) < 2:
            return interpret(
                profile,
                last,
                names,
                convention_file.collect_kinds((*options.conventions, *last)),
                cross_thread=options.cross_thread,
                layers=layers,
                memory=options.memory,
            )
    tried = " or ".join(c.name for c in candidates) or "any built-in convention"
    reason = _explain_missing_names(
        file, tried, path, _explain_missing_device(profile, path), options, missing_passes
    )
    raise _NothingNamedError(f"{path}: {reason}")


def _explain_missing_device(profile: Profile, path: str) -> str:
    """Return the reason why a profile contains no GPU work, or "" if its limitations state none.

    Args:
        profile: The profile.
        path: Path of the profile. It is removed from the start of the reason.
    """
    reasons = [
        note.reason for note in profile.limitations if note.kind is LimitationKind.WITHOUT_DEVICE
    ]
    return reasons[0].removeprefix(f"{path}: ") if reasons else ""


def _choose_conventions(
    file: OpenFile, requested: tuple[Convention, ...]
) -> tuple[tuple[Convention, ...], bool]:
    """Choose the conventions for reading a file, based on a sample of its range names.

    Args:
        file: The open file.
        requested: Conventions to use. If empty, the built-in conventions that match are chosen.

    Returns:
        conventions: The conventions.
        has_layers: Whether the sample contains layer ranges. Few profiles do.
    """
    available = requested or tuple(convention_file.built_in().values())
    sampled = file.sample((*collect_globs(available), *get_layer_globs()), _SMALL_SAMPLE)
    chosen = requested or _recognize_conventions(file, available, sampled)
    return chosen, has_layer_names(sampled)


def _recognize_conventions(
    file: OpenFile, conventions: Sequence[Convention], names: Mapping[str, int]
) -> tuple[Convention, ...]:
    """Return the conventions that the range names of a file follow.

    The small sample suffices if any convention recognizes at least ``_MIN_OPERATIONS`` complete
    forwards and backwards in it. Otherwise, a larger sample is read.

    Args:
        file: The open file.
        conventions: Conventions to choose from.
        names: How often each name occurs in the small sample.
    """
    scores = score_conventions(names, conventions)
    if max(score.complete for score in scores) < _MIN_OPERATIONS:
        scores = score_conventions(file.sample(collect_globs(conventions)), conventions)
    return select_conventions(scores)


def _suggest_commands(file: OpenFile, path: str) -> str:
    """Return a clause that suggests commands for a profile without operations.

    Only commands that accept the profile are suggested. If no command accepts it, ``inspect`` is
    suggested, because it may show what went wrong.
    """
    work = get_work(file)
    # If there is no work, no suggested command needs the names.
    names = () if work is None else file.sample((f"*{_INSTRUCTION}*",))
    commands = suggest_other_commands(work, path, names)
    return commands or f"bubbleviz inspect {quote_for_shell(path)} shows its contents"


def get_work(file: OpenFile) -> Profile | None:
    """Read the profile of an open file without its ranges.

    The result is None if the profile contains no work or cannot be read.
    """
    try:
        return file.read((), partial=True)
    except ProfileError:
        return None


def suggest_other_commands(profile: Profile | None, path: str, names: Iterable[str] = ()) -> str:
    """Return a clause suggesting commands that need no operations, or "" if there are none.

    The result is "" unless a device ran at least two kernels or copies with a positive duration.

    Args:
        profile: The profile, or None if it has no work.
        path: Path to use in the commands.
        names: Range names of the profile.
    """
    if profile is None:
        return ""
    activities, file = profile.activities, quote_for_shell(path)
    working = activities.end_ns > activities.start_ns
    if not working.any() or np.bincount(activities.rank[working]).max() < 2:
        # With a single kernel or copy per device, there is no idle time between kernels.
        return ""
    clauses = [f"bubbleviz idle {file} breaks down idle time"]
    used = find_distinct(activities.name_id[: activities.kernels]).tolist()
    kernels = [activities.names[number] for number in used]
    if any(map(is_nccl, kernels)):
        clauses.append(f"bubbleviz nccl {file} shows what NCCL did")
    if any(_INSTRUCTION in name for name in names):
        clauses.append(f"bubbleviz pgle {file} measures each XLA instruction")
    *first, last = clauses
    return f"{', '.join(first)}, and {last}" if first else last


def _explain_missing_names(
    file: OpenFile,
    tried: str,
    path: str,
    explanation: str,
    options: ReadOptions,
    missing_passes: Sequence[str],
) -> str:
    """Return a message explaining why nothing can be analyzed, what to do, and which names exist.

    The first applicable remedy in this list is suggested:

    1. The given ``explanation``.
    2. Changing the convention given by the user.
    3. Drafting a convention, if a draft may work.
    4. Commands that need no operations.

    Args:
        file: The open profile.
        tried: Names of the conventions that were tried.
        path: Path of the profile.
        explanation: Reason why the profile contains no names of forwards or backwards, or "" if
            unknown.
        options: Options for reading the profile.
        missing_passes: The passes (``"forward"``, ``"backward"``) that no range name denotes.
    """
    sample = file.sample(("*",))
    shapes = count_shapes(sample, 5)
    has_next_step = False
    if explanation:
        remedy = explanation
    elif any(convention.patterns for convention in options.conventions):
        remedy = "change the patterns in your convention, or leave it out"
    elif len(missing_passes) == 1 or options.has_draft(file, sample, True):
        # Long messages are truncated, so a command with many paths would be incomplete.
        paths = (
            options.run_paths
            if 0 < len(options.run_paths) <= _MAX_PATHS_LENGTH
            else quote_for_shell(path)
        )
        remedy = (
            f"draft a convention with bubbleviz inspect {paths} -o mine.toml, then run "
            f"bubbleviz analyze {paths} {_WITH_DRAFT}"
        )
        if suggest_other_commands(get_work(file), path):
            remedy = f"if there is no pipeline, run bubbleviz idle instead; otherwise, {remedy}"
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
        f"{to_one_line(name, _MAX_NAME_LENGTH)!r} ({count})" for name, count in shapes
    )
    frequent_names = f"; the most frequent names (# for numbers) are {frequent}" if frequent else ""
    reason = (
        f"no range name is recognized as {' or '.join(missing_passes)} by {tried}; "
        f"{remedy}{frequent_names}"
    )
    return reason if has_next_step else f"{reason}; {_suggest_commands(file, path)}"
