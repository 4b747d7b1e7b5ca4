"""The truth about a planted run: operations, clocks, and ratios computed by slow exact code.

The file ``truth.json`` next to a fixture contains a :class:`Truth`. Times without a prefix are
nanoseconds on the true global clock; ``file_`` times are on the clock of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from tests.planting.options import Planting
from tests.planting.places import Clock
from tests.support.exact import WINDOWS, WORK, Span, compute_idle_share, compute_numbers


@dataclass(frozen=True)
class TrueFile:
    """One export file and its clock."""

    path: str
    host: str
    clock: Clock
    kernels: int


@dataclass(frozen=True)
class TrueRank:
    """One rank: a device of a process."""

    rank: int
    file: str
    host: str
    pid: int
    device_id: int
    uuid: str
    stage: int
    pipeline: int = 0


@dataclass(frozen=True)
class TrueOperation:
    """One operation, with the captured part of its span. Times are null without device work."""

    rank: int
    iteration: int
    phase: str
    microbatch: int | None
    chunk: int | None
    virtual_stage: int | None
    name: str
    start_ns: int | None
    end_ns: int | None
    file_start_ns: int | None
    file_end_ns: int | None
    kernels: int
    active_ns: int
    complete: bool
    busy: tuple[Span, ...]

    @property
    def span(self) -> Span | None:
        """Start and end of the operation, or None if it has no device work."""
        return (
            None if self.start_ns is None or self.end_ns is None else (self.start_ns, self.end_ns)
        )


@dataclass(frozen=True)
class TrueIteration:
    """One iteration and its ratios. A ratio is null if it is unknown."""

    index: int
    kind: str
    complete: bool
    microbatches: int
    compute_ns: int
    bubble_ratio: dict[str, float | None]
    bubble_low: dict[str, float | None]


@dataclass(frozen=True)
class Truth:
    """The complete truth.

    ``unattributed`` lists the compute kernels outside operations, keyed by rank.
    """

    planting: Planting
    files: tuple[TrueFile, ...]
    ranks: tuple[TrueRank, ...]
    operations: tuple[TrueOperation, ...]
    unattributed: dict[int, list[Span]]
    iterations: tuple[TrueIteration, ...]

    def to_json(self) -> str:
        """Return the text of ``truth.json``, with one operation per line."""
        parts = (f'"{f.name}": {_format_lines(getattr(self, f.name))}' for f in fields(self))
        return "{" + ",\n".join(parts) + "}\n"


_COLUMNS = tuple(f.name for f in fields(TrueOperation))


def _format_lines(value: object) -> str:
    """Return JSON text; a list has one item per line."""
    if not isinstance(value, tuple):
        return msgspec.json.encode(value).decode()
    items = (
        [getattr(v, c) for c in _COLUMNS] if isinstance(v, TrueOperation) else v for v in value
    )
    return "[\n" + ",\n".join(msgspec.json.encode(item).decode() for item in items) + "\n]"


def read_truth(path: Path) -> Truth:
    """Read a ``truth.json`` file."""
    document = msgspec.json.decode(path.read_bytes())
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in document["operations"]]
    return msgspec.convert({**document, "operations": rows}, Truth, str_keys=True)


def compute_iterations(
    operations: Sequence[TrueOperation], unattributed: dict[int, list[Span]]
) -> tuple[TrueIteration, ...]:
    """Return the iterations with their ratios, as ``bubbleviz guide ratios`` defines them."""
    train = any(op.phase != "F" for op in operations)
    result = []
    for k in sorted({op.iteration for op in operations}):
        operations_of_iteration = [op for op in operations if op.iteration == k]
        work = [op for op in operations_of_iteration if op.phase in WORK]
        ranks = compute_numbers(k, k + 1, operations, unattributed).values()
        complete = all(op.complete for op in work)
        low, ratio = (dict[str, float | None].fromkeys(WINDOWS) for _ in range(2))
        for name in WINDOWS:
            has_ratio = complete and (
                name != "step" or all(op.complete for op in operations_of_iteration)
            )
            accounts = [rank.accounts[name] for rank in ranks if name in rank.accounts]
            if has_ratio and accounts:
                busy, window = (
                    sum(column)
                    for column in zip(*((a.work(name), a.length) for a in accounts), strict=True)
                )
                ratio[name] = compute_idle_share(busy, window)
                low[name] = compute_idle_share(busy + sum(a.unattributed for a in accounts), window)
        training = any(op.phase != "F" for op in work)
        result.append(
            TrueIteration(
                index=k,
                kind="training" if training else "evaluation" if train else "inference",
                complete=complete,
                microbatches=len({op.microbatch for op in work if op.phase == "F"}),
                compute_ns=sum(rank.accounts["schedule"].compute for rank in ranks),
                bubble_ratio=ratio,
                bubble_low=low,
            )
        )
    return tuple(result)
