"""Messages of twelve tokens on one of three topics; half of the tokens are words of the topic."""

import torch


def make(examples: int = 1100):
    """Return training data and test data: tokens and topics."""
    draw = torch.Generator().manual_seed(0)
    topics = torch.randint(3, (examples,), generator=draw)
    words = torch.randint(50, (examples, 12), generator=draw)
    about = 5 + 15 * topics[:, None] + torch.randint(15, (examples, 12), generator=draw)
    tokens = torch.where(torch.rand(examples, 12, generator=draw) < 0.5, about, words)
    return (tokens[100:], topics[100:]), (tokens[:100], topics[:100])
