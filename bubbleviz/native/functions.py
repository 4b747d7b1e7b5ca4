"""The native functions, with numpy columns and named arguments.

Each function is the native counterpart of a Python function in another module. The result is None
if the library is missing or disabled, or if the arguments are not supported. In these cases, the
Python function runs instead. :func:`accelerated_by` makes this choice, so callers need not know
which of the two functions runs.

The functions are grouped by the modules that use them. Interval functions come first; they are used
by :mod:`bubbleviz.model.intervals`. Sorting and grouping follow (:mod:`bubbleviz.model.grouping`),
then linking and spans (:mod:`bubbleviz.interpret.linking` and :mod:`bubbleviz.interpret.spans`),
orders and trials (:mod:`bubbleviz.schedules.search.orders` and
:mod:`bubbleviz.schedules.search.trials`), and SQLite pages (:mod:`bubbleviz.sources.sqlite.pages`).
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
    """Return a decorator that tries a native function before the decorated function.

    The decorated function runs only if the native function returns None.

    Args:
        compiled: Native function that has the same parameters and the same result as the decorated
            function, but may also return None.
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
    """Return the union of intervals as disjoint intervals, sorted by start.

    Intervals that touch are merged. Empty intervals (end <= start) and intervals that ``mask``
    excludes are ignored. The result is None if the starts of the remaining intervals are not in
    ascending order.
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
    """Return the intervals that ``a`` covers but ``b`` does not.

    Both arguments and the result are (start, end) pairs of columns. The intervals must be disjoint
    and in ascending order.
    """
    native = get_library()
    if native is None:
        return None
    room = len(a[0]) + len(b[0])
    start_ns, end_ns = _make_column(room), _make_column(room)
    count = native.call("difference", *a, len(a[0]), *b, len(b[0]), start_ns, end_ns)
    return trim_column(start_ns, count), trim_column(end_ns, count)


def measure_within(intervals: tuple[_Ints, _Ints], low_ns: _Ints, high_ns: _Ints) -> _Ints | None:
    """Return how much of each window the intervals cover, in ns.

    The result is None if the native library is missing or memory runs out.

    Args:
        intervals: Start and end of disjoint intervals in ascending order.
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
    """Return the minimum of ``low_ns`` and the maximum of ``high_ns`` in each group.

    The result for an empty group is (0, -1). Negative group numbers count from the end, like
    indices. The result is None if a group number is out of range.
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
    """Merge the intervals in each group that overlap or touch, and sort them by (group, start).

    Empty intervals (end <= start) and intervals that ``mask`` excludes are ignored.

    Returns:
        Group, start and end of each merged interval. None if the starts within a group are not in
        ascending order, or if a group number is out of range.
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
    """Return how much of each window the intervals of its group cover, in ns.

    Args:
        sets: Group, start and end of disjoint intervals, sorted by (group, start).
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

    A query is an interval too. The nested intervals are stored in layers, sorted by start within
    each layer. For each query, each layer has at most one candidate: the last interval that starts
    at or before the query starts. A candidate that ends before the query ends is rejected. The
    deepest remaining candidate wins.

    Args:
        begin: Index of the first interval in each layer, followed by the number of intervals.
        intervals: Start and end of each interval, layer by layer.
        depth: Nesting depth of each interval.
        row: Row to return for each interval.
        start_ns: Start of each query.
        end_ns: End of each query.
    """
    native = get_library()
    if native is None:
        return None
    layers, queries = len(begin) - 1, len(start_ns)
    # Index of the last interval that was found in each layer.
    last_index = np.full(layers, -1, np.int64)
    innermost = _make_column(queries)
    index = begin, last_index, *intervals, depth, row
    native.call("innermost", index, layers, start_ns, end_ns, queries, innermost)
    return innermost


