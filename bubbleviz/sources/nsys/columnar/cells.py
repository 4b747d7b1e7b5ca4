"""Cells: columns of Arrow as numbers and texts, as strictly as those of an SQLite export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen

#: What is wrong with a column that holds something else than whole numbers.
NO_NUMBER = "there is something else than a whole number where one belongs"


@frozen
class Numbers:
    """A column of whole numbers.

    Attributes:
        values: 0 where there is none.
        known: where there is one; None for everywhere.
    """

    values: Ints
    known: Bools | None

    def filled(self, missing: int) -> Ints:
        """Return the values, and another where there is none."""
        return self.values if self.known is None else np.where(self.known, self.values, missing)

    def without(self, values: tuple[int, ...]) -> Numbers:
        """Return the column in which some values stand for none."""
        if not values or not (hit := np.isin(self.values, values)).any():
            return self
        return Numbers(self.values, ~hit if self.known is None else self.known & ~hit)

    def every(self) -> Ints:
        """Return the values.

        Raises:
            ValueError: there is none somewhere.
        """
        if self.known is not None and not self.known.all():
            raise ValueError(NO_NUMBER)
        return self.values

    def mask(self) -> Bools:
        """Tell where there is one."""
        return np.ones(len(self.values), bool) if self.known is None else self.known


def absent(length: int) -> Numbers:
    """Return a column of so many rows without any number."""
    return Numbers(np.zeros(length, np.int64), np.zeros(length, bool))


def is_text(kind: Any) -> bool:
    """Tell whether a type is that of texts, dictionaries of them included."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def numbers_of(column: Any) -> Numbers:
    """Return a column as whole numbers; unsigned ones of 64 bits as SQLite keeps their bits.

    Raises:
        ValueError: it holds something else.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind):
        return absent(len(column))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not pa.types.is_integer(kind):
        raise ValueError(NO_NUMBER)
    known = None
    if column.null_count:
        known = present(column)
        column = column.fill_null(0)
    values = column.to_numpy(zero_copy_only=False)
    return Numbers(values.astype(np.int64, casting="unsafe", copy=False), known)


def kept(batch: Any, rows: Bools) -> Any:
    """Return the rows of a batch, or of a column, that a mask names."""
    import pyarrow as pa

    return batch.filter(pa.array(rows))


def may_match(column: Any, regex: str) -> Bools | None:
    """Tell which texts of a column a regex of RE2 matches; None where it cannot be used."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        of_text = may_match(column.dictionary, regex)
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        none = of_text is None or not len(of_text)
        return of_text if none else of_text[codes] & present(column)  # type: ignore[index]
    if not is_text(column.type):
        return None
    if str(column.type) == "string_view":
        column = column.cast(pa.string())
    try:
        matches = pc.match_substring_regex(column, regex).fill_null(False)
    except pa.ArrowInvalid:
        return None
    return np.asarray(matches.to_numpy(zero_copy_only=False), bool)


def present(column: Any) -> Bools:
    """Tell where a column has a value."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def numbered(column: Any, numbers: Mapping[str, int]) -> Any:
    """Return the number of each text of a column, as a column."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    of_text = [None if t is None else numbers[t] for t in texts_of(column.dictionary)]
    return pa.array(of_text, pa.int64()).take(column.indices)


def affinity_of(kind: Any) -> str:
    """Return the type that SQLite has for a type of Arrow; "" where it has none."""
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(plain):
        return "TEXT"
    if pa.types.is_integer(plain) or pa.types.is_boolean(plain) or pa.types.is_null(plain):
        return "INT"
    return "REAL" if pa.types.is_floating(plain) else ""


def column_of(texts: Sequence[str]) -> Any:
    """Return texts as a column."""
    import pyarrow as pa

    return pa.array(texts, pa.string())


def texts_of(column: Any) -> list[Any]:
    """Return the values of a column, read as far as bytes are UTF-8; None where there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist()
    if pa.types.is_string(column.type):
        return values
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
