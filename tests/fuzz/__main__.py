"""Run cases of a fuzzer and print what became of them; the exit status is 1 when there is a defect."""

from __future__ import annotations

import argparse
import sys

from fuzz.campaign import run_campaign
from fuzz.target import TARGETS


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    arguments = parser.parse_args()
    report = run_campaign(arguments.target, arguments.count, seed=arguments.seed, first=arguments.first)
    print(report)
    return 1 if report.defects else 0


if __name__ == "__main__":
    sys.exit(main())
