"""Inspection: what a profile contains, which conventions its names follow, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.layer_names import count_shapes
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.model.phases import COUNTED, Phase, list_missing_passes
from bubbleviz.model.profile import Contents
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Maximum number of frequent names that are listed.
_SHAPES = 20
#: Profile tables that contain GPU work.
_GPU_WORK = (
    "kernels",
    "kernels and instructions",
    "copies",
    "memsets",
    "copies and memsets",
    "CUDA graphs traced as a whole",
)


@dataclass(frozen=True)
class Evidence:
    """Ranges that one convention recognizes.

    Attributes:
        convention: Name of the convention.
        phases: Number of ranges in each phase, as (label, number) pairs. Phases without ranges are
            left out.
        iterations: Number of ranges that mark iterations.
        examples: Up to five range names that the convention recognizes.
        parts_left: Whether names that denote only parts of operations are ignored. This is the case
            if another convention recognizes complete operations.
    """

    convention: str
    phases: tuple[tuple[str, int], ...]
    iterations: int
    examples: tuple[str, ...]
    parts_left: bool


@dataclass(frozen=True)
class DraftTrial:
    """Result of applying a drafted convention to the profile that it was drafted from.

    Attributes:
        operations: Number of operations with GPU work in each phase, as (label, number) pairs.
            Phases without operations are left out.
        attributed: Fraction of compute-kernel time that is attributed to operations.
        ratio: Name of the primary ratio.
        bubble: Mean of the primary ratio over the iterations, or None if no iteration has one.
        even: Whether all ranks have the same number of forwards and backwards with GPU work, and at
            most one optimizer step per iteration. Passes that the capture cut off are ignored.
        headline: Text of the primary ratio as an analysis of this file prints it, with its
            restrictions.
    """

    operations: tuple[tuple[str, int], ...]
    attributed: float
    ratio: str
    bubble: float | None
    even: bool
    headline: str = ""


@dataclass(frozen=True)
class Inspection:
    """Contents of a profile, and whether it can be analyzed.

    Attributes:
        contents: Tables, ranges and metadata of the profile.
        evidence: One entry for each convention that recognizes at least one range.
        analyzable: Whether ``analyze`` can compute bubble ratios.
        missing: Sentences that name missing data and explain how to record it.
        shapes: Most frequent names in a sample of the ranges, with their counts. Names that differ
            only in digits share an entry.
        suggestion: Draft of a convention as TOML text. None if a known convention recognizes the
            operations or if no draft works.
        trial: Result of applying the draft to this profile, or None if there is no draft.
        candidates: Sentences about kernels that count as compute but may be communication.
        is_table: Whether the file is a table of operations.
    """

    contents: Contents
    evidence: tuple[Evidence, ...]
    analyzable: bool
    missing: tuple[str, ...]
    shapes: tuple[tuple[str, int], ...]
    suggestion: str | None
    trial: DraftTrial | None = None
    candidates: tuple[str, ...] = ()
    is_table: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the profile, as a tuple."""
        return (self.contents.source.path,)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of the host as a tuple, or an empty tuple if the profile records none."""
        source = self.contents.source
        return (source.host,) if source.host_known else ()


def describe_next_step(inspection: Inspection, alternatives: str) -> str:
    """Return advice on what to do with a profile that ``analyze`` cannot analyze.

    The advice is ``alternatives``, unless it is empty or the profile contains no GPU work. In that
    case, the result states that the profile contains too little work, or none.

    Args:
        inspection: Inspection of the profile.
        alternatives: Clause naming other commands that can read the profile, or "" if there are
            none.
    """
    contents = inspection.contents
    has_work = contents.readable or any(contents.tables.get(name) for name in _GPU_WORK)
    if not has_work:
        return "it contains no GPU work, which every bubbleviz command needs"
    return (
        alternatives or "no device ran more than one kernel or copy, which is too little to analyze"
    )


def inspect_contents(
    contents: Contents,
    conventions: Sequence[Convention],
    sample: Mapping[str, int],
    followed: Sequence[Convention],
    draft: str | None,
) -> Inspection:
    """Determine which conventions the ranges of a profile follow, and which data is missing.

    The profile can be analyzed under two conditions. Its GPU work must be readable, and its range
    names must denote both passes (forward and backward) or only forwards of inference. The draft is
    used only if a pass is missing and the GPU work can be read.

    Args:
        contents: Contents of the profile.
        conventions: Conventions to try.
        sample: How often each name occurs in a sample of the ranges.
        followed: Conventions that an analysis would apply. An analysis may drop a convention's
            patterns for parts of operations. The convention then differs from the one with the same
            name in ``conventions``.
        draft: Draft of a convention as TOML text, or None if there is none.
    """
    is_cut = {c.name for c in followed if c not in conventions}
    evidence = tuple(
        e for c in conventions if (e := _count_evidence(contents, c, c.name in is_cut)) is not None
    )
    phases = [phase for phase in Phase if any(phase.label in dict(e.phases) for e in evidence)]
    unnamed_passes = list_missing_passes(phases)
    is_inference = run_kind(np.array(phases, np.int64)) == INFERENCE
    return Inspection(
        contents,
        evidence,
        analyzable=contents.readable and (is_inference or not unnamed_passes),
        missing=tuple(_list_missing_data(contents, unnamed_passes, is_inference=is_inference)),
        shapes=count_shapes(sample, _SHAPES),
        suggestion=draft if unnamed_passes and contents.readable else None,
    )


def _list_missing_data(
    contents: Contents, unnamed_passes: Sequence[str], *, is_inference: bool
) -> Iterator[str]:
    """Yield sentences that name missing data and explain how to record it.

    Args:
        contents: Contents of the profile.
        unnamed_passes: Passes (``"forward"``, ``"backward"``) that no known convention recognizes.
        is_inference: Whether the names denote only forwards of inference.
    """
    yield from contents.missing
    if contents.ranges and contents.readable and unnamed_passes:
        yield (
            f"no known convention recognizes its {' and '.join(unnamed_passes)} ranges: "
            + ("if it trains, " if is_inference else "")
            + "pass your own convention with --convention FILE.toml (bubbleviz guide conventions)"
        )
    if contents.source.session_utc_ns is None and contents.source.session_clock_ns is not None:
        yield (
            "no UTC time was recorded, so clocks of several hosts are aligned only by data "
            "dependencies"
        )
    elif contents.source.session_utc_ns is None:
        yield "no session start time was recorded, so clocks of several profiles cannot be compared"


def inspect_table(contents: Contents) -> Inspection:
    """Return the inspection of a table of operations.

    The table can be analyzed if it contains a forward or backward.
    """
    labels = [phase.label for phase in COUNTED]
    analyzable = any(phase in labels for phase in contents.candidates)
    no_work = f"it contains no forward or backward ({', '.join(labels)})"
    missing = contents.missing if analyzable else (no_work, *contents.missing)
    return Inspection(contents, (), analyzable, missing, (), None, is_table=True)


def _count_evidence(
    contents: Contents, convention: Convention, parts_left: bool
) -> Evidence | None:
    """Count the ranges that a convention recognizes, by phase.

    Args:
        contents: Contents of the profile.
        convention: The convention to try.
        parts_left: Whether an analysis ignores names that denote only parts of operations.

    Returns:
        The counts, or None if the convention recognizes no range.
    """
    names = parse_range_names(list(contents.candidates), convention)
    counts = np.array(list(contents.candidates.values()), np.int64)
    of_phase = [(p.label, int(counts[names.phase == p].sum())) for p in Phase]
    marks = int(counts[(names.phase < 0) & ((names.iteration >= 0) | names.by_order)].sum())
    phases = tuple((label, count) for label, count in of_phase if count)
    if not phases and not marks:
        return None
    rows = np.flatnonzero((names.phase >= 0) | (names.iteration >= 0) | names.by_order)[:5].tolist()
    examples = tuple(names.texts[row] for row in rows)
    return Evidence(convention.name, phases, marks, examples, parts_left)
