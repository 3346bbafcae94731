"""Every command of `halfmoon spark`, run whole in this process against a running broker and tables in a directory."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from matplotlib import image

from halfmoon import (
    Admin,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from halfmoon.client.ranges import Ranges
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.query import sql
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest
from halfmoon.spark.lake.ledger import TableDescription, TableLedger
from halfmoon.spark.lake.table import LakeTable
from halfmoon.testing.local import LocalCluster
from tests.cli.conftest import run_alone  # noqa: F401 - a fixture
from tests.spark.lake.tables import table_of
from tests.spark.waiting import until

pytestmark = pytest.mark.slow

GROUP, GIVEN_UP = "C_shop", "C_mail"


def count(cluster, topic):
    """Return how many messages a topic has."""
    with Ranges(nameserver=cluster.nameserver) as client:
        return sum(high - low for low, high in client.bounds(topic).values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A broker that asks nobody about half messages meanwhile."""
    with LocalCluster(tmp_path_factory.mktemp("commands") / "store", {"transactionCheckInterval": 600_000}) as found:
        with Admin(nameserver=found.nameserver) as admin:
            for topic, queues in (("orders", 2), ("mails", 1), ("later", 1), ("orders_again", 2), ("dead_again", 1)):
                admin.create_topic(topic, queue_count=queues)
        yield found


def unknown(message):
    """Nobody is asked here."""
    return LocalTransactionState.UNKNOWN


