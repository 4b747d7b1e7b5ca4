"""Reads and writes tables of layers as CSV.

=============== ====================================================================================
column          contents
=============== ====================================================================================
name            name of the layer; determines the kind if there is no ``kind``
forward_ms      forward of one microbatch
backward_ms     backward for the input if ``weight_ms`` is given, otherwise the complete backward
weight_ms       backward for the weights
memory          activations of one microbatch from F to the end of B
memory_weight   part of ``memory`` that is kept until the end of W; all of it if omitted
resident        memory that is always occupied: weights, gradients, optimizer states
transfer_ms     time to transfer the output to another device, and the gradient back
kind            embedding, layer, mtp or head
=============== ====================================================================================

Only the first three columns are required. Memory is written as ``1.5GB`` or ``300MiB``, or as plain
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
from bubbleviz.schedules.layout.layers import MAX_LAYERS, LayerKind, Layers, Layout


@dataclass(frozen=True)
class MeasuredModel:
    """A measured model, and the run in which it was measured, if any.

    Attributes:
        source: Description of the source, used in a table caption.
        layers: The model's layers.
        split: Whether B and W were measured separately. If not, B and W are each assumed to take
            half of the backward.
        assumptions: Assumptions that replace missing measurements, one sentence each.
        memory: Whether the activation memory is known.
        in_bytes: Whether memory is in bytes.
        plain_memory: Whether memory is in plain numbers, which have the unit of ``--memory-limit``.
        ran: Name of the schedule that the run used, or None if unknown.
        ran_ns: Measured iteration time of the run, or None if unknown.
        stages: Number of devices in the run, or None if there is no run.
        microbatches: Number of microbatches per iteration, or None if there is no run.
        run_layout: Layout of the run, or None if there is no run.
        links: Transfer time in ns between each pair of devices, or None if unknown.
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
    run_layout: Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None

    def make_question(self, stages: int | None, microbatches: int | None) -> LayoutQuestion:
        """Return the input for the layout search: this model on a given number of devices.

        If the number of devices differs from that of the measured run, there is no current layout.
        Each transfer is then assumed to take the median of the measured transfer times.

        Args:
            stages: Number of devices, or None to use the same number as the run.
            microbatches: Number of microbatches, or None to use the same number as the run.

        Raises:
            UsageError: A size is neither given nor measured.
        """
        p, m = stages or self.stages, microbatches or self.microbatches
        missing_options = [option for option, size in (("-p P", p), ("-m M", m)) if size is None]
        if p is None or m is None:
            raise UsageError(f"pass {' and '.join(missing_options)}, or the profiles of a run")
        run_layout = self.run_layout if p == self.stages else None
        links = self.links
        if links is not None and p != self.stages:
            usual = int(np.median([ns for row in links for ns in row]))
            links = ((usual,) * p,) * p
        return LayoutQuestion(
            self.layers, p, m, current_layout=run_layout, links=links, split=self.split
        )


COLUMNS = (
    *("name", "kind", "forward_ms", "backward_ms", "weight_ms", "memory", "memory_weight"),
    *("resident", "transfer_ms"),
)
#: Columns that a table must have.
_NEEDED = ("name", "forward_ms", "backward_ms")
#: Maximum size of a table in bytes.
_MAX_BYTES = 1 << 22
#: Maximum time of a layer in ms, which equals 115 days.
_LONGEST_MS = 1e10
#: Assumption if B and W were not measured separately.
HALVES = "B and W: each is assumed to take half of the backward, in schedules that separate them"
_HINT = "pass a CSV file with the columns name, forward_ms, backward_ms (bubbleviz guide layout)"


def read_layers(path: str) -> MeasuredModel:
    """Read the model in a table of layers.

    If all cells of ``weight_ms`` are empty, W is assumed to take half of the backward.

    Raises:
        InputError: The table cannot be read, lacks a column, or contains an invalid number.
    """
    rows = _read_rows(path)
    cells = {
        column: [(row.get(column) or "").strip() for row in rows] for column in (*COLUMNS, "kind")
    }
    split, units = any(cells["weight_ms"]), set[bool]()
    forward, backward, weight = (
        _parse_times(path, column, cells[column])
        for column in ("forward_ms", "backward_ms", "weight_ms")
    )
    weight = weight if split else backward // 2
    fused = backward + weight if split else backward
    transfer = _parse_times(path, "transfer_ms", cells["transfer_ms"])
    activation = _parse_amounts(path, "memory", cells["memory"], units)
    weight_activation = _parse_weight_memory(path, cells["memory_weight"], activation, units)
    layers = Layers(
        forward_ns=forward,
        backward_ns=fused - weight,
        weight_ns=weight,
        fused_ns=fused,
        down_ns=transfer,
        up_ns=transfer.copy(),
        activation=activation,
        weight_activation=weight_activation,
        resident=_parse_amounts(path, "resident", cells["resident"], units),
        names=tuple(texts.to_one_line(row.get("name") or "", 200) for row in rows),
        kinds=_find_kinds(path, cells["kind"], cells["name"]),
    )
    return MeasuredModel(
        source=texts.to_one_line(path, 100),
        layers=layers,
        split=split,
        assumptions=() if split or layers.forward_only else (HALVES,),
        memory=bool(activation.any()),
        in_bytes=True in units,
        plain_memory=True not in units,
    )


