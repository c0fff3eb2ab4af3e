"""Pretrain the small BERT of ``specs/ablations/lora_sick.yaml``.

``python -m benchmarks.nli_bert``: a tokenizer of 8,192 word pieces and a BERT of two layers and 128
channels learn from the development sets of SNLI and MNLI, first to fill in masked tokens, then to
say whether a sentence follows from another. SICK is not used. Takes a quarter of an hour on one
core; writes ``specs/weights/nli_bert``, a folder that ``from_pretrained`` loads.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from archgraph.data.pairs import read_pairs
from archgraph.data.sentences import SentencePair

FILES = ("nli/snli_dev.jsonl", "nli/mnli_dev_matched.jsonl")
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LENGTH, WORDS, BATCH = 32, 8192, 32
MASK = list(SPECIAL).index("mask")
Batch = tuple[Tensor, ...]
Loss = Callable[[Batch], Tensor]


def word_pieces(pairs: list[SentencePair]) -> Tokenizer:
    """Return a tokenizer that has learned its words from sentences."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learn = trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=list(SPECIAL.values()))
    texts = (text for pair in pairs for text in (pair.premise, pair.hypothesis))
    tokenizer.train_from_iterator(texts, learn)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def encoded(tokenizer: PreTrainedTokenizerFast, pairs: list[SentencePair]) -> Batch:
    """Return token ids, attention mask, token types, each [pair, token], and labels [pair]."""
    arrays = tokenizer(
        [pair.premise for pair in pairs],
        [pair.hypothesis for pair in pairs],
        truncation="longest_first",
        max_length=LENGTH,
        padding="max_length",
        return_token_type_ids=True,
        return_tensors="pt",
    )
    names = ("input_ids", "attention_mask", "token_type_ids")
    return (*(arrays[n] for n in names), torch.tensor([pair.target for pair in pairs]))


def fit(model: torch.nn.Module, data: Batch, loss: Loss, *, epochs: int, rate: float) -> None:
    """Train with AdamW in minibatches, the rate rising for a tenth of the steps."""
    steps = len(data[0]) // BATCH
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = OneCycleLR(optimiser, rate, total_steps=epochs * steps, pct_start=0.1)
    model.train()
    for epoch in range(epochs):
        began, total = time.monotonic(), 0.0
        order = torch.randperm(len(data[0]))
        for at in range(steps):
            rows = order[at * BATCH : (at + 1) * BATCH]
            value = loss(tuple(array[rows] for array in data))
            optimiser.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += value.item()
        spent = time.monotonic() - began
        print(f"epoch {epoch + 1}: loss {total / steps:.3f}, {spent:.0f} s", flush=True)


def masked_tokens(model: BertForMaskedLM, batch: Batch) -> Tensor:
    """Return the cross-entropy of 15 % of the tokens, masked as BERT does."""
    ids, attention, types, _ = batch
    asked = (torch.rand(ids.shape) < 0.15) & (ids >= len(SPECIAL))
    draw, words = torch.rand(ids.shape), torch.randint(len(SPECIAL), WORDS, ids.shape)
    changed = torch.where(draw < 0.8, MASK, torch.where(draw < 0.9, words, ids))
    states = model.bert(torch.where(asked, changed, ids), attention, types).last_hidden_state
    return F.cross_entropy(model.cls(states[asked]), ids[asked])


def main() -> None:
    """Pretrain, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ARCHGRAPH_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("specs/weights/nli_bert"))
    parser.add_argument("--epochs", type=int, nargs=2, default=(12, 6))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # figures do not depend on the number of cores
    torch.manual_seed(0)
    files = [arguments.data / name for name in FILES]
    pairs = [pair for file in files for pair in read_pairs(file.read_bytes(), str(file))]
    words = {f"{name}_token": token for name, token in SPECIAL.items()}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_pieces(pairs), **words)
    data = encoded(tokenizer, pairs)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        num_labels=3,
    )
    first = BertForMaskedLM(config)
    fit(first, data, lambda b: masked_tokens(first, b), epochs=arguments.epochs[0], rate=1e-3)
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(first.bert.state_dict(), strict=False)  # the pooler is new

    def entailed(batch: Batch) -> Tensor:
        ids, attention, types, labels = batch
        return F.cross_entropy(model(ids, attention, types).logits, labels)

    fit(model, data, entailed, epochs=arguments.epochs[1], rate=5e-4)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
