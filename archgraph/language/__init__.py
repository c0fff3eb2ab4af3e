"""The spec language: models, families and experiments as YAML.

Input: a file, or keys and values from Python. Output: graphs with their weights, a ``FamilySpec``,
an ``ExperimentSpec``; in the other direction, graphs and models as files.

1. ``yaml`` reads a parser's events as plain data; a ``document`` knows the line of each key.
   ``kinds`` recognises the kind of a file by its top-level keys.
2. Pydantic models check the data: ``model``, ``family``, ``experiment`` and the models of their
   parts (``data``, ``task``, ``local``, ``aggregate``, ``privacy``, ``server``, …). ``named``
   checks and constructs classes of libraries. ``linked`` reads the files that a file names;
   ``mistakes`` puts pydantic's errors into words.
3. ``loading`` builds graphs. *Authored* models (blocks and sections) go through ``lowering``, which
   appends ``steps`` to a ``draft``; *flat* ones list every operator (``flat``); *python* ones are
   imported and traced (``python``). ONNX files and saved folders are read here, too.
4. ``rewriting`` applies rewrites in the order of their registry. Families become graphs in
   :mod:`archgraph.federation`.
5. ``save`` writes the flat form or a folder (``saved``), ``exporting`` the format of the file's
   suffix.

A file runs code only through ``python:``, and only with the caller's consent (``consent``);
archgraph's own models and strategies do not need consent. Every error names file, line and key. A
draft appends the operators that a trace would capture, so that tracing the built module gives the
same graph. Validation, JSON schema and ``help`` use the same models and tables. Names are imported
on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
