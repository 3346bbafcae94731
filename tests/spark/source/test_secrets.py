"""Source and sink against brokers with accounts, and ones that speak only TLS: nothing that Spark keeps or shows has a secret."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest

from halfmoon import Admin
from halfmoon.errors import UsageError
from halfmoon.spark import register
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.sink.options import sink_options
from halfmoon.spark.source.options import source_options
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority
from tests.broker.access.rule_files import write

SECRET, PASSWORD = "the-secret-of-spark", "the password of a key"
ACCOUNT = "accounts:\n- {{accessKey: spark-jobs, secretKey: {}, admin: true{}}}\n"
SIGNED = {"accessKey": "spark-jobs", "secretKey": SECRET}
ENCRYPTED = {
    "useTLS": "true", "tlsCa": "/ca.pem", "tlsCert": "/me.pem", "tlsKey": "/me.key", "tlsKeyPassword": PASSWORD,
    "tlsVerify": "false", "tlsServerName": "mq.example",
}  # fmt: skip
TARGET = {"endpoints": "127.0.0.1:9876", "topic": "rows"}
VARIABLES = ("", "_CA", "_CERT", "_KEY", "_KEY_PASSWORD", "_VERIFY", "_SERVER_NAME")


class Guarded(NamedTuple):
    """A topic of a cluster, the options that it wants, the secret among them, and what it says to those who give none."""

    target: dict[str, str]
    options: dict[str, str]
    secret: str
    refusal: str


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """A cluster with accounts."""
    data = tmp_path_factory.mktemp("access") / "store"
    write(data, ACCOUNT.format(SECRET, ""))
    with LocalCluster(data, {"aclEnable": "true"}) as running:
        with Admin(nameserver=running.nameserver, access_key="spark-jobs", secret_key=SECRET) as admin:
            admin.create_topic("rows", queue_count=2)
        yield Guarded({"endpoints": running.nameserver, "topic": "rows"}, SIGNED, SECRET, "No accessKey is configured")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    """A cluster that speaks only TLS, and whose accounts have certificates, so that nothing is signed."""
    place = tmp_path_factory.mktemp("tls")
    authority = Authority(place / "certificates")
    server, client = authority.pair("server"), authority.pair("client", "spark", password=PASSWORD)
    settings = {
        "tls.server.certPath": server.cert, "tls.server.keyPath": server.key, "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require", "tls.server.trustCertPath": authority.ca,
        "tls.client.trustCertPath": authority.ca, "tls.client.certPath": client.cert, "tls.client.keyPath": client.key,
        "tls.client.keyPassword": PASSWORD, "aclEnable": "true",
    }  # fmt: skip
    write(place / "store", ACCOUNT.format("never-used", ", certificate: spark"))
    options = {"tlsCa": authority.ca, "tlsCert": client.cert, "tlsKey": client.key, "tlsKeyPassword": PASSWORD}
    with LocalCluster(place / "store", settings) as running:
        with Admin(
            nameserver=running.nameserver, tls_ca=authority.ca, tls_cert=client.cert, tls_key=client.key, tls_key_password=PASSWORD
        ) as admin:
            admin.create_topic("rows", queue_count=2)
        target = {"endpoints": running.nameserver, "topic": "rows", "tlsCa": authority.ca}
        yield Guarded(target, options, PASSWORD, "it wants a client's certificate")


@pytest.fixture(params=["signed", "encrypted"])
def guarded(request: pytest.FixtureRequest) -> Guarded:
    """Either of them."""
    found: Guarded = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"HALFMOON_TLS{name}", raising=False)


@pytest.mark.parametrize(
    ("given", "secret", "settings"),
    [
        (SIGNED, SECRET, {"access_key": "spark-jobs", "secret_key": SECRET, "security_token": "", "credentials": ""}),
        (
            ENCRYPTED,
            PASSWORD,
            {
                "use_tls": True, "tls_ca": "/ca.pem", "tls_cert": "/me.pem", "tls_key": "/me.key", "tls_key_password": PASSWORD,
                "tls_verify": False, "tls_server_name": "mq.example",
            },
        ),
    ],
    ids=["signed", "encrypted"],
)  # fmt: skip
def test_options_are_settings_of_the_client_and_show_no_secret(given: dict[str, str], secret: str, settings: dict[str, Any]):
    for options in (source_options({**TARGET, **given}, "batch"), sink_options({**TARGET, **given})):
        assert settings.items() <= options.signing.items()
        assert secret not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
    assert secret not in repr(Cluster("127.0.0.1:9876", given))


def test_what_is_not_given_leaves_the_word_to_variables():
    options = source_options(TARGET, "stream")

    assert (options.use_tls, options.tls_verify) == (None, None)
    with pytest.raises(UsageError, match="useTls='perhaps' must be true or false"):
        source_options({**TARGET, "useTls": "perhaps"}, "stream")


def test_a_secret_that_is_refused_is_not_shown():
    with pytest.raises(UsageError, match=r"^option secretKey is empty$"):
        source_options({**TARGET, "secretKey": "  "}, "batch")


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_rows_are_written_and_read_and_no_plan_or_error_shows_the_secret(spark, guarded, capfd, delivery):
    register(spark)
    target = {**guarded.target, **guarded.options}
    rows = spark.createDataFrame([(f"{delivery} one",), (f"{delivery} two",)], "body string")
    rows.write.format("halfmoon").mode("append").options(**target, delivery=delivery).save()
    frame = spark.read.format("halfmoon").options(**target).load()

    assert {bytes(row.body).decode() for row in frame.collect()} >= {f"{delivery} one", f"{delivery} two"}
    frame.explain("formatted")
    frame.explain(extended=True)
    plans = capfd.readouterr().out + frame._jdf.queryExecution().toString()
    assert "Physical Plan" in plans
    assert guarded.secret not in plans
    with pytest.raises(Exception, match=guarded.refusal) as caught:
        spark.read.format("halfmoon").options(**guarded.target, retries="1").load().collect()
    assert guarded.secret not in str(caught.value)


@pytest.mark.slow
def test_a_wrong_password_is_named_and_not_shown(spark, encrypted):
    register(spark)
    with pytest.raises(Exception, match="its password is missing or wrong") as caught:
        spark.read.format("halfmoon").options(**{
            **encrypted.target, **encrypted.options, "tlsKeyPassword": "a wrong one", "retries": "1",
        }).load().collect()  # fmt: skip
    assert "a wrong one" not in str(caught.value)


@pytest.mark.slow
def test_a_stream_leaves_no_secret_in_its_checkpoint(spark, guarded, tmp_path):
    register(spark)
    target = {**guarded.target, **guarded.options}
    stream = spark.readStream.format("halfmoon").options(**target, startingOffsets="earliest").load().selectExpr("body")
    writing = stream.writeStream.format("halfmoon").options(**target, checkpointLocation=str(tmp_path / "checkpoint"))
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(120)

    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(guarded.secret.encode() in content for content in kept)
    assert guarded.secret not in str(query.lastProgress)
