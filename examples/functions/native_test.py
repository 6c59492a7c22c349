"""Compares every example with plain Python code that does the same.

    pytest examples/functions/native_test.py

The examples in C are built here by cc as shared objects. All examples also run as Wasm modules in Node.js. The modules
are taken from FARPOOL_FUNCTIONS, a folder that build.sh --all fills. If the variable is not set, the tests that need
modules are skipped.
"""

import heapq
import json
import os
import random
import shutil
import struct
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from calls import DICTIONARY, PLAIN, STAYS, TRAPPED, UTF8, Call, Native, Table, Wasm

HERE = Path(__file__).parent
BAD_ARGUMENTS, OUTPUT_SHORT, BAD_DATA, NO_COLUMN = 1, 2, 3, 4
NODE = shutil.which("node")
MODULES = os.environ.get("FARPOOL_FUNCTIONS")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    subprocess.run([HERE / "build.sh", "--native"], env=os.environ | {"OUT": str(folder)}, check=True)
    return Native(folder)


@pytest.fixture(scope="session")
def wasm():
    if not NODE or not MODULES:
        pytest.skip("modules need Node.js, and FARPOOL_FUNCTIONS, the folder that they are in")
    wasm = Wasm(Path(MODULES), NODE)
    yield wasm
    wasm.close()


@pytest.fixture(scope="session", params=["native", "wasm"])
def host(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[("native", "knn"), ("wasm", "knn"), ("wasm", "knn.simd")])
def knn(request):
    """Returns the callers to test `knn` with. A native compiler uses vector instructions anyway; for Wasm there is a
    variant with them."""
    host, name = request.param
    return partial(request.getfixturevalue(host).call, name)


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


def i64(rng, count):
    return rng.integers(-(2**63), 2**63, count, dtype=np.int64)


# Sums


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 100_003])
def test_sum_is_that_of_numpy_from_any_byte_on(host, rng, count):
    values, skipped = i64(rng, count), int(rng.integers(0, 20))
    got = host.call("sum", Call(b"\xff" * skipped + values.tobytes() + b"\xff", struct.pack("<QQ", skipped, count)))
    assert got.output == values.sum().tobytes()


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 100_003])
def test_filter_sum_takes_the_values_that_are_greater(host, rng, count):
    values = rng.integers(-50, 50, count, dtype=np.int64)
    for threshold in (-(2**63), -10, 0, 49, 2**63 - 1):
        got = host.call("filter_sum", Call(values.tobytes(), struct.pack("<QQq", 0, count, threshold)))
        passing = values[values > threshold]
        assert got.output == struct.pack("<qQ", passing.sum(), len(passing))


@pytest.mark.parametrize("first, count", [(0, 11), (8, 10), (2**64 - 8, 2), (0, 2**61), (2**32, 1), (81, 0)])
def test_sums_of_ranges_that_leave_the_window_are_refused(host, first, count):
    for name in ("sum", "filter_sum"):
        got = host.call(name, Call(bytes(80), struct.pack("<QQq", first, count, 0)))
        assert got.code == BAD_ARGUMENTS


# Walks


def ring(rng, count):
    """Makes nodes in one ring of random order. Returns the window, the next node by byte offset, and the values."""
    order, nodes = rng.permutation(count), np.zeros((count, 8), np.int64)
    nodes[order, 0] = np.roll(order, -1) * 64
    nodes[:, 1] = i64(rng, count)
    return nodes


