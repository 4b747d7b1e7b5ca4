"""Functions of the Python API. They print nothing."""
