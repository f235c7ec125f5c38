#!/usr/bin/env python3
"""A second opinion on traces of desktops: the same statistics, computed naively from MSR lines.

    tenuto trace convert week.trace - --to msr |
        desktops.py --desktops 55 --disk-bytes 42949672960 --page-file 17179869184:18253611008

Shares no code with the program. Prints one JSON document. Flushes are not in this format.
"""
import argparse
import json
import sys
from array import array

BLOCK = 4096
CHUNK = 256  # blocks
DAY = 24 * 3600
SMALL = 8192
WINDOW = 600  # seconds
STREAMS = 32
# The trace begins on a Thursday at midnight.
DAYS = {name: place for place, name in enumerate("Thu Fri Sat Sun Mon Tue Wed".split())}
PEAKS = [
    ("Mon 8:30", 15),
    ("Fri 8:30", 30),
    ("Tue 9:15", 15),
    ("Mon 14:00", 30),
    ("Tue 14:40", 20),
    ("Wed 16:00", 15),
]


def window(name, minutes):
    day, clock = name.split()
    hour, minute = clock.split(":")
    start = DAYS[day] * DAY + int(hour) * 3600 + int(minute) * 60
    return start, start + minutes * 60


class Peak:
    def __init__(self, name, minutes):
        self.name = name
        self.start, self.end = window(name, minutes)
        self.count = {"Read": 0, "Write": 0}
        self.bytes = {"Read": 0, "Write": 0}
        self.by_second = {}
        self.by_disk = {}
        self.seen_by_desktop = 0
        self.seen_by_cluster = 0

    def result(self, desktops):
        total = sum(self.count.values())
        # Five percent of 55 desktops is 2.75 times an equal part.
        limit = total * 2.75 / desktops
        heavy = [disk for disk, made in self.by_disk.items() if made >= limit]
        return {
            "name": self.name,
            "requests": total,
            "requests_per_second_max": max(self.by_second.values()),
            "writes": self.count["Write"],
            "write_bytes": self.bytes["Write"],
            "read_bytes": self.bytes["Read"],
            "reads_seen_by_desktop": self.seen_by_desktop,
            "reads_seen_by_cluster": self.seen_by_cluster,
            "heavy_desktops": len(heavy) / desktops,
        }


class Placement:
    """Where requests of one direction begin, and how many stretches ten minutes of them are."""

    def __init__(self):
        self.sizes = [{"requests": 0, "sequential": 0, "stretches": 0} for _ in range(2)]
        # Of each disk: where its last streams ended, the oldest beginning first; its window.
        self.ends = {}
        self.windows = {}

    def add(self, disk, second, offset, length, whole_windows):
        large = int(length > SMALL)
        size = self.sizes[large]
        size["requests"] += 1
        ends = self.ends.setdefault(disk, [[None] * STREAMS, 0])
        if offset in ends[0]:
            size["sequential"] += 1
            ends[0][ends[0].index(offset)] = offset + length
        else:
            ends[0][ends[1] % STREAMS] = offset + length
            ends[1] += 1
        if whole_windows:
            window = self.windows.setdefault(disk, [None, [], []])
            if window[0] != second // WINDOW:
                self.end(window)
                window[0] = second // WINDOW
            window[1 + large].append((offset, offset + length))

    def end(self, window):
        for size, written in zip(self.sizes, window[1:]):
            covered = None
            for first, end in sorted(written):
                if covered is None or first > covered:
                    size["stretches"] += 1
                    covered = end
                covered = max(covered, end)
            written.clear()

    def result(self):
        for window in self.windows.values():
            self.end(window)
        return self.sizes


