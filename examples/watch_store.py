"""Prints hit rate and disk use of a running store every five seconds, until it is closed.

Single-threaded. Usage: watch_store.py [FOLDER]; without one, the folder that KVTIER_PATH names.
"""

import sys
import time

import kvtier

monitor = kvtier.Monitor(sys.argv[1] if len(sys.argv) > 1 else None)
while True:
    stats = monitor.get_stats()
    print(
        f"{stats['state']}: hit rate {stats['cache_hit_rate']:.1%}, "
        f"{stats['disk_usage'] / 1e9:.2f} of {stats['disk_capacity'] / 1e9:.2f} GB on disk",
        flush=True,
    )
    if stats["state"] != "running":
        break
    time.sleep(5)
