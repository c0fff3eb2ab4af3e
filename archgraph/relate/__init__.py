"""Relate graphs that were not derived from one another: align, join, meet and match.

The functions take graphs, even if written independently, and return the parts that correspond, with
reasons why other parts have no counterpart. A *section* consists of consecutive blocks, such as a
stage of similar blocks. A *leaf* is a parameter, buffer or constant. The *form* of a block is its
computation without names and widths::

    client, whole ──▶ sides: their forms, blocks and axes
                        likeness       score of a pair of blocks, or why they do not match
                        blocks         sections in order, and blocks in order within them
                        counterparts   operators and leaves, pair by pair
                          └──▶ Alignment ──▶ widths ──▶ transfer, if the whole contains the client
    graphs ──▶ join: one of the graphs, with missing blocks added, and the largest widths
           ──▶ meet: one of the graphs, without blocks that another lacks, the smallest widths
                          └──▶ the graph, and a transfer between its states and those of each graph
    a graph, two states ──▶ match ──▶ an order of each axis, and its transfer
    a transfer ──▶ correspond ──▶ partners, disparities: corresponding and different parts

1. Networks that are equal up to their widths match operator by operator. Other networks match block
   by block, in order. A leaf is matched to at most one leaf.
2. Each block and leaf of the client and each block of the global model is matched, or listed as
   ``Unmatched`` with the reason. A section or block may be listed in place of its contents.
3. The transfers of a join map from its states, the transfers of a meet map to its states. These
   transfers only drop blocks and take the first channels of each axis.
"""
