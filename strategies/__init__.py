"""Published federated methods, one paper, one file, found through their entry points.

A strategy imports `archgraph` and `archgraph.federation`, not another strategy, and names
neither layer types nor models.
"""
