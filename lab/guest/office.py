#!/usr/bin/env python3
"""What a word processor writes while a text grows by what its user finds on pages of the web.

A page is opened, a paragraph is copied, the document is saved: ten times. A save is a new file
that is synced and renamed to the old name, a copy for a crash, and the settings written anew. The
program has small temporary files, the browser its own (web.py, beside this file). Where there is
swap, both together want more memory than there is. Prints one line of JSON that says what was
written.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
import time

from web import Browser

MIB = 1 << 20
PAGE = 4096


def memory():
    """What the kernel says of memory and swap, in bytes."""
    with open("/proc/meminfo") as lines:
        words = (line.split() for line in lines)
        return {word[0].rstrip(":"): int(word[1]) * 1024 for word in words}


class Pressure:
    """Memory of two programs that do not fit: a tenth more than there is, and of all of it a
    tenth is used with each save."""

    def __init__(self, given):
        self.random = random.Random(given.seed)
        told = memory()
        self.mib = []
        self.begun = told["SwapTotal"] - told["SwapFree"]
        wanted = told["MemAvailable"] + told["MemTotal"] // 10
        if told["SwapTotal"] < told["MemTotal"] // 10 or wanted > given.memory_max * MIB:
            return
        for _ in range(wanted // MIB):
            self.mib.append(bytearray(os.urandom(PAGE) * (MIB // PAGE)))

    def use(self):
        for block in self.random.sample(self.mib, len(self.mib) // 10):
            for at in range(0, MIB, PAGE):
                block[at] = (block[at] + 1) % 256

    def swapped(self):
        told = memory()
        return max(0, told["SwapTotal"] - told["SwapFree"] - self.begun)


class Writer:
    def __init__(self, home, given):
        self.random = random.Random(given.seed)
        self.document = os.path.join(home, "Documents/report.odt")
        self.settings = os.path.join(home, ".config/libreoffice/4/user")
        os.makedirs(os.path.dirname(self.document), exist_ok=True)
        os.makedirs(os.path.join(self.settings, "backup"), exist_ok=True)
        self.temporary = tempfile.mkdtemp(prefix="lu", suffix=".tmp")
        self.text = self.random.randbytes(given.bytes)
        self.told = {"saves": 0, "renames": 0, "temporary_files": 0, "document_bytes": 0}

    def replace(self, path, content, synced):
        directory, name = os.path.split(path)
        new = os.path.join(directory, ".~new." + name)
        with open(new, "wb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.rename(new, path)
        self.told["renames"] += 1

    def paste(self, bytes_more):
        """A paragraph with its pictures, which the program keeps in temporary files."""
        self.text += self.random.randbytes(bytes_more)
        for number in range(8):
            name = "lu%d-%d.tmp" % (len(self.text), number)
            with open(os.path.join(self.temporary, name), "wb") as file:
                file.write(self.random.randbytes(bytes_more // 8))
            self.told["temporary_files"] += 1

    def save(self):
        self.replace(self.document, self.text, True)
        with open(os.path.join(self.settings, "backup/report.odt_0.odt"), "wb") as copy:
            copy.write(self.text)
        words = "<item>%d</item>\n" % len(self.text) * 1500
        path = os.path.join(self.settings, "registrymodifications.xcu")
        self.replace(path, words.encode(), False)
        self.told["saves"] += 1
        self.told["document_bytes"] = len(self.text)

    def close(self):
        shutil.rmtree(self.temporary)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", default=os.path.expanduser("~"))
    parser.add_argument("--saves", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=200_000, help="of the document at first")
    parser.add_argument("--answers", type=int, default=20, help="parts of a page")
    parser.add_argument("--memory-max", type=int, default=1024, metavar="MIB",
                        help="no pressure where it would take more than this")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds on each page")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    browser = Browser(given.home, given.seed)
    writer = Writer(given.home, given)
    pressure = Pressure(given)
    for number in range(given.saves):
        browser.open_page("https://en.example.org/article-%d" % number, given.answers)
        pressure.use()
        writer.paste(64_000)
        writer.save()
        time.sleep(given.pause)
    browser.close()
    told = {"swapped_bytes": pressure.swapped(), "pressed_mib": len(pressure.mib)}
    writer.close()
    print(json.dumps({"workload": "office", **writer.told, **browser.told, **told}))


if __name__ == "__main__":
    main()
