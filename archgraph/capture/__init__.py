"""From an ``nn.Module`` to a graph: export, passes, and one graph for both modes."""
