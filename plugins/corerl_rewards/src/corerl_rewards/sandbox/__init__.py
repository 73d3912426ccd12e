"""Programs that nobody has read, run where they can do no harm: see docs/rewards-isolation.md."""
