"""A table of layers: CSV that a user measured, or that an analysis wrote.

=============== ====================================================================================
column          holds
=============== ====================================================================================
name            of the layer; its kind is inferred from it where there is no ``kind``
forward_ms      forward of one microbatch
backward_ms     backward for the input where there is ``weight_ms``, else the whole backward
weight_ms       backward for the weights
memory          activations of one microbatch from F to the end of B
memory_weight   the part of them that is held on to the end of W; without it, all
resident        memory that is always taken: weights, gradients, states of the optimizer
transfer_ms     until its output has arrived on another device; and the gradient on its way back
kind            embedding, layer, mtp or head
=============== ====================================================================================

Only the first three must be there. Memory is written as ``1.5GB`` or ``300MiB``, or as plain
numbers in the unit of ``--memory-limit``.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.layer_names import LAYER, parse_layer_name
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model import files, memory_sizes, texts
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion
from bubbleviz.schedules.layout.layers import MOST_LAYERS, LayerKind, Layers, Layout


@dataclass(frozen=True)
class MeasuredModel:
    """What is known of a model, and of the run it was measured in.

    Attributes:
        source: where it is known from, in words, for a table's caption.
        layers: of the model.
        split: whether both halves of the backward were measured; else each takes half of it.
        assumptions: what was not measured, a sentence each.
        memory: whether the memory of activations is known.
        in_bytes: whether it is in bytes.
        plain_memory: whether memory is in plain numbers, of the unit of the limit.
        ran: name of the schedule that ran; None unknown.
        ran_ns: measured length of an iteration; None unknown.
        stages: devices of the run; None without a run.
        microbatches: of its iterations.
        own: its layout.
        links: nanoseconds from each device to each; None unknown.
    """

    source: str
    layers: Layers
    split: bool = True
    assumptions: tuple[str, ...] = ()
    memory: bool = False
    in_bytes: bool = False
    plain_memory: bool = False
    ran: str | None = None
    ran_ns: float | None = None
    stages: int | None = None
    microbatches: int | None = None
    own: Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None

    def question(self, stages: int | None, microbatches: int | None) -> LayoutQuestion:
        """Return what is sought, with sizes in place of those of the run.

        Raises:
            UsageError: a size is neither given nor measured.
        """
        p, m = stages or self.stages, microbatches or self.microbatches
        lacking = [option for option, size in (("-p P", p), ("-m M", m)) if size is None]
        if p is None or m is None:
            raise UsageError(f"give {' and '.join(lacking)}, or the profiles of a run")
        own = self.own if p == self.stages else None
        links = self.links
        if links is not None and p != self.stages:
            usual = int(np.median([ns for row in links for ns in row]))
            links = ((usual,) * p,) * p
        return LayoutQuestion(self.layers, p, m, own=own, links=links, split=self.split)


COLUMNS = (
    *("name", "kind", "forward_ms", "backward_ms", "weight_ms", "memory", "memory_weight"),
    *("resident", "transfer_ms"),
)
_NEEDED = ("name", "forward_ms", "backward_ms")
_MOST_BYTES = 1 << 22
#: 115 days.
_LONGEST_MS = 1e10
#: What a model lacks whose halves of the backward were not measured.
HALVES = "B and W: assumed half of the backward each (schedules with W apart)"
_HINT = "give CSV with the columns name, forward_ms, backward_ms (bubbleviz guide layout)"


def read_layers(path: str) -> MeasuredModel:
    """Return the model in a table of layers.

    Raises:
        InputError: it cannot be read, lacks a column, or holds what is no number.
    """
    rows = _rows_of(path)
    cells = {
        column: [(row.get(column) or "").strip() for row in rows] for column in (*COLUMNS, "kind")
    }
    split, units = any(cells["weight_ms"]), set[bool]()
    forward, backward, weight = (
        _times(path, column, cells[column]) for column in ("forward_ms", "backward_ms", "weight_ms")
    )
    weight = weight if split else backward // 2
    fused = backward + weight if split else backward
    transfer = _times(path, "transfer_ms", cells["transfer_ms"])
    held = _amounts(path, "memory", cells["memory"], units)
    kept = held.copy()
    if any(cells["memory_weight"]):
        kept = _amounts(path, "memory_weight", cells["memory_weight"], units)
    if (kept > held).any():
        at = int(np.flatnonzero(kept > held)[0])
        raise _wrong(path, at, "memory_weight", "more than memory, which includes it")
    layers = Layers(
        forward_ns=forward,
        backward_ns=fused - weight,
        weight_ns=weight,
        fused_ns=fused,
        down_ns=transfer,
        up_ns=transfer.copy(),
        held=held,
        kept=kept,
        resident=_amounts(path, "resident", cells["resident"], units),
        names=tuple(texts.to_one_line(row.get("name") or "", 200) for row in rows),
        kinds=_kinds(path, cells["kind"], cells["name"]),
    )
    return MeasuredModel(
        source=texts.to_one_line(path, 100),
        layers=layers,
        split=split,
        assumptions=() if split or layers.forward_only else (HALVES,),
        memory=bool(held.any()),
        in_bytes=True in units,
        plain_memory=True not in units,
    )


def _rows_of(path: str) -> list[dict[str, str | None]]:
    content = files.read_bounded(path, _MOST_BYTES, "a table of layers", _HINT, pipes=True)
    try:
        text = content.decode("utf-8-sig")
        delimiter = max((",", ";", "\t"), key=text.split("\n", 1)[0].count)
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table of layers; {_HINT}") from error
    header = set(rows[0]) if rows else set()
    lacking = [column for column in _NEEDED if column not in header]
    if lacking:
        raise InputError(f"{path}: no layers, or no column {lacking[0]!r}; {_HINT}")
    if len(rows) > MOST_LAYERS:
        raise InputError(f"{path}: more than {MOST_LAYERS:,} layers; give one row for several")
    return rows


def _wrong(path: str, at: int, column: str, what: str) -> InputError:
    return InputError(f"{path}: row {at + 1}, {column}: {what}; {_HINT}")


def _times(path: str, column: str, cells: Sequence[str]) -> Ints:
    """Return the nanoseconds of a column of milliseconds."""
    found = []
    for at, cell in enumerate(cells):
        try:
            value = float(cell) if cell or column in _NEEDED else 0.0
        except ValueError:
            value = math.nan
        if not 0 <= value <= _LONGEST_MS:
            what = f"{texts.to_one_line(cell, 40)!r} is not a time in milliseconds"
            raise _wrong(path, at, column, what)
        found.append(round(value * 1e6))
    return np.array(found, np.int64)


def _amounts(path: str, column: str, cells: Sequence[str], units: set[bool]) -> Floats:
    """Return a column of memory; ``units`` takes whether its amounts are in bytes.

    Raises:
        InputError: the amounts before have another unit.
    """
    found = []
    for at, cell in enumerate(cells):
        size = memory_sizes.parse_memory(cell or "0", f"{path}: row {at + 1}, {column}")
        if size.amount:
            if units and size.in_bytes not in units:
                kinds = "in bytes", "a plain number"
                this, others = kinds if size.in_bytes else kinds[::-1]
                what = (
                    f"{texts.to_one_line(cell, 40)!r} is {this}, and the rows before are {others}"
                )
                raise _wrong(path, at, column, what)
            units.add(size.in_bytes)
        found.append(size.amount)
    return np.array(found, float)


def _kinds(path: str, kinds: Sequence[str], names: Sequence[str]) -> tuple[LayerKind, ...]:
    """Return the kinds of layers, inferred from their names where they are not given."""
    found = []
    for at, (given, name) in enumerate(zip(kinds, names, strict=True)):
        known = None if given else parse_layer_name(name)
        kind = given.lower() or (LAYER if known is None else known.kind)
        if kind not in (known_kinds := [each.value for each in LayerKind]):
            what = f"{texts.to_one_line(kind, 40)!r} is not one of {known_kinds}"
            raise _wrong(path, at, "kind", what)
        found.append(LayerKind(kind))
    return tuple(found)


def table_text(layers: Layers, further: Mapping[str, Sequence[object]], *, in_bytes: bool) -> str:
    """Return layers as such a table, with further columns behind it; memory may be in bytes."""
    unit = "B" if in_bytes else ""
    cells = zip(
        map(texts.quote_formula, layers.names),
        (kind.value for kind in layers.kinds),
        *((ns / 1e6).tolist() for ns in layers.times[:3]),
        *(
            [f"{amount}{unit}" for amount in column.tolist()]
            for column in (layers.held, layers.kept, layers.resident)
        ),
        (layers.down_ns / 1e6).tolist(),
        *further.values(),
        strict=True,
    )
    return texts.format_csv((*COLUMNS, *further), cells)
