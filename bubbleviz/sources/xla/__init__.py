"""Readers for both file formats of XLA's profiler.

A file in either format is first converted to planes, and then to a profile.

::

    xspace (*.xplane.pb)          ─┐
                                   ├─ planes ─ profile
    trace_json (*.trace.json.gz)  ─┘
"""

#: Subdirectory of the log directory in which JAX and TensorBoard store profiles.
FOLDER = "plugins/profile"
