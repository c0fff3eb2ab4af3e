"""What can be read off a graph: axes, blocks and sections, cost."""
