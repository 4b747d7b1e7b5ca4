"""Fuzzer of the command line: good inputs, their damage, commands, and checks of the outcome."""
