"""Source and sink against a broker with accounts: options sign, and nothing that Spark keeps or shows has the secret."""

from __future__ import annotations

import pickle

import pytest

from halfmoon import Admin
from halfmoon.spark import register
from halfmoon.spark.jobs.reading import Cluster
from halfmoon.spark.sink.options import sink_options
from halfmoon.spark.source.options import source_options
from halfmoon.testing.local import LocalCluster
from tests.broker.access.rule_files import write
from tests.spark.source.leftovers import leaves_no

SECRET = "the-secret-of-spark"
RULES = f"accounts:\n- {{accessKey: spark-jobs, secretKey: {SECRET}, admin: true}}\n"
SIGNED = {"accessKey": "spark-jobs", "secretKey": SECRET}


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    data = tmp_path_factory.mktemp("access") / "store"
    write(data, RULES)
    with LocalCluster(data, {"aclEnable": "true"}) as running:
        with Admin(nameserver=running.nameserver, access_key="spark-jobs", secret_key=SECRET) as admin:
            admin.create_topic("rows", queue_count=2)
        yield running


def test_options_sign_and_show_no_secret():
    own = {"endpoints": "127.0.0.1:9876", **SIGNED}
    source, sink = source_options({**own, "topic": "rows"}, "batch"), sink_options({**own, "topic": "rows"})

    for options in (source, sink):
        assert (options.signing["access_key"], options.signing["secret_key"]) == ("spark-jobs", SECRET)
        assert (options.signing["security_token"], options.signing["credentials"]) == ("", "")
        assert SECRET not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
    assert SECRET not in repr(Cluster("127.0.0.1:9876", SIGNED))


def test_rows_are_written_and_read_and_no_plan_or_error_shows_the_secret(spark, signed, capfd):
    register(spark)
    rows = spark.createDataFrame([("one",), ("two",)], "body string")
    target = {"endpoints": signed.nameserver, "topic": "rows"}
    rows.write.format("halfmoon").mode("append").options(**target, **SIGNED).save()
    frame = spark.read.format("halfmoon").options(**target, **SIGNED).load()

    assert sorted(bytes(row.body) for row in frame.collect()) == [b"one", b"two"]
    frame.explain("formatted")
    frame.explain(extended=True)
    plans = capfd.readouterr().out + frame._jdf.queryExecution().toString()
    assert "Physical Plan" in plans
    assert SECRET not in plans
    with pytest.raises(Exception, match="No accessKey is configured") as caught:
        spark.read.format("halfmoon").options(**target, retries="1").load().collect()
    assert SECRET not in str(caught.value)


def test_a_stream_leaves_no_secret_in_its_checkpoint(spark, signed, tmp_path):
    register(spark)
    target = {"endpoints": signed.nameserver, "topic": "rows", **SIGNED}
    leaves_no(SECRET, spark, target, tmp_path)
