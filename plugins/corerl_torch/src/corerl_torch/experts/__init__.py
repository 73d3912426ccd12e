"""Mixtures of experts: grouped matrix products, expert parallel, routers in float32, balance of the load."""
