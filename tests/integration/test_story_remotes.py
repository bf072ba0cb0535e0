"""The outside world of the story as real processes: the judge reads it, and it is gone with the block."""

from __future__ import annotations

import stripe

from amends.local.story.remote import call
from amends.local.story.remotes import remotes
from amends.local.story.world import STRIPE_TOKEN


def test_the_judge_reads_charges_refunds_and_both_histories_from_the_services_themselves() -> None:
    with remotes() as outside:
        addresses = outside.addresses
        client = stripe.StripeClient(STRIPE_TOKEN, base_addresses={"api": addresses.payments}, max_network_retries=0)
        method = client.v1.payment_methods.create(
            {"type": "card", "card": {"number": "4242424242424242", "exp_month": 12, "exp_year": 2040, "cvc": "123"}}
        )
        intents = [
            client.v1.payment_intents.create(
                {
                    "amount": 500,
                    "currency": "eur",
                    "payment_method": method.id,
                    "confirm": True,
                    "metadata": {"order": order},
                }
            ).id
            for order in ("o-1", "o-2", "o-3")
        ]
        for times, intent in enumerate(intents):
            for _ in range(times):
                client.v1.refunds.create({"payment_intent": intent})
        call("POST", f"{addresses.shipping}/labels", {"order": "o-1", "address": "here"})
        made = call(
            "POST", f"{addresses.warehouse}/reservations", {"order": "o-1", "sku": "mug", "quantity": 1}, key="k"
        )
        call("POST", f"{addresses.warehouse}/reservations/{made['id']}/release", {}, key="u")
        seen = {(thing.kind, thing.order): thing.undone for thing in outside.world()}
        children = outside.children
    assert seen == {
        ("charge", "o-1"): 0,
        ("charge", "o-2"): 1,
        ("charge", "o-3"): 2,
        ("label", "o-1"): 0,
        ("reservation", "o-1"): 1,
    }
    assert not any(child.alive for child in children)
