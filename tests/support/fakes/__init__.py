"""Stand-ins without arithmetic: models, steps, engines, a machine, a device."""
