"""Which rows of a column are of some phases."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase


@given(st.lists(st.sampled_from(Phase)), st.sets(st.sampled_from(Phase)))
def test_rows_are_of_some_phases(column: list[Phase], phases: set[Phase]) -> None:
    assert among(np.array(column, np.int64), phases).tolist() == [p in phases for p in column]
