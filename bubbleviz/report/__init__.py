"""Report: all that an output may show, as one value, and reports read back and compared.

It hands on a ``Report`` or a saved one, and a ``View`` of the part to show. It may import explain
and the packages below.
"""
