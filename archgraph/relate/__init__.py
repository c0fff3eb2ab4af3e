"""Graphs that were not derived from one another: align, and the least and greatest in common.

Two graphs go in, whoever wrote them; what belongs together comes out, with reasons for the rest::

    client, whole ──▶ sides: their forms, blocks and axes
                        likeness       what a pair is worth, and what keeps it from being a cut
                        blocks         sections in order, and blocks in order within them
                        counterparts   operators and leaves, pair by pair
                          └──▶ Alignment ──▶ widths ──▶ transfer, if the whole contains the client
    graphs ──▶ join: one of them, with copied blocks of the others, and the largest widths
           ──▶ meet: one of them, without what another lacks, and with the smallest widths
                          └──▶ the graph, and a transfer between its states and each of theirs
    a graph, two states ──▶ match ──▶ an order of each axis, and its transfer
    a transfer ──▶ correspond ──▶ partners, disparities: what became of each part

1. Networks that are equal up to their widths match operator by operator. Others match block by
   block, in order: no pair of blocks crosses another one, no pair of leaves contradicts another.
2. Each block and leaf of the client and each block of the whole is matched, or it, or the block or
   section around it, is listed as ``Unmatched`` with the reason.
3. The transfers of a join start at its states, those of a meet end there. They only select: blocks
   are left out, and of each axis a prefix is taken.
"""
