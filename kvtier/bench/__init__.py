"""Benchmarks of the store: `kvtier bench …`. Nothing here is imported by `import kvtier`.

Each module is used from one thread; what it measures may have many.
"""
