"""The number of the figures that archgraph computes."""

BITS = 1
"""Rises by one in a commit that changes figures on purpose, and only there.

It is part of the identity of a study's run: runs under another number are never compared with
new ones. ``tests/engine/test_bits.py`` fails when figures change and this number does not.
"""
