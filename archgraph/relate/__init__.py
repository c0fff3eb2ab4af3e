"""Graphs that were not derived from one another: align, and the least and greatest in common."""
