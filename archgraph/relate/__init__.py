"""Graphs that were not derived from one another: align, join, meet."""
