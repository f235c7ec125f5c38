#!/usr/bin/env python3
"""A second opinion on `tenuto trace analyze`: the main figures of one trace, computed naively.

Reads MSR CSV (100 ns, host, disk, Read or Write, offset, bytes, response) or CloudPhysics CSV
(version, seconds, 28 or 2a in hexadecimal, bytes, sector) and prints one JSON document. Needs
Python 3 and nothing else; knows nothing of the program that it judges.

    analyze.py TRACE [CACHE_BYTES...]

Of each CACHE_BYTES the miss ratio of the reads in an LRU cache of that size is computed, block by
block of 4 KiB, with an ordered dictionary.
"""

import collections
import json
import sys

SECTOR = 512
BLOCK = 4096
INTERVALS = [10, 60, 600, 3600, 6 * 3600, 24 * 3600]


def records(path):
    """(milliseconds since the first one, disk, is a write, first byte, bytes), in order."""
    first = None
    latest = 0
    with open(path, encoding="ascii") as lines:
        for line in lines:
            parts = line.strip().split(",")
            if len(parts) == 7 and parts[3] in ("Read", "Write"):
                nanos = int(parts[0]) * 100
                disk = parts[1] + "," + parts[2]
                write = parts[3] == "Write"
                start, size = int(parts[4]), int(parts[5])
            elif len(parts) == 5 and parts[2].lower() in ("28", "2a"):
                nanos = int(parts[1]) * 10**9
                disk = "disk"
                write = parts[2].lower() == "2a"
                start, size = int(parts[4]) * SECTOR, int(parts[3])
            else:
                continue
            if size <= 0:
                continue
            first = nanos if first is None else first
            latest = max(latest, max(0, nanos - first))
            # A disk has sectors: bytes that touch one have all of it.
            end = -(-(start + size) // SECTOR) * SECTOR
            start = start // SECTOR * SECTOR
            yield latest // 10**6, disk, write, start, end - start


def main():
    path, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    count = {False: 0, True: 0}
    total = {False: 0, True: 0}
    written_at = {}
    again = [0] * len(INTERVALS)
    read, written, base = set(), set(), set()
    seen_disk = [0, 0]
    seen_cluster = [0, 0]
    caches = [collections.OrderedDict() for _ in sizes]
    missed = [0] * len(sizes)
    blocks_read = 0
    last = 0
    for millis, disk, write, start, size in records(path):
        last = millis
        count[write] += 1
        total[write] += size
        blocks = range(start // BLOCK, (start + size - 1) // BLOCK + 1)
        if write:
            for sector in range(start // SECTOR, (start + size) // SECTOR):
                before = written_at.get((disk, sector))
                if before is not None:
                    for at, seconds in enumerate(INTERVALS):
                        if millis - before <= seconds * 1000:
                            again[at] += SECTOR
                written_at[disk, sector] = millis
        else:
            all_disk = all_cluster = True
            for block in blocks:
                inside = min(start + size, (block + 1) * BLOCK) - max(start, block * BLOCK)
                key = (disk, block)
                by_disk = key in read or key in written
                by_cluster = by_disk or block in base
                seen_disk[1] += inside if by_disk else 0
                seen_cluster[1] += inside if by_cluster else 0
                all_disk &= by_disk
                all_cluster &= by_cluster
            seen_disk[0] += all_disk
            seen_cluster[0] += all_cluster
        for block in blocks:
            key = (disk, block)
            blocks_read += not write
            for at, cache in enumerate(caches):
                if key in cache:
                    cache.move_to_end(key)
                    continue
                missed[at] += not write
                if sizes[at] >= BLOCK:
                    cache[key] = True
                    if len(cache) > sizes[at] // BLOCK:
                        cache.popitem(last=False)
            if write:
                written.add(key)
            else:
                if key not in written:
                    base.add(block)
                read.add(key)
    requests = sum(count.values())
    divergence = collections.Counter(disk for disk, _ in written)

    def share(part, whole):
        return part / whole if whole else None

    print(json.dumps({
        "requests": requests,
        "reads": count[False],
        "writes": count[True],
        "read_bytes": total[False],
        "write_bytes": total[True],
        "write_share": share(count[True], requests),
        "write_byte_share": share(total[True], sum(total.values())),
        "seconds": last / 1000,
        "rewritten_bytes": again,
        "seen_by_disk": [share(seen_disk[0], count[False]), share(seen_disk[1], total[False])],
        "seen_by_cluster": [
            share(seen_cluster[0], count[False]),
            share(seen_cluster[1], total[False]),
        ],
        "read_set_bytes": len(read) * BLOCK,
        "written_set_bytes": len(written) * BLOCK,
        "any_set_bytes": len(read | written) * BLOCK,
        "divergence_bytes": {disk: blocks * BLOCK for disk, blocks in divergence.items()},
        "miss_ratios": [share(misses, blocks_read) for misses in missed],
    }, indent=1))


main()
