"""Requests and what their owners hold: receipts, sessions, moves."""
