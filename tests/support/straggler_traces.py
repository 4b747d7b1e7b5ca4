"""Published traces of training jobs, as work tables.

Columns are those of the tables of ByteDance's StragglerAnalysis: one row an operation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.explain.slowdown.replay import Kind, Role, Work

KINDS = {
    "forward-compute": Kind("forward-compute", Role.FORWARD, "F"),
    "backward-compute": Kind("backward-compute", Role.BACKWARD, "BW"),
    "gc": Kind("gc", Role.AFTER_COMPUTE, "gc"),
    "optimizer": Kind("optimizer", Role.OPTIMIZER, "Optimizer"),
    "forward-send": Kind("forward-send", Role.SEND_F, "forward-pp-comm"),
    "forward-recv": Kind("forward-recv", Role.RECV_F, "forward-pp-comm"),
    "backward-send": Kind("backward-send", Role.SEND_B, "backward-pp-comm"),
    "backward-recv": Kind("backward-recv", Role.RECV_B, "backward-pp-comm"),
    "params-all-gather": Kind("params-all-gather", Role.PARAMETERS, "params-all-gather"),
    "grads-reduce-scatter": Kind("grads-reduce-scatter", Role.GRADIENTS, "grads-reduce-scatter"),
    "layernorm-grads-all-reduce": Kind(
        "layernorm-grads-all-reduce", Role.LAYER_NORM, "layernorm-grads-all-reduce"
    ),
    "embedding-grads-all-reduce": Kind(
        "embedding-grads-all-reduce", Role.EMBEDDING, "embedding-grads-all-reduce"
    ),
    "separate-grads-all-reduce": Kind(
        "separate-grads-all-reduce", Role.SEPARATE_GRADIENTS, "separate-grads-all-reduce"
    ),
    "optimizer-clip-main-grad": Kind(
        "optimizer-clip-main-grad", Role.GRADIENT_NORM, "optimizer-clip-main-grad"
    ),
}


def read_work(path: Path) -> Work:
    """Return the work of a trace, in order of iteration, rank, kind and number; no meetings."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    number = {name: n for n, name in enumerate(KINDS)}
    kind = np.array([number[name] for name in table["optype"].to_pylist()], np.int64)

    def column(name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.asarray(table[name].to_numpy(), np.int64)

    start = table["start_ts"].to_numpy()
    end = start + table["duration"].to_numpy()  # float32, as the published analyzer adds them
    start_ns = np.rint(start.astype(np.float64) * 1e9).astype(np.int64)
    end_ns = np.rint(end.astype(np.float64) * 1e9).astype(np.int64)
    order = np.lexsort((column("seq_id"), kind, column("rank"), column("step")))
    return Work(
        rank=column("rank")[order],
        stage=column("stage")[order],
        replica=column("dp_rank")[order],
        iteration=column("step")[order],
        kind=kind[order],
        microbatch=column("mb_id")[order],
        chunk=column("mc")[order],
        virtual_stage=column("gmc")[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        meeting=np.full(len(order), -1, np.int64),
        kinds=tuple(KINDS.values()),
    )


def published(path: Path) -> dict[str, Any]:
    """Return a published result."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result