def find_last_before(
    group: _Ints, time_ns: _Ints, query_group: _Ints, query_ns: _Ints, *, or_at: bool = False
) -> _Ints | None:
    """Return the last earlier row in the same group for each query, or -1 if there is none.

    A row with the same time as the query counts only if ``or_at`` is true. The result is None
    unless both the rows and the queries are sorted by (group, time).
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
    """Return whether rows are sorted lexicographically by columns.

    The result is False without the native library.
    """
    native = get_library()
    if native is None:
        return False
    return bool(native.call("in_order", tuple(columns), len(columns), len(columns[0])))


def sort_rows(word: npt.NDArray[np.uint64], order: _Ints) -> _Ints | None:
    """Sort row indices by a key, in ascending order. The sort is stable.

    Args:
        word: Sort keys, one per row. Must not be empty.
        order: Row indices to sort. The array is sorted in place.

    Returns:
        ``order``, or None if memory runs out.
    """
    native = get_library()
    if native is None:
        return None
    return None if native.call("sort", word, len(word), order) else order


def order_by_group(group: _Codes, column: _Column, next_place: _Ints) -> _Column | None:
    """Return a copy of a column, sorted by the group of each row. The sort is stable.

    The result is None unless ``group`` is int16 and the values have 2, 4 or 8 bytes.

    Args:
        group: Group of each row.
        column: Column to sort.
        next_place: Scratch memory, one number per group. The memory must be filled with -1 before
            the first column. For further columns with the same groups, pass the memory on
            unchanged.
    """
    native = get_library()
    if native is None or group.dtype != np.int16 or column.itemsize not in (2, 4, 8):
        return None
    ordered: _Column = np.empty_like(column)
    places = next_place, len(next_place)
    native.call("grouped", group, len(group), *places, column, column.itemsize, ordered)
    return ordered


def pack(columns: Sequence[_Codes]) -> tuple[_Ints, int] | None:
    """Pack columns into one integer code per row. The codes sort like the rows, column by column.

    Returns:
        The codes and their exclusive upper bound, or None if the codes do not fit into 62 bits.
    """
    native = get_library()
    if native is None:
        return None
    code = _make_column(len(columns[0]))
    # A broadcast column contains a single value, so it does not distinguish rows.
    varying = tuple(_to_ints(column) for column in columns if column.strides != (0,))
    base = native.call("packed", varying, len(varying), len(code), code)
    return (code, base) if base > 0 else None


def number_codes(code: _Ints, base: int) -> tuple[_Ints, _Ints] | None:
    """Number the distinct codes in ascending order.

    Args:
        code: Code of each row, from 0 to ``base`` - 1.
        base: Exclusive upper bound of codes. A scratch array of this length is allocated.

    Returns:
        of_row: Number of each row's code.
        first: First row with each number.
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
    """Look up the number assigned to each value. The result is None if any value is unknown.

    Args:
        values: Values to look up.
        known_values: Known values in ascending order.
        number: Number assigned to each known value.
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
    """Link a block of calls to the kernels and copies they launched and to their enclosing ranges.

    If several calls have the same correlation id, the call that started first wins, even if the
    calls are in different blocks. Ties are broken in favor of the smaller row.

    Each argument contains the columns of a struct in ``links.c``, in the order of its members.

    Args:
        index: Kernels and copies by process and correlation id (``struct index``). ``near`` is
            modified in place.
        calls: The calls in the block (``struct calls`` without its last member). Row numbers must
            ascend.
        threads: Process and range groups of each thread (``struct threads``).
        ranges: Ranges in layers (``struct ranges``). ``near`` is modified in place.
        links: Call and range of each kernel and copy (``struct links``), modified in place.

    Returns:
        launched: Mask of the calls that launched work.
        lost_ns: Start times of the calls in earlier blocks whose work was reassigned to a call in
            this block.
        lost_thread: Thread number of each call in ``lost_ns``.
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
    """Times of kernels and copies per operation, per group of operations and per rank.

    The span of an operation lasts from the first start to the last end of its compute kernels or,
    if there are none, of its copies. The span of a communication operation is based on
    communication kernels if there are any, otherwise on compute kernels, and otherwise on copies.

    Attributes:
        start_ns: Start of each operation's span, or 0 if it has no span.
        end_ns: End of each operation's span, or -1 if it has no span.
        n_kernels: Number of compute kernels in each operation.
        first_row: Row of the kernel or copy that starts each operation's span, or -1 if there is no
            span.
        length_ns: Time during which compute kernels ran, one value per operation, followed by one
            value per group. Overlaps are counted once.
        is_loose: Mask of the rows that are compute kernels outside of compute operations.
        spent_ns: Total duration of each kind of work, shape (ranks, 5). The columns are copies,
            communication inside ranges, communication outside ranges, compute inside compute
            operations, and compute outside them.
        sets: Starts and ends of the intervals in which four kinds of work ran: all work,
            communication, compute kernels, and loose compute kernels.
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
    """Measure when, and for how long, GPU work ran in each operation, group and rank.

    Args:
        work: Columns of ``struct work`` in ``spans.c``.
        n_rows: Number of rows in these columns.
        order: Row indices sorted by start, or None if the rows are already sorted.
        communicates: Mask of the communication operations.
        group: Group of each operation, or -1 if the operation does not belong to a group.
        n_groups: Number of groups.
        n_ranks: Number of ranks.

    Returns:
        The measured times, or None if the native library is missing.

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
    """Search for operation orders that shorten the iteration, and write the best ones to ``code``.

    The search is late acceptance hill climbing; see ``orders.c``.

    Args:
        pipeline: Members of ``struct pipeline`` in ``orders.c``.
        code: Operation codes of all devices, in their initial order. Modified in place.
        offset: Index of each device's first operation, followed by the number of operations.
        trials: Maximum number of moves to try.
        memory: Length of the history of accepted results. Each trial is compared with the result
            accepted this many trials earlier.
        rise: Initial tolerance: how much longer than with the initial orders an iteration may be
            and still be accepted, in thousandths.
        seed: Seed of the random moves.
        enough: Iteration length at which the search ends early.

    Returns:
        Iteration length of the best orders. The result is -1 if the initial orders cannot run or
        memory runs out, and None if the native library is missing.
    """
    native = get_library()
    if native is None:
        return None
    search = trials, memory, rise, seed, enough
    return native.call("orders_improved", pipeline, (code, offset), *search)


