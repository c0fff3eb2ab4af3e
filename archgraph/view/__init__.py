"""Pictures of graphs and of runs; nothing here changes either."""
