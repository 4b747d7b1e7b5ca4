"""Rank iterations: the ranks in one iteration, as columns and as records created on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import overload

import numpy as np

from bubbleviz.count.window_bounds import WindowBounds
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import COMPUTE

#: Labels of the phases in the last dimension of ``phase_ns``.
PHASES = tuple(phase.label for phase in COMPUTE)


@dataclass(frozen=True)
class Account:
    """How one rank spent the time in one window, in ns. The parts add up exactly to the window.

    The equation is ``window = compute + optimizer + overlap + unattributed + bubble``. In addition,
    ``running_ns`` is the time during which any kernel or copy ran.
    """

    start_ns: int
    end_ns: int
    compute_ns: int
    optimizer_ns: int
    overlap_ns: int
    unattributed_ns: int
    bubble_ns: int
    running_ns: int = 0

    @property
    def window_ns(self) -> int:
        """Length of the window in ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RankIteration:
    """One rank in one iteration.

    Attributes:
        rank: Index of the rank.
        busy_ns: Busy time of each phase in ns, keyed by label (F, B, W, BW, R, FB, Optimizer).
            Overlaps are counted only once.
        compute_ns: Combined busy time of F, B, W, BW, R and FB in ns. Overlaps are counted only
            once.
        active_ns: Time in ns during which compute kernels of F, B, W, BW, R and FB ran.
        first_ns: Earliest start of the rank's F, B, W, BW, R and FB.
        last_ns: Latest end of the rank's F, B, W, BW, R and FB.
        accounts: How the rank spent the time in each ratio's window, keyed by ratio name.
        bubble_ratio: The rank's own bubble ratio, or None if unknown, keyed by ratio name.
        bubble_interval: Lower and upper bound of ``bubble_ratio`` given the uncertainty of the
            clocks, keyed by ratio name. Unknown bounds are left out.
        missing: Work that the rank lacks for computing a ratio, for example ``no F with GPU work``,
            or None if it lacks nothing.
        kernel_ns: Time during which any kernel or copy ran between ``first_ns`` and ``last_ns``,
            including communication.
        gap_ns: Time during which no kernel or copy ran while F, B, W, BW, R or FB kept the GPU busy
            (launch gaps).
    """

    rank: int
    busy_ns: Mapping[str, int]
    compute_ns: int
    active_ns: int
    first_ns: int
    last_ns: int
    accounts: Mapping[str, Account]
    bubble_ratio: Mapping[str, float | None]
    bubble_interval: Mapping[str, tuple[float, float]]
    missing: str | None = None
    kernel_ns: int = 0
    gap_ns: int = 0


#: Field names of :class:`Account`, and the field names of :class:`RankIteration` that are in ns.
_ACCOUNT_FIELDS = tuple(f.name for f in fields(Account))
_RANK_FIELDS = ("compute_ns", "active_ns", "first_ns", "last_ns", "kernel_ns", "gap_ns")


@dataclass(frozen=True)
class AccountColumns:
    """How the ranks spent the time in the windows of one ratio, shape (iterations, ranks).

    Attributes:
        start_ns: Start of each window.
        end_ns: End of each window.
        compute_ns: See :class:`.Account`.
        optimizer_ns: See :class:`.Account`.
        overlap_ns: See :class:`.Account`.
        unattributed_ns: See :class:`.Account`.
        bubble_ns: See :class:`.Account`.
        running_ns: See :class:`.Account`.
        work_ns: Time that counts as work in the ratio.
        is_known: For each iteration, whether the windows are known.
        bounds: Bounds of the windows given the uncertainty of the clocks, or None if the ratio does
            not compare clocks.
    """

    start_ns: Ints
    end_ns: Ints
    compute_ns: Ints
    optimizer_ns: Ints
    overlap_ns: Ints
    unattributed_ns: Ints
    bubble_ns: Ints
    running_ns: Ints
    work_ns: Ints
    is_known: tuple[bool, ...]
    bounds: WindowBounds | None


