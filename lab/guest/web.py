#!/usr/bin/env python3
"""What a browser writes while its user opens a few pages and posts a message.

Files as Firefox has them: visits and cookies in SQLite databases with a write-ahead log below
.mozilla, the answers of servers as one file each below .cache, the open tabs in a file that is
written anew and renamed. Prints one line of JSON that says what was written.
"""

import argparse
import json
import os
import random
import sqlite3
import time


class Browser:
    def __init__(self, home, seed):
        self.random = random.Random(seed)
        self.profile = os.path.join(home, ".mozilla/firefox/profile")
        self.cache = os.path.join(home, ".cache/mozilla/firefox/profile/cache2/entries")
        os.makedirs(os.path.join(self.profile, "sessionstore-backups"), exist_ok=True)
        os.makedirs(self.cache, exist_ok=True)
        self.places = self.database("places.sqlite", "visits (url TEXT, title TEXT, at REAL)")
        self.cookies = self.database("cookies.sqlite", "cookies (name TEXT, value TEXT, at REAL)")
        self.tabs = []
        self.told = {"cache_files": 0, "cache_bytes": 0, "visits": 0, "cookies": 0, "sessions": 0}

    def database(self, name, table):
        # Statements are committed one by one, as a browser's are.
        path = os.path.join(self.profile, name)
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("CREATE TABLE IF NOT EXISTS " + table)
        return database

    def open_page(self, url, answers):
        """Opens a page of so many parts."""
        now = time.time()
        self.places.execute("INSERT INTO visits VALUES (?, ?, ?)", (url, "Page " + url, now))
        self.told["visits"] += 1
        for part in range(answers):
            # Most answers are small; a picture is not.
            size = min(int(self.random.lognormvariate(9.2, 1.2)) + 300, 400_000)
            name = "%040X" % self.random.getrandbits(160)
            with open(os.path.join(self.cache, name), "wb") as entry:
                entry.write(self.random.randbytes(size))
            self.told["cache_files"] += 1
            self.told["cache_bytes"] += size
            if part % 4 == 0:
                value = "%032x" % self.random.getrandbits(128)
                self.cookies.execute("INSERT INTO cookies VALUES (?, ?, ?)", (url, value, now))
                self.told["cookies"] += 1
        self.tabs.append({"url": url, "text": "%0800x" % self.random.getrandbits(3200)})

    def save_session(self):
        """The open tabs, as they are kept for a crash."""
        path = os.path.join(self.profile, "sessionstore-backups/recovery.jsonlz4")
        with open(path + ".tmp", "w") as session:
            json.dump(self.tabs, session)
            session.flush()
            os.fsync(session.fileno())
        os.rename(path + ".tmp", path)
        self.told["sessions"] += 1

    def close(self):
        self.save_session()
        for database in (self.places, self.cookies):
            database.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", default=os.path.expanduser("~"))
    parser.add_argument("--pages", type=int, default=8)
    parser.add_argument("--answers", type=int, default=30, help="parts of a page")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds on each page")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    browser = Browser(given.home, given.seed)
    for page in range(given.pages):
        browser.open_page("https://example.org/%d" % page, given.answers)
        if page % 4 == 3:
            browser.save_session()
        time.sleep(given.pause)
    browser.close()
    print(json.dumps({"workload": "web", **browser.told}))


if __name__ == "__main__":
    main()
