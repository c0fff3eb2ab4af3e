"""Running strategies on Flower: the server's loop as a ServerApp, a client as a ClientApp.

The modules in it import ``flwr`` (extra ``flower``); nothing else of archgraph does.
"""
