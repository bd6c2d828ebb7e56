"""Figures in the formats that Prometheus reads: the only module that imports its client library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slurm_dl.daemon.metrics.catalogue import Figure, Metric
from slurm_dl.daemon.metrics.counters import BUCKETS, Distribution, Key

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def wsgi_app(
    figures: Callable[[], Iterable[Figure]], on_bug: Callable[[Exception], None]
) -> WSGIApplication:
    """An application that gives the metrics for every path.

    Args:
        figures: Every metric that has a value now; asked at each scrape, by the scrape's thread.
        on_bug: Told of an exception nobody expected. Neither is called by two threads at once.
    """
    lock = threading.Lock()

    class Figures(Collector):
        def collect(self) -> list[Any]:
            with lock:
                try:
                    return [_family(*figure) for figure in figures()]
                except Exception as err:
                    on_bug(err)
                    raise

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    answer: WSGIApplication = make_wsgi_app(registry)

    def answer_any(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        try:
            choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):
            # The library fails at a version that is no number.
            environ["HTTP_ACCEPT"] = ""
        return answer(environ, start_response)

    return answer_any


def write_gauges(path: Path, gauges: Mapping[str, tuple[str, float]]) -> None:
    """Replace the file *path* as a whole, as node_exporter's textfile collector reads it.

    Args:
        path: Its name ends with ``.prom``.
        gauges: Help and value, by name.

    Raises:
        OSError: It cannot be written.
    """
    registry = CollectorRegistry()
    for name, (meaning, value) in gauges.items():
        Gauge(name, meaning, registry=registry).set(value)
    write_to_textfile(str(path), registry)


def _family(metric: Metric, values: Mapping[Key, Any]) -> Any:  # noqa: ANN401 - three classes
    # An info metric as a gauge: that is what it is in the older of the two formats.
    kinds: dict[str, Any] = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    kind = kinds.get(metric.kind, GaugeMetricFamily)
    family = kind(metric.name, metric.help, labels=tuple(metric.labels))
    for key, value in values.items():
        if isinstance(value, Distribution):
            ends = (*map("{:g}".format, BUCKETS[metric.short]), "+Inf")
            family.add_metric(key, list(zip(ends, value.up_to, strict=True)), value.total)
        else:
            family.add_metric(key, float(value))
    return family
