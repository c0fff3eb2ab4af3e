"""Rewrites: each takes a graph to another graph and leaves behind the map between their states."""
