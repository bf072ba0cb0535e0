"""The agent: one order, one process. It does what an agent does, and knows nothing of how it is undone.

It says on its standard output how it ended, for the demo's time line.
"""

from __future__ import annotations

import argparse
import sys

from amends.local.story.remote import Refused
from amends.local.story.tools import buy_label, charge, reserve, send_confirmation, write_order
from amends.producers import workflow
from amends.tools.errors import LedgerUnavailable, LedgerUncertain

FAILED = 3
GAVE_UP = 4
"""It was refused the ledger, so it stopped: what it did is undone as if it had failed."""


def fulfil(order: str, payment_method: str, *, mail: bool) -> str:
    """Fulfil one order and return how the workflow ended."""
    with workflow(order, agent="fulfilment", lease="3s") as wf:
        charge(order, payment_method, 4_900)
        reserve(order, "mug", 2)
        buy_label(order, "12 Harbour Street")
        if mail:
            send_confirmation(order, "customer@example.com")
        write_order(order)
    return type(wf.outcome).__name__


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("order")
    parser.add_argument("--payment-method", required=True)
    parser.add_argument("--mail", action="store_true", help="send a mail, which can't be undone, before the last call")
    arguments = parser.parse_args()
    try:
        outcome = fulfil(arguments.order, arguments.payment_method, mail=arguments.mail)
    except Refused as refused:
        say(f"fails: {str(refused).partition(': ')[2]}")
        return FAILED
    except (LedgerUnavailable, LedgerUncertain) as silent:
        say(f"gives up: {silent}")
        return GAVE_UP
    say(f"is done: {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
