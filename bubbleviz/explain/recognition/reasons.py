"""Reasons why a run has no schedule, as shown to users."""

from __future__ import annotations

#: Reason for a run on a single rank, or on replicas of a single stage.
SINGLE_STAGE = "a single stage is not a pipeline"
#: Reason for a single stage of a pipeline whose other stages have no profiles.
OTHER_STAGES_MISSING = "the profiles contain only one stage of a pipeline"
#: Reason for a pipeline in which some stages are missing.
#: The reason is also given if the order of the remaining stages matches a schedule.
STAGES_MISSING = (
    "stages are missing, and the order of the remaining stages does not identify a schedule"
)
#: Reason for a pipeline in which stages may be missing.
#: The name of the schedule is appended to this text.
STAGES_MAY_BE_MISSING = (
    "stages may be missing. If none are (confirm this with --parallel), the schedule looks like"
)
#: Reason for ranks that may be replicas of one stage.
PIPELINE_UNPROVEN = (
    "the profiles do not show whether the ranks are stages of a pipeline or replicas of one stage"
)
#: Reason for a run whose iterations could not be separated.
ITERATIONS_UNMARKED = "the iterations cannot be told apart"
#: Reason for a run that has only forwards.
FORWARD_ONLY = "the run has only forward passes"
#: Reasons for runs whose ranks are not known to form a pipeline.
NO_PIPELINE = (SINGLE_STAGE, PIPELINE_UNPROVEN)
#: Reasons for runs whose bubble ratios do not describe a pipeline.
NO_SCHEDULE = (*NO_PIPELINE, OTHER_STAGES_MISSING)
