"""Published federated methods, one paper, one file, found through their entry points.

A strategy imports `archgraph`, `archgraph.federation` and, if needed, `archgraph.hypernet`, but no
other strategy. It never names layer types or models.
"""
