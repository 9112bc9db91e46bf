"""Adapters: inference engines' words turned into the store's; they decide nothing."""
