"""What amends costs, measured: `make bench`. Ratios within one run count; absolute figures depend on the machine."""
