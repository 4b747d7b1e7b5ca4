"""Analyses: the questions beside pipeline bubbles, from profile to output.

Each hands on a report of its own, and writes it down. It may import render and all below.
"""
