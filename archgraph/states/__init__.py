"""Weights and the linear maps between the states of two architectures: transfer, merge, carry."""