def _read_rows(path: str) -> list[dict[str, str | None]]:
    """Read the rows of a layer table as cells, keyed by column name.

    The delimiter is a comma, semicolon or tab, whichever occurs most often in the first line.

    Raises:
        InputError: The table cannot be read, lacks a column, or has no rows or too many rows.
    """
    content = files.read_bounded(path, _MAX_BYTES, "a table of layers", _HINT, pipes=True)
    try:
        text = content.decode("utf-8-sig")
        delimiter = max((",", ";", "\t"), key=text.split("\n", 1)[0].count)
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not a table of layers; {_HINT}") from error
    header = set(rows[0]) if rows else set()
    missing_columns = [column for column in _NEEDED if column not in header]
    if missing_columns:
        raise InputError(
            f"{path}: contains no layers, or has no column {missing_columns[0]!r}; {_HINT}"
        )
    if len(rows) > MAX_LAYERS:
        raise InputError(
            f"{path}: contains more than {MAX_LAYERS:,} layers; combine several layers in one row"
        )
    return rows


def _make_cell_error(path: str, row: int, column: str, problem: str) -> InputError:
    return InputError(f"{path}: row {row + 1}, {column}: {problem}; {_HINT}")


def _parse_times(path: str, column: str, cells: Sequence[str]) -> Ints:
    """Parse a column of times in milliseconds, and return the times in nanoseconds.

    An empty cell is 0 if the column is optional.

    Raises:
        InputError: A cell is not a number, is negative or exceeds ``_LONGEST_MS``.
    """
    times_ns = []
    for row, cell in enumerate(cells):
        try:
            value = float(cell) if cell or column in _NEEDED else 0.0
        except ValueError:
            value = math.nan
        if not 0 <= value <= _LONGEST_MS:
            problem = f"{texts.to_one_line(cell, 40)!r} is not a time in milliseconds"
            raise _make_cell_error(path, row, column, problem)
        times_ns.append(round(value * 1e6))
    return np.array(times_ns, np.int64)


def _parse_amounts(path: str, column: str, cells: Sequence[str], units: set[bool]) -> Floats:
    """Parse a column of memory sizes, and check that all sizes so far have the same unit.

    An empty cell is 0. A zero may have any unit.

    ``units`` contains True if earlier sizes are in bytes, False if they are plain numbers, and
    nothing if there are none yet. The unit of the parsed sizes is added to the set.

    Raises:
        InputError: A cell is not a size, or earlier sizes have a different unit.
    """
    amounts = []
    for row, cell in enumerate(cells):
        size = memory_sizes.parse_memory(cell or "0", f"{path}: row {row + 1}, {column}")
        if size.amount:
            if units and size.in_bytes not in units:
                kinds = "in bytes", "without a unit"
                this_kind, other_kind = kinds if size.in_bytes else kinds[::-1]
                text = texts.to_one_line(cell, 40)
                problem = f"{text!r} is {this_kind}, but earlier amounts are {other_kind}"
                raise _make_cell_error(path, row, column, problem)
            units.add(size.in_bytes)
        amounts.append(size.amount)
    return np.array(amounts, float)


def _parse_weight_memory(
    path: str, cells: Sequence[str], activation: Floats, units: set[bool]
) -> Floats:
    """Parse the part of the activations that is kept until the end of W.

    If all cells are empty, all activations are kept. ``units`` is extended in place; see
    :func:`_parse_amounts`.

    Args:
        path: Path to the table.
        cells: Cells of the column ``memory_weight``.
        activation: Activations of each layer.
        units: Units of the sizes parsed so far: True for bytes, False for plain numbers.

    Raises:
        InputError: A cell is not a size, has another unit, or exceeds the activations of its layer.
    """
    if not any(cells):
        return activation.copy()
    column = "memory_weight"
    weight_activation = _parse_amounts(path, column, cells, units)
    if (weight_activation > activation).any():
        bad_row = int(np.flatnonzero(weight_activation > activation)[0])
        raise _make_cell_error(path, bad_row, column, "exceeds memory, which must include it")
    return weight_activation


def _find_kinds(path: str, kinds: Sequence[str], names: Sequence[str]) -> tuple[LayerKind, ...]:
    """Return the kind of each layer.

    A kind that is not given is inferred from the name. If the name does not determine the kind
    either, the layer is a transformer layer.

    Raises:
        InputError: A kind does not exist.
    """
    layer_kinds = []
    for row, (kind_text, name) in enumerate(zip(kinds, names, strict=True)):
        kinds_by_name = None if kind_text else parse_layer_name(name)
        kind = kind_text.lower() or (LAYER if kinds_by_name is None else kinds_by_name.kind)
        if kind not in (known_kinds := [each.value for each in LayerKind]):
            problem = f"{texts.to_one_line(kind, 40)!r} is not one of {known_kinds}"
            raise _make_cell_error(path, row, "kind", problem)
        layer_kinds.append(LayerKind(kind))
    return tuple(layer_kinds)


def format_table(layers: Layers, further: Mapping[str, Sequence[object]], *, in_bytes: bool) -> str:
    """Format layers as CSV with the columns :data:`COLUMNS`, followed by additional columns.

    Args:
        layers: The layers.
        further: Additional columns, keyed by header, with one cell per layer.
        in_bytes: Whether to write memory sizes with the unit B.
    """
    unit = "B" if in_bytes else ""
    cells = zip(
        map(texts.quote_formula, layers.names),
        (kind.value for kind in layers.kinds),
        *((ns / 1e6).tolist() for ns in layers.times[:3]),
        *(
            [f"{amount}{unit}" for amount in column.tolist()]
            for column in (layers.activation, layers.weight_activation, layers.resident)
        ),
        (layers.down_ns / 1e6).tolist(),
        *further.values(),
        strict=True,
    )
    return texts.format_csv((*COLUMNS, *further), cells)
