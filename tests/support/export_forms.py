"""Rewrites an nsys export in every other format that contains kernels and launching calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.columnar_exports import write_columnar
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.torch_traces import write_traces

#: Functions that rewrite a single-process export in another format, keyed by format.
WRITERS: dict[str, Callable[[Path, Path], Path]] = {
    "nsys": lambda export, _: export,
    "parquet": lambda export, folder: write_columnar(export, folder / "columns"),
    "torch": lambda export, folder: write_traces(export, folder)[0],
    "rocpd": lambda export, folder: write_rocpd(folder / "a.db", read_processes(export)),
    "rpd": lambda export, folder: write_rpd(folder / "a.rpd", read_processes(export)),
}
