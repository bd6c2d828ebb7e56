"""Figures in the formats that Prometheus reads: the only module that imports its client library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slurm_dl.daemon.metrics.counters import Distribution
from slurm_dl.daemon.metrics.samples import MetricValue

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from prometheus_client import Metric as Family


def wsgi_app(
    figures: Callable[[], Iterable[MetricValue]], on_bug: Callable[[Exception], None]
) -> WSGIApplication:
    """An application that gives the metrics for every path.

    Args:
        figures: Every metric that has a value now; asked at each scrape, by the scrape's thread.
        on_bug: Told of an exception nobody expected. Neither is called by two threads at once.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures, on_bug))
    answer: WSGIApplication = make_wsgi_app(registry)

    def answer_any(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        try:
            choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):
            # The library fails at a version that is no number.
            environ["HTTP_ACCEPT"] = ""
        return answer(environ, start_response)

    return answer_any


class _Figures(Collector):
    def __init__(
        self, figures: Callable[[], Iterable[MetricValue]], on_bug: Callable[[Exception], None]
    ) -> None:
        self._figures = figures
        self._on_bug = on_bug
        self._lock = threading.Lock()

    def collect(self) -> list[Family]:
        with self._lock:
            try:
                return [_family(figure) for figure in self._figures()]
            except Exception as err:
                self._on_bug(err)
                raise


def _family(figure: MetricValue) -> Family:
    metric = figure.metric
    labels = [label.name for label in metric.labels]
    # An info metric as a gauge: that is what it is in the older of the two formats.
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    ends = (*(f"{end:g}" for end in metric.buckets), "+Inf")
    for key, value in figure.values.items():
        if isinstance(value, Distribution):
            histogram.add_metric(key, list(zip(ends, value.up_to, strict=True)), value.total)
        else:
            family.add_metric(key, float(value))
    return histogram if metric.kind == "histogram" else family
