"""The operator table: one row per operator; nothing else asks what kind of layer something is.

``table``: the rows, and what they say of a graph; ``operator``: what a row may say; ``equations``:
what its rule of axes sees. ``schema``, ``infer`` and ``check``: arguments, types and laws. Each
family of operators has a file.
"""
