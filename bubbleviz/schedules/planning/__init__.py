"""Planning: the best order for a workload, all that it is compared with, and what is left."""

from __future__ import annotations

from bubbleviz.schedules.planning.best_plan import BestPlan, Candidate, PlanOptions, best_plan

__all__ = ["BestPlan", "Candidate", "PlanOptions", "best_plan"]
