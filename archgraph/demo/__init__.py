"""The demo that `archgraph demo` runs: two models, from their family to a report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import RunError, os_reason
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from archgraph.federation.family import Family

# Parts of the demo, in order: a model in YAML, then a module in plain Python.
PARTS = ("residual", "network")


def demo(folder: str | os.PathLike[str], *, rounds: int | None = None) -> Iterator[str | Table]:
    """Draw, federate and report two models; yield the text and tables to print.

    The first model is a YAML file, the second a module in plain Python. For each model, the demo
    loads its family of architectures, draws all of them and marks the least trained part, runs
    FedFA on the digits of scikit-learn, and writes a table with a row per tier and a report of the
    run. The YAML files are copied next to the results, to be changed and run again.

    Args:
        folder: Folder for the results; if it is not empty, a number is appended to its name.
        rounds: Number of rounds of each run. Default: the number in its file.

    Raises:
        RunError: If the folder cannot be written.
    """
    import torch

    began = time.perf_counter()
    target = _empty(Path(folder))
    specs = _copied(target / "specs")
    threads = torch.get_num_threads()
    # With images of 8 × 8, several threads would wait for each other longer than they compute.
    torch.set_num_threads(1)
    try:
        for part in PARTS:
            yield from _part(part, specs, target / part, rounds)
    finally:
        torch.set_num_threads(threads)
    yield f"\nresults are in {target}, after {time.perf_counter() - began:.0f} s; open"
    for part in PARTS:
        for name in ("report.html", "pictures/global.svg"):
            yield f"  {target / part / name}"
    yield f"change {specs / 'residual_family.yaml'} and run"
    yield f"  archgraph run {specs / 'residual_experiment.yaml'}"


def _part(name: str, specs: Path, folder: Path, rounds: int | None) -> Iterator[str | Table]:
    """Run one model, from its family to the report of its run."""
    import archgraph
    from archgraph.display import coverage, draw_family, summary_table
    from archgraph.reports import report

    family = archgraph.resolve(archgraph.load_family(specs / f"{name}_family.yaml"))
    yield f"\n{family.graph.name or name}: {_sizes(family)}"
    if name == "network":
        yield _same(family)
    # The part that the fewest clients train: a weak point for FedFA.
    weak = min(coverage(family).items(), key=lambda item: item[1])
    pictures = draw_family(family, folder / "pictures", form="svg")
    archgraph.draw(family.graph, folder / "pictures" / "global.png", cover=coverage(family))
    fed = f"least trained: {weak[0]}, by {100 * weak[1]:.0f} % of the clients"
    yield f"{plural(len(pictures), 'picture')}; {fed}"
    yield summary_table(family.graph)
    spec = archgraph.load_experiment(specs / f"{name}_experiment.yaml")
    if rounds is not None:
        spec = spec.model_copy(update={"rounds": rounds})
    run = archgraph.run(spec, out=folder / "run")
    report(folder / "run", folder / "report.html")
    yield run.table()


def _sizes(family: Family) -> str:
    """Return the number of parameters of each kind of client."""
    import archgraph
    from archgraph.tables import count

    return ", ".join(
        f"{member.count} × {member.name} {count(archgraph.cost(member.graph).parameters)}"
        for member in family.clients
    )


def _same(family: Family) -> str:
    """Describe the difference between the outputs of the module and of its captured graph."""
    import torch

    import archgraph
    from archgraph.demo.network import Network

    # Load the graph's weights into the module, then compare the outputs of both.
    module = Network().eval()
    built = archgraph.build(family.graph, family.state).eval()
    module.load_state_dict(built.state_dict(), strict=True)
    image = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gap = float((built(image) - module(image)).abs().max())
    return f"captured from plain Python; its state loads strictly, outputs differ by {gap:.1e}"


def _empty(folder: Path) -> Path:
    """Return the folder; if it is not empty, the first numbered folder that is new or empty."""
    number, candidate = 1, folder
    while True:
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            if not any(candidate.iterdir()):
                return candidate
        except FileExistsError:  # a file with this name exists
            pass
        except OSError as error:
            reason = os_reason(error)
            raise RunError("cannot write the folder", where=str(candidate), found=reason) from error
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")


def _copied(folder: Path) -> Path:
    """Copy the demo's YAML files to the results, where the user can change them."""
    folder.mkdir()
    # As resources: an installed package may be a zip file.
    for item in resources.files("archgraph.demo").iterdir():
        if item.name.endswith(".yaml"):
            with resources.as_file(item) as source:
                shutil.copyfile(source, folder / item.name)
    return folder
