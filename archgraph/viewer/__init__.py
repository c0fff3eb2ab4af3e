"""One HTML file to open, search and compare architectures in a browser, without network access.

In: graphs, families, runs. Out: the text of a page.

1. ``show`` lists the graphs and their correspondences (:mod:`archgraph.relate.correspond`).
   ``subjects`` reads them from files, ``notebook`` makes pages for values in a notebook.
2. ``anatomy`` describes one graph by the scene, folds and facts of :mod:`archgraph.display`.
   ``feeding`` adds the positions of each client, ``submodels`` adds costs as polynomials,
   ``overlays`` adds values on a colour scale, ``rounds`` adds the changes of a run. ``distinct``
   stores repeated rows once.
3. ``document`` writes data, scripts and styles (``page/``) into one file. There is no build step.

- All figures are computed in Python. The page adds them up, evaluates the cost polynomials at other
  sizes, and computes the layout of a box when it is opened.
- A page contains the correspondence of its first graph with each other graph. For two other graphs,
  the page composes these, since data for all pairs would grow quadratically.
- Names in a graph cannot become code: data are compressed in base64, the script sets text and never
  markup, and a policy forbids all requests and all other scripts.

Submodules are imported on first use. The package is not called `view`, which is a function.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
