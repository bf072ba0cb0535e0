"""Before-images shown on data nobody here made: tools and tasks of τ²-bench, undone from after any number of writes.

`make proof`, or `python -m proof`; docs/proof.md says what is measured.
"""
