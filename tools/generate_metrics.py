"""Generator of docs/monitoring.md from the declarations of metrics."""

from __future__ import annotations

import sys
from pathlib import Path

from halfmoon.broker.metrics.declared import METRICS as OF_BROKERS
from halfmoon.metrics import Metric
from halfmoon.nameserver.routes import METRICS as OF_NAME_SERVERS
from halfmoon.programs.exposition import of_process as figures_of_process
from halfmoon.programs.monitoring import METRICS
from tools.generated import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "monitoring.md"

HEAD = """# Monitoring

<!-- Written by tools/generate_metrics.py: change that, or the declarations of metrics. -->

With `--http-port` (setting `http_port`), `halfmoon serve`, `nameserver` and `broker` answer HTTP on a separate port:

```
halfmoon serve --data ./data --http-port 9100
```

- **`/metrics`**: figures of all servers of the process, in Prometheus' text format 0.0.4, or on request in OpenMetrics 1.0 and with
  gzip.
- **`/healthz`**, for a liveness probe: 200 while the event loop turns and no store has stopped for good; else 503.
- **`/readyz`**, for a readiness probe: 200 while the servers accept messages: the store is writable, the disk is not full, and a
  broker that has name servers is registered with one; else 503. A slave, and a [pair](pairs.md)'s follower, is ready while it
  copies.

The last two answer JSON such as `{"ok": false, "reasons": ["broker broker-a: …"]}`. Only `GET` and `HEAD` are answered.

## Prometheus and Grafana

The repository's directory `monitoring/` has examples:

- `prometheus.yml` points Prometheus at a server: `prometheus --config.file=monitoring/prometheus.yml`.
- `alerts.yml` has alert rules: server down, not writable, not registered, disk, slaves, pairs, lag, stuck groups, redelivery,
  undecided and expired transactions, dead letters, late delays, refusals, slow turns.
- `grafana.json` is a dashboard: import it in Grafana and choose your Prometheus.

Rules and dashboard expect the job's name to be `halfmoon`. Each process reports only its own figures: give every broker and
name server a port, and list all of them as targets.

Metrics that begin with `rocketmq_` have the names and labels of the community's exporter (apache/rocketmq-exporter), so that
dashboards for it work without the exporter. There are two differences. Values are those of the moment, not of the last
collection. And some metrics are missing: `rocketmq_client_…`, which only consumers know (`mqadmin consumerStatus`), and
`rocketmq_group_count`, whose labels are addresses of clients.

## Access

The port listens on 127.0.0.1. Another `http_host` is refused without `--allow-remote`. There are no accounts: any client that
reaches the port can read figures and the names of topics and groups, and change nothing. If the servers have a certificate
([TLS](tls.md)), the port accepts HTTPS only, and requests client certificates if the servers do. Otherwise it answers only
requests whose Host is an address, a name without a dot, a name that no public DNS resolves (`.local`, `.internal`), or one in
`http_names`; others get 421, because a site whose name points here could read the page in a visitor's browser.

A request may have 8 KB and take 5 s; its answer may take 10 s to be produced and read. At most 32 connections are open at a
time. Refused and closed connections are logged, at most 100 lines per minute.

## Costs

Figures are gathered on the event loop of the servers, in slices of a millisecond between which requests are served
([why](decisions/0021-monitoring-runs-on-the-servers-loop.md)). A page is gathered at most once a second, and shared by all
requests in that time. Measuring the length of a turn takes about 0.1 µs. Without `http_port` none of this code is imported.

| queues | series | processor time of a page | loop held at once |
|--:|--:|--:|--:|
| 10,000 (1,250 topics, a group each) | 12,700 | 55 ms | 1 to 3 ms |
| 80,000 (10,000 topics, a group each) | 100,200 | 490 ms | 3 to 4 ms |

Measured by `benchmarks/monitoring.py` on two cores of a virtual machine, in processor time, because others ran there; by the
clock a page of 10,000 queues took 54 to 107 ms, the first one 177 ms. For 80,000 queues the page has all series
(`http_series_max=200000`). Every 10 s a broker samples its rates, which takes about 20 ms with 40,000 counters, with or without
requests.

`http_series_max` (50,000) bounds the series of a page: those of further topics and groups are left out, and
`halfmoon_metrics_left_out` counts them. It also counts missing message ages: a page reads at most 8,192 unknown ages, and the
age of the message for which an idle group waits is read only once.

## Metrics
"""


def page() -> str:
    """Return the whole page."""
    of_all = [metric for metric in METRICS if metric not in OF_BROKERS and metric not in OF_NAME_SERVERS]
    of_process = [Metric(family.samples[0].name, family.type, (), family.documentation) for family in figures_of_process()]
    parts = [
        HEAD,
        "\n### Every process\n\n" + _table([*of_all, *of_process]),
        "\n`server` is the name of a broker, or `nameserver`.\n",
        "\n### Name server\n\n" + _table(OF_NAME_SERVERS),
        "\n### Broker\n\n" + _table([metric for metric in OF_BROKERS if "_brokeruntime_" not in metric.name]),
        "\n### Runtime information of a broker\n\n" + _table([metric for metric in OF_BROKERS if "_brokeruntime_" in metric.name]),
    ]
    return "".join(parts)


def _table(metrics: list[Metric]) -> str:
    rows = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
