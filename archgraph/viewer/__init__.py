"""One HTML file that shows architectures in a browser: opened, searched, compared, without network.

In: graphs, families, runs. Out: the text of a page.

1. ``show`` lists the graphs and what corresponds in them (:mod:`archgraph.relate.correspond`).
   ``subjects`` finds them at an address, ``notebook`` for a value in a notebook.
2. ``anatomy`` describes one graph by the scene, folds and facts of :mod:`archgraph.display`.
   ``feeding`` adds who has which positions, ``submodels`` costs as terms, ``overlays`` figures on a
   scale, ``rounds`` what a run changed. ``distinct`` stores repeated rows once.
3. ``document`` puts data, scripts and styles (``page/``) into one file. There is no build step.

- Every figure is Python's. The page adds them up, and evaluates the cost terms at other sizes; the
  layout alone is its own, made for a box when it is opened.
- Further graphs correspond to the first of a page; for two others the page composes both, since
  data of all pairs would grow with the square.
- No name in a graph can become code: data are compressed in base64, the script sets text and never
  markup, and a policy forbids all requests and all other scripts.

Names are imported on first use. The room is not called `view`: that is the function's name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
