"""What belongs together in a graph; each function is in the file of its name.

``axes``, ``structure`` (blocks and sections), ``cost``, ``layers``, ``outline``, ``forms``; what
parts of a graph are to their users is in ``roles``, the parser of choices of axes in ``choice``.
"""
