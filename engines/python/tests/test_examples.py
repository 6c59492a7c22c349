"""The examples of docstrings run and give the results that they show. Documents: engines/tests/test_documents.py."""

import doctest
import inspect

import farpool
import farpool.dataset
import farpool.duckdb
import farpool.fs

# Examples that others depend on run first, in this order.
FIRST = ["connect", "embedded", "Pool.create", "Pool.open", "Pool.exists", "Pool.delete", "Pool.rename", "Pool.publish"]
FIRST += ["Pool.list", "Pool.put_table", "Pool.table", "Pool.scan"]


def documented() -> dict[str, str | None]:
    """Returns the docstrings of all public names."""
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
