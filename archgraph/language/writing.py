"""Writing YAML."""

from __future__ import annotations

import io
from collections.abc import Mapping

from archgraph.plain import Json


def yaml_text(values: Mapping[str, Json]) -> str:
    r"""Write plain values as YAML, keys in their order.

    >>> yaml_text({"name": "a", "clients": [{"take": 0.5}]})
    'name: a\nclients:\n- take: 0.5\n'
    """
    from ruamel.yaml import YAML

    stream = io.StringIO()
    # Keys stay in the order of the schema, which people read.
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # annotated None
    yaml.dump(dict(values), stream)
    return stream.getvalue()
