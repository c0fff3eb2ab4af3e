"""Pages of the zoo: one for each model, and a list that says why one is missing."""

from __future__ import annotations

import torch
from torch import nn

from archgraph.viewer.document import decode_data
from tests.nets import Foreign
from tests.zoo.collection import Entry
from tests.zoo.gallery import listed, page


def test_every_model_has_a_page_that_is_listed_or_a_reason(tmp_path):
    small = Entry("small", "handmade", lambda: Foreign(nn.Linear(3, 2), (torch.zeros(1, 3),)))
    path = page(small, tmp_path)
    graph = decode_data(path.read_text())["graphs"][0]
    assert graph["name"] == "small" and graph["totals"]["parameters"] == 8
    text = listed([(small, ""), (Entry("b", "handmade", small.make), "<no> room")])
    assert f'href="{path.name}"' in text
    assert "&lt;no&gt; room" in text and "handmade-b.html" not in text
