"""The main job from end to end on data that comes along, as `archgraph demo` shows it."""

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

# What is shown, in order: a model from YAML, then a module in plain Python.
PARTS = ("residual", "network")


def demo(folder: str | os.PathLike[str], *, rounds: int | None = None) -> Iterator[str | Table]:
    """Draw, federate and report two models; yields what to print, text or what rich draws.

    The first model is a YAML file, the second a module in plain Python. For each: its family of
    architectures, pictures of all of them with the weak points of the global one, FedFA on the
    digits of scikit-learn, a table with a row per tier, a page about the run. The YAML files are
    copied beside the results, to be changed and run again.

    Args:
        folder: Where to write; if it holds something, a number is added to its name.
        rounds: Rounds of each run; Default: as its file says.

    Raises:
        RunError: If the folder cannot be written.
    """
    import torch

    began = time.perf_counter()
    target = _empty(Path(folder))
    specs = _copied(target / "specs")
    threads = torch.get_num_threads()
    # Pictures of 8 × 8: more threads would wait for each other longer than they compute.
    torch.set_num_threads(1)
    try:
        for part in PARTS:
            yield from _part(part, specs, target / part, rounds)
    finally:
        torch.set_num_threads(threads)
    yield f"\nall of it is in {target}, after {time.perf_counter() - began:.0f} s; look at"
    for part in PARTS:
        for name in ("report.html", "pictures/global.svg"):
            yield f"  {target / part / name}"
    yield f"change {specs / 'residual_family.yaml'} and run"
    yield f"  archgraph run {specs / 'residual_experiment.yaml'}"


def _part(name: str, specs: Path, folder: Path, rounds: int | None) -> Iterator[str | Table]:
    """Run one model, from its family to the page about its run."""
    import archgraph
    from archgraph.display import coverage, draw_family, summary_table
    from archgraph.reports import report

    family = archgraph.resolve(archgraph.load_family(specs / f"{name}_family.yaml"))
    yield f"\n{family.graph.name or name}: {_sizes(family)}"
    if name == "network":
        yield _same(family)
    # FedFA's weak point: where it is, few clients train.
    weak = min(coverage(family).items(), key=lambda item: item[1])
    pictures = draw_family(family, folder / "pictures", form="svg")
    archgraph.draw(family.graph, folder / "pictures" / "global.png", cover=coverage(family))
    fed = f"least fed: {weak[0]}, by {100 * weak[1]:.0f} % of the clients"
    yield f"{plural(len(pictures), 'picture')}; {fed}"
    yield summary_table(family.graph)
    spec = archgraph.load_experiment(specs / f"{name}_experiment.yaml")
    if rounds is not None:
        spec = spec.model_copy(update={"rounds": rounds})
    run = archgraph.run(spec, out=folder / "run")
    report(folder / "run", folder / "report.html")
    yield run.table()


def _sizes(family: Family) -> str:
    """Return how many parameters each kind of client has."""
    import archgraph
    from archgraph.tables import count

    return ", ".join(
        f"{member.count} × {member.name} {count(archgraph.cost(member.graph).parameters)}"
        for member in family.clients
    )


def _same(family: Family) -> str:
    """Check that the captured graph computes what the module does, with the module's weights."""
    import torch

    import archgraph
    from archgraph.demo.network import Network

    # Both ways: the graph's weights fit the module, and the module computes what the graph does.
    module = Network().eval()
    built = archgraph.build(family.graph, family.state).eval()
    module.load_state_dict(built.state_dict(), strict=True)
    image = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gap = float((built(image) - module(image)).abs().max())
    return f"captured from plain Python; its state loads strictly, outputs differ by {gap:.1e}"


def _empty(folder: Path) -> Path:
    """Return the folder, or the first numbered one that is new or empty."""
    number, candidate = 1, folder
    while True:
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            if not any(candidate.iterdir()):
                return candidate
        except FileExistsError:  # a file has the name
            pass
        except OSError as error:
            reason = os_reason(error)
            raise RunError("cannot write the folder", where=str(candidate), found=reason) from error
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")


def _copied(folder: Path) -> Path:
    """Copy the demo's YAML files to where the user can change them."""
    folder.mkdir()
    # As resources: an installed package may be a zip file.
    for item in resources.files("archgraph.demo").iterdir():
        if item.name.endswith(".yaml"):
            with resources.as_file(item) as source:
                shutil.copyfile(source, folder / item.name)
    return folder
