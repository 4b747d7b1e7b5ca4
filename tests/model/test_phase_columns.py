"""Columns of phases: rows of some phases, as numpy's general search finds them."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.model.phase_columns import of_phases
from bubbleviz.model.phases import COMPUTE, TRANSFERS, WORK, Phase


@pytest.mark.parametrize("phases", [(), (Phase.F,), WORK, COMPUTE, TRANSFERS])
@pytest.mark.parametrize("kind", [np.int8, np.int64])
def test_rows_of_phases(phases: tuple[Phase, ...], kind: type[np.signedinteger]) -> None:
    column = np.array([-1, *Phase, -1], kind)
    assert of_phases(column, phases).tolist() == np.isin(column, phases).tolist()
    assert of_phases(column[:0], phases).tolist() == []
