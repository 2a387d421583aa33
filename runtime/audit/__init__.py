"""Asks a server the same under conditions that should not matter, and counts the answers that differ."""

from trigraph.runtime.audit.client import Client
from trigraph.runtime.audit.plan import Plan
from trigraph.runtime.audit.report import Report
from trigraph.runtime.audit.run import audit

__all__ = ["Client", "Plan", "Report", "audit"]
