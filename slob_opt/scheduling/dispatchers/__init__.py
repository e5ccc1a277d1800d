"""Dispatchers that people run today, each with its source."""
