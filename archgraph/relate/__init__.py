"""Relate graphs that were not derived from one another: align, join, meet and match.

The functions take graphs, even if written independently, and return the parts that correspond, with
reasons for the rest::

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
2. Each block and leaf of the client and each block of the whole is matched, or it, or the block or
   section that contains it, is listed as ``Unmatched`` with the reason.
3. The transfers of a join start at its states, those of a meet end there. They only select: they
   drop blocks, and take a prefix of each axis.
"""
