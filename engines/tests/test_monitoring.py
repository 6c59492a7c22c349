"""Monitoring of real processes: the formats of metrics, the API, and the rules, alerts and dashboard of deploy/.

FARPOOL_PROMETHEUS names a folder with the programs prometheus and promtool.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pytest
import yaml
from openapi_schema_validator import OAS30Validator
from openapi_spec_validator import validate
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

import farpool

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/pod"))
from csi_client import CsiMachine  # noqa: E402

RULES = ROOT / "deploy/prometheus"
TOOLS = Path(os.environ.get("FARPOOL_PROMETHEUS", ""))
PATIENCE_SECONDS = 300
MIB = 1 << 20
# Memory that a program of this test takes from the host, and what the node's reserve leaves of it.
TAKEN_BYTES = 1536 * MIB
# Parts of a quarter of TAKEN_BYTES that the program takes at most.
PARTS_MAX = 32
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition is true. Fails the test if it does not become true."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {PATIENCE_SECONDS} s: {what}")
        time.sleep(0.1)


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Returns the status and the body of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@dataclass
class Processes:
    """Processes of a pool, by name, each with its port for HTTP. They are ended in reverse order."""

    url: str = ""
    running: dict[str, subprocess.Popen] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> str:
        """Starts a process and returns what it says when it is ready."""
        port = self.ports.setdefault(name, free_port())
        command = [os.environ["FARPOOL_BIN"], *arguments, "--http", f"127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.running[name] = process
        line = process.stdout.readline()
        assert line.startswith("ready "), f"{command} said {line!r}"
        return line.split()[1]

    def start_broker(self, *arguments: str) -> None:
        self.url = self.start("broker", "broker", "--listen", "127.0.0.1:0", *arguments)

    def start_node(self, name: str, *arguments: str) -> None:
        """Starts a node on a host of its own, as far as the pool knows."""
        size = ("--memory", "64MiB", "--region-size", "1MiB", "--no-prefault")
        name_of_host = ("--host-label", f"host-of-{name}")
        more = arguments or ("--no-reserve",)
        self.start(name, "node", "--name", name, "--broker", self.url, *size, *name_of_host, *more)

    def stop(self, name: str) -> None:
        """Ends a process as an operator does. A mount would otherwise stay behind."""
        process = self.running.pop(name)
        process.terminate()
        process.wait(PATIENCE_SECONDS)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        for name in reversed(list(self.running)):
            self.stop(name)


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    started = Processes()
    try:
        yield started
    finally:
        started.stop_all()


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Iterator[Processes]:
    """Starts one process of each kind, and does some of everything there."""
    with processes() as started:
        started.start_broker("--quota", "local=64MiB")
        started.start_node("n1")
        here = tmp_path_factory.mktemp("monitoring")
        for name in ("scratch", "cached", "at"):
            (here / name).mkdir()
        (here / "cached" / "file").write_bytes(b"bytes" * 100_000)
        pool = ("--pool", started.url)
        started.start("scratch mount", "mount", "scratch", str(here / "scratch"), *pool, "--protection", "none")
        started.start("cached mount", "mount", "cache", str(here / "cached"), str(here / "at"), *pool, "--size", "8MiB")
        started.start("worker", "sql", "worker", "--listen", "127.0.0.1:0", *pool)
        (here / "scratch" / "file").write_bytes(b"bytes" * 100_000)
        assert (here / "at" / "file").read_bytes() == b"bytes" * 100_000
        with farpool.connect(started.url, http="127.0.0.1:0") as session:
            started.ports["session"] = int(session.http_address.rsplit(":")[-1])
            session.put_table("numbers", pyarrow.table({"n": range(10_000)}))
            assert session.table("numbers").scan().filter(farpool.col("n") < 7).collect(placement="ship").num_rows == 7
            with session.create("kept", file_class="pinned") as file:
                file.write_at(0, b"bytes" * 10_000)
            session.publish("kept")
            with session.create("scratch", file_class="scratch", protection="none") as file:
                file.write_at(0, bytes(3 * MIB))
                assert len(file.read_at(0, 3 * MIB)) == 3 * MIB
            with volume_of_pod(started, here):
                yield started


@contextlib.contextmanager
def volume_of_pod(started: Processes, folder: Path) -> Iterator[None]:
    """Starts the driver for volumes of pods, with a volume."""
    port = started.ports["csi driver"] = free_port()
    machine = CsiMachine(Path(os.environ["FARPOOL_BIN"]), started.url, folder, ("--http", f"127.0.0.1:{port}"))
    try:
        with machine.volume(4 * MIB, "none") as volume:
            (volume / "file").write_bytes(b"bytes" * 10_000)
            yield
    finally:
        machine.stop()


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    done = subprocess.run(
        [TOOLS / "promtool", *arguments],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def documented() -> dict[str, tuple[str, set[str]]]:
    """Returns type and labels of every series in docs/monitoring.md. A test in Rust compares that with the programs."""
    row = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) \| ")
    rows = (row.match(line) for line in (ROOT / "docs/monitoring.md").read_text().splitlines())
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in (r.groups() for r in rows if r)}


def test_both_formats_are_right_and_have_the_same_samples(pool: Processes) -> None:
    known = documented()
    for port in pool.ports.values():
        status, plain = get(port, "/metrics")
        assert status == 200
        assert promtool("check", "metrics", text=plain) == ""
        _, strict = get(port, "/metrics", OPENMETRICS)
        both = [
            {(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples}
            for families in (prometheus(plain), openmetrics(strict))
        ]
        assert both[0] == both[1]
        for family in openmetrics(strict):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            kind, labels = known[name]
            assert kind == family.type
            assert all(set(sample.labels) - {"le"} == labels for sample in family.samples), family


def test_rules_are_right_and_do_what_their_tests_say() -> None:
    promtool("check", "rules", RULES / "recording.yml", RULES / "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", RULES / "alerts_test.yml")


def rules() -> list[dict]:
    files = [yaml.safe_load((RULES / name).read_text()) for name in ("recording.yml", "alerts.yml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def test_every_alert_has_a_test_and_stands_in_the_documents() -> None:
    tests = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    fires = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert fires == alerts
    assert set(re.findall(r"^\| `(Farpool\w+)` \|", (ROOT / "docs/monitoring.md").read_text(), re.M)) == alerts


def test_every_series_of_rules_and_dashboard_exists() -> None:
    known = documented()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    dashboard = json.loads((ROOT / "deploy/grafana/farpool.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(targets) > 20
    selector = re.compile(r"\b((?:\w+:)?(?:farpool|process)_\w+(?::\w+)?)(?:\{([^}]*)\})?")
    named = set()
    for expression in [*targets, *(rule["expr"] for rule in rules())]:
        # Annotations and groupings have no names of series.
        for name, matchers in selector.findall(expression):
            named.add(name)
            if name in recorded:
                continue
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            kind, labels = known[name] if name in known else known[base]
            assert (name in known) or kind == "histogram", name
            used = set(re.findall(r"(\w+)\s*[=!]~?", matchers))
            assert used <= labels | {"job", "instance", "le"}, f"{name} has no {used - labels}"
    assert named & recorded == recorded, "every recorded series is used"


def test_api_is_what_its_description_says(pool: Processes) -> None:
    description = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())
    validate(description)
    served: set[str] = set()
    for process, port in pool.ports.items():
        status, body = get(port, "/api/v1/nothing")
        resources = re.findall(r"/api/v1/\w+", json.loads(body)["error"]["message"])[1:]
        assert status == 404 and resources
        served.update(resources)
        for path in [*resources, "/metrics", "/healthz", "/readyz"]:
            answers = description["paths"][path]["get"]["responses"]
            for query in ("", "?prefix=k&after=a", "?unknown=1"):
                status, body = get(port, path + query)
                content = resolved(description, answers[str(status)])["content"]
                if "application/json" not in content:
                    continue
                schema = {**content["application/json"]["schema"], "components": description["components"]}
                errors = list(OAS30Validator(schema).iter_errors(json.loads(body)))
                assert not errors, f"{process} {path}{query}: {errors[0].message} in {body}"
    api = {path for path in description["paths"] if path.startswith("/api/")}
    assert served == api


def resolved(description: dict, answer: dict) -> dict:
    for step in answer.get("$ref", "#").split("/")[1:]:
        description = description[step]
    return description if "$ref" in answer else answer


@contextlib.contextmanager
def watched(started: Processes, folder: Path) -> Iterator[Callable[[str], list[dict]]]:
    """Runs Prometheus with the rules over these processes. Yields a function that asks its API.

    Alerts fire after one second here: promtool tests how long they really wait.
    """
    copies = []
    for name in ("recording.yml", "alerts.yml"):
        copies.append(folder / name)
        copies[-1].write_text(re.sub(r"^( +for: ).*$", r"\g<1>1s", (RULES / name).read_text(), flags=re.M))
    config = folder / "prometheus.yml"
    targets = [f"127.0.0.1:{port}" for port in started.ports.values()]
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(copy) for copy in copies],
                "scrape_configs": [{"job_name": "farpool", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    promtool("check", "config", config)
    port = free_port()
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]

    def ask(path: str) -> list[dict]:
        try:
            status, body = get(port, path)
        except OSError:
            return []
        if status != 200:
            return []
        data = json.loads(body)["data"]
        return data.get("alerts", data.get("result", []))

    process = subprocess.Popen([TOOLS / "prometheus", *arguments])
    try:
        yield ask
    finally:
        process.kill()
        process.wait()


def available_bytes() -> int:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) << 10


def test_alerts_fire_in_the_situations_they_are_for(tmp_path: Path) -> None:
    with processes() as started:
        started.start_broker()
        started.start_node("n1")
        started.start_node("n2")
        reserve = 0

        def start_n3() -> None:
            nonlocal reserve
            reserve = available_bytes() - TAKEN_BYTES * 2 // 3
            started.start_node("n3", "--reserve", f"{reserve >> 20}MiB")

        start_n3()
        folder = tmp_path / "scratch"
        folder.mkdir()
        started.start("mount", "mount", "scratch", str(folder), "--pool", started.url, "--protection", "mirror")
        with watched(started, tmp_path) as ask:

            def fires(name: str, **labels: str) -> bool:
                alerts = [alert for alert in ask("/api/v1/alerts") if alert["state"] == "firing"]
                return any({"alertname": name, **labels}.items() <= alert["labels"].items() for alert in alerts)

            def has_room() -> bool:
                """Reports whether n3 was scraped before any pressure. If others took memory first, it starts again."""
                series = 'farpool_node_pressure_total{node="n3",severity="gradual"}'
                query = urllib.parse.quote(f"min_over_time({series}[1m])")
                if [one["value"][1] for one in ask(f"/api/v1/query?query={query}")] == ["0"]:
                    return True
                if f"{series} 0" not in get(started.ports["n3"], "/metrics")[1].splitlines():
                    started.kill("n3")
                    start_n3()
                return False

            wait_until(has_room, "n3 is scraped before any pressure")
            assert not [alert for alert in ask("/api/v1/alerts") if alert["labels"].get("node") in ("n1", "n2")]

            # A program takes the memory that the reserve of n3 is about. Others may free memory meanwhile, so it takes
            # more until the node has noticed.
            taken: list[bytearray] = []

            def is_noticed() -> bool:
                if available_bytes() > reserve - TAKEN_BYTES // 3 and len(taken) < PARTS_MAX:
                    taken.append(bytearray(b"x") * (TAKEN_BYTES // 4))
                return fires("FarpoolPressure", node="n3")

            wait_until(is_noticed, "the pressure at n3 fires")
            taken.clear()
            started.kill("n3")
            wait_until(lambda: fires("FarpoolNodeLost", node="n3"), "the loss of n3 fires")

            # The mount has its bytes on the two hosts that are left, until one of them is lost.
            (folder / "file").write_bytes(bytes(MIB))
            started.kill("n2")
            wait_until(lambda: fires("FarpoolNodeLost", node="n2"), "the loss of n2 fires")
            instance = f"127.0.0.1:{started.ports['mount']}"
            wait_until(lambda: fires("FarpoolMirrorsToRepair", instance=instance), "the lost copies fire")
            started.stop("mount")

            # n1 is the only node now, so it holds the file. It starts again with empty memory.
            with farpool.connect(started.url, protection="none") as session:
                with session.create("kept", file_class="pinned") as file:
                    file.write_at(0, b"bytes")
                session.publish("kept")
            started.kill("n1")
            wait_until(lambda: fires("FarpoolNodeLost", node="n1"), "the loss of n1 fires")
            started.start_node("n1")
            wait_until(lambda: fires("FarpoolBytesLost"), "the loss of the file fires")
            assert not fires("FarpoolNoLeader")
            started.kill("broker")
            wait_until(lambda: fires("FarpoolNoLeader"), "the loss of the broker fires")
            started.kill("n1")
