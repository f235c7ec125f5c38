#!/usr/bin/env python3
"""What a mail program writes while mails go out and an equal one comes back for each.

With --layout thunderbird all is below .thunderbird, as Thunderbird has it: mbox files, an index
beside each, a database of all mails; a mail to be sent is a file in the directory of temporary
files first. With --layout evolution sent mails are below .local/share, received ones and their
index below .cache. Prints one line of JSON that says what was written.
"""

import argparse
import base64
import json
import os
import random
import sqlite3
import tempfile
import time


def places(layout, home):
    if layout == "thunderbird":
        profile = os.path.join(home, ".thunderbird/profile")
        return {
            "sent": os.path.join(profile, "Mail/Local Folders/Sent"),
            "inbox": os.path.join(profile, "ImapMail/mail.example.org/INBOX"),
            "database": os.path.join(profile, "global-messages-db.sqlite"),
            "mbox": True,
        }
    return {
        "sent": os.path.join(home, ".local/share/evolution/mail/local/.Sent/cur"),
        "inbox": os.path.join(home, ".cache/evolution/mail/account/folders/INBOX/cur"),
        "database": os.path.join(home, ".cache/evolution/mail/account/folders.db"),
        "mbox": False,
    }


class Mailer:
    def __init__(self, layout, home, seed):
        self.random = random.Random(seed)
        self.at = places(layout, home)
        for folder in ("sent", "inbox"):
            path = self.at[folder]
            os.makedirs(os.path.dirname(path) if self.at["mbox"] else path, exist_ok=True)
        os.makedirs(os.path.dirname(self.at["database"]), exist_ok=True)
        self.database = sqlite3.connect(self.at["database"], isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=NORMAL")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS mails (folder TEXT, subject TEXT, words TEXT)"
        )
        self.index = {"sent": [], "inbox": []}
        self.told = {"sent": 0, "received": 0, "temporary_files": 0, "mail_bytes": 0}

    def compose(self, number, size):
        body = base64.encodebytes(self.random.randbytes(size * 3 // 4))
        head = "From - now\nSubject: mail %d\nMIME-Version: 1.0\n\n" % number
        return head.encode() + body + b"\n"

    def send(self, number, mail):
        """The mail is a temporary file until it is among those that were sent."""
        with tempfile.NamedTemporaryFile(prefix="nsemail-", suffix=".eml") as draft:
            draft.write(mail)
            draft.flush()
            self.told["temporary_files"] += 1
            self.keep("sent", number, mail)
        self.told["sent"] += 1

    def receive(self, number, mail):
        self.keep("inbox", number, mail)
        self.told["received"] += 1

    def keep(self, folder, number, mail):
        path = self.at[folder]
        if not self.at["mbox"]:
            path = os.path.join(path, "%d.mail" % number)
        with open(path, "ab") as file:
            file.write(mail)
            file.flush()
            os.fsync(file.fileno())
        self.told["mail_bytes"] += len(mail)
        self.index[folder].append({"subject": "mail %d" % number, "bytes": len(mail)})
        if self.at["mbox"]:
            with open(path + ".msf", "w") as index:
                json.dump(self.index[folder], index)
        words = mail[-2000:].decode()
        row = (folder, "mail %d" % number, words)
        self.database.execute("INSERT INTO mails VALUES (?, ?, ?)", row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", default=os.path.expanduser("~"))
    parser.add_argument("--layout", choices=["thunderbird", "evolution"], default="thunderbird")
    parser.add_argument("--mails", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=300_000, help="of one mail, attachments too")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two mails")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mailer = Mailer(given.layout, given.home, given.seed)
    for number in range(given.mails):
        mail = mailer.compose(number, given.bytes)
        mailer.send(number, mail)
        time.sleep(given.pause)
        mailer.receive(number, mail)
    mailer.database.close()
    print(json.dumps({"workload": "mail", "layout": given.layout, **mailer.told}))


if __name__ == "__main__":
    main()
