"""The version number of archgraph's numerical results."""

BITS = 1
"""This number rises by one in each commit that changes numerical results on purpose.

It is part of the identity of a study's run: runs with different numbers are never compared.
``tests/engine/test_bits.py`` fails if results change but this number does not.
"""
