"""A round of FedAvg in other simulators, on the work of :mod:`benchmarks.bench_workers`.

Each trains the same network with the same optimiser on as many batches of the same sizes; seconds
are those between the ends of two rounds, so that no start is in them. A simulator that is not
installed is left out: ``pip install 'archgraph-torch[flower]'``, ``pip install pfl==0.6.0``.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import archgraph as ag


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        model: File of the network.
        shape: Of an image.
        clients: How many there are.
        sampled: Of these in a round.
        examples: Of each client.
        batch: Examples in a step.
        rounds: How many are measured.
    """

    model: Path
    shape: tuple[int, ...]
    clients: int
    sampled: int
    examples: int
    batch: int
    rounds: int

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images of random values, and classes."""
        count = self.clients * self.examples
        generator = torch.Generator().manual_seed(0)
        return torch.rand(count, *self.shape, generator=generator), torch.arange(count) % 10

    def module(self) -> nn.Module:
        """The network, with first weights."""
        return ag.build(ag.load(self.model))

    def own(self, client: int) -> slice:
        """The examples of a client."""
        return slice(client * self.examples, (client + 1) * self.examples)

    def train(self, module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One epoch of SGD: what a client does."""
        optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        for at in torch.randperm(len(targets)).split(self.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[at]), targets[at]).backward()
            optimiser.step()


def bare(job: Job, workers: int) -> float:
    """Seconds of a round's local training in a loop of PyTorch's own."""
    inputs, targets = job.data()
    ends = []
    for _ in range(job.rounds + 1):
        for client in range(job.sampled):
            own = job.own(client)
            job.train(job.module(), inputs[own], targets[own])
        ends.append(time.perf_counter())
    return _between(ends)


def flower(job: Job, workers: int) -> float:
    """Seconds of a round in Flower's simulation, with its FedAvg."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ends: list[float] = []

    def told(round: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.sampled / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.sampled,
            min_available_nodes=job.clients,
        )
        first = ArrayRecord(job.module().state_dict())
        strategy.start(grid, first, job.rounds + 1, evaluate_fn=told)

    resources: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers},
    }
    run_simulation(server, _flower_client(job), job.clients, backend_config=resources)
    return _between(ends[1:])  # before the first round the processes start


def _flower_client(job: Job) -> Any:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        inputs, targets = _data(job)
        own, module = job.own(int(context.node_config["partition-id"])), job.module()
        arrays: Any = message.content["arrays"]
        module.load_state_dict(arrays.to_torch_state_dict())
        job.train(module, inputs[own], targets[own])
        metrics = MetricRecord({"num-examples": job.examples})
        sent = {"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}
        return Message(RecordDict(sent), reply_to=message)

    return app


# Once in each process of Ray's.
@functools.lru_cache(maxsize=1)
def _data(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    return job.data()


def pfl(job: Job, workers: int) -> float:
    """Seconds of a round in pfl, in one process."""
    multiprocessing.current_process().name = "MainProcess"  # in another one pfl does not start
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    inputs, targets = job.data()
    ends: list[float] = []

    class Ends(TrainingProcessCallback):  # type: ignore[misc]  # without types
        def after_central_iteration(self, metrics: Any, model: Any, **more: Any) -> Any:
            ends.append(time.perf_counter())
            return False, Metrics()

    def dataset(client: int) -> Any:
        own = job.own(client)
        return PyTorchTensorDataset((inputs[own], targets[own]))

    module = _WithLoss(job.module())
    model = PyTorchModel(
        module,
        functools.partial(torch.optim.SGD, momentum=0.9),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    clients = FederatedDataset(dataset, get_user_sampler("random", list(range(job.clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds + 1,
            evaluation_frequency=10**6,
            train_cohort_size=job.sampled,
            val_cohort_size=None,
        ),
        SimulatedBackend(clients, clients),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=0.01
        ),
        callbacks=[Ends()],
        send_metrics_to_platform=False,
    )
    return _between(ends)


class _WithLoss(nn.Module):
    """A network as pfl wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.network(inputs)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> Any:
        """What is trained."""
        self.train(not eval)
        return nn.functional.cross_entropy(self.network(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = True) -> Any:
        """Nothing is measured beside."""
        return {}


def _between(ends: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends))


# By name: the packages that it needs, its processes, and its round.
Round = Callable[[Job, int], float]
OTHERS: dict[str, tuple[tuple[str, ...], int, Round]] = {
    "pfl": (("pfl",), 1, pfl),
    "Flower's simulation": (("flwr", "ray"), 2, flower),
}
