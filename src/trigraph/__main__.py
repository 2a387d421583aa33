"""`python -m trigraph`: the command `trigraph`."""

from trigraph.runtime.__main__ import main

if __name__ == "__main__":
    main()
