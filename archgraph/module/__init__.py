"""From a graph to an ``nn.Module``: generated code, fresh weights."""
