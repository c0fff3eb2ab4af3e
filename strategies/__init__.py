"""Published federated methods, one paper, one file, found through their entry points.

A strategy imports `archgraph`, `archgraph.federation` and where it needs it `archgraph.hypernet`,
not another strategy, and names neither layer types nor models.
"""
