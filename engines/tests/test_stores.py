"""`farpool sql` over an S3 bucket (served by moto) behind a cache in far memory."""

import json
import os
import subprocess
from collections.abc import Iterator

import pyarrow
import pyarrow.parquet
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from farpool.demo.cluster import Cluster

ROWS = 300_000
TIMES = (30, 120, 480)
PATIENCE_SECONDS = 300
QUERY = "SELECT count(*) AS rows, sum(n) AS sum, count(DISTINCT word) AS words FROM t"


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def environment(server) -> dict[str, str]:
    host, port = server.get_host_and_port()
    return {
        "AWS_ENDPOINT": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


@pytest.fixture(scope="module")
def bucket(environment) -> fs.FileSystem:
    s3 = fs.S3FileSystem(
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
        region=environment["AWS_REGION"],
        endpoint_override=environment["AWS_ENDPOINT"],
        allow_bucket_creation=True,
    )
    s3.create_dir("bucket")
    return fs.SubTreeFileSystem("bucket", s3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # The node keeps its memory, however little the other tests of this machine leave.
    with Cluster(os.environ["FARPOOL_BIN"], 256 << 20, node_count=1, node_arguments=("--no-reserve",)) as cluster:
        yield cluster
        assert cluster.what_is_left() + cluster.stop() == []


def put(bucket: fs.FileSystem, step: int) -> dict[str, int]:
    rows = pyarrow.table({"n": [n * step for n in range(ROWS)], "word": [f"word {n % 97}" for n in range(ROWS)]})
    pyarrow.parquet.write_table(rows, "t.parquet", filesystem=bucket, row_group_size=20_000)
    return {"rows": ROWS, "sum": step * ROWS * (ROWS - 1) // 2, "words": 97}


def ask(cluster: Cluster, environment: dict[str, str], *more: str) -> tuple[list[dict[str, int]], list[dict]]:
    """Returns the rows of each query, and the messages of the program."""
    done = subprocess.run(
        [
            os.environ["FARPOOL_SQL_BIN"],
            "--pool",
            cluster.url,
            "--quiet",
            "--explain",
            "--json",
            "--format",
            "json",
            *more,
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], [
        json.loads(line) for line in done.stderr.splitlines()
    ]


def test_a_bucket_is_read_once_and_from_far_memory_from_then_on(cluster, environment, bucket):
    wanted = put(bucket, 3)
    table = ("--parquet", "t=s3://bucket/t.parquet")
    assert ask(cluster, environment, *table, "-c", QUERY)[0] == [wanted]
    # Far memory counts as slow only after a minute here. With the usual 200 ms, a busy machine would skip it.
    cache = ("--cache", "64MiB", "--cache-near", "0B", "--cache-patience", "60s")
    # Blocks are written to far memory in the background, so the next query may still read some from the bucket. A busy
    # machine gets more queries to finish the writes.
    for times in TIMES:
        rows, told = ask(cluster, environment, *table, *cache, *["-c", QUERY] * times)
        assert rows == [wanted] * times
        first, last = told[0]["cache"], told[-1]["cache"]
        assert first["misses"] > 0
        if last["far_hits"] > 0 and last["misses"] <= 0.05 * (last["misses"] + last["far_hits"]):
            return
    pytest.fail(f"far memory had few blocks after {times} queries: {first} at first, {last} at last")


def test_an_external_table_in_a_bucket_is_what_the_bucket_has_when_it_is_asked(cluster, environment, bucket):
    made = "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/t.parquet'"
    for step in (5, 7):
        wanted = put(bucket, step)
        assert ask(cluster, environment, "--cache", "64MiB", "-c", made, "-c", QUERY)[0][-1] == wanted


@pytest.mark.parametrize(
    ("location", "match"),
    {
        "s3://bucket/none.parquet": "none.parquet|[Nn]o files|404|not found",
        "gs://bucket/t.parquet": "gs:// is not supported; use a local path or s3://BUCKET/",
    }.items(),
)
def test_what_cannot_be_read_is_told(cluster, environment, bucket, location, match):
    with pytest.raises(RuntimeError, match=match):
        ask(cluster, environment, "--parquet", f"t={location}", "-c", QUERY)
