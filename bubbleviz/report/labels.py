"""Format operations, ranks and times for sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.numbering import CodedTexts, make_coded_texts
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import capitalize, format_rank_name, list_first
from bubbleviz.report.report import Report

#: Mark that pictures show before the marked advice, and before the rows of its ranks.
MARK = "►"
#: Maximum number of characters of a range name in a sentence.
_MAX_NAME = 60
#: Maximum number of ranks that a sentence lists.
MAX_RANKS = 4


def format_operation(report: Report, row: int) -> str:
    """Return the name of an operation: ``F3``, or ``F3 of chunk 1`` if ranks have chunks."""
    operations = report.operations
    return _format_label(
        int(operations.phase[row]),
        int(operations.microbatch[row]),
        int(operations.second_microbatch[row]),
        int(operations.chunk[row]) if _has_chunks(report) else NONE,
    )


def format_operations(report: Report) -> CodedTexts:
    """Return the name of each operation; see :func:`format_operation`."""
    operations, has_chunks = report.operations, _has_chunks(report)
    chunk = operations.chunk if has_chunks else np.full(len(operations), NONE, np.int64)
    return make_coded_texts(
        _format_label, operations.phase, operations.microbatch, operations.second_microbatch, chunk
    )


def _has_chunks(report: Report) -> bool:
    """Return whether any rank has several chunks."""
    return bool((report.operations.chunk > 0).any())


def _format_label(phase: int, first: int, second: int, chunk: int) -> str:
    numbers = ";".join(str(number) for number in (first, second) if number >= 0)
    where = f" of chunk {chunk}" if chunk >= 0 else ""
    return f"{Phase(phase).label}{numbers}{where}"


def name_rank(report: Report, rank: int) -> str:
    """Return a rank's name: ``stage 2`` if no other rank is on this stage, else its number."""
    stage = report.ranks[rank].stage
    is_only_rank = stage is not None and sum(r.stage == stage for r in report.ranks) == 1
    return f"stage {stage}" if is_only_rank else name_rank_with_number(report, rank)


def name_rank_with_number(report: Report, rank: int) -> str:
    """Return the number and the device of a rank, for example ``rank 6 (node1 GPU 1)``."""
    entry = report.ranks[rank]
    return format_rank_name(entry.global_rank, entry.index, entry.label)


def name_ranks(report: Report, ranks: Sequence[int]) -> str:
    """Return the names of ranks for a sentence.

    A single rank is named by its number and device. For several ranks, at most ``MAX_RANKS`` of
    their numbers are listed. If the global rank of any of the given ranks is unknown, the text adds
    that the numbers are in pipeline order.

    Args:
        report: The run's report.
        ranks: Indices of the ranks. Must not be empty.
    """
    if len(ranks) == 1:
        return name_rank_with_number(report, ranks[0])
    are_numbered = all(report.ranks[rank].global_rank is not None for rank in ranks)
    numbers = list_first([str(number) for number in list_rank_numbers(report, ranks)], MAX_RANKS)
    return f"ranks {numbers}{'' if are_numbered else ' in pipeline order'}"


def list_rank_numbers(report: Report, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of ranks (see :attr:`.Rank.number`) in ascending order."""
    return tuple(sorted(report.ranks[rank].number for rank in ranks))


def capitalize_label(label: str) -> str:
    """Capitalize the name of a rank for the start of a sentence, unless it is a hostname."""
    return capitalize(label) if label.startswith(("rank ", "stage ")) else label


def truncate_name(name: str) -> str:
    """Return a name, truncated to ``_MAX_NAME`` characters with an ellipsis."""
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def format_ms(time_ns: int) -> str:
    """Format a time in milliseconds."""
    return f"{time_ns / 1e6:,.3f} ms"
