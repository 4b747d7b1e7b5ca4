"""Added communication: asynchronous work of names that a user adds is communication, no copy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model.columns import NONE
from bubbleviz.model.profile import Profile


def with_added_communication(profile: Profile, kinds: Kinds) -> Profile:
    """Return a profile whose copies of added names are kernels, which their names then sort.

    Args:
        profile: as read; of its copies only those have a name that may be communication.
        kinds: lists of what kernels are.
    """
    activities = profile.activities
    named = activities.name_id[activities.kernels :]
    if not kinds.added_communication or not (named != NONE).any():
        return profile
    added = np.append(matching(activities.names, kinds.added_communication), False)[named]
    if not added.any():
        return profile
    kernel = np.concatenate((np.ones(activities.kernels, bool), added))
    order = np.argsort(~kernel, kind="stable")
    sorted_work = replace(activities.take(order), kernels=int(kernel.sum()))
    return replace(profile, activities=sorted_work)
