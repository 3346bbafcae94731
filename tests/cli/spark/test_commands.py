"""`halfmoon spark` as far as it goes without a session: what is refused, and that nothing heavy is loaded before a job runs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_help_loads_no_pyspark():
    heavy = {"pyspark", "pyarrow", "matplotlib", "numpy"}
    code = (
        "import sys\nfrom halfmoon.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['spark', 'txn', 'audit', '--help']) == 0\n"
        f"print('loaded:', sorted({heavy} & set(sys.modules)))"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "loaded: []" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("lag", "C", "--plot", "x.png"), "give --watch"),
        (("lag", "C", "--watch", "1s", "--plot", "x.gif"), "must end in .png"),
        (("txn", "audit", "--plot", "no/such/x.png"), "there is no directory"),
        (("dlq", "replay"), "or choose by --group"),
        (("replay", "S", "--to", "T"), "Not done. Add --yes to"),
        (("replay", "--to", "T", "--yes"), "give exactly one of TOPIC and --table"),
        (("replay", "T", "--topic", "S", "--yes"), "Missing option '--to'"),
        (("replay", "--to", "T", "--yes", "--topic", "S", "--table", "D"), "give exactly one of TOPIC and --table"),
        (("compact", "no/such/table"), "holds no table of Halfmoon"),
        (("dedup", "no/such/table"), "holds no table of Halfmoon"),
        (("verify", "no/such/table"), "holds no table of Halfmoon"),
        (("compact", ".", "--file-size", "big"), "must be a size"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_before_the_work(run_alone, words, text):
    ran = run_alone("spark", *words)

    assert ran.code == 2
    assert text in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [("pyspark", ("txn", "audit"), "spark"), ("matplotlib", ("txn", "audit", "--plot", "x.png"), "lake")],
)
def test_a_missing_extra_is_told_with_how_to_get_it(run_alone, monkeypatch, module, words, extra):
    lazy = ("halfmoon.cli.spark.jobs", "halfmoon.cli.spark.lake", "halfmoon.cli.spark.tables")
    for name in [name for name in sys.modules if name.split(".")[0] == module or name.startswith(("halfmoon.spark", *lazy))]:
        monkeypatch.delitem(sys.modules, name)
    for name in lazy:
        monkeypatch.delattr(name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)

    ran = run_alone("spark", *words)

    assert (ran.code, ran.err) == (2, f"halfmoon: {module} is not installed: pip install 'halfmoon[{extra}]'\n")
