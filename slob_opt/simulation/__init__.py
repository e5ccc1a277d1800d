"""Serving played forward in virtual time: stages as servers, lanes in flight, links, KV blocks."""
