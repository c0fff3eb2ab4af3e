"""What belongs together in a graph: axes, stream, blocks, sections, forms, layers, cost."""
