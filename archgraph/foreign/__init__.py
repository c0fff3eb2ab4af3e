"""Folders of other libraries: a network goes back to where its model came from, and adapters too.

transformers, timm and PEFT are imported by the functions that need them.
"""
