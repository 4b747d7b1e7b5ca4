"""Inspection: what one profile holds, which convention it follows, what can be analysed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.layer_names import count_shapes
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.model.phases import COUNTED, Phase, list_missing_passes
from bubbleviz.model.profile import Contents
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: How many shapes of names are shown.
_SHAPES = 20
#: What an inspection calls GPU work.
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
    """How many ranges one convention understands.

    Attributes:
        convention: its name.
        phases: ranges of each phase, by printed name; only those that occur.
        iterations: ranges that name iterations.
        examples: a few of the names.
        parts_left: whether its parts of operations count for nothing, since another convention
            names the whole operations.
    """

    convention: str
    phases: tuple[tuple[str, int], ...]
    iterations: int
    examples: tuple[str, ...]
    parts_left: bool


@dataclass(frozen=True)
class DraftTrial:
    """What a drafted convention makes of the profile that it was drafted from.

    Attributes:
        operations: operations of each phase with GPU work, by printed name; only those that occur.
        attributed: share of compute-kernel time attributed to operations.
        ratio: name of the primary ratio.
        bubble: mean of that over the iterations; None where there is none.
        even: whether, but for what the capture cut, all ranks have as many passes with GPU work in
            both directions, and at most one optimizer step an iteration.
        headline: the primary ratio as an analysis of this file alone prints it, with what it lacks.
    """

    operations: tuple[tuple[str, int], ...]
    attributed: float
    ratio: str
    bubble: float | None
    even: bool
    headline: str = ""


@dataclass(frozen=True)
class Inspection:
    """What a profile holds and what can be made of it.

    Attributes:
        contents: what it holds.
        evidence: of each convention that understands at least one range.
        analysable: whether ``analyze`` can give ratios.
        missing: what stands in the way or would add to it, with what would record it.
        shapes: the most frequent names in a sample of its ranges, numbers folded, and how often.
        suggestion: a draft of a convention (TOML), where no known one names the work and
            the draft does.
        trial: what the draft makes of this profile; None without one.
        candidates: sentences on kernels that may be communication, and count as compute.
        told: whether it is a table, which tells what its operations are.
    """

    contents: Contents
    evidence: tuple[Evidence, ...]
    analysable: bool
    missing: tuple[str, ...]
    shapes: tuple[tuple[str, int], ...]
    suggestion: str | None
    trial: DraftTrial | None = None
    candidates: tuple[str, ...] = ()
    told: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the profile."""
        return (self.contents.source.path,)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of its host, if the profile records one."""
        source = self.contents.source
        return (source.host,) if source.host_known else ()


def describe_next_step(inspection: Inspection, others: str) -> str:
    """Return what leads on from a profile that ``analyze`` refuses.

    Args:
        inspection: of the profile.
        others: a clause on the commands that tell something of it; "" for none.
    """
    contents = inspection.contents
    work = contents.readable or any(contents.tables.get(what) for what in _GPU_WORK)
    if not work:
        return "it holds no GPU work, which every command of bubbleviz needs"
    return others or "no device ran more than a single kernel or copy, too little for any command"


def inspect_contents(
    contents: Contents,
    conventions: Sequence[Convention],
    sample: Mapping[str, int],
    followed: Sequence[Convention],
    draft: str | None,
) -> Inspection:
    """Return the inspection of a profile.

    Args:
        contents: what it holds.
        conventions: the ones to try.
        sample: how often names occur in a sample of its ranges.
        followed: what an analysis would follow of these conventions.
        draft: of a convention for the names (TOML); None for none.
    """
    cut = {c.name for c in followed if c not in conventions}
    evidence = tuple(
        e for c in conventions if (e := _count_evidence(contents, c, c.name in cut)) is not None
    )
    phases = [phase for phase in Phase if any(phase.label in dict(e.phases) for e in evidence)]
    lacking = list_missing_passes(phases)
    serves = run_kind(np.array(phases, np.int64)) == INFERENCE
    missing = list(contents.missing)
    if contents.ranges and contents.readable and lacking:
        missing.append(
            f"no known convention names its {' and '.join(lacking)}: "
            + ("if it trains, " if serves else "")
            + "pass your own convention with --convention FILE.toml (bubbleviz guide conventions)"
        )
    if contents.source.session_utc_ns is None and contents.source.session_clock_ns is not None:
        missing.append(
            "no UTC was recorded: clocks of several hosts are aligned by data dependencies alone"
        )
    elif contents.source.session_utc_ns is None:
        missing.append("no session start time, so clocks of several profiles cannot be compared")
    return Inspection(
        contents,
        evidence,
        contents.readable and (serves or not lacking),
        tuple(missing),
        count_shapes(sample, _SHAPES),
        draft if lacking and contents.readable else None,
    )


def inspect_table(contents: Contents) -> Inspection:
    """Return the inspection of a table of operations."""
    labels = {phase.label for phase in COUNTED}
    counted = any(phase in labels for phase in contents.candidates)
    lacking = f"it holds no forward or backward ({', '.join(p.label for p in COUNTED)})"
    missing = contents.missing if counted else (lacking, *contents.missing)
    return Inspection(contents, (), counted, missing, (), None, told=True)


def _count_evidence(
    contents: Contents, convention: Convention, parts_left: bool
) -> Evidence | None:
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
