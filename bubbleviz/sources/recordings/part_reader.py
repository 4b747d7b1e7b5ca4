"""Part reader: one file of a recording, read whole or again and again as it grows."""

from __future__ import annotations

from pathlib import Path

from bubbleviz import recording_layout as layout
from bubbleviz.errors import ProfileError
from bubbleviz.model.numbering import Numbering
from bubbleviz.sources.recordings.blocks import (
    FoundBlocks,
    add_names,
    found_blocks,
    stretch_of,
    texts_in,
)
from bubbleviz.sources.recordings.columns import Stretch
from bubbleviz.sources.recordings.header import Header, header_in

#: Bytes that are read at a time; a longer iteration is read as a whole.
CHUNK_BYTES = 1 << 24


class PartReader:
    """Reads the whole iterations of a file that are new since it was read last.

    The file is opened anew each time and read to where it ends, whatever its size is said to be: on
    a network file system that is how another machine's writes are seen. One that was cut or put in
    the place of another is read from its beginning, and counted in ``restarts``.

    Args:
        path: the file; it may be empty yet.
        names: numbers the names of ranges; several readers may share it.

    Attributes:
        path: the file.
        header: of the file; None as long as it has none.
        host: hostname; "" unknown.
        device: name of the device; "" unknown.
        run: what the launcher calls the run; "" for nothing.
        restarts: how often the file was another one than before.
        damaged: records that belong to no whole iteration, before the last one.
        tail_bytes: bytes behind the last whole iteration: it is being written, or was never ended.
    """

    def __init__(self, path: str, names: Numbering[str]) -> None:
        self.path, self._numbering = path, names
        self.restarts = 0
        self._forget()

    def _forget(self) -> None:
        self.header: Header | None = None
        self.host = self.device = self.run = ""
        self.damaged = self.tail_bytes = 0
        self._head = b""
        self._offset = layout.HEADER.size
        self._names: dict[int, int] = {}

    def read(self) -> Stretch | None:
        """Return the next whole iterations, some megabytes of them; None where there is none yet.

        Raises:
            ProfileError: it is no recording, of another version, or cannot be read.
        """
        chunk = CHUNK_BYTES
        while True:
            data = self._bytes(chunk)
            ended = len(data) < chunk
            data = self._past_texts(data)
            found = found_blocks(data)
            if found.last:
                return self._taken(data, found)
            if ended:
                self.tail_bytes = len(data)
                return None
            # An iteration, or damage, that is longer than that.
            chunk *= 2

    def _bytes(self, most: int) -> bytes:
        """Return the bytes from where the last whole iteration ended; none without a header.

        Raises:
            ProfileError: it is no recording, of another version, or cannot be read.
        """
        try:
            with Path(self.path).open("rb") as file:
                head = file.read(layout.HEADER.size)
                if not head.startswith(self._head):
                    self._restart()
                if self.header is None:
                    if len(head) < layout.HEADER.size and layout.MAGIC.startswith(head[:8]):
                        return b""
                    self.header, self._head = header_in(self.path, head), head
                # The byte before has been read already, and shows that the file was not cut.
                file.seek(self._offset - 1)
                data = file.read(most + 1)
        except OSError as error:
            raise ProfileError(
                f"{self.path}: cannot be read ({error.strerror}); check it and its permissions"
            ) from error
        if not data:
            self._restart()
            return self._bytes(most)
        return data[1:]

    def _restart(self) -> None:
        self.restarts += 1
        self._forget()

    def _past_texts(self, data: bytes) -> bytes:
        """Return what follows the texts behind the header, and take these."""
        if self._offset != layout.HEADER.size:
            return data
        size, count = layout.RECORD_BYTES, 0
        while _is_header_text(data[count * size : count * size + 2]):
            count += 1
        texts = {of: text for of, _, text in texts_in(data, 0, min(count, len(data) // size))}
        self.host = texts.get(layout.TEXT_HOST, "")
        self.device = texts.get(layout.TEXT_DEVICE, "")
        self.run = texts.get(layout.TEXT_RUN, "")
        if len(data) < count * size + 2:
            # Others may follow.
            return b""
        self._offset += count * size
        return data[count * size :]

    def _taken(self, data: bytes, found: FoundBlocks) -> Stretch:
        """Return the whole iterations of the next bytes, and go on behind them."""
        end = (found.last[-1] + 1) * layout.RECORD_BYTES
        self._offset += end
        self.tail_bytes = len(data) - end
        self.damaged += found.damaged
        add_names(data, found, self._names, self._numbering)
        return stretch_of(data, found, self._names)


def _is_header_text(beginning: bytes) -> bool:
    """Tell by its first two bytes whether a record is a text of the header."""
    return (
        len(beginning) == 2
        and beginning[0] == layout.KIND_TEXT
        and beginning[1] != layout.TEXT_NAME
    )
