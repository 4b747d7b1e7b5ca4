"""The command line: it parses arguments, calls the library and prints results.

This is the only package that prints. It is the top layer and may import all other packages.
"""
