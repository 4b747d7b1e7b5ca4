"""Reasons why a run has no schedule, which saved reports are read by as well."""

from __future__ import annotations

#: Why replicas of one stage, and a rank alone, ran no schedule.
SINGLE_STAGE = "one stage is no pipeline"
#: Why one stage of a pipeline, whose other stages have no profile, has no known schedule.
OTHER_STAGES_MISSING = "the profiles hold one stage of a pipeline, and the others are missing"
#: Why ranks of one stage have no schedule.
ONE_STAGE = (SINGLE_STAGE, OTHER_STAGES_MISSING)
