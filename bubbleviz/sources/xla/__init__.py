"""XLA's profiler: readers for both of its file formats, and their planes as tables.

::

    xspace (*.xplane.pb)          ─┐
                                   ├─ planes ─ profile
    trace_json (*.trace.json.gz)  ─┘
"""

#: Subdirectory of the log directory in which JAX and TensorBoard store profiles.
FOLDER = "plugins/profile"