def walked(nodes, at, steps):
    total = 0
    for _ in range(steps):
        total += int(nodes[at // 64, 1])
        at = int(nodes[at // 64, 0])
    return struct.pack("<QQ", at, total % 2**64)


@pytest.mark.parametrize("steps", [0, 1, 5000])
def test_walk_ends_where_the_same_steps_in_python_end(host, rng, steps):
    nodes = ring(rng, 700)
    got = host.call("walk", Call(nodes.tobytes(), struct.pack("<QQ", 640, steps)))
    assert got.hop == STAYS and got.output == walked(nodes, 640, steps)


def test_walk_over_three_nodes_hops_to_wherever_the_next_one_lies_and_ends_the_same(host, rng):
    nodes, steps = ring(rng, 600), 900
    parts = [[(n * 4096, 4096) for n in range(m, 10, 3)] for m in range(3)]
    call = Call(nodes.tobytes()[: 10 * 4096], struct.pack("<QQQ", 0, steps, 1))
    nodes[:, 0] %= 10 * 4096  # nodes that would be outside the window
    call.window = nodes.tobytes()[: 10 * 4096]
    at, hops = 0, 0
    while True:
        call.parts = parts[at // 4096 % 3]
        got = host.call("walk", call)
        if got.hop == STAYS:
            break
        at, hops, call.state = got.hop, hops + 1, got.output
        assert got.value == 24 and at == int.from_bytes(got.output[:8], "little")
    assert got.output == walked(nodes, 0, steps)
    expected, at, where = 0, 0, 0
    for _ in range(steps):
        expected, where = expected + (at // 4096 % 3 != where), at // 4096 % 3
        at = int(nodes[at // 64, 0])
    assert hops == expected


def test_walk_that_is_not_asked_to_hop_or_has_no_room_for_its_state_stays(host, rng):
    nodes = ring(rng, 100)
    for flags, capacity in ((0, 24), (1, 23)):
        call = Call(nodes.tobytes(), struct.pack("<QQQ", 0, 50, flags), capacity, parts=[(0, 64)])
        got = host.call("walk", call)
        assert got.hop == STAYS and got.output == walked(nodes, 0, 50)


def test_walk_that_has_hopped_to_where_its_node_is_not_takes_a_step_all_the_same(host, rng):
    nodes = ring(rng, 100)
    state = struct.pack("<QQq", 0, 10, 5)
    got = host.call("walk", Call(nodes.tobytes(), struct.pack("<QQQ", 0, 10, 1), parts=[], state=state))
    assert struct.unpack("<QQq", got.output) == (nodes[0, 0], 9, (nodes[0, 1] + 5))


def test_walk_gives_up_where_a_list_leaves_the_window_or_a_state_is_none(host):
    for at in (112 - 15, 2**64 - 1, 2**32):
        assert host.call("walk", Call(struct.pack("<Qq", at, 1) * 7, struct.pack("<QQ", 0, 2))).code == BAD_DATA
    got = host.call("walk", Call(bytes(128), struct.pack("<QQ", 0, 2), state=bytes(23)))
    assert got.code == BAD_ARGUMENTS


# B+-trees


def tree(keys, values, fan_out):
    """Makes a tree with this many entries per node. Returns the window and the byte offset of the root."""
    nodes = []

    def add(kind, entries):
        entry_keys, entry_values = np.zeros(255, "<u8"), np.zeros(255, "<u8")
        entry_keys[: len(entries)], entry_values[: len(entries)] = zip(*entries, strict=True) if entries else ((), ())
        nodes.append(struct.pack("<HH12x", kind, len(entries)) + entry_keys.tobytes() + entry_values.tobytes())
        return len(nodes) * 4096

    level = list(zip(keys, values, strict=True))
    level = [(part[0][0] if part else 0, add(2, part)) for part in chunked(level, fan_out)]
    while len(level) > 1:
        # The first key of an inner node is ignored.
        level = [(part[0][0], add(1, [(2**64 - 1, part[0][1]), *part[1:]])) for part in chunked(level, fan_out)]
    return b"\xff" * 4096 + b"".join(nodes), level[0][1]


def chunked(entries, size):
    return [entries[at : at + size] for at in range(0, len(entries), size)] or [[]]


@pytest.mark.parametrize("count, fan_out", [(0, 9), (1, 9), (255, 255), (256, 255), (5000, 3), (30_000, 255)])
def test_btree_finds_the_values_that_a_dict_has_and_no_others(host, rng, count, fan_out):
    keys = np.unique(rng.integers(0, 2**64, count, dtype=np.uint64) // rng.choice([np.uint64(1), np.uint64(2**50)]))
    if count > 1:
        keys[0], keys[-1] = 0, 2**64 - 1
    values = rng.integers(0, 2**64, len(keys), dtype=np.uint64)
    window, root = tree(keys.tolist(), values.tolist(), fan_out)
    known = dict(zip(keys.tolist(), values.tolist(), strict=True))
    beside = np.array([0, 1, 2**64 - 1], np.uint64)
    asked = rng.permutation(np.concatenate([keys[:1000], keys[-500:] + np.uint64(1), beside])).astype("<u8")
    got = host.call("btree", Call(window, struct.pack("<Q", root) + asked.tobytes()))
    found = [key in known for key in asked.tolist()]
    expected = np.array([known.get(key, 0) for key in asked.tolist()], "<u8")
    assert got.output == expected.tobytes() + np.packbits(found, bitorder="little").tobytes()


def test_btree_gives_up_on_nodes_that_are_none_and_on_circles(host):
    window, root = tree(range(100), range(100), 9)
    ask = struct.pack("<QQ", root, 50)
    broken = [struct.pack("<HH", 3, 1), struct.pack("<HH", 1, 0), struct.pack("<HH", 2, 256)]
    for head in broken:
        assert host.call("btree", Call(window[:root] + head + window[root + 4 :], ask)).code == BAD_DATA
    circle = struct.pack("<HH12x", 1, 1) + bytes(255 * 8) + bytes(255 * 8)
    assert host.call("btree", Call(circle, struct.pack("<QQ", 0, 50))).code == BAD_DATA
    for outside in (1, len(window), 2**64 - 4096, 2**32):
        assert host.call("btree", Call(window, struct.pack("<QQ", outside, 50))).code == BAD_DATA


# Graphs


def reached(offsets, targets, source, hops, limit):
    found, level = [], [source]
    for _ in range(hops):
        following = []
        for vertex in level:
            for target in targets[offsets[vertex] : offsets[vertex + 1]]:
                if target != source and target not in found and len(found) < limit:
                    found.append(target)
                    following.append(target)
        level = following
    return sorted(found)


@pytest.mark.parametrize("vertices, edges", [(1, 0), (1, 3), (40, 60), (300, 500), (300, 6000)])
def test_neighbours_are_those_of_a_search_level_by_level(host, rng, vertices, edges):
    offsets = np.sort(np.concatenate([[0], rng.integers(0, edges + 1, vertices - 1), [edges]])).astype("<u8")
    targets = rng.integers(0, vertices, edges).astype("<u4")
    window = b"\xff" * 5 + offsets.tobytes() + b"\xff" * 3 + targets.tobytes()
    targets_at = 5 + len(offsets) * 8 + 3
    for hops, limit in ((0, 10), (1, 1000), (2, 1000), (3, 7), (2, 1), (2, 0), (vertices, 1000)):
        source = int(rng.integers(0, vertices))
        args = struct.pack("<QQQQII", 5, targets_at, vertices, source, hops, limit)
        slots = 4
        while slots < 2 * limit:
            slots *= 2
        got = host.call("neighbours", Call(window, args, 4 * (limit + 1 + slots)))
        expected = reached(offsets.tolist(), targets.tolist(), source, hops, limit)
        assert np.frombuffer(got.output, "<u4").tolist() == expected
        assert host.call("neighbours", Call(window, args, 4 * (limit + 1 + slots) - 1)).code == OUTPUT_SHORT


def test_neighbours_give_up_on_offsets_and_targets_that_lead_nowhere(host):
    def code(offsets, targets, vertices=2, source=0):
        window = np.array(offsets, "<u8").tobytes() + np.array(targets, "<u4").tobytes()
        args = struct.pack("<QQQQII", 0, 8 * len(offsets), vertices, source, 1, 10)
        return host.call("neighbours", Call(window, args)).code

    assert code([0, 1, 1], [1]) is None
    assert code([0, 1, 1], [2]) == BAD_DATA
    assert code([1, 0, 1], [1]) == BAD_DATA
    assert code([0, 2, 2], [1]) == BAD_DATA
    assert code([0, 2**62, 2**62], [1]) == BAD_DATA
    assert code([0, 1, 1], [1], source=2) == BAD_ARGUMENTS
    assert code([0, 1, 1], [1], vertices=2**61) == BAD_ARGUMENTS


# Vectors


def distances(vectors, query):
    """Returns squared distances in float32, summed in the order that knn.c specifies."""
    dimensions = vectors.shape[1]
    padded = np.zeros((len(vectors), -(-dimensions // 16) * 16), np.float32)
    padded[:, :dimensions] = vectors - query
    lanes = np.zeros((len(vectors), 16), np.float32)
    for at in range(0, padded.shape[1], 16):
        lanes += padded[:, at : at + 16] * padded[:, at : at + 16]
    for width in (8, 4, 2, 1):
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    return lanes[:, 0]


@pytest.mark.parametrize("dimensions", [1, 3, 16, 37, 128])
@pytest.mark.parametrize("count, k", [(0, 3), (1, 1), (500, 0), (500, 1), (500, 10), (500, 501)])
def test_knn_gives_the_nearest_to_the_last_bit_and_equal_ones_by_number(knn, rng, dimensions, count, k):
    vectors = rng.normal(size=(count, dimensions)).astype("<f4")
    vectors[rng.integers(0, 2, count) == 1] = np.round(rng.normal())  # many vectors at the same distance
    query = rng.normal(size=dimensions).astype("<f4")
    args = struct.pack("<QQII", 3, count, dimensions, k) + query.tobytes()
    got = knn(Call(b"\xff" * 3 + vectors.tobytes(), args, 16 * min(k, count)))
    nearest = heapq.nsmallest(k, zip(distances(vectors, query).tolist(), range(count), strict=True))
    assert got.output == b"".join(struct.pack("<QfI", number, distance, 0) for distance, number in nearest)


def test_knn_leaves_out_vectors_whose_distance_is_not_a_number(knn, rng):
    vectors = rng.normal(size=(50, 5)).astype("<f4")
    vectors[rng.permutation(50)[:45], 2] = np.nan
    args = struct.pack("<QQII", 0, 50, 5, 10) + bytes(20)
    numbers = [number for number, _, _ in struct.iter_unpack("<QfI", knn(Call(vectors.tobytes(), args)).output)]
    assert len(numbers) == 5 and set(numbers) == set(np.flatnonzero(~np.isnan(vectors[:, 2])).tolist())


def test_knn_refuses_vectors_outside_and_queries_of_other_dimensions(knn):
    for args in (struct.pack("<QQII", 0, 4, 5, 1) + bytes(20), struct.pack("<QQII", 0, 3, 5, 1) + bytes(16)):
        assert knn(Call(bytes(60), args)).code == BAD_ARGUMENTS
    assert knn(Call(bytes(60), struct.pack("<QQII", 0, 3, 5, 2) + bytes(20), 31)).code == OUTPUT_SHORT


# JSON

NAMES = ["a", "b", "c", "ä", "a.b", "line\n", "😀", "", "[0]", "back\\slash"]
TEXTS = ["", "plain", 'quo"te', "back\\slash", "tab\tnew\n", "ü€😀", "\x01\x1f", '{"a": [1, "]"]}', "}]", "\\u0041"]


def value(pick, depth):
    kind = pick.randrange(8 if depth else 5)
    if kind == 0:
        return pick.choice([None, True, False])
    if kind == 1:
        return pick.choice([0, -1, 12345678901234567890, 1.5e300, -0.25])
    if kind <= 4:
        return pick.choice(TEXTS)
    if kind == 5:
        return [value(pick, depth - 1) for _ in range(pick.randrange(4))]
    return {name: value(pick, depth - 1) for name in pick.sample(NAMES, pick.randrange(6))}


def document(pick):
    spaces = pick.choice([{"indent": 2}, {"separators": (",", ":")}, {}])
    return json.dumps(value(pick, 3), ensure_ascii=pick.random() < 0.5, **spaces)


def path(pick):
    steps = [pick.choice([*NAMES, 0, 1, 2]) for _ in range(pick.randrange(4))]
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not step or set(step) & set(".[") or pick.random() < 0.3:
            text += f'["{step}"]'
        else:
            text += ("." if text else "") + step
    return steps, text


def led_to(document, steps):
    at = json.loads(document)
    for step in steps:
        if isinstance(step, int) and isinstance(at, list) and step < len(at):
            at = at[step]
        elif isinstance(step, str) and isinstance(at, dict) and step in at:
            at = at[step]
        else:
            return None
    return at


def json_path(host, path, groups, encoding=PLAIN, capacity=1 << 20):
    """Returns the expected output of json_path for groups of documents, which are the second column of a table."""
    table = Table([(5, 8), (UTF8, 0)])
    for documents in groups:
        chunk = table.text_chunk([None if d is None else d.encode() for d in documents], encoding)
        table.group(len(documents), [(PLAIN, 0, [(0, 0), table.put(bytes(8 * len(documents)))]), chunk])
    call = Call(table.window, struct.pack("<II", 1, 0) + path.encode(), capacity, table.bytes())
    got = host.call("json_path", call)
    if got.code:
        return got.code
    rows, nulls = struct.unpack_from("<QQ", got.output)
    assert rows == table.rows
    validity_at = 16 + -(-(rows + 1) * 4 // 8) * 8
    texts_at = validity_at + -(-rows // 64) * 8
    offsets = np.frombuffer(got.output, "<i4", rows + 1, 16)
    validity = np.unpackbits(np.frombuffer(got.output[validity_at:texts_at], np.uint8), bitorder="little")
    assert len(got.output) == texts_at + offsets[rows] and not validity[rows:].any()
    texts = [
        got.output[texts_at + offsets[i] : texts_at + offsets[i + 1]] if validity[i] else None for i in range(rows)
    ]
    assert texts.count(None) == nulls
    return texts


@pytest.mark.parametrize("encoding", [PLAIN, DICTIONARY])
@pytest.mark.parametrize("seed", range(40))
def test_json_path_leads_to_what_python_finds_in_random_documents(host, encoding, seed):
    pick = random.Random(seed)
    groups = [[document(pick) for _ in range(pick.choice([1, 7, 64, 65]))] for _ in range(pick.randrange(4))]
    groups = [[None if pick.random() < 0.1 else d for d in group] for group in groups]
    if seed % 2:
        groups = [[d or "1" for d in group] for group in groups]
    steps, text = path(pick)
    got = json_path(host, text, groups, encoding)
    for document_there, found in zip(sum(groups, []), got, strict=True):
        expected = None if document_there is None else led_to(document_there, steps)
        if isinstance(expected, str):
            assert found == expected.encode()
        elif expected is None:
            assert found is None
        else:
            assert json.loads(found) == expected and found.decode() in document_there


@pytest.mark.parametrize(
    "document, path, expected",
    [
        (r'{"a":"\ud83d\ude00\u20ac\u00e4\n\/\b"}', "a", "😀€ä\n/\b"),
        (r'{"a":"\ud83dx\ude00"}', "a", "\ufffdx\ufffd"),
        (r'{"a":"\ud83d\u0041"}', "a", "\ufffdA"),
        (r'{"\u0061\"":{"b":[1,{"c":7}]}}', '["a"]', None),
        (r'{"\u0061\u00e4":{"b":[1,{"c":7}]}}', "aä.b[1].c", "7"),
        (r'{"\ud83d\ude00":1}', "😀", "1"),
        ('{"x":"a\\"b]}","a":[[],[[0,1.50e+3]]]}', "a[1][0][1]", "1.50e+3"),
        ('{"a":1,"a":2}', "a", "1"),
        ('{"ab":1,"a":2}', "a", "2"),
        ('{"a":2}', "ab", None),
        (' [ 1 , [ 2 ] , { "a" : "b" } ] ', "[2]", '{ "a" : "b" }'),
        (" [ 1 , [ 2 ] ] ", "", "[ 1 , [ 2 ] ]"),
        ("[" * 5000 + "]" * 5000, "[0][0]", "[" * 4998 + "]" * 4998),
        ("[]", "[0]", None),
        ("{}", "a", None),
        ('{"a":null}', "a", None),
        ('{"a":}', "a", None),
        ('{"a":nul}', "a", None),
        ('{"a"', "a", None),
        ('{"a":"b', "a", None),
        ('{"a":"\\', "a", None),
        (r'{"a":"\x"}', "a", None),
        (r'{"a":"\u12g4"}', "a", None),
        ('{"a":[1,2}', "a[2]", None),
        ('{"a":[1,2', "a", None),
        ("", "", None),
        ("  ", "a", None),
        ("a", "", None),
        ("0", "", "0"),
    ],
)
def test_json_path_of_documents_that_are_odd(host, document, path, expected):
    assert json_path(host, path, [[document]]) == [None if expected is None else expected.encode()]


@pytest.mark.parametrize("path", ["a.", ".a", "a..b", "[", "[x]", "[1", '["a', '["a"', "a[]", "[1]b", "[-1]"])
def test_json_path_refuses_what_is_no_path(host, path):
    assert json_path(host, path, [["{}"]]) == BAD_ARGUMENTS


def test_json_path_that_ran_out_of_output_says_so_and_one_byte_more_would_have_done(host):
    groups = [['{"a": "12345"}', "[1]", '{"a": [6]}']]
    exact = 16 + 16 + 8 + 5 + 3
    assert json_path(host, "a", groups, capacity=exact) == [b"12345", None, b"[6]"]
    for capacity in (0, 8, 39, 40, 44, exact - 1):
        assert json_path(host, "a", groups, capacity=capacity) == OUTPUT_SHORT


def test_json_path_gives_up_without_a_table_or_on_columns_that_are_no_text(host):
    table = Table([(5, 8), (UTF8, 0)])
    window, args = table.window, struct.pack("<II", 1, 0)
    assert host.call("json_path", Call(window, args)).code == NO_COLUMN
    assert host.call("json_path", Call(window, args, columns=table.bytes())).code is None
    for column in (0, 2, 2**32 - 1):
        args = struct.pack("<II", column, 0)
        assert host.call("json_path", Call(window, args, columns=table.bytes())).code == NO_COLUMN


def test_json_path_gives_up_on_buffers_that_do_not_hold_their_rows(host):
    good = struct.pack("<ii", 0, 2)
    for offsets, rows in ((good, 2), (struct.pack("<ii", 0, 3), 1), (struct.pack("<ii", 2, 1), 1), (good[:4], 1)):
        table = Table([(UTF8, 0)])
        table.group(rows, [(PLAIN, 0, [(0, 0), table.put(offsets), table.put(b"{}")])])
        call = Call(table.window, struct.pack("<II", 0, 0), columns=table.bytes())
        assert host.call("json_path", call).code == BAD_DATA


# Tests of all examples


@pytest.mark.parametrize("name", ["sum", "filter_sum", "walk", "btree", "neighbours", "knn", "json_path"])
def test_arguments_that_are_too_short_are_refused(host, name):
    for count in range(8):
        assert host.call(name, Call(bytes(4096), bytes(count))).code == BAD_ARGUMENTS


@pytest.mark.parametrize(
    "name, args",
    [("sum", bytes(16)), ("filter_sum", bytes(24)), ("walk", bytes(16)), ("btree", bytes(16))],
)
def test_an_output_without_room_is_refused(host, name, args):
    leaf = struct.pack("<HH", 2, 0) + bytes(4092)
    assert host.call(name, Call(leaf, args, 0)).code == OUTPUT_SHORT


# Tests of the header

INTEGERS = {2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "u1", 7: "<u2", 8: "<u4", 9: "<u8", 13: "<i4", 14: "<i8"}
FLOATS = {10: "<f4", 11: "<f8"}
BOOLEAN, BINARY, ROWS = 1, 16, 2


def header(host, what, column=0, byte=0, count=0, **call):
    return host.call("header_test", Call(args=struct.pack("<IIQQ", what, column, byte, count), **call))


def some(rng, kind, rows):
    dtype = np.dtype((INTEGERS | FLOATS)[kind])
    if dtype.kind == "f":
        return rng.normal(size=rows).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, rows, dtype=dtype.newbyteorder("="), endpoint=True).astype(dtype)


def seen(values, valid):
    """Returns the expected output of header_test for these numbers."""
    rows = []
    for value, there in zip(values.tolist(), valid, strict=True):
        whole = 0 if isinstance(value, float) or not there else value % 2**64
        rows.append(struct.pack("<QQdQ", there, whole, value if there else 0, 0))
    return b"".join(rows)


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_columns_of_numbers_are_read_with_and_without_nulls_and_in_rows(host, rng, kind):
    width = np.dtype((INTEGERS | FLOATS)[kind]).itemsize
    table, expected = Table([(5, 8), (kind, width)]), b""
    for rows, with_nulls in ((1, False), (77, True), (64, False)):
        values, valid = some(rng, kind, rows), rng.integers(0, 2, rows) if with_nulls else np.ones(rows, int)
        bits = table.put(np.packbits(valid, bitorder="little").tobytes()) if with_nulls else (0, 0)
        chunk = (PLAIN, rows - int(valid.sum()), [bits, table.put(values.tobytes())])
        table.group(rows, [(PLAIN, 0, [(0, 0), table.put(bytes(8 * rows))]), chunk])
        expected += seen(values, valid)
    values, stride = some(rng, kind, 9), (8 + width + 7) // 8 * 8
    lying = table.put(b"".join(bytes(8) + value.tobytes() + b"\xee" * (stride - 8 - width) for value in values))
    table.group(9, [(ROWS, 0, [(0, 0), lying, (at, stride)]) for at in (0, 8)])
    expected += seen(values, [1] * 9)
    assert header(host, 0, 1, window=table.window, columns=table.bytes()).output == expected


@pytest.mark.parametrize("encoding", [PLAIN, DICTIONARY])
def test_columns_of_text_and_booleans_are_read(host, rng, encoding):
    words = [b"", b"x", b"yy", b"zzz", None]
    values = [words[i] for i in rng.integers(0, 5, 100)]
    bits = rng.integers(0, 2, 100)
    table = Table([(BINARY, 0), (BOOLEAN, 0)])
    text = table.text_chunk(values, encoding)
    table.group(100, [text, (PLAIN, 0, [(0, 0), table.put(np.packbits(bits, bitorder="little").tobytes())])])
    got = [header(host, 0, column, window=table.window, columns=table.bytes()).output for column in (0, 1)]
    lengths = [(v is not None, 0, 0, len(v or b"") + (256 * v[0] if v else 0)) for v in values]
    assert got[0] == b"".join(struct.pack("<4Q", *row) for row in lengths)
    assert got[1] == b"".join(struct.pack("<4Q", 1, 0, 0, bit) for bit in bits.tolist())


@pytest.mark.parametrize(
    "encoding, buffers",
    [
        (PLAIN, [(0, 0), (0, 79)]),
        (PLAIN, [(0, 0), (4020, 80)]),
        (PLAIN, [(0, 0), (2**64 - 8, 80)]),
        (DICTIONARY, [(0, 0), (0, 80)]),
        (ROWS, [(0, 0), (0, 159), (0, 16)]),
        (ROWS, [(0, 0), (0, 160), (9, 16)]),
        (ROWS, [(0, 0), (0, 160), (2**64 - 1, 16)]),
        (ROWS, [(0, 0), (0, 160), (0, 7)]),
    ],
)
def test_columns_whose_buffers_do_not_hold_their_rows_are_none(host, encoding, buffers):
    table = Table([(5, 8)])
    table.group(10, [(encoding, 0, buffers)])
    assert header(host, 0, window=bytes(4096), columns=table.bytes()).code == BAD_DATA


def test_a_range_is_here_if_parts_that_touch_one_another_hold_all_of_it(host, rng):
    parts = [(0, 10), (10, 5), (20, 1), (30, 10)]
    here = {byte for first, count in parts for byte in range(first, first + count)}
    for byte in range(45):
        for count in range(18):
            expected = all(b in here for b in range(byte, byte + count))
            got = header(host, 2, byte=byte, count=count, window=bytes(64), parts=parts)
            assert got.output == struct.pack("<Q", expected)
    assert header(host, 2, byte=2**64 - 1, count=2, window=bytes(64), parts=parts).output == bytes(8)


def test_bytes_inside_the_window_are_read_and_what_would_come_round_in_32_bits_traps(host):
    window = bytes(range(64))
    assert header(host, 1, byte=56, window=window).output == window[56:]
    assert header(host, 3, byte=3, count=61, window=window).output == window[3:]
    if isinstance(host, Native):
        return  # because a trap would end this process
    for byte in (57, 2**32, 2**32 - 0x4000_0000, 2**64 - 8):
        assert header(host, 1, byte=byte, window=window).value == TRAPPED
        assert header(host, 3, byte=byte, count=8, window=window).value == TRAPPED


# Examples in Rust, which are built only as modules


def test_degrees_are_counted_by_their_number_of_bits(wasm, rng):
    degrees = rng.geometric(0.01, 5000) * rng.integers(0, 2, 5000)
    offsets = np.concatenate([[0], np.cumsum(degrees)]).astype("<u8")
    got = wasm.call("rust/degrees", Call(bytes(8) + offsets.tobytes(), struct.pack("<QQ", 8, 5000)))
    assert got.output == np.bincount([int(d).bit_length() for d in degrees], minlength=65).astype("<u8").tobytes()
    for first, count in ((8, 5001), (0, 2**61), (2**64 - 8, 0), (2**32, 1)):
        got = wasm.call("rust/degrees", Call(bytes(8) + offsets.tobytes(), struct.pack("<QQ", first, count)))
        assert got.code == BAD_DATA


@pytest.mark.parametrize("kind", [3, 9, 10, 11])
def test_percentiles_are_those_of_numpy_by_nearest_rank(wasm, rng, kind):
    table, kept = Table([(kind, np.dtype((INTEGERS | FLOATS)[kind]).itemsize)]), []
    for rows in (1, 1000, 30_000):
        values, valid = some(rng, kind, rows), rng.integers(0, 2, rows)
        bits = table.put(np.packbits(valid, bitorder="little").tobytes())
        table.group(rows, [(PLAIN, rows - int(valid.sum()), [bits, table.put(values.tobytes())])])
        kept.append(values[valid == 1].astype("<f8"))
    kept, fractions = np.concatenate(kept), [0, 0.001, 0.25, 0.5, 0.99, 1]
    args = struct.pack("<II6d", 0, 0, *fractions)
    got = wasm.call("rust/percentiles", Call(table.window, args, columns=table.bytes()))
    expected = np.percentile(kept, np.array(fractions) * 100, method="inverted_cdf").tolist()
    assert struct.unpack("<Q6d", got.output) == (len(kept), *expected)
    assert wasm.call("rust/percentiles", Call(table.window, args, 55, table.bytes())).code == OUTPUT_SHORT
    assert wasm.call("rust/percentiles", Call(table.window, args)).code == NO_COLUMN
