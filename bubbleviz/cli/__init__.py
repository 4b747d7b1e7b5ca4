"""The command-line interface, which parses arguments, calls the library and prints results.

No other package prints. The command-line interface is the top layer and may import all packages.
"""
