"""Laws of structure and depth on random networks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import archgraph as ag
from archgraph.ops.infer import infer
from tests.examples import at_most
from tests.nets import image, networks
from tests.structures import graph_of, models, parts

graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))


def _leaves(graph: ag.ArchGraph, nodes) -> set[str]:
    return {leaf for name in nodes for leaf in graph.node[name].leaves()}


@given(graphs)
@at_most(4)
def test_blocks_are_a_chain_that_holds_every_operator_once(graph):
    found = ag.structure(graph)
    members = [name for b in found.blocks for name in b.nodes]
    assert sorted(members) == sorted(graph.node)
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    owner = {name: i for i, b in enumerate(found.blocks) for name in b.nodes}
    assert all(owner[used] <= owner[n.name] for n in graph.nodes for used in n.uses())
    for block in found.blocks:
        assert list(block.nodes) == sorted(block.nodes, key=place.__getitem__)
        assert block.removable == (block.reason == "")
    names = [b.name for b in found.blocks]
    assert len(set(names)) == len(names)
    # the exit of one is the entry of the next
    for before, after in zip(found.blocks, found.blocks[1:], strict=False):
        assert after.entry == before.exit
    assert {b.exit for b in found.blocks} <= set(found.cuts)
    # a block uses nothing of the stream but its entry: all paths lead through the cuts
    for block in found.blocks:
        if block.removable and block.kind != "dense":
            outside = {u for n in block.nodes for u in graph.node[n].uses()} - set(block.nodes)
            assert outside <= {block.entry}


@given(graphs, st.data())
@at_most(4)
def test_skipping_any_removable_subset_runs_and_keeps_the_other_leaves(graph, data):
    found = ag.structure(graph)
    removable = [b.name for b in found.blocks if b.removable]
    gone = data.draw(
        st.lists(st.sampled_from(removable), unique=True) if removable else st.just([])
    )
    small = ag.skip(graph, gone, verify=True)  # ≡ the original with these blocks bypassed
    kept = [b for b in found.blocks if b.name not in gone]
    expected = set().union(*(_leaves(graph, b.nodes) for b in kept))
    counters = {p.name for p in small.graph.params if p.name.endswith("num_batches_tracked")}
    assert {p.name for p in small.graph.params} - counters == expected - counters
    norms = {name.removesuffix("running_mean") for name in expected if "running_mean" in name}
    assert counters == {f"{norm}num_batches_tracked" for norm in norms}
    ag.check(small.graph)
    assert infer(small.graph) == small.graph
    assert set(small.transfer.entries) == set(small.graph.state_names)
    left = {
        s.name: blocks
        for s in found.sections
        if (blocks := [b.name for b in s.blocks if b.name not in gone])
    }
    if any(s.kind == "stage" and s.name in left for s in found.sections):
        assert parts(small.graph) == left
    else:  # nothing tells the stem from the head any more
        names = [n for blocks in left.values() for n in blocks]
        assert [b.name for b in ag.structure(small.graph).blocks] == names
    # together or one after the other
    one_by_one = ag.Rewritten.identity(graph)
    for name in gone:
        one_by_one = one_by_one >> ag.skip(one_by_one.graph, name)
    assert one_by_one.graph.replace(sections=()) == small.graph.replace(sections=())
    assert one_by_one.transfer == small.transfer


@given(graphs)
@at_most(3)
def test_skipping_nothing_is_the_identity(graph):
    nothing = ag.skip(graph, [])
    assert nothing.graph is graph
    assert nothing.transfer == ag.Transfer.identity(graph)
    depths = {s.name: len(s.blocks) for s in ag.structure(graph).sections}
    assert ag.shorten(graph, depths).graph is graph
    assert ag.graft(graph, depths).graph is graph
    assert ag.graft(graph, depths, like=graph).graph is graph


def _repeatable(graph: ag.ArchGraph, block) -> bool:
    return graph.node[block.entry].type == graph.node[block.exit].type and block.kind != "dense"


def _restorable(graph: ag.ArchGraph, section, depth: int) -> bool:
    """Whether the blocks that `shallow` keeps hold one that can be repeated."""
    gone = [b for b in section.blocks if b.removable][::-1][: len(section.blocks) - depth]
    kept = [b for b in section.blocks if b not in gone]
    return not gone or (section.kind == "stage" and any(_repeatable(graph, b) for b in kept))


def _section(graph: ag.ArchGraph, leaf: str) -> str:
    module = leaf.rpartition(".")[0]
    return next(
        b.section
        for b in ag.structure(graph).blocks
        for used in _leaves(graph, b.nodes)
        if used.rpartition(".")[0] == module
    )


@given(models().map(graph_of), st.data())
@at_most(4)
def test_grafting_restores_what_shallow_left_out(graph, data):
    depths, full = {}, {}
    for section in ag.structure(graph).sections:
        blocks = section.blocks
        least = max(sum(not b.removable for b in blocks), 1)
        while not _restorable(graph, section, least):
            least += 1
        depths[section.name] = data.draw(st.integers(least, len(blocks)))
        full[section.name] = len(blocks)
    small = ag.shorten(graph, depths)
    assert {s: len(b) for s, b in parts(small.graph).items()} == depths
    again = small >> (lambda g: ag.graft(g, full, like=graph, verify=True))
    assert again.graph == graph
    for name, entry in again.transfer.entries.items():
        assert entry.source is not None
        if entry.source != name:  # a copy of a block of the same section that stayed
            assert name not in small.graph.param
            assert _section(graph, entry.source) == _section(graph, name)


@given(models().map(graph_of), st.integers(1, 3))
@at_most(3)
def test_grafting_adds_blocks_that_can_be_left_out_again(graph, more):
    for section in ag.structure(graph).sections:
        depth = len(section.blocks) + more
        if not any(_repeatable(graph, b) for b in section.blocks):
            continue
        try:
            deep = ag.graft(graph, {section.name: depth}, verify=True)
        except ag.RewriteError as error:
            assert error.message == "section has no repeatable block"
            continue
        assert infer(deep.graph) == deep.graph
        names = [b.name for b in section.blocks]
        found = parts(deep.graph)[section.name]
        assert found[: len(names)] == names
        assert len(found) == depth
