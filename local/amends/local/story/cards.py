"""The customer's card that the payment service is to know before an order comes."""

from __future__ import annotations

import stripe

from amends.local.story.remotes import Remotes
from amends.local.story.world import STRIPE_TOKEN


def payment_method(outside: Remotes) -> str:
    """Store a customer's card with the payment service and return its id."""
    client = stripe.StripeClient(
        STRIPE_TOKEN, base_addresses={"api": outside.addresses.payments}, max_network_retries=0
    )
    card: stripe.params.PaymentMethodCreateParamsCard = {
        "number": "4242424242424242",
        "exp_month": 12,
        "exp_year": 2040,
        "cvc": "123",
    }
    return client.v1.payment_methods.create({"type": "card", "card": card}).id