def run_trial(
    *,
    pipeline: tuple[Argument, ...],
    trial: tuple[Argument, ...],
    code: npt.NDArray[np.int32],
    offset: npt.NDArray[np.int32],
) -> bool | None:
    """Run a trial, in which each device chooses its next operation whenever it is free.

    Args:
        pipeline: Members of ``struct pipeline`` in ``orders.c``. There must be a microbatch.
        trial: Members of ``struct trial`` in ``orders.c``. ``excess`` and ``slot`` are modified in
            place.
        code: Operation codes of all devices in the order in which they ran. Written in place.
        offset: Index of each device's first operation, followed by the number of operations.

    Returns:
        Whether all operations have run. The result is None if the native library is missing.
    """
    native = get_library()
    return (
        None if native is None else bool(native.call("trial_run", pipeline, trial, (code, offset)))
    )


def find_leaves(
    *, file: tuple[int, ...], root: int, max_leaves: int
) -> tuple[npt.NDArray[np.uint32], _Ints] | None:
    """Return the leaf pages of a table's B-tree in row order, and the last row of each page.

    Args:
        file: File descriptor, page size, usable bytes per page, and number of pages.
        root: Root page number of the table's B-tree.
        max_leaves: Maximum number of leaves. The function gives up on larger tables.

    Returns:
        The page numbers and, for each page, the last row number that it may contain. None if the
        function cannot handle a page, or if memory runs out.
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
    """Decode integer columns from the leaf pages of a table.

    Args:
        file: File description, see :func:`find_leaves`.
        leaves: Members of ``struct leaves`` in ``sqlite_pages.c``.
        columns: Description of each column, shape (columns, 4). The first value is the column's
            index in the table. The others are how NULL is read, the value that replaces NULL, and
            whether the column is an alias of the row number. See ``struct column`` in
            ``sqlite_pages.c``.
        max_rows: Maximum number of rows. The function gives up on larger tables.

    Returns:
        Values, shape (columns, rows). None if the function cannot handle a page or memory runs out.
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
    """Decode integer columns and one text column, for selected rows.

    Args:
        file: File description, see :func:`find_leaves`.
        leaves: Members of ``struct leaves`` in ``sqlite_pages.c``.
        columns: Description of each integer column, see :func:`decode_integers`.
        selection: Members of ``struct selection`` in ``sqlite_pages.c``.

    Returns:
        values: Integer values, shape (columns + 1, rows). The last column is the length of each
            text in bytes, or -1 for NULL.
        texts: The concatenated texts as UTF-8.

        The result is None if the function cannot handle a page or memory runs out.
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
        # The values are copied because the memory is freed below.
        return (
            np.array(values.reshape(rows, width).T, order="C"),
            bytes(view_memory(text_address, text_bytes)),
        )
    finally:
        native.call("named_free", result)


def number_texts(texts: bytes, lengths: _Ints) -> tuple[_Ints, _Ints] | None:
    """Number the distinct texts in order of first occurrence, with a hash table.

    Equal texts get the same number, unless very many texts share a hash.

    Args:
        texts: Concatenated texts of all rows, as UTF-8.
        lengths: Length of each row's text in bytes, or -1 for NULL.

    Returns:
        number: Number of each row's text, or -1 for NULL.
        bounds: Offset and length of each distinct text in ``texts``, shape (texts, 2).
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
