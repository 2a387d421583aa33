"""Engines as replicas on Ray Serve, and the front that sends requests to them."""
