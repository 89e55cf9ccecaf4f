"""The exact world: programs run on numbers without rounding errors, so that a kernel equals its formula or does not."""