@dataclass(frozen=True)
class RankColumns:
    """Measurements of all ranks in all iterations, shape (iterations, ranks).

    Attributes:
        phase_ns: Busy time of each phase in ``PHASES``, shape (iterations, ranks, phases).
        compute_ns: See :class:`.RankIteration`.
        active_ns: See :class:`.RankIteration`.
        first_ns: See :class:`.RankIteration`.
        last_ns: See :class:`.RankIteration`.
        kernel_ns: See :class:`.RankIteration`.
        gap_ns: See :class:`.RankIteration`.
        missing: Work that a rank lacks for computing a ratio, as an index into ``reasons``.
        reasons: Text for each value of ``missing``. None means that nothing is missing.
        accounts: How the ranks spent the time in the windows of each ratio, keyed by ratio name.
    """

    phase_ns: Ints
    compute_ns: Ints
    active_ns: Ints
    first_ns: Ints
    last_ns: Ints
    kernel_ns: Ints
    gap_ns: Ints
    missing: Ints
    reasons: tuple[str | None, ...]
    accounts: Mapping[str, AccountColumns]


class RankIterations(Sequence[RankIteration]):
    """The ranks in one iteration: a sequence of :class:`.RankIteration` created on access.

    To read a single value for all ranks, use the functions below, which return a column.

    Args:
        columns: Measurements of all ranks in all iterations.
        iteration: Index of the iteration.
        rank: Indices of the ranks that take part in the iteration, ascending.
    """

    def __init__(self, columns: RankColumns, iteration: int, rank: Ints) -> None:
        self.columns, self.iteration, self.rank = columns, iteration, rank

    def select_ranks(self, rank: Ints) -> RankIterations:
        """Return the same iteration with a subset of its ranks."""
        return RankIterations(self.columns, self.iteration, rank)

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[RankIteration]:
        names = [name for name in self.columns.accounts if has_account(self, name)]
        accounts = {name: self._make_accounts(name) for name in names}
        ratios = {name: compute_rank_ratios(self, name) for name in self.columns.accounts}
        bounds = {name: compute_rank_intervals(self, name) for name in names}
        phase_ns = get_rank_column(self, "phase_ns").tolist()
        missing = list_missing(self)
        columns = [get_rank_column(self, name).tolist() for name in _RANK_FIELDS]
        for index, rank in enumerate(self.rank.tolist()):
            intervals = {name: of_ranks[index] for name, of_ranks in bounds.items()}
            yield RankIteration(
                rank=rank,
                busy_ns=dict(zip(PHASES, phase_ns[index], strict=True)),
                accounts={name: of_ranks[index] for name, of_ranks in accounts.items()},
                bubble_ratio={name: of_ranks[index] for name, of_ranks in ratios.items()},
                bubble_interval={n: bound for n, bound in intervals.items() if bound is not None},
                missing=missing[index],
                **{n: column[index] for n, column in zip(_RANK_FIELDS, columns, strict=True)},
            )

    def _make_accounts(self, ratio: str) -> list[Account]:
        """Build all ranks' accounts for one ratio. The windows must be known."""
        columns = [get_account_column(self, ratio, name).tolist() for name in _ACCOUNT_FIELDS]
        return list(map(Account, *columns))

    @overload
    def __getitem__(self, index: int) -> RankIteration: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RankIteration, ...]: ...

    def __getitem__(self, index: int | slice) -> RankIteration | tuple[RankIteration, ...]:
        if isinstance(index, slice):
            return tuple(self.select_ranks(self.rank[index]))
        return next(iter(self.select_ranks(self.rank[np.arange(len(self.rank))[index]][None])))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (RankIterations, tuple)):
            return len(self) == len(other) and all(map(RankIteration.__eq__, self, other))
        return NotImplemented

    #: Not hashable, because an equal sequence may be backed by other columns, or may be a tuple.
    __hash__ = None  # type: ignore[assignment]  # as mypy takes any class to be hashable

    def __repr__(self) -> str:
        return f"RankIterations({len(self):,} ranks)"

    def __deepcopy__(self, memo: object) -> RankIterations:
        """Return the same object, because its columns are shared and never change."""
        return self


