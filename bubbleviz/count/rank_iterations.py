"""The ranks of an iteration: columns over all of them, and a value each for whoever asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import overload

import numpy as np

from bubbleviz.count.window_bounds import WindowBounds
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import COMPUTE

#: Labels of the phases of ``phase_ns``.
PHASES = tuple(phase.label for phase in COMPUTE)


@dataclass(frozen=True)
class Account:
    """How one rank used the time of one window; the parts add up to the window exactly.

    ``window = compute + optimizer + overlap + unattributed + bubble``; beside these stands
    ``running_ns``, how long any kernel or copy ran in it.
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
        """Length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RankIteration:
    """One rank in one iteration.

    Attributes:
        rank: index of the rank.
        busy_ns: union of the busy time by printed phase name (F, B, W, BW, R, FB, Optimizer).
        compute_ns: union of the busy time of F, B, W, BW, R and FB.
        active_ns: union of the compute kernels of those.
        first_ns: first start of those.
        last_ns: last end of those.
        accounts: by name of the ratio, how the time of its window was used.
        bubble_ratio: the rank's own ratio in the same window; None where it is unknown.
        bubble_interval: bounds of it that the clocks of several hosts allow.
        missing: what the rank lacks to have a ratio, or None.
        kernel_ns: how long any kernel or copy ran between these, communication included.
        gap_ns: how long none ran while F, B, W, BW, R or FB kept the GPU busy: launch gaps.
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


#: Columns of :class:`AccountColumns` and :class:`RankColumns` that are numbers of a rank.
_ACCOUNT = tuple(f.name for f in fields(Account))
_OF_RANK = ("compute_ns", "active_ns", "first_ns", "last_ns", "kernel_ns", "gap_ns")


@dataclass(frozen=True)
class AccountColumns:
    """How ranks used the time of the windows of one ratio; shape (iterations, ranks).

    Attributes:
        start_ns: of the windows.
        end_ns: likewise.
        compute_ns: see :class:`.Account`, as the columns that follow.
        optimizer_ns: likewise.
        overlap_ns: likewise.
        unattributed_ns: likewise.
        bubble_ns: likewise.
        running_ns: likewise.
        work_ns: what counts as work in them.
        known: whether each iteration has such windows, shape (iterations,).
        bounds: what clocks allow the windows; None where the ratio needs no common one.
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
    known: tuple[bool, ...]
    bounds: WindowBounds | None


@dataclass(frozen=True)
class RankColumns:
    """All that is counted of ranks; shape (iterations, ranks).

    Attributes:
        phase_ns: busy time, shape (iterations, ranks, phases of COMPUTE).
        compute_ns: see :class:`.RankIteration`, as the columns that follow.
        active_ns: likewise.
        first_ns: likewise.
        last_ns: likewise.
        kernel_ns: likewise.
        gap_ns: likewise.
        missing: place in ``reasons`` of what a rank lacks to have a ratio.
        reasons: in words; None where it lacks nothing.
        accounts: of each ratio, by name.
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
    """The ranks of one iteration, like a tuple of :class:`.RankIteration`.

    These are made when they are asked for. Whoever looks at one number of all ranks takes its
    column instead: the functions below do.

    Args:
        columns: of all iterations.
        iteration: which one this is.
        rank: the ranks with work in it, ascending.
    """

    def __init__(self, columns: RankColumns, iteration: int, rank: Ints) -> None:
        self.columns, self.iteration, self.rank = columns, iteration, rank

    def select_ranks(self, rank: Ints) -> RankIterations:
        """Return the same for some of the ranks."""
        return RankIterations(self.columns, self.iteration, rank)

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[RankIteration]:
        names = [name for name in self.columns.accounts if has_account(self, name)]
        numbers = {n: [get_account_column(self, n, c).tolist() for c in _ACCOUNT] for n in names}
        accounts = {name: list(map(Account, *columns)) for name, columns in numbers.items()}
        ratios = {name: compute_rank_ratios(self, name) for name in self.columns.accounts}
        bounds = {name: compute_rank_intervals(self, name) for name in names}
        phase_ns, missing = get_rank_column(self, "phase_ns").tolist(), list_missing(self)
        times = zip(*(get_rank_column(self, name).tolist() for name in _OF_RANK), strict=True)
        for at, (rank, values) in enumerate(zip(self.rank.tolist(), times, strict=True)):
            yield RankIteration(
                rank=rank,
                busy_ns=dict(zip(PHASES, phase_ns[at], strict=True)),
                accounts={name: of_ranks[at] for name, of_ranks in accounts.items()},
                bubble_ratio={name: of_ranks[at] for name, of_ranks in ratios.items()},
                bubble_interval={
                    name: bound
                    for name, of_ranks in bounds.items()
                    if (bound := of_ranks[at]) is not None
                },
                missing=missing[at],
                **dict(zip(_OF_RANK, values, strict=True)),
            )

    @overload
    def __getitem__(self, at: int) -> RankIteration: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[RankIteration, ...]: ...

    def __getitem__(self, at: int | slice) -> RankIteration | tuple[RankIteration, ...]:
        if isinstance(at, slice):
            return tuple(self.select_ranks(self.rank[at]))
        return next(iter(self.select_ranks(self.rank[np.arange(len(self.rank))[at]][None])))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (RankIterations, tuple)):
            return len(self) == len(other) and all(map(RankIteration.__eq__, self, other))
        return NotImplemented

    #: Equal ones may be columns of another report, or plain values.
    __hash__ = None  # type: ignore[assignment]  # as mypy takes any class to be hashable

    def __repr__(self) -> str:
        return f"RankIterations({len(self):,} ranks)"

    def __deepcopy__(self, memo: object) -> RankIterations:
        """Return it as it is: its columns are those of all iterations, and nobody changes them."""
        return self


