"""Warm-up: prompts of a file are computed by a server, so that its cache holds them."""
