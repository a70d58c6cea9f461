"""Measuring an engine: how fast it answers, and what share of the machine's ceilings that is."""