def list_indices(ranks: RankIterations) -> list[int]:
    """Return the indices of an iteration's ranks."""
    return [int(rank) for rank in ranks.rank.tolist()]


def has_account(ranks: RankIterations, ratio: str) -> bool:
    """Return whether an iteration's ranks have a window of a ratio."""
    account = ranks.columns.accounts.get(ratio)
    return len(ranks) > 0 and account is not None and account.known[ranks.iteration]


def get_account_column(ranks: RankIterations, ratio: str, name: str) -> Ints:
    """Return a number of the :class:`.Account` of each rank; 0 where it has none.

    Args:
        ranks: of an iteration.
        ratio: whose windows are accounted for.
        name: attribute of the accounts, as ``"bubble_ns"``.
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
    """Return a number of each :class:`.RankIteration` of an iteration, as ``"gap_ns"``.

    ``"phase_ns"`` is how long each phase of COMPUTE ran on each rank, shape (ranks, phases).
    """
    column: Ints = getattr(ranks.columns, name)[ranks.iteration][ranks.rank]
    return column


def compute_rank_ratios(ranks: RankIterations, ratio: str) -> list[float | None]:
    """Return each rank's own bubble ratio; None where it is unknown."""
    window_ns = get_account_column(ranks, ratio, "window_ns")
    known = (window_ns > 0) & (get_rank_column(ranks, "missing") == 0)
    shares = (window_ns - get_account_column(ranks, ratio, "work_ns")) / np.maximum(window_ns, 1)
    values = zip(shares.tolist(), known.tolist(), strict=True)
    return [share if is_known else None for share, is_known in values]


def compute_rank_intervals(ranks: RankIterations, ratio: str) -> list[tuple[float, float] | None]:
    """Return the bounds of each rank's own ratio that clocks of several hosts allow, if any."""
    bounds, k = ranks.columns.accounts[ratio].bounds, ranks.iteration
    if bounds is None or not bounds.across[k]:
        return [None] * len(ranks)
    work_ns = get_account_column(ranks, ratio, "work_ns").tolist()
    return [
        None if why else bounds.compute_interval(k, time_ns, 1)
        for time_ns, why in zip(work_ns, list_missing(ranks), strict=True)
    ]


def list_missing(ranks: RankIterations) -> list[str | None]:
    """Return what each rank lacks to have a ratio; None where nothing."""
    return [ranks.columns.reasons[code] for code in get_rank_column(ranks, "missing").tolist()]
