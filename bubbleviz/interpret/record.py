"""Record: one profile from its file to its operations. What one process, or one machine, does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions import convention_file
from bubbleviz.conventions.convention import Convention, globs_of
from bubbleviz.conventions.kinds import OPERATION_GLOBS, is_nccl
from bubbleviz.conventions.range_names import folded, layer_globs, names_layers, understand
from bubbleviz.errors import BubblevizError, NothingToAnalyseError, ProfileError
from bubbleviz.interpret.interpretation import interpret
from bubbleviz.interpret.recording import Recordings
from bubbleviz.interpret.tables import by_clock, recording_of
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import unnamed
from bubbleviz.model.profile import Profile
from bubbleviz.model.texts import one_line, shell_word
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.files import exported
from bubbleviz.sources.readers import OpenFile, OpenOperations, reader_of
from bubbleviz.timing import Step, noting, step

#: So many rows are looked at to recognise names, if so many of them name a whole forward or
#: backward; else as many as for a draft.
_FEW_ROWS, _ENOUGH = 1 << 12, 1 << 6
#: Characters of a range's name in a refusal, which has room for a few.
_LONGEST_NAME = 40
#: What names of instructions hold, as XLA writes them.
_INSTRUCTION = "hlo_op="
#: Files by path that a look left open for whoever reads them next: a trace that is decoded as a
#: whole is then decoded once.
_KEPT: dict[str, tuple[ExitStack, OpenFile]] = {}

#: How the command ends that a refusal leads to where a draft works; it then needs no other.
_WITH_DRAFT = "--convention mine.toml"
_MOST_GIVEN = 400


def nothing_drafted(_: OpenFile, __: Mapping[str, int]) -> bool:
    """Draft nothing."""
    return False


@dataclass(frozen=True)
class ReadOptions:
    """How profiles are read.

    Attributes:
        conventions: conventions of range names; empty to recognise them.
        cross_thread: whether a backward may be launched by another thread.
        keep_export: whether exports made of reports stay.
        jobs: how many threads read one file.
        drafted: tells whether a drafted convention works on an open profile whose names, and how
            often they occur in a sample of it, none understands; a function of a module, since it
            travels with the options.
        memory: whether memory events are.
        given: the paths of the run as a shell reads them; empty for that of each profile.
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
    """Read and interpret one profile; its kernels are dropped when this returns.

    A table of operations of several clocks becomes a recording of each.

    Args:
        path: the profile.
        options: how to read it.
        watch: called with the share of it that has been read.

    Returns:
        Its recording, and the time that its steps took.

    Raises:
        ProfileError: it cannot be read, or holds nothing that can be analysed.
    """
    watch(0.0)
    with noting() as steps, export_of(path, keep=options.keep_export) as file:
        recordings = _record_export(file, options, watch)
    shown = (replace(s, files=(path,) * len(s.files)) for s in steps)
    return renamed(recordings, file, path), tuple(shown)


def renamed(read: Recordings, path: str, shown: str) -> Recordings:
    """Return recordings in which a file goes by another path."""
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
    with export_of(path, keep=keep_export) as export, opened_file(export, jobs, watch) as file:
        yield file, export


@contextmanager
def opened_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[OpenFile]:
    """Open a file, or take over the one that a look at it left open.

    Raises:
        ProfileError: no reader knows it, or it cannot be read.
    """
    kept = _KEPT.pop(path, None)
    if kept is not None:
        with kept[0]:
            yield kept[1]
        return
    with reader_of(path).open_file(path, jobs, watch) as file:
        yield file


