"""Decodes the files of a pipeline dump, one per pipeline rank, and the file of the run's sizes.

With ``dump_pp_data``, each pipeline rank writes the times of its passes, as measured by events on
the GPU (AMD-AGI/Primus, primus/backends/megatron/core/pipeline_parallel/pp_visualizer.py, earlier
primus/modules/trainer/megatron/utils.py; tools/visualization/pp_vis/vis.py draws them). Times are
in milliseconds since the rank began the iteration. Primus's simulator of schedules writes the same
files, but other names to ``config.json``::

    pp_rank_0.json  {"1": {"total": 75.2, "memory": 84.3, "fwd_start": [0.1, 2.0, ...],
                           "fwd_end": [...], "bwd_start": [...], "bwd_end": [...]}, "2": {...}}
    config.json     {"world_size": 8, "pp_size": 8, "vp_size": 1, "num_mbs": 16, ...}

The lists ``wgrad_start`` and ``wgrad_end`` contain passes that compute weight gradients. If Primus
ran its own schedules, lists such as ``fwd_minibatch`` and ``fwd_chunk`` contain the microbatch and
the model chunk of each pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile
from bubbleviz.sources.operations.primus.companions import CONFIG_FILE

_FILE_NAME = re.compile(r"pp_rank_([0-9]{1,6})\.json(?:\.gz)?$")
#: Maximum number of bytes to read at once.
_MAX_BYTES = 1 << 20


class DumpedIteration(msgspec.Struct, gc=False):
    """The passes of one rank in one iteration. All lists of a kind of pass have the same length.

    Attributes:
        memory: Maximum GPU memory that was reserved until the end of the iteration, in GiB, or
            None if unknown.
        fwd_start: Start of each forward in milliseconds.
        fwd_end: End of each forward.
        fwd_minibatch: Microbatch of each forward. Empty if unknown.
        fwd_chunk: Model chunk of each forward. Empty if unknown.
        bwd_start: Start of each backward.
        bwd_end: End of each backward.
        bwd_minibatch: Microbatch of each backward. Empty if unknown.
        bwd_chunk: Model chunk of each backward. Empty if unknown.
        wgrad_start: Start of each pass that computes weight gradients.
        wgrad_end: End of each of these passes.
        wgrad_minibatch: Microbatch of each of these passes. Empty if unknown.
        wgrad_chunk: Model chunk of each of these passes. Empty if unknown.
    """

    memory: float | None = None
    fwd_start: list[float] = []
    fwd_end: list[float] = []
    fwd_minibatch: list[int] = []
    fwd_chunk: list[int] = []
    bwd_start: list[float] = []
    bwd_end: list[float] = []
    bwd_minibatch: list[int] = []
    bwd_chunk: list[int] = []
    wgrad_start: list[float] = []
    wgrad_end: list[float] = []
    wgrad_minibatch: list[int] = []
    wgrad_chunk: list[int] = []


class _Sizes(msgspec.Struct, gc=False):
    """The contents of ``config.json`` that are used. The simulator writes ``vpp_size``."""

    world_size: int | None = None
    pp_size: int | None = None
    vp_size: int | None = None
    vpp_size: int | None = None


@dataclass(frozen=True)
class Dump:
    """The dump of one pipeline rank. The file is read on first use.

    Attributes:
        path: Path to the file.
        watch: Progress callback.
    """

    path: str
    watch: Watch

    @cached_property
    def rank(self) -> int:
        """The pipeline rank, according to the name of the file.

        Raises:
            ProfileError: The name of the file contains no pipeline rank.
        """
        match = _FILE_NAME.search(self.path)
        if match is None:
            raise ProfileError(
                f"{self.path}: is a pipeline dump from Primus, but its name does not contain the "
                "pipeline rank; rename it to pp_rank_N.json, where N is the pipeline rank"
            )
        return int(match[1])

    @cached_property
    def iterations(self) -> Mapping[int, DumpedIteration]:
        """The iterations, keyed by their number, in ascending order.

        Raises:
            ProfileError: The file cannot be read, is cut short, or contains anything else.
        """
        content = b"".join(UnpackedFile(self.path, self.watch, _MAX_BYTES))
        try:
            iterations = msgspec.json.decode(content, type=dict[int, DumpedIteration], strict=False)
        except msgspec.ValidationError as error:
            raise ProfileError(
                f"{self.path}: is not a valid pipeline dump from Primus ({error}); copy the file "
                "again"
            ) from error
        except msgspec.DecodeError as error:
            raise ProfileError(
                f"{self.path}: the JSON of this pipeline dump is cut short or damaged ({error}); "
                "copy the file again, after the training has ended"
            ) from error
        return dict(sorted(iterations.items()))

    @cached_property
    def _sizes(self) -> _Sizes:
        """The run's sizes in ``config.json`` next to the file. They are None if unknown.

        Raises:
            ProfileError: ``config.json`` is damaged, or contradicts the name of the file.
        """
        path = Path(self.path).with_name(CONFIG_FILE)
        try:
            sizes = msgspec.json.decode(path.read_bytes(), type=_Sizes)
        except FileNotFoundError:
            return _Sizes()
        except (OSError, msgspec.MsgspecError) as error:
            raise ProfileError(
                f"{path}: cannot be read as the configuration of a pipeline dump ({error}); copy "
                "the file again"
            ) from error
        if sizes.pp_size is not None and self.rank >= sizes.pp_size:
            raise ProfileError(
                f"{self.path}: is from pipeline rank {self.rank}, but {path} is from a run with "
                f"{sizes.pp_size} pipeline ranks; put the files of each run in a separate folder"
            )
        return sizes

    @property
    def has_config(self) -> bool:
        """Whether ``config.json`` contains the number of pipeline ranks."""
        return self._sizes.pp_size is not None

    @cached_property
    def n_stages(self) -> int | None:
        """Number of pipeline ranks in the run, or None if unknown.

        If there is no configuration, but the files in the folder skip a rank, the highest rank is
        assumed to be the last one.
        """
        if self._sizes.pp_size is not None:
            return self._sizes.pp_size
        matches = (_FILE_NAME.search(str(path)) for path in Path(self.path).parent.iterdir())
        ranks = {int(match[1]) for match in matches if match}
        n_stages = max(ranks, default=0) + 1
        return n_stages if len(ranks) < n_stages else None

    @property
    def has_replicas(self) -> bool:
        """Whether the run may have several ranks per pipeline rank. Only one of them is dumped."""
        return self._sizes.world_size is None or self._sizes.world_size != self._sizes.pp_size

    @cached_property
    def n_chunks(self) -> int | None:
        """Number of model chunks per rank, or None if unknown."""
        named_chunks = [chunk for chunks in self._iter_chunks() for chunk in chunks]
        if named_chunks:
            return max(named_chunks) + 1
        sizes = self._sizes
        return sizes.vpp_size if sizes.vp_size is None else sizes.vp_size

    @property
    def names_chunks(self) -> bool:
        """Whether the file contains the model chunk of any pass."""
        return any(self._iter_chunks())

    def _iter_chunks(self) -> Iterator[list[int]]:
        for iteration in self.iterations.values():
            yield iteration.fwd_chunk
            yield iteration.bwd_chunk

    @property
    def memory_gib(self) -> float | None:
        """Maximum GPU memory that was reserved, in GiB, or None if unknown."""
        memory = (iteration.memory for iteration in self.iterations.values())
        return max((gib for gib in memory if gib is not None), default=None)
