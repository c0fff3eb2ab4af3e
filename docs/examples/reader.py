"""A small text classifier that does not attend to padding, for docs/data-tokens.md."""

import torch
from torch import nn


class Reader(nn.Module):
    """A Transformer layer, and a classifier on the mean over a text's tokens."""

    def __init__(self, tokens: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return logits ``[text, class]`` of tokens and their mask, both ``[text, position]``."""
        mask = attention_mask.bool()
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=~mask)
        hidden = hidden.masked_fill(~mask[..., None], 0.0)
        return self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True))
