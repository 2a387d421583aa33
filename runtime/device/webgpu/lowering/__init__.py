"""Graphs of a package in operators of the WebGPU plugin."""
