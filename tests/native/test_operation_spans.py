"""Spans by the compiled part: an owner that there is not is an error, as in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.native.columns import operation_spans
from bubbleviz.native.library import library


@pytest.mark.parametrize(("owner", "sound"), [(-1, True), (1, True), (2, False), (-2, False)])
def test_an_owner_that_there_is_not_is_refused(owner: int, sound: bool) -> None:
    native = library()
    if native is None:
        pytest.skip("the compiled part is missing")
    one, times = np.ones(1, bool), np.zeros(1, np.int64)
    arguments = np.array([owner], np.int32), (one, ~one), (times, times + 5), np.zeros(2, bool)
    if sound:
        assert operation_spans(native, *arguments)[2].sum() == (owner >= 0)
    else:
        with pytest.raises(IndexError, match="1 rows have an owner"):
            operation_spans(native, *arguments)
