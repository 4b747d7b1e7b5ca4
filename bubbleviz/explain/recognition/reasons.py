"""Reasons why a run has no schedule, which saved reports are read by as well."""

from __future__ import annotations

#: Why replicas of one stage, and a rank alone, ran no schedule.
SINGLE_STAGE = "one stage is no pipeline"
#: Why one stage of a pipeline, whose other stages have no profile, has no known schedule.
OTHER_STAGES_MISSING = "the profiles hold one stage of a pipeline, and the others are missing"
#: Why a part of a pipeline has no schedule, though its order may look like that of a whole one.
STAGES_MISSING = "stages are missing, and the order of the others matches no one schedule"
#: Why what may be a part has none; the name of the schedule that it would be follows.
STAGES_MAY_BE_MISSING = "stages may be missing; if none is (--parallel says so), it looks like"
#: Why ranks have no schedule that may be replicas of one stage.
PIPELINE_UNPROVEN = (
    "nothing recorded shows whether the ranks are stages of a pipeline or replicas of one"
)
#: Why ranks have none whose forwards of one name begin iterations.
ITERATIONS_UNMARKED = "nothing tells iterations apart"
#: Why a run that never goes back ran none.
FORWARD_ONLY = "the run only goes forward"
#: Why ranks that are not known to form a pipeline have no schedule.
NO_PIPELINE = (SINGLE_STAGE, PIPELINE_UNPROVEN)
#: Why ranks have no schedule, and their ratios are none of a pipeline.
NO_SCHEDULE = (*NO_PIPELINE, OTHER_STAGES_MISSING)
