"""Layout of recordings, shared by their writer and their reader.

A recording is a file of JSON Lines: a header, then one line per iteration. ``bubbleviz guide
record`` describes both kinds of lines with an example.

The training process imports this module, so it imports nothing.
"""

from __future__ import annotations

#: Name and version of the format, the first value of a header.
SCHEMA = "bubbleviz.recording/1"
#: Suffix of the files.
SUFFIX = ".bvrec"
#: Text between the other keys of a line and its checksum, which comes last.
CRC_KEY = ',"crc":'
#: Maximum length of a text in bytes of UTF-8; longer texts are cut.
LONGEST_TEXT = 1024
#: Value for "none" in a column of times or numbers.
NONE = -1