def sampled_names(path: str, globs: Sequence[str], watch: Watch = unwatched) -> Mapping[str, int]:
    """Return how often names occur in a sample of a file's ranges; see :class:`OpenFile`.

    Raises:
        ProfileError: no reader knows the file, or it cannot be read.
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
    """Close what nobody has opened since."""
    while _KEPT:
        _KEPT.popitem()[1][0].close()


class _NothingNamedError(NothingToAnalyseError):
    """No range names forward or backward; the message says which commands to use instead."""


def _record_export(path: str, options: ReadOptions, watch: Watch) -> Recordings:
    """Read and interpret one export.

    Raises:
        NothingToAnalyseError: no range follows a convention that names forward or backward.
    """
    with opened_file(path, options.jobs, watch) as file:
        if isinstance(file, OpenOperations):
            return by_clock(recording_of(file.operations()))
        try:
            return _recorded(file, path, options)
        except _NothingNamedError:
            raise
        except NothingToAnalyseError as error:
            others = _other_commands(file, path)
            raise NothingToAnalyseError(f"{error}; {others}") from error


def _recorded(file: OpenFile, path: str, options: ReadOptions) -> Recordings:
    """Read and interpret an open file; see :func:`_record_export`."""
    chosen = tuple(convention for convention in options.conventions if convention.patterns)
    with step("recognise names"):
        known = chosen or tuple(convention_file.built_in().values())
        sampled = file.sample((*globs_of(known), *layer_globs()), _FEW_ROWS)
        candidates = chosen or _recognised(file, known, sampled)
        # Most profiles have no ranges of layers.
        layers = names_layers(sampled)
    further = (*OPERATION_GLOBS, *(layer_globs() if layers else ()))
    for conventions in (chosen,) if chosen else convention_file.rounds(candidates):
        last = convention_file.with_iterations(conventions)
        profile = file.read((*globs_of(last), *further))
        with step("understand names") as rows:
            names = understand(profile.ranges.names, *last)
            rows.count = len(profile.ranges.names)
        lacking = unnamed(names.phase[distinct(profile.ranges.name_id)].tolist())
        if len(lacking) == 1 and not chosen and options.drafted(file, file.sample(("*",))):
            # One pass alone gives no ratio of training, and a draft names both.
            break
        if len(lacking) < 2:
            kinds = convention_file.extended_kinds((*options.conventions, *last))
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
    reason = _nothing_named(file, tried, path, why, options, lacking)
    raise _NothingNamedError(f"{path}: {reason}")


def _recognised(
    file: OpenFile, known: Sequence[Convention], names: Mapping[str, int]
) -> tuple[Convention, ...]:
    """Return the conventions that names follow: a few rows tell, where most are operations.

    Args:
        file: open.
        known: conventions.
        names: of these rows.
    """
    scores = convention_file.scores_of(names, known)
    if max(score.whole for score in scores) < _ENOUGH:
        scores = convention_file.scores_of(file.sample(globs_of(known)), known)
    return convention_file.recognised(scores)


def _other_commands(file: OpenFile, path: str) -> str:
    """Return a clause on the commands that tell something of a profile without operations.

    A refusal must lead somewhere, and never to a command that refuses the same profile. Where it
    has no work, what it holds may still say what went wrong.
    """
    work = work_in(file)
    # Nothing is known of names without work, so these need not be looked for.
    names = () if work is None else file.sample((f"*{_INSTRUCTION}*",))
    others = other_commands(work, path, names)
    return others or f"bubbleviz inspect {shell_word(path)} shows what it holds"


def work_in(file: OpenFile) -> Profile | None:
    """Return the profile of an open file without its ranges; None where it has no work."""
    try:
        return file.read((), partial=True)
    except ProfileError:
        return None


def other_commands(profile: Profile | None, path: str, names: Iterable[str] = ()) -> str:
    """Return a clause on the commands that need no operations; "" where none has enough.

    Args:
        profile: with its work; None without any.
        path: that it goes by.
        names: of its ranges.
    """
    if profile is None:
        return ""
    activities, file = profile.activities, shell_word(path)
    working = activities.end_ns > activities.start_ns
    if not working.any() or np.bincount(activities.rank[working]).max() < 2:
        # Between the start of the first and the end of the last there is no idle time.
        return ""
    clauses = [f"bubbleviz idle {file} breaks down idle time"]
    used = distinct(activities.name_id[: activities.kernels]).tolist()
    kernels = [activities.names[number] for number in used]
    if any(map(is_nccl, kernels)):
        clauses.append(f"bubbleviz nccl {file} shows what NCCL did")
    if any(_INSTRUCTION in name for name in names):
        clauses.append(f"bubbleviz pgle {file} measures each instruction of XLA")
    *first, last = clauses
    return f"{', '.join(first)}, and {last}" if first else last


def _nothing_named(
    file: OpenFile, known: str, path: str, why: str, options: ReadOptions, lacking: Sequence[str]
) -> str:
    """Return the reason why nothing can be analysed, and a remedy.

    Args:
        file: the open profile.
        known: names of the conventions that were tried.
        path: of the profile.
        why: why the profile can name none; empty where that is unknown.
        options: how the profile is read.
        lacking: which of forward and backward they name nowhere; one alone where a draft does.
    """
    sample = file.sample(("*",))
    shapes = folded(sample, 5)
    has_next_step = False
    if why:
        remedy = why
    elif any(convention.patterns for convention in options.conventions):
        remedy = "change the patterns of the convention, or leave it out"
    elif len(lacking) == 1 or options.drafted(file, sample):
        # In a sentence that is cut, a command of many paths would be cut as well.
        given = options.given if 0 < len(options.given) <= _MOST_GIVEN else shell_word(path)
        remedy = (
            f"draft a convention with bubbleviz inspect {given} -o mine.toml, then run "
            f"bubbleviz analyze {given} {_WITH_DRAFT}"
        )
        has_next_step = True
    else:
        remedy = (
            f"{_other_commands(file, path)}; to measure a pipeline, write a convention and pass it "
            "with --convention FILE.toml (bubbleviz guide conventions), or name operations in the "
            "training script (bubbleviz guide annotate)"
        )
        has_next_step = True
    frequent = ", ".join(f"{one_line(name, _LONGEST_NAME)!r} ({count})" for name, count in shapes)
    seen = f"; the most frequent names (# for numbers) are {frequent}" if frequent else ""
    reason = f"no range names {' and '.join(lacking)} as {known} does; {remedy}{seen}"
    return reason if has_next_step else f"{reason}; {_other_commands(file, path)}"
