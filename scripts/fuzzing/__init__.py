"""Fuzzer for the command line: valid inputs, damage to them, commands, and outcome checks."""
