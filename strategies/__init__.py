"""Published federated methods: each file implements the method of one paper.

archgraph finds the methods through entry points. A strategy imports `archgraph`,
`archgraph.federation` and, if needed, `archgraph.hypernet`, but no other strategy. Its code does
not depend on types of layers or models.
"""
