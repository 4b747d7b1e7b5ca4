"""XPlane: the ``*.xplane.pb`` that JAX, TensorBoard and TensorFlow write (XLA's profiler).

It is protobuf, read a piece at a time; see :mod:`bubbleviz.sources.xla.xspace`.
"""

from __future__ import annotations

import re

from bubbleviz.sources.readers import Reader, opened_by
from bubbleviz.sources.xla import FOLDER

#: A plane of which the name fits: its tag and length, its number, if any, and its name.
_PLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])*"
    rb"\x12[\x80-\xff]{0,9}[\x00-\x7f](?:/host:|/device:|Task Environment)"
)


READER = Reader(
    name="xplane",
    suffixes=(".xplane.pb",),
    recognises=lambda head: _PLANE.match(head) is not None,
    open_file=opened_by("bubbleviz.sources.xla.xspace:open_file"),
    decoded_whole=True,
    folder=FOLDER,
)
