"""A first look: what a profile holds, how far it can be analysed, and by which command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bubbleviz.conventions import convention_file, kinds, name_words, range_names
from bubbleviz.conventions.convention import collect_globs
from bubbleviz.conventions.recognition import (
    add_iteration_names,
    score_conventions,
    select_conventions,
)
from bubbleviz.count.draft_trial import choose_draft
from bubbleviz.interpret import communication, record
from bubbleviz.interpret import inspection as looks
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.phases import list_missing_passes
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.report import make_report
from bubbleviz.sources.paths import find_profiles
from bubbleviz.sources.readers import OpenOperations


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
    with record.open_profile(file) as (opened, _):
        if isinstance(opened, OpenOperations):
            return looks.inspect_table(opened.inspect(()))
        sample = opened.sample(("*",))
        scores = score_conventions(sample, tuple(convention_file.built_in().values()))
        followed = chosen or select_conventions(scores)
        # What names one pass alone may be half a convention, and a draft the whole.
        named = range_names.parse_range_names(list(sample), *followed).phase.tolist()
        drafted = (
            {}
            if not list_missing_passes(named) and not chosen
            else name_words.generate_drafts(sample)
        )
        # Every convention costs a look at every name: those that no name in a sample follows are
        # cut to their names of iterations, unless it names no work. What drafts may name is read
        # together with the rest, once.
        counted = chosen or tuple(score.convention for score in scores)
        if followed and not chosen:
            named = [score.convention for score in scores if score.work + score.other]
            counted = add_iteration_names(named)
        globs = collect_globs((*counted, *drafted.values()))
        contents = opened.inspect((*globs, *kinds.OPERATION_GLOBS) if drafted else globs)
        contents = replace(contents, source=replace(contents.source, path=file))
        draft = next(iter(drafted), None)
        inspection = looks.inspect_contents(contents, known, sample, followed, draft)
        work = record.get_work(opened)
        if work is not None:
            candidates = communication.describe_candidates(
                work, file, convention_file.collect_kinds(given)
            )
            inspection = replace(inspection, candidates=candidates)
        if inspection.suggestion is not None:
            additions = tuple(each for each in given if not each.patterns)
            best = choose_draft(opened, drafted, additions)
            inspection = replace(inspection, suggestion=None, trial=None)
            inspection = inspection if best is None else _tried(inspection, *best)
        if inspection.analysable:
            return inspection
        others = record.suggest_other_commands(work, file, sample)
        return replace(
            inspection, missing=(*inspection.missing, looks.describe_next_step(inspection, others))
        )


def _tried(
    inspection: looks.Inspection, draft: str, trial: looks.DraftTrial, read: Recordings
) -> looks.Inspection:
    """Return the inspection with the best draft and what an analysis says of it."""
    value, bounds, *_ = describe_headline(make_report(read))
    trial = replace(trial, headline=value + bounds)
    return replace(inspection, analysable=False, suggestion=draft, trial=trial)
