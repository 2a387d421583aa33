"""The error that a user can act on."""


class TrigraphError(ValueError):
    """Bad input, in one sentence: which file, key or tensor, what was found, and what to do about it.

    Programs print the text and exit with status 2; anything else that escapes is a defect of trigraph.
    """


def quote(value: object) -> str:
    """A value found in a file, for an error text: on one line and short, whatever it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
