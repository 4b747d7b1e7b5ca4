"""Inspects a profile: what it contains, how far it can be analyzed, and which command to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bubbleviz.conventions import convention_file, kinds, name_words, range_names
from bubbleviz.conventions.convention import Convention, collect_globs
from bubbleviz.conventions.recognition import (
    ConventionScore,
    add_iteration_names,
    has_evidence,
    score_conventions,
    select_conventions,
)
from bubbleviz.count.draft_trial import choose_draft
from bubbleviz.interpret import communication, record
from bubbleviz.interpret import inspection as looks
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.phases import list_missing_passes
from bubbleviz.model.profile import Contents
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.report import make_report
from bubbleviz.sources.paths import find_profiles
from bubbleviz.sources.readers import OpenFile, OpenOperations


def inspect(
    path: str | Path, *, convention: str | Path | Sequence[str | Path] = ()
) -> looks.Inspection:
    """Inspect one profile: what it contains, and how far it can be analyzed.

    If a pass, such as the backward, is missing from the sampled range names, drafts of a naming
    convention are generated and tried, and the best draft is suggested. No draft is made if
    ``convention`` contains patterns. If there are several profiles at ``path``, only the first one
    is inspected.

    Args:
        path: Path to the profile.
        convention: Names of NVTX conventions or paths to TOML files, or empty to use all built-in
            conventions.

    Raises:
        BubblevizError: The profile cannot be read at all.
    """
    file = find_profiles([str(path)])[0].path
    user_conventions = convention_file.find_conventions(convention)
    user_patterns = tuple(each for each in user_conventions if each.patterns)
    conventions = user_patterns or tuple(convention_file.built_in().values())
    with record.open_profile(file) as (opened, _):
        if isinstance(opened, OpenOperations):
            return looks.inspect_table(opened.inspect(()))
        sample = opened.sample(("*",))
        scores = score_conventions(sample, tuple(convention_file.built_in().values()))
        followed = user_patterns or select_conventions(scores)
        conventions = user_patterns or tuple(
            c for c in conventions if not c.evidence or has_evidence(c, sample)
        )
        # If the names cover only one pass, the convention may be incomplete, so drafts are tried.
        phases = range_names.parse_range_names(list(sample), *followed).phase.tolist()
        is_draft_needed = bool(user_patterns) or bool(list_missing_passes(phases))
        drafts = name_words.generate_drafts(sample) if is_draft_needed else {}
        counted = user_patterns or _select_counted(scores, is_followed=bool(followed))
        contents = _read_contents(opened, file, counted, tuple(drafts.values()))
        first_draft = next(iter(drafts), None)
        inspection = looks.inspect_contents(contents, conventions, sample, followed, first_draft)
        work = record.get_work(opened)
        if work is not None:
            candidates = communication.describe_candidates(
                work, file, convention_file.collect_kinds(user_conventions)
            )
            inspection = replace(inspection, candidates=candidates)
        if inspection.suggestion is not None:
            additions = tuple(each for each in user_conventions if not each.patterns)
            best = choose_draft(opened, drafts, additions, allow_inference=not followed)
            inspection = replace(inspection, suggestion=None, trial=None)
            inspection = inspection if best is None else _add_trial(inspection, *best)
        if inspection.analyzable:
            return inspection
        alternatives = record.suggest_other_commands(work, file, sample)
        return replace(
            inspection,
            missing=(*inspection.missing, looks.describe_next_step(inspection, alternatives)),
        )


def _select_counted(
    scores: Sequence[ConventionScore], *, is_followed: bool
) -> tuple[Convention, ...]:
    """Return the conventions whose names are counted in the profile.

    Matching every name against every convention takes time. If the sampled names follow certain
    conventions, the other conventions are only used to match iteration names.

    Args:
        scores: Scores of all built-in conventions.
        is_followed: Whether the sampled names follow a convention.
    """
    if not is_followed:
        return tuple(score.convention for score in scores)
    return add_iteration_names([score.convention for score in scores if score.work + score.other])


def _read_contents(
    opened: OpenFile, path: str, counted: Sequence[Convention], drafts: Sequence[Convention]
) -> Contents:
    """Return a summary of the contents of a profile.

    Args:
        opened: The open file.
        path: Path to the profile, as the user named it.
        counted: Conventions whose names are counted.
        drafts: Drafted conventions, whose names are counted in the same pass.
    """
    globs = collect_globs((*counted, *drafts))
    contents = opened.inspect((*globs, *kinds.OPERATION_GLOBS) if drafts else globs)
    return replace(contents, source=replace(contents.source, path=path))


def _add_trial(
    inspection: looks.Inspection, draft: str, trial: looks.DraftTrial, read: Recordings
) -> looks.Inspection:
    """Add the best draft to an inspection, and the result of an analysis with this draft.

    The inspection is marked as not analyzable, because the profile needs the draft to be analyzed.

    Args:
        inspection: The inspection.
        draft: Text of the draft.
        trial: Statistics of the trial.
        read: Recordings that were read with the draft.
    """
    value, bounds, *_ = describe_headline(make_report(read))
    trial = replace(trial, headline=value + bounds)
    return replace(inspection, analyzable=False, suggestion=draft, trial=trial)
