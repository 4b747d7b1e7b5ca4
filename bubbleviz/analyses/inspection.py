"""A first look: what a profile holds, how far it can be analysed, and by which command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bubbleviz.conventions import convention_file, kinds, name_words, range_names
from bubbleviz.conventions.convention import globs_of
from bubbleviz.count.draft_trial import best_draft
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret import communication, record
from bubbleviz.interpret import inspection as looks
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.phases import unnamed
from bubbleviz.model.texts import shell_word
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.render.text.first_screen import headline_lines
from bubbleviz.report.report import report_on
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import format_of
from bubbleviz.sources.nsys.files import bytes_of, is_report
from bubbleviz.sources.paths import InputFile, find_profiles
from bubbleviz.sources.readers import OpenOperations, reader_of


def inspect(
    path: str | Path, *, convention: str | Path | Sequence[str | Path] = ()
) -> looks.Inspection:
    """Return the contents of one profile, and how far it can be analysed.

    Args:
        path: the profile.
        convention: an NVTX convention's name or the path of a TOML file, or several; empty for
            all known.

    Raises:
        BubblevizError: it cannot be read at all.
    """
    file = find_profiles([str(path)])[0].path
    given = convention_file.find_conventions(convention)
    chosen = tuple(each for each in given if each.patterns)
    known = chosen or tuple(convention_file.built_in().values())
    with record.opened_profile(file) as (opened, _):
        if isinstance(opened, OpenOperations):
            return looks.look_over_table(opened.inspect(()))
        sample = opened.sample(("*",))
        scores = convention_file.scores_of(sample, tuple(convention_file.built_in().values()))
        followed = chosen or convention_file.recognised(scores)
        # What names one pass alone may be half a convention, and a draft the whole.
        named = range_names.understand(list(sample), *followed).phase.tolist()
        drafted = {} if not unnamed(named) and not chosen else name_words.drafts(sample)
        # Every convention costs a look at every name: those that no name in a sample follows are
        # cut to their names of iterations, unless it names no work. What drafts may name is read
        # together with the rest, once.
        counted = chosen or tuple(score.convention for score in scores)
        if followed and not chosen:
            named = [score.convention for score in scores if score.work + score.other]
            counted = convention_file.with_iterations(named)
        globs = globs_of((*counted, *drafted.values()))
        contents = opened.inspect((*globs, *kinds.OPERATION_GLOBS) if drafted else globs)
        contents = replace(contents, source=replace(contents.source, path=file))
        draft = next(iter(drafted), None)
        inspection = looks.look_over(contents, known, sample, followed, draft)
        work = record.work_in(opened)
        if work is not None:
            candidates = communication.candidates_in(
                work, file, convention_file.extended_kinds(given)
            )
            inspection = replace(inspection, candidates=candidates)
        if inspection.suggestion is not None:
            additions = tuple(each for each in given if not each.patterns)
            best = best_draft(opened, drafted, additions)
            inspection = replace(inspection, suggestion=None, trial=None)
            inspection = inspection if best is None else _tried(inspection, *best)
        if inspection.analysable:
            return inspection
        others = record.other_commands(work, file, sample)
        return replace(inspection, missing=(*inspection.missing, looks.way_on(inspection, others)))


def _tried(
    inspection: looks.Inspection, draft: str, trial: looks.DraftTrial, read: Recordings
) -> looks.Inspection:
    """Return the inspection with the best draft and what an analysis says of it."""
    value, bounds, *_ = headline_lines(report_on(read))
    trial = replace(trial, headline=value + bounds)
    return replace(inspection, analysable=False, suggestion=draft, trial=trial)


# A first look at files: which command tells most of them.


#: How many profiles of a run are looked at before none is taken to name its operations.
_MOST = 4


def first_look(paths: Sequence[str], progress: Progress | None = None) -> tuple[str, str]:
    """Return the command that fits files, ``analyze``, ``idle`` or ``nccl``, and why, in words.

    Only a sample of the names is read, and a trace that is decoded whole stays open for the
    command. What cannot be read is left to ``analyze`` to refuse, without a reason.

    Args:
        paths: files, directories and patterns.
        progress: takes the progress of traces that are decoded whole.

    Raises:
        InputError: a path does not exist, cannot be read, or leads to nothing to read.
    """
    try:
        files = find_profiles(paths)
    except InputError:
        # Directories that hold no profile may hold events of NCCL.
        folders = (Path(path) for path in paths if Path(path).is_dir())
        within = [str(file) for folder in folders for file in folder.iterdir() if file.is_file()]
        if any(map(_is_event_file, within)):
            return "nccl", "these are recorded operations of NCCL"
        raise
    if any(file.named and _is_event_file(file.path) for file in files):
        return "nccl", "recorded operations of NCCL are among the files"
    return _by_names(files, paths, progress or Unwatched())


def _by_names(
    files: Sequence[InputFile], given: Sequence[str], progress: Progress
) -> tuple[str, str]:
    looked_at, globs = [], globs_of(tuple(convention_file.built_in().values()))
    progress.files({file.path: bytes_of(file.path) for file in files[:_MOST]})
    for file in files[:_MOST]:
        if is_report(file.path):
            return "analyze", "nsys has yet to export the names of ranges"
        try:
            if noun := reader_of(file.path).operations:
                return "analyze", f"{file.path} is {noun}"
            names = record.sampled_names(file.path, globs, partial(progress.read, file.path))
        except ProfileError:
            continue
        looked_at.append(file.path)
        if followed := convention_file.recognise(names):
            return "analyze", f"{file.path} names its operations as {followed[0].name}"
    if not looked_at:
        return "analyze", ""
    what = looked_at[0] if len(files) == 1 else f"the {len(files):,} files"
    why = f"no range of {what} names forward and backward as a known convention does"
    return "idle", f"{why}; bubbleviz inspect {' '.join(map(shell_word, given))} may draft one"


def _is_event_file(path: str) -> bool:
    try:
        return format_of(head_of(path)) != ""
    except ProfileError:
        return False
