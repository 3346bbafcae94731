"""Source and sink against a broker that speaks only TLS and wants a certificate: options encrypt, and none shows a password.

The broker has accounts. The certificate is that of one, so that nothing is signed.
"""

from __future__ import annotations

import pickle

import pytest

from halfmoon import Admin
from halfmoon.errors import UsageError
from halfmoon.spark import register
from halfmoon.spark.jobs.reading import Cluster
from halfmoon.spark.sink.options import sink_options
from halfmoon.spark.source.options import source_options
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority
from tests.spark.source.leftovers import leaves_no

PASSWORD = "the password of a key"
RULES = "accounts:\n- {accessKey: spark-jobs, secretKey: never-used, certificate: spark, admin: true}\n"
VARIABLES = ("", "_CA", "_CERT", "_KEY", "_KEY_PASSWORD", "_VERIFY", "_SERVER_NAME")


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A cluster, and the options without which it answers nothing."""
    place = tmp_path_factory.mktemp("tls")
    authority = Authority(place / "certificates")
    server, client = authority.pair("server"), authority.pair("client", "spark", password=PASSWORD)
    settings = {
        "tls.server.certPath": server.cert, "tls.server.keyPath": server.key, "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require", "tls.server.trustCertPath": authority.ca,
        "tls.client.trustCertPath": authority.ca, "tls.client.certPath": client.cert, "tls.client.keyPath": client.key,
        "tls.client.keyPassword": PASSWORD, "aclEnable": "true",
    }  # fmt: skip
    (place / "store" / "conf").mkdir(parents=True)
    rules = place / "store" / "conf" / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    options = {"tlsCa": authority.ca, "tlsCert": client.cert, "tlsKey": client.key, "tlsKeyPassword": PASSWORD}
    with LocalCluster(place / "store", settings) as running:
        with Admin(
            nameserver=running.nameserver, tls_ca=authority.ca, tls_cert=client.cert, tls_key=client.key, tls_key_password=PASSWORD
        ) as admin:
            admin.create_topic("rows", queue_count=2)
        yield running, options


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"HALFMOON_TLS{name}", raising=False)


def test_options_are_settings_of_the_client_and_show_no_password():
    given = {
        "endpoints": "127.0.0.1:9876", "topic": "rows", "useTLS": "true", "tlsCa": "/ca.pem", "tlsCert": "/me.pem",
        "tlsKey": "/me.key", "tlsKeyPassword": PASSWORD, "tlsVerify": "false", "tlsServerName": "mq.example",
    }  # fmt: skip

    for options in (source_options(given, "batch"), sink_options(given)):
        assert {name: value for name, value in options.signing.items() if "tls" in name} == {
            "use_tls": True, "tls_ca": "/ca.pem", "tls_cert": "/me.pem", "tls_key": "/me.key", "tls_key_password": PASSWORD,
            "tls_verify": False, "tls_server_name": "mq.example",
        }  # fmt: skip
        assert PASSWORD not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
    assert PASSWORD not in repr(Cluster("127.0.0.1:9876", given))


def test_what_is_not_given_leaves_the_word_to_variables():
    options = source_options({"endpoints": "127.0.0.1:9876", "topic": "rows"}, "stream")

    assert options.use_tls is None
    assert options.tls_verify is None
    with pytest.raises(UsageError, match="useTls='perhaps' must be true or false"):
        source_options({"endpoints": "127.0.0.1:9876", "topic": "rows", "useTls": "perhaps"}, "stream")


def test_a_secret_that_is_refused_is_not_shown():
    with pytest.raises(UsageError, match=r"^option secretKey is empty$"):
        source_options({"endpoints": "127.0.0.1:9876", "topic": "rows", "secretKey": "  "}, "batch")


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_rows_are_written_and_read_and_no_plan_shows_the_password(spark, secure, capfd, delivery):
    register(spark)
    running, tls = secure
    target = {"endpoints": running.nameserver, "topic": "rows", **tls}
    rows = spark.createDataFrame([(f"{delivery} one",), (f"{delivery} two",)], "body string")
    rows.write.format("halfmoon").mode("append").options(**target, delivery=delivery).save()
    frame = spark.read.format("halfmoon").options(**target).load()

    bodies = {bytes(row.body).decode() for row in frame.collect()}
    assert bodies >= {f"{delivery} one", f"{delivery} two"}
    frame.explain("formatted")
    frame.explain(extended=True)
    plans = capfd.readouterr().out + frame._jdf.queryExecution().toString()
    assert "Physical Plan" in plans
    assert PASSWORD not in plans


@pytest.mark.slow
def test_without_a_certificate_nothing_is_read_and_the_error_says_why(spark, secure):
    register(spark)
    running, tls = secure
    target = {"endpoints": running.nameserver, "topic": "rows", "tlsCa": tls["tlsCa"], "retries": "1"}

    with pytest.raises(Exception, match="it wants a client's certificate"):
        spark.read.format("halfmoon").options(**target).load().collect()
    with pytest.raises(Exception, match="its password is missing or wrong") as caught:
        spark.read.format("halfmoon").options(**{**target, **tls, "tlsKeyPassword": "a wrong one"}).load().collect()
    assert "a wrong one" not in str(caught.value)


@pytest.mark.slow
def test_a_stream_leaves_no_password_in_its_checkpoint(spark, secure, tmp_path):
    register(spark)
    running, tls = secure
    target = {"endpoints": running.nameserver, "topic": "rows", **tls}
    leaves_no(PASSWORD, spark, target, tmp_path)
