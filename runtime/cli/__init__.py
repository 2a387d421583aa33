"""The command `trigraph`."""
