"""Submodels for a device: what training costs, what a cut loses, the best one for a budget."""