class Opinion:
    def __init__(self, desktops, disk_bytes, page_file):
        self.desktops = desktops
        self.page_file = page_file
        self.count = {"Read": 0, "Write": 0}
        self.bytes = {"Read": 0, "Write": 0}
        self.rewritten = [0, 0, 0]
        self.page_file_bytes = 0
        self.placement = {"Read": Placement(), "Write": Placement()}
        self.diverged = 0
        # When each block of each disk was written; what each disk, and all, have read.
        self.written = {}
        self.seen = {}
        self.shared = {}
        self.megabytes = [0] * (disk_bytes // (1 << 20))
        self.peaks = [Peak(*peak) for peak in PEAKS]

    def write(self, disk, first, end, now):
        for block in range(first, end):
            key = (disk, block // CHUNK)
            place = block % CHUNK
            times = self.written.get(key)
            if times is None:
                times = self.written[key] = array("q", [-1]) * CHUNK
            before = times[place]
            if before < 0:
                self.diverged += BLOCK
            else:
                for number, seconds in enumerate((10, 600, DAY)):
                    if now - before <= seconds * 1000:
                        self.rewritten[number] += BLOCK
            times[place] = now
            if key not in self.seen:
                self.seen[key] = bytearray(CHUNK)
            self.seen[key][place] = 1

    def read(self, disk, first, end):
        own = any_one = True
        for block in range(first, end):
            chunk, place = divmod(block, CHUNK)
            key = (disk, chunk)
            mine = self.seen.setdefault(key, bytearray(CHUNK))
            times = self.written.get(key)
            pristine = times is None or times[place] < 0
            known = mine[place] == 1
            if not known:
                own = False
            if pristine:
                everybody = self.shared.setdefault(chunk, bytearray(CHUNK))
                if everybody[place]:
                    known = True
                everybody[place] = 1
            if not known:
                any_one = False
            mine[place] = 1
        return own, any_one

    def add(self, ticks, disk, op, offset, length):
        self.count[op] += 1
        self.bytes[op] += length
        first = offset // BLOCK
        end = (offset + length + BLOCK - 1) // BLOCK
        self.megabytes[offset // (1 << 20)] += 1
        second = ticks // 10_000_000
        self.placement[op].add(disk, second, offset, length, op == "Write")
        seen = (False, False)
        if op == "Write":
            self.write(disk, first, end, ticks // 10_000)
            if self.page_file[0] <= offset < self.page_file[1]:
                self.page_file_bytes += length
        else:
            seen = self.read(disk, first, end)
        for peak in self.peaks:
            if peak.start <= second < peak.end:
                peak.count[op] += 1
                peak.bytes[op] += length
                peak.by_second[second] = peak.by_second.get(second, 0) + 1
                peak.by_disk[disk] = peak.by_disk.get(disk, 0) + 1
                peak.seen_by_desktop += seen[0]
                peak.seen_by_cluster += seen[1]

    def result(self):
        busy = sorted(self.megabytes, reverse=True)
        cuts = [0, int(len(busy) * 0.05), int(len(busy) * 0.15), len(busy)]
        total = sum(self.count.values())
        parts = [sum(busy[low:high]) / total for low, high in zip(cuts, cuts[1:])]
        return {
            "reads": {"requests": self.count["Read"], "bytes": self.bytes["Read"]},
            "writes": {"requests": self.count["Write"], "bytes": self.bytes["Write"]},
            "placement": {
                "reads": self.placement["Read"].result(),
                "writes": self.placement["Write"].result(),
            },
            "rewritten_bytes": self.rewritten,
            "page_file_bytes": self.page_file_bytes,
            "diverged_bytes": self.diverged,
            "locality": parts,
            "peaks": [
                peak.result(self.desktops) for peak in self.peaks if sum(peak.count.values())
            ],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--desktops", type=int, required=True)
    parser.add_argument("--disk-bytes", type=int, required=True)
    parser.add_argument("--page-file", required=True, help="FIRST:END in bytes")
    parser.add_argument("trace", nargs="?", help="default: standard input")
    arguments = parser.parse_args()
    first, end = arguments.page_file.split(":")
    opinion = Opinion(arguments.desktops, arguments.disk_bytes, (int(first), int(end)))
    lines = open(arguments.trace) if arguments.trace else sys.stdin
    with lines:
        for line in lines:
            ticks, host, _, op, offset, length, _ = line.split(",")
            opinion.add(int(ticks), host, op, int(offset), int(length))
    json.dump(opinion.result(), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
