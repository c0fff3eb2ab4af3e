"""Relate graphs that were not derived from one another: align, join, meet and match.

The functions take graphs, even if written independently, and return the parts that correspond, with
reasons why the other parts do not::

    client, whole ──▶ sides: their forms, blocks and axes
                        likeness       value of a pair, and obstacles to it being a cut
                        blocks         sections in order, and blocks in order within them
                        counterparts   operators and leaves, pair by pair
                          └──▶ Alignment ──▶ widths ──▶ transfer, if the whole contains the client
    graphs ──▶ join: one of them, with copied blocks of the others, and the largest widths
           ──▶ meet: one of them, without blocks that another lacks, and with the smallest widths
                          └──▶ the graph, and a transfer between its states and each of theirs
    a graph, two states ──▶ match ──▶ an order of each axis, and its transfer
    a transfer ──▶ correspond ──▶ partners, disparities: the fate of each part

1. Networks that are equal up to their widths match operator by operator. Others match block by
   block, in order: no two pairs of blocks cross, and no pair of leaves contradicts another.
2. Each block and leaf of the client and each block of the global model is matched, or listed as
   ``Unmatched`` with the reason. A section or block may be listed in place of its contents.
3. The transfers of a join start at its states, the transfers of a meet end at its states. Both only
   drop blocks and take the first positions of each axis.
"""
