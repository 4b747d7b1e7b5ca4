"""NVTX ranges of an nsys export: of names that conventions may understand, and long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.conventions.kinds import WORK_CALLS
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, find_positions
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Ranges, mask_possible
from bubbleviz.sources.in_memory import make_ranges
from bubbleviz.sources.nsys.export import Export, Named, Selection
from bubbleviz.sources.sqlite.queries import ABSENT

#: Codes of NVTX_EVENTS.eventType where the export holds no ENUM_NSYS_EVENT_TYPE, as in ``KINDS``.
_EVENT_TYPES = {
    "NvtxPushPopRange": 59,
    "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70,
    "NvtxtStartEndRange": 71,
}
#: How the names of calls begin that have work on a device; nsys records none of HIP.
_WORK_CALL_PREFIXES = tuple(start for start in WORK_CALLS if start.startswith("cu"))
#: A sample is about so many rows, in about so many pieces.
SAMPLE_ROWS = 1 << 14
_SAMPLE_PIECES = 64


def read_event_types(export: Export) -> tuple[int, ...]:
    """Return the codes of the four kinds of ranges, in the order of ``KINDS``."""
    codes = dict(_EVENT_TYPES)
    for name, code in export.query_rows_if_possible("ranges/event_types"):
        codes[str(name)] = export.to_integer(code)
    return tuple(codes[name] for name in _EVENT_TYPES)


def sample_names(
    export: Export, globs: Sequence[str], most: int = SAMPLE_ROWS
) -> Mapping[str, int]:
    """Return how often names occur in a sample of the ranges, spread over the capture.

    Args:
        export: the file.
        globs: prefilters of the names.
        most: about so many rows are read.
    """
    if not export.has("ranges/sample"):
        return {}
    first, last = export.find_bounds("ranges/bounds")
    whole = last - first < most
    of_piece = most if whole else most // _SAMPLE_PIECES
    step = most if whole else (last - first) // _SAMPLE_PIECES
    pieces = [(at, min(at + of_piece - 1, last)) for at in range(first, last + 1, step)]
    blocks = []
    if pieces:
        selection = Selection(read_event_types(export), tuple(globs))
        values, *texts = export.read_named("ranges/sample", selection, pieces)
        blocks = [(values[1], *texts)]
    name_id, names = _number_names(blocks, export.query_texts)
    counts = np.bincount(name_id[name_id >= 0], minlength=len(names)).tolist()
    fits = match_any_glob(globs, names)
    return {name: own for name, own, fit in zip(names, counts, fits, strict=True) if fit}


def _number_names(
    blocks: Sequence[tuple[Ints, Ints, Sequence[str]]], strings: Callable[[Ints], Mapping[int, str]]
) -> tuple[Ints, tuple[str, ...]]:
    """Return the number of the name of each row, -1 for none, and the names, each once.

    Args:
        blocks: of some rows the number of the registered string, of the text, and texts; the string
            names a row without a text.
        strings: gives registered strings by number.
    """
    numbering = Numbering[str]()
    parts, text_ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for text_id, number, texts in blocks:
        parts.append(np.append(numbering.numbers(texts), NONE)[number])
        text_ids.append(text_id)
    name_id = np.concatenate(parts)
    rest = np.flatnonzero(name_id == NONE)
    text_id = np.concatenate(text_ids)[rest]
    ids = find_distinct(text_id)
    known = strings(ids[ids != ABSENT])
    of_ids = [numbering.number(known[i]) if i in known else NONE for i in ids.tolist()]
    name_id[rest] = np.array(of_ids, np.int64)[find_positions(ids, text_id)]
    return name_id, numbering.values


@dataclass(frozen=True)
class NameFilter:
    """Names to read: by patterns, and as registered strings, by id.

    Attributes:
        globs: prefilters of the names of ranges.
        strings: registered strings that pass one.
        call_names: registered names of ``WORK_CALLS``.
    """

    globs: tuple[str, ...]
    strings: Mapping[int, str]
    call_names: Mapping[int, str]


def make_name_filter(export: Export, globs: Sequence[str]) -> NameFilter:
    """Return the names to read; ``StringIds``, maybe as long as the NVTX table, is read once."""
    texts = export.find_strings((*globs, *(f"{start}*" for start in _WORK_CALL_PREFIXES)))
    calls = {i: text for i, text in texts.items() if text.startswith(_WORK_CALL_PREFIXES)}
    fits = match_any_glob(globs, calls.values())
    others = {i for i, fit in zip(calls, fits, strict=True) if not fit}
    strings = {i: text for i, text in texts.items() if i not in others}
    return NameFilter(tuple(globs), strings, calls)


def read_ranges(
    export: Export, names: NameFilter, last_ns: Callable[[], int]
) -> tuple[Ranges, int]:
    """Return the ranges of some names, and the number of those with impossible times.

    Args:
        export: the open export.
        names: of the ranges to read.
        last_ns: gives the latest time elsewhere in the capture; called if a range is open then.

    Raises:
        ProfileError: the file is damaged, or holds text where a number belongs.
    """
    kinds = read_event_types(export)
    selection = Selection(kinds, names.globs, tuple(sorted(names.strings)))
    blocks = [*export.stream_named("ranges/named", selection)]
    # Only rows that passed the patterns come here.
    texts = [(values[5], *of_rows) for values, *of_rows in blocks]
    name_id, own_names = _number_names(texts, lambda _: names.strings)
    columns = [np.empty((6, 0), np.int64), *(block[0] for block in blocks)]
    start_ns, end_ns, kind, thread, end_thread, _ = np.concatenate(columns, axis=1)
    cut = end_ns == ABSENT
    keep = mask_possible(start_ns, np.where(cut, start_ns, end_ns))
    if cut.any():
        sane = slice(None) if keep is None else keep
        times = np.concatenate((start_ns[sane], end_ns[sane]))
        end_ns[cut] = int(times.max(initial=last_ns()))
    ranges = Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=end_thread,
        start_end=np.isin(kind, (kinds[1], kinds[3])),
        cut=cut,
        name_id=name_id,
        names=own_names,
    )
    return (ranges, 0) if keep is None else (ranges.take(keep), int((~keep).sum()))


@dataclass(frozen=True)
class LongRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog`; it can be read while the export is open.

    Attributes:
        export: the open export.
        of_system: whether these are calls of the operating system instead of ranges.
    """

    export: Export
    of_system: bool = False

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Ranges:
        """Return what lasts so long on some threads and touches any of some times.

        Only start, end, thread and name are known.
        """
        times = intervals.union(since_ns, until_ns)
        blocks: Iterable[Named] = ()
        name = "calls/system" if self.of_system else "ranges/lasting"
        if len(times[0]) and self.export.has(name):
            threads = find_distinct(threads)
            whose = np.zeros_like(since_ns) if of is None else find_positions(threads, of)
            groups = 1 if of is None else len(threads)
            owner, *sought = intervals.group_union(whose, groups, since_ns, until_ns)
            ends = np.searchsorted(owner, np.arange(groups + 1))
            # Times that are of no thread are those of all.
            bounds = np.resize(np.column_stack((ends[:-1], ends[1:])), 2 * len(threads))
            selection = Selection(
                read_event_types(self.export),
                threads=tuple(threads.tolist()),
                shortest_ns=shortest_ns,
                since_ns=tuple(sought[0].tolist()),
                until_ns=tuple(sought[1].tolist()),
                bounds=tuple(bounds.tolist()),
            )
            if self.of_system:
                blocks = [self.export.read_named(name, selection)]
            else:
                blocks = self.export.stream_named(name, selection)
        parts, named = [np.empty((3, 0), np.int64)], []
        for values, number, texts in blocks:
            before = np.searchsorted(times[1], values[0], side="right")
            inside = np.flatnonzero(before < np.searchsorted(times[0], values[1]))
            parts.append(values[[0, 1, 3]][:, inside])
            named.append((values[5, inside], number[inside], texts))
        start_ns, end_ns, thread = np.concatenate(parts, axis=1)
        name_id, names = _number_names(named, self.export.query_texts)
        # Readers give more or fewer texts of other rows: names come by their first row.
        known, first = np.unique(name_id, return_index=True)
        known, used = known[np.argsort(first)], Numbering[str]()
        # Of none, whose number is -1, the name is the last one.
        number = np.empty(len(names) + 1, np.int64)
        number[known] = used.numbers(map((*names, "").__getitem__, known.tolist()))
        return make_ranges(start_ns, end_ns, thread, number[name_id], used.values)
