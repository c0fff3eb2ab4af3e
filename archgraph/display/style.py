"""The style sheet of HTML pages, for light and dark themes, small screens and print."""

from __future__ import annotations

from archgraph.display import colours

# Shared by all pages: colours, and a shadow at the side to which a table can be scrolled.
SHARED = f"""
:root {{ color-scheme: light dark; {colours.variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {colours.variables(dark=True)} }} }}
@media print {{ :root {{ {colours.variables(dark=False)} }} }}
""" + colours.themed(
    f"""
.wide {{ overflow-x: auto; background:
  linear-gradient(90deg, {colours.PAPER} 40%, transparent) left,
  linear-gradient(270deg, {colours.PAPER} 40%, transparent) right,
  linear-gradient(90deg, {colours.LINE}, transparent) left top,
  linear-gradient(270deg, {colours.LINE}, transparent) right top;
  background-size: 2rem 100%, 2rem 100%, .6rem calc(100% - 1px), .6rem calc(100% - 1px);
  background-repeat: no-repeat;
  background-attachment: local, local, scroll, scroll; }}
"""
)
STYLE = SHARED + colours.themed(
    f"""
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: {colours.INK};
  max-width: 80rem; margin: 2rem auto; padding: 0 1.5rem; background: {colours.PAPER};
  overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: 0 0 .8rem; }}
h2 {{ font-size: 1.15rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid {colours.BLOCK};
  padding-bottom: .3rem; }}
p.headline {{ font-size: 1.15rem; line-height: 1.45; color: {colours.INK}; max-width: 56rem;
  margin: .8rem 0; }}
.tiles {{ grid-template-columns: repeat(auto-fit, minmax(min(100%, 11rem), 1fr)); margin: 1rem 0; }}
.tiles > div {{ border-left: 3px solid {colours.SERIES[0]}; padding-left: .7rem; }}
.tiles b {{ font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums;
  white-space: nowrap; }}
.tiles small {{ color: {colours.QUIET}; font-size: .85rem; display: inline-block; }}
p, figcaption {{ color: {colours.QUIET}; margin: .3rem 0; max-width: 48rem; }}
a {{ color: {colours.SERIES[0]}; }}
dl {{ display: grid; gap: .7rem 2rem; margin: 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 10rem), 1fr)); }}
dt {{ color: {colours.QUIET}; font-size: .85rem; }}
dd {{ margin: 0; }}
table {{ border-collapse: collapse; margin: .6rem 0; }}
th, td {{ padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid {colours.BLOCK}; overflow-wrap: normal; }}
.wide td {{ white-space: nowrap; }}
.wide td:first-child {{ white-space: normal; min-width: 8.5rem; }}
th {{ font-weight: 600; color: {colours.QUIET}; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.wide td:last-child:not(.number) {{ white-space: normal; min-width: 14rem; }}
tr.strong td {{ font-weight: 600; }}
figure {{ margin: .8rem 0; overflow-x: auto; }}
figure svg {{ max-width: 100%; height: auto; }}
.charts {{ display: grid; gap: 1rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }}
.first {{ display: grid; gap: 1rem 2rem; margin: 1.2rem 0; align-items: start;
  grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }}
.picture {{ margin: .4rem 0; max-width: 30rem; }}
.picture svg {{ width: 100%; display: block; }}
:focus-visible {{ outline: 3px solid {colours.SERIES[0]}; outline-offset: 2px; }}
figcaption.file {{ font-size: .85rem; display: flex; gap: .7rem; align-items: center;
  flex-wrap: wrap; }}
.network {{ min-width: 0; }}
iframe.viewer {{ display: block; width: 100%; height: min(80vh, 37rem);
  margin-bottom: .5rem; border: 1px solid {colours.BLOCK};
  border-radius: 6px; }}
details {{ margin: .5rem 0; }}
summary {{ cursor: pointer; color: {colours.INK}; }}
pre {{ background: {colours.SECTION}; padding: 1rem; overflow-x: auto; font-size: 13px;
  line-height: 1.4; border-radius: 6px; overflow-wrap: normal; }}
@media (max-width: 60rem) {{ .first {{ grid-template-columns: minmax(0, 1fr); }} }}
@media (max-width: 40rem) {{
  body {{ margin: 1.2rem auto; padding: 0 1rem; }}
  th, td {{ padding-right: .7rem; }}
  .wide td:first-child {{ min-width: 7rem; }}
  iframe.viewer {{ height: min(90vh, 48rem); }}
}}
@media print {{
  body {{ margin: 0; max-width: none; }}
  figcaption.file {{ display: none; }}
  figure, .tiles > div, tr {{ break-inside: avoid; }}
}}
"""
)
