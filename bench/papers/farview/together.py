"""Six clients that query at once. Each is a process with every contender ready, and is told when to start.

When this file is run as a program, it is one of those clients.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

# Seconds between the start message and the start: longer than it takes to send the message to all clients.
LEAD_SECONDS = 0.03
QUERIES_BEFORE = 2


class Together:
    """Clients that are ready. A context manager that ends them."""

    def __init__(self, count: int, far, rcpu, name: str, rows: int, key: str):
        wanted = {"url": far.url, "transports": far.place.transports, "plaintext": far.place.is_plaintext}
        wanted |= {"rcpu": rcpu.address, "name": far.name(name), "rows": rows, "key": key}
        command = [sys.executable, str(Path(__file__)), json.dumps(wanted)]
        self._clients = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        self._names: list[str] = []

    def __enter__(self) -> "Together":
        try:
            for client in self._clients:
                self._names = self._line(client)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.stdin.close()
        for client in self._clients:
            try:
                client.wait(30)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            client.stdout.close()

    @staticmethod
    def _line(client: subprocess.Popen[str]):
        line = client.stdout.readline()
        assert line, "a client ended: see its output above"
        return json.loads(line)

    def _all(self, order: dict) -> list:
        for client in self._clients:
            client.stdin.write(json.dumps(order) + "\n")
            client.stdin.flush()
        return [self._line(client) for client in self._clients]

    def check(self, query, expected: list) -> None:
        """Checks every client's answer of every contender by the number and sum of its values."""
        wanted = [len(expected[0]), int(expected[0].sum())]
        for name in self._names:
            for found in self._all({"check": name}):
                assert found == wanted, f"{name}, {query}: {found}, not {wanted} values and their sum"

    def measure(self, rounds: int, quiet) -> tuple[dict, dict]:
        """Returns for each contender and round the seconds until all clients have ended, and the ratio of the slowest
        to the fastest."""
        times: dict[str, list[float]] = {name: [] for name in self._names}
        ratios: dict[str, list[float]] = {name: [] for name in self._names}
        for _ in range(rounds):
            quiet.wait()
            for name in self._names:
                begin = time.monotonic() + LEAD_SECONDS
                # Measured from the common start, so the time includes waiting for a CPU.
                ends = [end - begin for end in self._all({"run": name, "at": begin})]
                times[name].append(max(ends))
                ratios[name].append(max(ends) / min(ends))
        return times, ratios


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    import numpy as np
    from contenders import Engines, RemoteClient, timed
    from queries import Distinct, canonical
    from tables import COLUMNS, ROW_BYTES, table

    import farpool

    wanted = json.loads(sys.argv[1])
    query, rows = Distinct(wanted["key"]), wanted["rows"]
    with ExitStack() as stack:
        contenders = {}
        for transport in wanted["transports"]:
            pool = farpool.connect(wanted["url"], transport=transport, plaintext=wanted["plaintext"])
            stack.enter_context(pool)
            scan = query.far(pool.scan(wanted["name"]))
            for placement in ("ship", "fetch"):
                contenders[f"FV {placement}, {transport}"] = timed(
                    lambda scan=scan, placement=placement: scan.collect(placement=placement)
                )
        contenders |= Engines(table(rows, (query.key,))).contenders(query)
        client = RemoteClient(wanted["rcpu"], len(COLUMNS) * ROW_BYTES * 1024, "/dev/shm")
        stack.callback(client.close)
        contenders["RCPU"] = lambda: client.ask(query.rcpu(rows))
        for call in contenders.values():
            for _ in range(QUERIES_BEFORE):
                call()
        print(json.dumps(list(contenders)), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if "check" in order:
                name = order["check"]
                answer = client.ask(query.rcpu(rows), save=True)[1] if name == "RCPU" else contenders[name]()[1]
                values = canonical(query, answer)[0]
                print(json.dumps([len(values), int(np.sum(values))]), flush=True)
            else:
                call = contenders[order["run"]]
                time.sleep(max(order["at"] - time.monotonic(), 0))
                call()
                print(json.dumps(time.monotonic()), flush=True)


if __name__ == "__main__":
    main()
