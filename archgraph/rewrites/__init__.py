"""From a graph to another graph and the linear map between their states, one file each."""
