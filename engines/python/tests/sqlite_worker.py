"""A process with one SQLite connection. It reads statements as lines of JSON, and answers each with a line of rows or
an error.

    python3 sqlite_worker.py EXTENSION|stock DATABASE

It is run by a Python whose sqlite3 can load extensions, which may be another Python than that of the tests.
"""

import json
import sqlite3
import sys


def connect(extension: str, database: str) -> sqlite3.Connection:
    if extension != "stock":
        with sqlite3.connect(":memory:") as first:
            first.enable_load_extension(True)
            # Programs may load the extension for each connection. Loading it once is enough; loading it again does
            # nothing.
            for _ in range(2):
                first.load_extension(extension)
    return sqlite3.connect(database, isolation_level=None, timeout=30)


def main(extension: str, database: str) -> None:
    con = connect(extension, database)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        try:
            answer: object = con.execute(json.loads(line)).fetchall()
        except sqlite3.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    con.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
