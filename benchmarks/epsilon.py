"""What ε a run spends, by noise, number of clients and sampling, as a run accounts for it.

As many clients take part in every round whatever the number of all, so each row disturbs the model
equally: clients beyond those of a round cost no accuracy, and lower ε.
"""

from __future__ import annotations

from archgraph.engine.privacy import epsilon
from archgraph.language.privacy import PrivacySpec

NOISE = (0.5, 1.0, 2.0, 4.0)
CLIENTS = (100, 1_000, 10_000, 100_000)
SAMPLED, ROUNDS, DELTA = 100, 100, 1e-6


def row(noise: float, sampling: str) -> list[float]:
    """The ε of each number of clients."""
    values = {"clip": 1.0, "noise": noise, "delta": DELTA, "sampling": sampling}
    privacy = PrivacySpec.model_validate(values)
    return [epsilon(privacy, SAMPLED, clients, ROUNDS) for clients in CLIENTS]


def main() -> None:
    """Print a table in Markdown."""
    print("| noise σ | sampling |" + "".join(f" {clients:,} clients |" for clients in CLIENTS))
    print("|---|---|" + "---|" * len(CLIENTS))
    for noise in NOISE:
        for sampling in ("poisson", "fixed"):
            cells = "".join(
                f" {value:,.0f} |" if value >= 1000 else f" {value:.3g} |"
                for value in row(noise, sampling)
            )
            print(f"| {noise:g} | {sampling} |{cells}")


if __name__ == "__main__":
    main()
