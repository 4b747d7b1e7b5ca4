"""Reasons why a run has no schedule. Saved reports contain these texts, so they must not change."""

from __future__ import annotations

#: Reason for a run on a single rank, or on replicas of a single stage.
SINGLE_STAGE = "one stage is no pipeline"
#: Reason for a single stage of a pipeline whose other stages have no profiles.
OTHER_STAGES_MISSING = "the profiles hold one stage of a pipeline, and the others are missing"
#: Reason for a pipeline in which some stages are missing.
#: The reason is also given if the order of the remaining stages matches a schedule.
STAGES_MISSING = "stages are missing, and the order of the others matches no one schedule"
#: Reason for a pipeline in which stages may be missing.
#: The name of the schedule is appended to this text.
STAGES_MAY_BE_MISSING = "stages may be missing; if none is (--parallel says so), it looks like"
#: Reason for ranks that may be replicas of one stage.
PIPELINE_UNPROVEN = (
    "nothing recorded shows whether the ranks are stages of a pipeline or replicas of one"
)
#: Reason for a run whose iterations could not be separated.
ITERATIONS_UNMARKED = "nothing tells iterations apart"
#: Reason for a run that has only forwards.
FORWARD_ONLY = "the run only goes forward"
#: Reasons for runs whose ranks are not known to form a pipeline.
NO_PIPELINE = (SINGLE_STAGE, PIPELINE_UNPROVEN)
#: Reasons for runs whose bubble ratios do not describe a pipeline.
NO_SCHEDULE = (*NO_PIPELINE, OTHER_STAGES_MISSING)
