"""`kvtier doctor`: what a machine can do and what holds it back, one file for each thing looked at.

Everything that is read of the system has its root as an argument. Stateless.
"""
