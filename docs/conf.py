"""Sphinx configuration of the documentation; `make docs` builds it, warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

from archgraph import hints

sys.path.insert(0, str(Path(__file__).parent))

project = "archgraph"
author = "archgraph developers"
project_copyright = "archgraph developers"
release = version = hints.version()

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
exclude_patterns = [
    "_build",
    # Included by other pages.
    "_generated/by-task.md",
    "_generated/commands.md",
    "_generated/data-sets.md",
    "_generated/extras.md",
    "_generated/fields-client.md",
    "_generated/fields-strategy.md",
    "_generated/gallery.md",
    "_generated/language.md",
    "_generated/measured.md",
    "_generated/methods.md",
    "_generated/rewrites.md",
    "_generated/rooms.md",
    "_generated/rules.md",
    "_generated/strategies.md",
    "_generated/strategy-table.md",
]
default_role = "code"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = "archgraph"
html_static_path = ["_static"]
html_css_files = ["archgraph.css"]
html_js_files = ["page.js"]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "xcode", "github-dark"  # with AA contrast
