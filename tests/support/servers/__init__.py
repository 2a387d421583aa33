"""Servers, replicas, hubs, and what they are asked."""
