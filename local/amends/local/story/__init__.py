"""The order-fulfilment story that `amends demo` plays: an agent's tools, the services they call, and a judge of the
outside world.
"""
