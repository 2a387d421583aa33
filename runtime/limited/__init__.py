"""Processes of our own that handle what strangers sent, with limits on memory and time."""
