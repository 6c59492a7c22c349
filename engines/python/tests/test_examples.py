"""What docstrings and docs/python.md show is what happens."""

import doctest
import inspect
import re
from pathlib import Path

import fsspec
import pytest

import farpool
import farpool.dataset
import farpool.duckdb
import farpool.fs

GUIDE = Path(__file__).parents[3] / "docs" / "python.md"
# In an order in which what one makes is there for the next.
FIRST = ["connect", "embedded", "Pool.create", "Pool.open", "Pool.exists", "Pool.delete", "Pool.rename", "Pool.publish"]
FIRST += ["Pool.list", "Pool.put_table", "Pool.table", "Pool.scan"]


def documented() -> dict[str, str | None]:
    """Docstrings by name, of everything that is public."""
    found: dict[str, str | None] = {}
    for name in farpool.__all__:
        if name == "__version__":
            continue
        thing = getattr(farpool, name)
        found[name] = inspect.getdoc(thing)
        if inspect.isclass(thing) and not issubclass(thing, (Exception, tuple)):
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    found[f"{name}.{member}"] = inspect.getdoc(value)
    return found


def test_everything_public_has_a_docstring():
    modules = {"duckdb": farpool.duckdb, "fs": farpool.fs, "dataset": farpool.dataset}
    told = documented()
    for module, thing in modules.items():
        told |= {f"{module}.{name}": inspect.getdoc(getattr(thing, name)) for name in thing.__all__}
    assert [name for name, text in told.items() if not text] == []


def test_examples_of_docstrings_leave_what_they_say():
    told = documented()
    names = sorted(told, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with farpool.embedded("64MiB", region_size="1MiB") as pool:
        names_there = {"farpool": farpool, "pool": pool}
        for name in names:
            test = doctest.DocTestParser().get_doctest(told[name], names_there, name, None, None)
            runner.run(test, clear_globs=False)
            names_there = test.globs
    assert runner.failures == 0
    assert runner.tries > 30


def test_the_guide_runs_from_its_beginning_to_its_end(shared_cluster):
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    there: dict[str, object] = {}
    try:
        for block in blocks:
            exec(compile(block.replace("farpool://127.0.0.1:7700", shared_cluster.url), str(GUIDE), "exec"), there)
    except BaseException as error:
        pytest.fail(f"{error!r} in\n{block}")
    finally:
        with farpool.connect(shared_cluster.url) as pool:
            pool.drop_table("sales")
        there["fs"].pool.close()
        fsspec.get_filesystem_class("farpool").clear_instance_cache()