def list_indices(ranks: RankIterations) -> list[int]:
    """Return the indices of the ranks in an iteration."""
    return [int(rank) for rank in ranks.rank.tolist()]


def has_account(ranks: RankIterations, ratio: str) -> bool:
    """Return whether the windows of a ratio are known for an iteration that has ranks."""
    account = ranks.columns.accounts.get(ratio)
    return len(ranks) > 0 and account is not None and account.is_known[ranks.iteration]


def get_account_column(ranks: RankIterations, ratio: str, name: str) -> Ints:
    """Return one :class:`.Account` field for all ranks, or zeros if the windows are unknown.

    Args:
        ranks: Ranks of an iteration.
        ratio: Name of the ratio whose windows are used.
        name: Name of the field, such as ``"bubble_ns"`` or ``"window_ns"``.
    """
    if not has_account(ranks, ratio):
        return np.zeros(len(ranks), np.int64)
    account = ranks.columns.accounts[ratio]
    if name == "window_ns":
        return get_account_column(ranks, ratio, "end_ns") - get_account_column(
            ranks, ratio, "start_ns"
        )
    column: Ints = getattr(account, name)[ranks.iteration][ranks.rank]
    return column


def get_rank_column(ranks: RankIterations, name: str) -> Ints:
    """Return one :class:`.RankIteration` field for all ranks, such as ``"gap_ns"``.

    The name ``"phase_ns"`` returns the busy time of each phase, shape (ranks, phases).
    """
    column: Ints = getattr(ranks.columns, name)[ranks.iteration][ranks.rank]
    return column


def compute_rank_ratios(ranks: RankIterations, ratio: str) -> list[float | None]:
    """Return each rank's own bubble ratio, or None if it is unknown.

    The ratio is ``(window - work) / window``. If the window is unknown or empty, or if the rank
    lacks work, the ratio is unknown.

    Args:
        ranks: Ranks of an iteration.
        ratio: Name of the ratio.
    """
    window_ns = get_account_column(ranks, ratio, "window_ns")
    is_known = (window_ns > 0) & (get_rank_column(ranks, "missing") == 0)
    idle_ns = window_ns - get_account_column(ranks, ratio, "work_ns")
    values = (idle_ns / np.maximum(window_ns, 1)).tolist()
    flags = is_known.tolist()
    return [value if flag else None for value, flag in zip(values, flags, strict=True)]


def compute_rank_intervals(ranks: RankIterations, ratio: str) -> list[tuple[float, float] | None]:
    """Return (lower, upper) bounds of each rank's bubble ratio, given the clock uncertainty.

    The bounds of a rank are None if the rank lacks work, or if the uncertainty is unknown or too
    large. All bounds are None if the ratio does not compare clocks, or if all ranks that take part
    in the iteration are on one machine.

    Args:
        ranks: Ranks of an iteration.
        ratio: Name of the ratio.
    """
    bounds, k = ranks.columns.accounts[ratio].bounds, ranks.iteration
    if bounds is None or not bounds.across[k]:
        return [None] * len(ranks)
    work_ns = get_account_column(ranks, ratio, "work_ns").tolist()
    return [
        None if why else bounds.compute_interval(k, time_ns, 1)
        for time_ns, why in zip(work_ns, list_missing(ranks), strict=True)
    ]


def list_missing(ranks: RankIterations) -> list[str | None]:
    """Return the work that each rank lacks for computing a ratio, or None if it lacks nothing."""
    return [ranks.columns.reasons[code] for code in get_rank_column(ranks, "missing").tolist()]
