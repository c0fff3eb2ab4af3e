"""The built pages: no link is dead, and two clicks lead from the first page to every other one."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

BUILT = Path(__file__).parents[2] / "docs" / "_build" / "html"
# Lists that Sphinx makes, and one of sources: no page of ours leads there.
MADE = {"genindex.html", "search.html", "py-modindex.html"}


class Page(HTMLParser):
    """Links in the text of a page, and the anchors that it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.depth = set[str](), list[str](), 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id") or ""}
        self.depth += tag == "article"
        if self.depth and tag in ("a", "img", "iframe"):
            self.links += filter(None, (values.get("href"), values.get("src")))

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "article"


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    if not (BUILT / "index.html").exists():
        pytest.skip("make docs has not built the pages")
    files = (file for file in BUILT.rglob("*.html") if not {"_static", "gallery"} & {*file.parts})
    return {file: Page(file) for file in files if file.name not in MADE}


def targets(file: Path, page: Page) -> Iterator[tuple[Path, str]]:
    """Yield file and anchor of the links that lead to files of ours."""
    for link in page.links:
        if not urlsplit(link).scheme:
            name, anchor = urldefrag(link)
            name = unquote(name.partition("?")[0])
            yield (file.parent / name).resolve() if name else file, unquote(anchor)


def test_no_link_is_dead(pages: dict[Path, Page]):
    dead = [
        f"{file.relative_to(BUILT)}: {target.name}#{anchor}"
        for file, page in pages.items()
        for target, anchor in targets(file, page)
        if not target.exists()
        or (anchor and target in pages and anchor not in pages[target].anchors)
    ]
    assert not dead and sum(len(page.links) for page in pages.values()) > 500


def test_two_clicks_lead_to_every_page(pages: dict[Path, Page]):
    reached = {BUILT / "index.html"}
    for _ in range(2):
        reached |= {t for file in reached for t, _ in targets(file, pages[file]) if t in pages}
    assert sorted(str(file.relative_to(BUILT)) for file in pages.keys() - reached) == []
