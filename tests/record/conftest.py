"""The small world of :mod:`tests.worlds`."""

from tests.worlds import digits, experiment, mean, net, world

__all__ = ["digits", "experiment", "mean", "net", "world"]
