"""The graphs of a model: from its description to prefill, draft and verify."""
