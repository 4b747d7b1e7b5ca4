"""Command line: parse, call the library, print.

It is the only package that prints, and the top floor: it may import all others.
"""
