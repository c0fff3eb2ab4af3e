"""ONNX files: a graph and its weights become one, and one that we wrote becomes them again.

The extra ``onnx`` brings the packages, which are imported on first use.
"""
