"""Phase masks: rows of some phases, as numpy's general search finds them."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, TRANSFERS, WORK, Phase


@pytest.mark.parametrize("phases", [(), (Phase.F,), WORK, COMPUTE, TRANSFERS])
@pytest.mark.parametrize("kind", [np.int8, np.int64])
def test_rows_of_phases(phases: tuple[Phase, ...], kind: type[np.signedinteger]) -> None:
    column = np.array([-1, *Phase, -1], kind)
    assert among(column, phases).tolist() == np.isin(column, phases).tolist()
    assert among(column[:0], phases).tolist() == []
