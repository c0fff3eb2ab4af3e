"""The YAML of data: which examples, and which client owns which of them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Name, Share


def _at_most_all(value: dict[str, float]) -> dict[str, float]:
    total = sum(value.values())
    if total > 1 and not math.isclose(total, 1):
        raise Mistake("share out more than there is", found=f"{total:g}", expected="at most 1")
    return value


DataShares = (
    Annotated[
        dict[Name, Share],
        pydantic.AfterValidator(_at_most_all),
        Field(
            min_length=1,
            description="kind of client → share of all examples that its clients own in equal "
            "parts, with all classes in proportion; the others share the rest",
        ),
    ]
    | None
)


MinSize = Annotated[Count, Field(description="least number of examples of a client")]
Alpha = Annotated[
    float, Field(gt=0, description="concentration: the smaller, the more unequal are the classes")
]


class IidSpec(Base):
    """A random order cut into equal shards."""

    scheme: Literal["iid"] = Field(default="iid", description="the scheme")
    min_size: MinSize = 1
    shares: DataShares = None


class DirichletSpec(Base):
    """Shares of each class drawn from a Dirichlet distribution."""

    scheme: Literal["dirichlet"] = Field(description="the scheme")
    alpha: Alpha = 0.5
    min_size: MinSize = 10
    balanced: bool = Field(
        default=False, description="a client that has its equal part already gets nothing more"
    )
    shares: DataShares = None


class EqualDirichletSpec(Base):
    """As many examples for each client, in classes drawn from a Dirichlet distribution."""

    scheme: Literal["equal_dirichlet"] = Field(description="the scheme")
    alpha: Alpha = 0.5
    min_size: MinSize = 1
    shares: DataShares = None


class ClassesSpec(Base):
    """So many classes for each client."""

    scheme: Literal["classes"] = Field(description="the scheme")
    per_client: Count = Field(default=2, description="classes of a client")
    assignment: Literal["first-deterministic", "deterministic", "random"] = Field(
        default="first-deterministic",
        description="which classes: in turn, in turn from a drawn first one, or drawn",
    )
    min_size: MinSize = 1
    shares: DataShares = None


PartitionSpec = Annotated[
    IidSpec | DirichletSpec | EqualDirichletSpec | ClassesSpec, Field(discriminator="scheme")
]


class DataSpec(Base):
    """Which data, and who owns what of it."""

    dataset: str = Field(
        description="digits, mnist, fashion_mnist, kmnist, cifar10, cifar100, wikitext2; mnli and "
        "snli (of both the development set only, split anew), sick"
    )
    root: str | None = Field(
        default=None, description="folder of the files; default: $ARCHGRAPH_DATA"
    )
    partition: PartitionSpec = Field(
        default=IidSpec(), description="how the training examples are divided among the clients"
    )
    limit: Count | None = Field(default=None, description="at most so many examples of each split")
    bptt: Count = Field(default=64, description="length of a text window, tokens")
    length: Count | None = Field(
        default=None, description="tokens of a pair of sentences, padding among them; default: 128"
    )
    vocabulary: Count | None = Field(
        default=None,
        description="most tokens of the vocabulary learned from pairs of sentences; default: 8192",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder of a pretrained model's tokenizer, used for pairs of sentences instead "
        "of a learned vocabulary; relative to this file",
    )