@pytest.fixture(scope="module")
def shop(cluster):
    """What there is to be found: six orders, two delayed messages, two dead letters, and the ids of the transactions."""
    ids = SimpleNamespace(committed=[], rolled_back="", pending="")
    with TransactionProducer(group="P_shop", nameserver=cluster.nameserver, trace=True, check=unknown) as producer:
        for number in range(4):
            message = Message("orders", b"%d" % number, tag="paid", keys=[f"o-{number}"])
            with producer.half(message) as half:
                ids.committed.append(half.message_id)
        with producer.half(Message("orders", b"no", keys=["no"])) as half:
            half.rollback()
            ids.rolled_back = half.message_id
        with producer.half(Message("orders", b"open", keys=["open"])) as half:
            half.leave()
            ids.pending = half.message_id
    with Producer(group="P_plain", nameserver=cluster.nameserver) as producer:
        for name in ("a", "b"):
            producer.send(Message("orders", name.encode(), tag="open"), queue=MessageQueue("orders", "broker-a", 1))
            producer.send(Message("later", name.encode(), delay_level=1))
            producer.send(Message("mails", name.encode(), keys=[f"m-{name}"]))

    def fail(messages, context):
        context.delay_level = -1
        raise TimeoutError(f"no server for {messages[0].keys[0]} after 30 s")

    mailer = PushConsumer(group=GIVEN_UP, nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    mailer.subscribe("mails")
    mailer.on_message(fail)
    with mailer:
        until(lambda: any(name == f"%DLQ%{GIVEN_UP}" for name in topics(cluster)) and count(cluster, f"%DLQ%{GIVEN_UP}") == 2)
    with PullConsumer(group=GROUP, nameserver=cluster.nameserver, auto_commit=False) as consumer:
        queue = MessageQueue("orders", "broker-a", 1)
        consumer.assign([queue])
        consumer.commit({queue: 1})
    until(lambda: count(cluster, "later") == 2 and count(cluster, "orders") == 6)
    until(lambda: count(cluster, "RMQ_SYS_TRACE_TOPIC") >= 1)
    return ids


def topics(cluster):
    with Ranges(nameserver=cluster.nameserver) as client:
        return client.topics()


@pytest.fixture
def run(run_alone, spark, shop, cluster, monkeypatch):  # noqa: F811 - the fixture
    """Run a command against the cluster, with the session of this process."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)
    return lambda *words, **more: run_alone("spark", *words, **more)


def size_of(picture):
    """Return width and height of a PNG in pixels. Raises what matplotlib says of a damaged one."""
    pixels = image.imread(picture)
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert pixels.shape[:2] == (height, width)
    assert pixels[..., :3].std() > 0.02  # something is drawn
    return width, height


def test_the_audit_of_transactions_finds_every_state_on_our_own_broker_and_draws_them(run, shop, tmp_path):
    ran = run("txn", "audit", "--plot", tmp_path / "txn.png", "--json")

    found = ran.json()
    assert (ran.code, found["sound"]) == (0, True)
    assert found["states"] == {"COMMITTED": 4, "PENDING": 1, "ROLLED_BACK": 1}
    assert found["brokers"] == [{"broker": "broker-a", "log": 1, "reported": 1}]
    assert found["latencies"]["COMMITTED"]["count"] == 4
    assert found["latencies"]["COMMITTED"]["max"] < 600_000
    assert (found["duplicate_commits"], found["orphan_records"], found["not_read"]) == ([], [], [])
    assert size_of(tmp_path / "txn.png") == (1080, 576)


def test_the_audit_of_transactions_is_a_table_and_may_begin_at_a_time(run):
    ran = run("txn", "audit", "--topic", "orders", "--since", "1h")

    assert (ran.code, ran.out.splitlines()[-1]) == (0, "sound")
    assert "COMMITTED" in ran.out


def test_an_audit_that_a_broker_lets_not_read_names_the_setting(run, cluster, monkeypatch):
    pulls = cluster._programs[1].broker.pulls
    monkeypatch.setattr(pulls, "_settings", replace(pulls._settings, half_messages_readable=False))

    ran = run("txn", "audit")

    assert (ran.code, "half_messages_readable=false" in ran.err, "Traceback" in ran.err) == (1, True, False)


def test_the_audit_of_delays_tells_how_late_messages_came_and_draws_it(run, tmp_path):
    ran = run("delay", "audit", "--plot", tmp_path / "delay.png", "--json")

    found = ran.json()
    assert (ran.code, found["states"], found["early"], found["missing"]) == (0, {"DELIVERED": 2}, 0, 0)
    assert (found["levels"]["1"]["count"], type(found["levels"]["1"]["p50"])) == (2, float)
    assert size_of(tmp_path / "delay.png") == (1080, 576)


def test_the_lag_of_a_group_is_told_by_queue_and_drawn_over_time(run, tmp_path):
    ran = run("lag", GROUP, "--json")
    watched = run("lag", GROUP, "--watch", "1s", "--every", "300ms", "--plot", tmp_path / "lag.png", "--json")

    queues = {one["queue"]: one for one in ran.json()["queues"]}
    assert (ran.code, queues[1]["progress"], queues[1]["messages"] + queues[0]["messages"]) == (0, 1, 5)
    assert (queues[1]["seconds"] > 0, queues[1]["bytes"] > 0) == (True, True)
    samples = watched.lines()
    assert (watched.code, len(samples) >= 2) == (0, True)
    assert {(one["topic"], one["messages"]) for one in samples} == {("orders", 5)}
    assert size_of(tmp_path / "lag.png") == (1080, 768)


def test_traces_become_spans(run, shop):
    ran = run("trace", shop.committed[0], "--json")
    everything = run("trace", "--since", "1h", "--limit", "2", "--json").json()
    none = run("trace", "nobody")

    spans = ran.json()["spans"]
    assert ran.code == 0
    assert {one["span"] for one in spans} == {"half", "commit"}
    assert {one["who"] for one in spans} == {"P_shop"}
    assert ([one["span"] for one in everything["spans"]], everything["more"]) == (["half", "commit"], True)
    assert (none.code, "spans: none" in none.out) == (0, True)


def test_dead_letters_are_those_of_the_command_for_them(run):
    assert [one["count"] for one in run("dlq", "report", "--group", GIVEN_UP, "--json").json()["reasons"]] == [1, 1]
    dry = run("dlq", "replay", "--group", GIVEN_UP, "--to", "dead_again", "--dry-run", "--json").json()
    assert [one["outcome"] for one in dry["replays"]] == ["would be sent"] * 2


def test_a_table_is_filled_compacted_cleared_of_copies_verified_queried_and_replayed(run, cluster, topic, send, tmp_path):
    lake = tmp_path / "lake"
    for number in range(4):
        send(topic, [str(number)], tag="paid", keys=[f"o-{number}"])
    send(topic, ["a", "b"], tag="open")
    first = run("ingest", topic, lake, "--json").json()
    send(topic, ["copy", "copy"], tag="twice", keys=["same"])
    second = run("ingest", topic, lake, "--json").json()
    assert (first["rows"], second["rows"]) == (6, 2)

    live = run("verify", lake, "--live")
    assert (live.code, live.out.splitlines()[-1]) == (0, "sound")
    joined = run("compact", lake, "--vacuum", "1d", "--json").json()
    assert (joined["joined"] >= 2, joined["files"], joined["removed"]) == (True, 1, [])
    assert run("dedup", lake, "--by", "keys", "--json").json() == {"by": "keys", "rows": 1}
    checked = run("verify", lake, "--json").json()
    assert (checked["sound"], sum(queue["dropped"] for queue in checked["queues"])) == (True, 1)

    query = f"select tags, count(*) n from topic.{topic} group by tags order by tags"
    said = run("sql", query, "--archive", f"{topic}={lake}", "--json")
    assert [(one["tags"], one["n"]) for one in said.json()["rows"]] == [("open", 2), ("paid", 4), ("twice", 1)]

    replayed = ("replay", "--to", "orders_again", "--table", lake, "--where", "tags = 'paid'", "--id", "copy-of-paid", "--yes")
    dry = run(*replayed, "--dry-run", "--json").json()
    done = run(*replayed, "--json").json()
    again = run(*replayed)
    assert (dry["rows"], done["rows"], done["batches"], done["id"]) == (4, 4, 1, "copy-of-paid")
    assert (again.code, again.out) == (0, "copy-of-paid was already complete: nothing was sent\n")
    assert count(cluster, "orders_again") == 4
    none = run("replay", topic, "--to", "orders_again", "--where", "tags = 'nobody'", "--yes")
    assert (none.code, none.out) == (0, "nothing to send\n")
    assert "the replay's id is replay-" in none.err


def test_an_iceberg_table_is_an_archive_for_those_who_have_its_catalog(spark, cluster, topic, send, tmp_path):
    send(topic, ["a", "b"])
    table, source = table_of("iceberg", tmp_path), {"endpoints": cluster.nameserver, "topic": topic}
    ingest(spark, table, layout_for(tmp_path / "table", partition="day"), source)
    send(topic, ["c"])

    text = f"select cast(body as string) said from topic.{topic} order by said"
    assert [row.said for row in sql(spark, Cluster(cluster.nameserver), text, archives={topic: table}).collect()] == ["a", "b", "c"]


def test_an_archive_that_needs_a_catalog_is_refused_with_what_takes_it(run_alone, tmp_path):  # noqa: F811 - the fixture
    TableLedger(tmp_path).create_or_check(TableDescription(kind="iceberg", schema=b""))

    ran = run_alone("spark", "sql", "select * from topic.orders", "--archive", f"orders={tmp_path}")

    assert (ran.code, "an archive is a Delta table, this one is iceberg" in ran.err) == (2, True)


def test_a_table_that_lost_a_file_is_found_out(run, tmp_path):
    lake = tmp_path / "lake"
    assert run("ingest", "orders", lake).code == 0
    table = LakeTable(lake)
    [*_, gone] = sorted(table.live(), key=lambda file: file.path)
    table.format.replace([gone.path], [], ())

    ran = run("verify", lake, "--json")

    found = ran.json()
    assert (ran.code, found["sound"]) == (1, False)
    assert any("missing" in text for one in found["queues"] for text in one["wrong"])
    assert run("verify", lake, "--live").code == 1
