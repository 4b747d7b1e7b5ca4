"""The compiled functions, with numpy columns and named arguments.

Each function is the compiled counterpart of a Python function in another module. It returns None
if the library is missing or switched off, or if it does not support the arguments; the Python
function then runs instead. :func:`accelerated_by` makes this choice, so callers need not know which
of the two runs.

The functions belong to these modules, in this order: intervals to :mod:`bubbleviz.model.intervals`,
sorting and groups to :mod:`bubbleviz.model.grouping`, work of devices to
:mod:`bubbleviz.interpret.linking` and :mod:`bubbleviz.interpret.spans`, orders to
:mod:`bubbleviz.schedules.search.orders`, and pages to :mod:`bubbleviz.sources.sqlite.pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Argument, get_library, trim_column, view_memory

_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.signedinteger[Any]]
_Bools = npt.NDArray[np.bool_]
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Column = TypeVar("_Column", bound=npt.NDArray[Any])


def is_available() -> bool:
    """Return whether the library is loaded and enabled."""
    return get_library() is not None


def accelerated_by(
    compiled: Callable[_Parameters, _Result | None],
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator that tries a compiled function before the decorated function.

    The decorated function runs only if the compiled function returns None.

    Args:
        compiled: Function with the parameters and the result of the decorated function, except
            that it returns None if the decorated function has to run.
    """

    def decorate(plain: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @wraps(plain)
        def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            result = compiled(*args, **kwargs)
            return plain(*args, **kwargs) if result is None else result

        return run

    return decorate


def _make_column(length: int) -> _Ints:
    return np.empty(length, np.int64)


def _to_ints(column: _Codes) -> _Ints:
    return column.astype(np.int64, copy=False)


def union(start_ns: _Ints, end_ns: _Ints, mask: _Bools | None = None) -> tuple[_Ints, _Ints] | None:
    """Return the union of intervals as disjoint intervals, or None if the starts do not ascend.

    Intervals that touch are merged. Empty intervals (end <= start) and the intervals that ``mask``
    excludes are ignored, and their starts need not ascend.
    """
    native = get_library()
    if native is None:
        return None
    length = len(start_ns)
    union_start_ns, union_end_ns = _make_column(length), _make_column(length)
    count = native.call("union", start_ns, end_ns, mask, length, union_start_ns, union_end_ns)
    if count < 0:
        return None
    return trim_column(union_start_ns, count), trim_column(union_end_ns, count)


def difference(a: tuple[_Ints, _Ints], b: tuple[_Ints, _Ints]) -> tuple[_Ints, _Ints] | None:
    """Return the times that ``a`` covers and ``b`` does not.

    Each is a union: the start and end of disjoint, ascending intervals.
    """
    native = get_library()
    if native is None:
        return None
    room = len(a[0]) + len(b[0])
    start_ns, end_ns = _make_column(room), _make_column(room)
    count = native.call("difference", *a, len(a[0]), *b, len(b[0]), start_ns, end_ns)
    return trim_column(start_ns, count), trim_column(end_ns, count)


def measure_within(intervals: tuple[_Ints, _Ints], low_ns: _Ints, high_ns: _Ints) -> _Ints | None:
    """Return how much of each window [low, high] the intervals cover.

    The result is None without the native library, or if memory is short.

    Args:
        intervals: Start and end of disjoint, ascending intervals.
        low_ns: Start of each window.
        high_ns: End of each window.
    """
    native = get_library()
    if native is None:
        return None
    covered_ns = _make_column(len(low_ns))
    windows = low_ns, high_ns, len(low_ns)
    status = native.call("measure_within", *intervals, len(intervals[0]), *windows, covered_ns)
    return None if status else covered_ns


def group_extents(
    group: _Codes, n_groups: int, low_ns: _Ints, high_ns: _Ints
) -> tuple[_Ints, _Ints] | None:
    """Return the earliest low and the latest high of each group; (0, -1) for an empty group.

    Groups below 0 count from the end, as indices do. The result is None if a group is out of range.
    """
    native = get_library()
    if native is None:
        return None
    low, high = _make_column(n_groups), _make_column(n_groups)
    rows = _to_ints(group), low_ns, high_ns, len(group)
    status = native.call("extents", *rows, n_groups, low, high)
    return None if status else (low, high)


def group_union(
    group: _Codes, n_groups: int, start_ns: _Ints, end_ns: _Ints, mask: _Bools | None = None
) -> tuple[_Ints, _Ints, _Ints] | None:
    """Return the union of each group's intervals, sorted by group and start.

    Returns:
        Group, start and end of the merged intervals; or None if the starts within a group do not
        ascend, or if a group is out of range.
    """
    native = get_library()
    if native is None:
        return None
    rows = group.astype(np.int32, copy=False), start_ns, end_ns, mask, len(group)
    scratch = [_make_column(n_groups) for _ in range(3)]
    columns = [_make_column(len(group)) for _ in range(3)]
    count = native.call("group_union", *rows, n_groups, *scratch, *columns)
    if count < 0:
        return None
    return (
        trim_column(columns[0], count),
        trim_column(columns[1], count),
        trim_column(columns[2], count),
    )


def measure_groups(
    sets: tuple[_Ints, _Ints, _Ints], n_groups: int, group: _Ints, low_ns: _Ints, high_ns: _Ints
) -> _Ints | None:
    """Return how much of each window [low, high] the intervals of its group cover.

    Args:
        sets: Group, start and end of disjoint intervals, sorted by group and start.
        n_groups: Number of groups.
        group: Group of each window.
        low_ns: Start of each window.
        high_ns: End of each window.
    """
    native = get_library()
    if native is None:
        return None
    owner, start_ns, end_ns = sets
    begin = np.searchsorted(owner, np.arange(n_groups + 1))
    covered_ns = np.empty(low_ns.shape, np.int64)
    windows = group, low_ns, high_ns, low_ns.size
    native.call("measure_groups", begin, start_ns, end_ns, *windows, covered_ns)
    return covered_ns


def find_innermost(
    begin: _Ints,
    intervals: tuple[_Ints, _Ints],
    depth: _Ints,
    row: _Ints,
    start_ns: _Ints,
    end_ns: _Ints,
) -> _Ints | None:
    """Return the row of the innermost interval around each query, or -1 if there is none.

    Intervals are stored in layers, each with ascending starts. In each layer, the last interval
    that starts at or before a query is a candidate if it ends no earlier than the query. The
    deepest candidate wins.

    Args:
        begin: Index of the first interval of each layer, followed by the number of intervals.
        intervals: Start and end of each interval, layer by layer.
        depth: Depth of each interval.
        row: Row of each interval.
        start_ns: Start of each query.
        end_ns: End of each query.
    """
    native = get_library()
    if native is None:
        return None
    layers, queries = len(begin) - 1, len(start_ns)
    # Place of the interval found last in each layer.
    last_index = np.full(layers, -1, np.int64)
    innermost = _make_column(queries)
    index = begin, last_index, *intervals, depth, row
    native.call("innermost", index, layers, start_ns, end_ns, queries, innermost)
    return innermost


def find_last_before(
    group: _Ints, time_ns: _Ints, query_group: _Ints, query_ns: _Ints, *, or_at: bool = False
) -> _Ints | None:
    """Return, for each query, the last row of its group before its time, or -1 if there is none.

    A row at the time itself counts only if ``or_at`` is true. The result is None unless rows and
    queries are both sorted by group and time.
    """
    native = get_library()
    if native is None:
        return None
    row = _make_column(len(query_group))
    rows = _to_ints(group), time_ns, len(group)
    queries = _to_ints(query_group), query_ns, len(query_group)
    status = native.call("last_before", *rows, *queries, int(or_at), row)
    return None if status else row


def is_sorted(columns: Sequence[_Ints]) -> bool:
    """Return whether rows are sorted lexicographically by columns; False without the library."""
    native = get_library()
    if native is None:
        return False
    return bool(native.call("in_order", tuple(columns), len(columns), len(columns[0])))


def sort_rows(word: npt.NDArray[np.uint64], order: _Ints) -> _Ints | None:
    """Sort rows by a key, stably.

    Args:
        word: Key of each row; at least one row. The result is in ascending order of keys.
        order: Row indices, changed in place. Rows with equal keys keep their order.

    Returns:
        ``order``, or None if memory is short.
    """
    native = get_library()
    if native is None:
        return None
    return None if native.call("sort", word, len(word), order) else order


def order_by_group(group: _Codes, column: _Column, next_place: _Ints) -> _Column | None:
    """Return a column with its rows sorted by group, stably.

    The result is None unless groups have 16 bits and values have two, four or eight bytes.

    Args:
        group: Group of each row.
        column: The column.
        next_place: Scratch memory, one number per group, which is -1 before the first column.
    """
    native = get_library()
    if native is None or group.dtype != np.int16 or column.itemsize not in (2, 4, 8):
        return None
    ordered: _Column = np.empty_like(column)
    places = next_place, len(next_place)
    native.call("grouped", group, len(group), *places, column, column.itemsize, ordered)
    return ordered


def pack(columns: Sequence[_Codes]) -> tuple[_Ints, int] | None:
    """Pack columns into one code per row. Codes compare as rows do lexicographically.

    Returns:
        The codes and their exclusive upper bound, or None if the codes do not fit in 62 bits.
    """
    native = get_library()
    if native is None:
        return None
    code = _make_column(len(columns[0]))
    # A column of one value does not distinguish rows.
    varying = tuple(_to_ints(column) for column in columns if column.strides != (0,))
    base = native.call("packed", varying, len(varying), len(code), code)
    return (code, base) if base > 0 else None


def number_codes(code: _Ints, base: int) -> tuple[_Ints, _Ints] | None:
    """Number the distinct codes in ascending order.

    Args:
        code: Code of each row, from 0 to ``base`` - 1.
        base: Exclusive upper bound of codes. A scratch array of this length is allocated.

    Returns:
        The number of each row's code, and the first row of each number.
    """
    native = get_library()
    if native is None:
        return None
    number_of_code = _make_column(base)
    first, of_row = _make_column(min(base, len(code))), np.empty_like(code)
    count = native.call("numbered", code, len(code), base, number_of_code, first, of_row)
    return of_row, trim_column(first, count)


def lookup_numbers(
    values: _Ints, known_values: _Ints, number: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32] | None:
    """Return the number of each value, or None if a value is unknown.

    Args:
        values: Values to look up.
        known_values: Known values, ascending.
        number: Number of each known value.
    """
    native = get_library()
    if native is None:
        return None
    numbers = np.empty(len(values), np.int32)
    is_known = native.call(
        "numbers", (known_values, number, len(known_values)), values, len(values), numbers
    )
    return numbers if is_known else None


def link_calls(
    *,
    index: tuple[npt.NDArray[Any], ...],
    calls: tuple[npt.NDArray[Any], ...],
    threads: tuple[npt.NDArray[Any], ...],
    ranges: tuple[_Ints, ...],
    links: tuple[npt.NDArray[Any], ...],
) -> tuple[_Bools, _Ints, npt.NDArray[np.int32]] | None:
    """Link the calls of a block to the kernels and copies they launched, and to the ranges around.

    If several calls have the same correlation id, the call that started first counts, also across
    blocks; ties go to the smaller row.

    Args:
        index: Columns of ``struct index`` in ``links.c``. Its ``near`` is changed in place.
        calls: Columns of ``struct calls``, whose rows ascend.
        threads: Columns of ``struct threads``.
        ranges: Columns of ``struct ranges``. Its ``near`` is changed in place.
        links: Columns of ``struct links``, changed in place.

    Returns:
        A mask of the calls that launched work; and the start and thread of each call of an earlier
        block that lost its work to a call of this block.
    """
    native = get_library()
    if native is None:
        return None
    size = len(calls[0])
    first_row, lost_thread = np.empty(size, np.int32), np.empty(size, np.int32)
    lost_ns = _make_column(size)
    results = first_row, lost_ns, lost_thread
    losses = native.call("link", index, (*calls, size), threads, ranges, links, results)
    return first_row != -1, lost_ns[:losses], lost_thread[:losses]


class MeasuredWork(NamedTuple):
    """Times of work per operation, per group of operations and per rank.

    Attributes:
        start_ns: Start of each operation.
        end_ns: End of each operation.
        n_kernels: Number of compute kernels of each operation.
        first_row: First row of each operation, or -1 if it has no work.
        length_ns: Time in which compute kernels ran, per operation and then per group.
        is_loose: Mask of the rows that are compute kernels outside of compute operations.
        spent_ns: Time by rank and kind of work, shape (ranks, 5).
        sets: Start and end of the union of all work, of communication, of compute kernels, and of
            loose compute kernels, in this order.
    """

    start_ns: _Ints
    end_ns: _Ints
    n_kernels: _Ints
    first_row: npt.NDArray[np.int32]
    length_ns: _Ints
    is_loose: _Bools
    spent_ns: _Ints
    sets: tuple[tuple[_Ints, _Ints], ...]


def measure_work(
    *,
    work: tuple[npt.NDArray[Any] | None, ...],
    n_rows: int,
    order: _Ints | None,
    communicates: _Bools,
    group: npt.NDArray[np.int32],
    n_groups: int,
    n_ranks: int,
) -> MeasuredWork | None:
    """Measure when and for how long the work of operations, groups of operations and ranks ran.

    Args:
        work: Columns of ``struct work`` in ``spans.c``.
        n_rows: Number of rows of these columns.
        order: Rows sorted by start, or None if they are sorted already.
        communicates: Mask of the operations that are communication.
        group: Group of each operation, or -1 if it belongs to none.
        n_groups: Number of groups.
        n_ranks: Number of ranks.

    Returns:
        The measured times, or None if the compiled library is not used.

    Raises:
        IndexError: A row belongs to an operation or a rank that does not exist.
    """
    native = get_library()
    if native is None:
        return None
    n_operations = len(communicates)
    start_ns, end_ns, n_kernels = (_make_column(n_operations) for _ in range(3))
    first_row, best = np.empty(n_operations, np.int32), np.empty(n_operations, np.uint8)
    length_ns, reach_ns = (_make_column(n_operations + n_groups) for _ in range(2))
    spans = start_ns, end_ns, n_kernels, first_row, best, length_ns, reach_ns, len(length_ns)
    is_loose, spent_ns = np.empty(n_rows, bool), np.empty((n_ranks, 5), np.int64)
    lengths, bounds = np.empty(4, np.int64), [_make_column(n_rows) for _ in range(8)]
    operations = communicates, group, n_operations
    ranks: tuple[Argument, ...] = (n_ranks, is_loose, spent_ns, lengths, *bounds)
    strays = native.call("spans", (*work, n_rows, order), operations, spans, ranks)
    if strays:
        raise IndexError(f"{strays} rows have an owner beyond the {n_operations} operations")
    sets = tuple(
        (trim_column(set_start_ns, length), trim_column(set_end_ns, length))
        for set_start_ns, set_end_ns, length in zip(
            bounds[::2], bounds[1::2], lengths.tolist(), strict=True
        )
    )
    return MeasuredWork(start_ns, end_ns, n_kernels, first_row, length_ns, is_loose, spent_ns, sets)


def improve_orders(
    *,
    pipeline: tuple[Argument, ...],
    code: npt.NDArray[np.int32],
    offset: npt.NDArray[np.int32],
    trials: int,
    memory: int,
    rise: int,
    seed: int,
    enough: int,
) -> int | None:
    """Search for orders with a shorter iteration, and write the best ones to ``code``.

    Args:
        pipeline: Members of ``struct pipeline`` in ``orders.c``.
        code: Operations of all devices, changed in place.
        offset: Index of the first operation of each device, followed by the number of operations.
        trials: Maximum number of moves to try.
        memory: Number of previous trials that count for acceptance.
        rise: Maximum increase over the length of the first orders, in thousandths.
        seed: Seed of the random moves.
        enough: Length at which the search ends early.

    Returns:
        The length of the best orders, -1 if the first ones cannot run, or None without the library.
    """
    native = get_library()
    if native is None:
        return None
    search = trials, memory, rise, seed, enough
    return native.call("orders_improved", pipeline, (code, offset), *search)


def find_leaves(
    *, file: tuple[int, ...], root: int, max_leaves: int
) -> tuple[npt.NDArray[np.uint32], _Ints] | None:
    """Return the leaf pages of a table in row order, and the last row number each may contain.

    Args:
        file: File descriptor, page size, usable bytes of a page, and number of pages.
        root: Page of the root of the table's tree.
        max_leaves: Maximum number of leaves.

    Returns:
        The page numbers and the row numbers, or None if a page is unusual or memory is short.
    """
    native = get_library()
    if native is None:
        return None
    try:
        leaf, last_row = np.empty(max_leaves, np.uint32), _make_column(max_leaves)
    except MemoryError:
        return None
    count = native.call("leaves", file, root, leaf, last_row, max_leaves)
    return None if count < 0 else (leaf[:count].copy(), last_row[:count].copy())


def decode_integers(
    *, file: tuple[int, ...], leaves: tuple[Argument, ...], columns: _Ints, max_rows: int
) -> _Ints | None:
    """Decode columns of whole numbers from the leaf pages of a table.

    Args:
        file: As in :func:`find_leaves`.
        leaves: Members of ``struct leaves`` in ``sqlite_pages.c``.
        columns: Shape (columns, 4), for each column its index in the table, how NULL is read, the
            value for NULL, and whether it is an alias of the row number; see :class:`PageTable`.
        max_rows: Maximum number of rows. A page with more rows counts as unusual.

    Returns:
        Values, shape (columns, rows), or None if a page is unusual or memory is short.
    """
    native = get_library()
    if native is None:
        return None
    try:
        values = np.empty((len(columns), max_rows), np.int64)
    except MemoryError:
        return None
    rows = native.call("integers", file, leaves, columns, len(columns), values, max_rows)
    if rows < 0:
        return None
    return values if rows == max_rows else values[:, :rows].copy()


def decode_named(
    *,
    file: tuple[int, ...],
    leaves: tuple[Argument, ...],
    columns: _Ints,
    selection: tuple[Argument, ...],
) -> tuple[_Ints, bytes] | None:
    """Decode columns of whole numbers and one column of texts, for selected rows.

    Args:
        file: As in :func:`find_leaves`.
        leaves: Members of ``struct leaves`` in ``sqlite_pages.c``.
        columns: As in :func:`decode_integers`.
        selection: Members of ``struct selection`` in ``sqlite_pages.c``.

    Returns:
        The values, with the length of each text (-1 for NULL) as the last column, shape
        (columns + 1, rows), and the concatenated texts; or None if a page is unusual or memory is
        short.
    """
    native = get_library()
    if native is None:
        return None
    result, width = np.zeros(4, np.int64), len(columns) + 1
    try:
        if native.call("named", file, leaves, columns, len(columns), selection, result):
            return None
        address, text_address, rows, text_bytes = result.tolist()
        values = np.frombuffer(view_memory(address, rows * width * 8), np.int64)
        # Copies, since the memory is freed.
        return (
            np.array(values.reshape(rows, width).T, order="C"),
            bytes(view_memory(text_address, text_bytes)),
        )
    finally:
        native.call("named_free", result)


def number_texts(texts: bytes, lengths: _Ints) -> tuple[_Ints, _Ints] | None:
    """Number the distinct texts with a hash table.

    Equal texts get the same number, except if very many texts have the same hash.

    Args:
        texts: Concatenated texts of all rows, as UTF-8.
        lengths: Length of each row's text in bytes, or -1 for NULL.

    Returns:
        The number of each row's text, or -1 for NULL; and the offset and length of each distinct
        text, shape (texts, 2).
    """
    native = get_library()
    if native is None:
        return None
    rows = len(lengths)
    slots = np.zeros(2 << (2 * rows).bit_length(), np.uint32)
    number, bounds = _make_column(rows), np.empty((rows, 2), np.int64)
    packed = np.frombuffer(texts, np.uint8)
    count = native.call("distinct", packed, lengths, rows, slots, len(slots), number, bounds)
    return number, bounds[:count]
