from .cover import coverage as coverage
from .explanation import explain as explain
from .gallery import draw_family as draw_family
from .picture import draw as draw
from .picture import render as render
from .summary import summary_table as summary_table
