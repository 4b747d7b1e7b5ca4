"""A first look at one profile: what it holds, which naming it follows, what could be analysed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions import Convention, understand
from bubbleviz.phases import COUNTED, Phase
from bubbleviz.profile import Contents
from bubbleviz.suggestion import folded, suggest

#: How many shapes of names are shown.
_SHAPES = 20
#: What an analysis needs beside work of a GPU.
_NEEDED = ("CUDA API calls", "NVTX rows")
#: Work of a GPU too, where they can be read.
_GRAPHS = "CUDA graphs traced as a whole"


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
class Inspection:
    """What a profile holds and what can be made of it.

    Attributes:
        contents: what it holds.
        evidence: of each convention that understands at least one range.
        analysable: whether ``analyze`` can give ratios.
        missing: what stands in the way or would add to it, with what would record it.
        shapes: the most frequent names in a sample of its ranges, numbers folded, and how often.
        suggestion: a draft of a naming convention (TOML), where no known one names the work.
    """

    contents: Contents
    evidence: tuple[Evidence, ...]
    analysable: bool
    missing: tuple[str, ...]
    shapes: tuple[tuple[str, int], ...]
    suggestion: str | None


def look_over(
    contents: Contents,
    conventions: Sequence[Convention],
    sample: Mapping[str, int],
    followed: Sequence[Convention],
) -> Inspection:
    """Return what can be made of a profile with these conventions.

    Args:
        contents: what it holds.
        conventions: the ones to try.
        sample: how often names occur in a sample of its ranges.
        followed: what an analysis would follow of these conventions.
    """
    cut = {c.name for c in followed if c not in conventions}
    evidence = tuple(
        e for c in conventions if (e := _evidence(contents, c, c.name in cut)) is not None
    )
    rows = {table.what: table.rows or 0 for table in contents.tables}
    named = any(phase in {p.label for p in COUNTED} for e in evidence for phase, _ in e.phases)
    missing = []
    graphs = rows[_GRAPHS]
    works = bool(rows["kernels"] or (graphs and _graphs_are_whole(contents)))
    if not works:
        missing.append("no CUDA kernels: profile with nsys profile -t cuda,nvtx")
        if graphs:
            missing.append("CUDA graphs were traced as a whole: add --cuda-graph-trace=node")
    if not rows["CUDA API calls"]:
        missing.append("no CUDA API calls: profile with nsys profile -t cuda,nvtx")
    if not rows["NVTX rows"]:
        missing.append(
            "no NVTX ranges: profile with nsys profile -t cuda,nvtx and switch the "
            "framework's ranges on"
        )
    elif not named:
        missing.append(
            "no range is named as a known convention names F and B: give your own "
            "naming with --convention FILE.toml"
        )
    if contents.source.session_utc_ns is None:
        missing.append("no session start time: the clocks of several profiles cannot be compared")
    present = {table.table for table in contents.tables if table.rows is not None}
    columns = [lack for lack in contents.lacks if lack.split(".")[0] in present and "." in lack]
    if columns:
        missing.append(f"the export lacks {', '.join(columns)}, which analysis needs or misses")
    able = works and named and all(rows[n] for n in _NEEDED) and contents.readable
    return Inspection(
        contents,
        evidence,
        able,
        tuple(missing),
        folded(sample, _SHAPES),
        None if named else suggest(sample),
    )


def _graphs_are_whole(contents: Contents) -> bool:
    """Tell whether the table of CUDA graphs has every column, so that they count as work."""
    graphs = [t.table for t in contents.tables if t.what == _GRAPHS]
    return not any(lack.split(".")[0] in graphs for lack in contents.lacks)


def _evidence(contents: Contents, convention: Convention, parts_left: bool) -> Evidence | None:
    names = understand([c.name for c in contents.candidates], convention)
    counts = np.array([c.count for c in contents.candidates], np.int64)
    of_phase = [(p.label, int(counts[names.phase == p].sum())) for p in Phase]
    marks = int(counts[(names.phase < 0) & ((names.iteration >= 0) | names.by_order)].sum())
    told = tuple((label, count) for label, count in of_phase if count)
    if not told and not marks:
        return None
    rows = np.flatnonzero((names.phase >= 0) | (names.iteration >= 0) | names.by_order)[:5].tolist()
    examples = tuple(names.texts[row] for row in rows)
    return Evidence(convention.name, told, marks, examples, parts_left)
