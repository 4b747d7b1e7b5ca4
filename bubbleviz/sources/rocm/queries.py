"""Queries and views of ``sql/rocpd`` and ``sql/rpd``."""

from __future__ import annotations

from bubbleviz.sources.sqlite.queries import Maker, Queries

#: What to do where something was not recorded.
ROCPROF_AGAIN = (
    "profile again with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace "
    "--output-format rocpd"
)
RPD_AGAIN = "record it again with: runTracer.sh"

ROCPD = Maker("rocprofv3", "rocpd", "profile of rocprofv3", f"copy it again, or {ROCPROF_AGAIN}")
RPD = Maker("the tracer", "rpd", "trace of rocmProfileData", f"copy it again, or {RPD_AGAIN}")
ROCPD_QUERIES = Queries(ROCPD)
RPD_QUERIES = Queries(RPD)
