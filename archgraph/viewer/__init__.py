"""Interactive HTML pages of architectures; each page is one file without network access.

The input is a graph, a family or a run. The output is the HTML text of a page.

1. ``show`` lists the graphs of a page and finds their corresponding operators
   (:mod:`archgraph.relate.correspond`). ``subjects`` reads graphs from files. ``notebook`` makes
   the pages that a notebook shows.
2. ``anatomy`` describes one graph: the boxes and repeated blocks of its picture, and the facts
   about each part (:mod:`archgraph.display`). ``feeding`` adds which channels each client has,
   ``submodels`` adds costs as polynomials, ``overlays`` adds values for a colour scale, and
   ``rounds`` adds the changes of a run. ``distinct`` stores repeated rows once.
3. ``document`` writes data, scripts and styles (``page/``) into one file. There is no build step.

- Costs are computed in Python for each operator. The page adds them up, evaluates the cost
  polynomials at other sizes, and computes the layout of a box when the box is opened.
- A page contains the correspondence of its first graph with each other graph. To compare two other
  graphs, the page composes their correspondences with the first graph.
- Names in a graph cannot become code. Data are compressed and base64-encoded, the script sets text
  and never markup, and a content security policy forbids all requests and all other scripts.

Submodules are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
