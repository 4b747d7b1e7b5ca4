"""The fuzzer of the command line: good inputs, damage, commands, and checks of the outcome."""
