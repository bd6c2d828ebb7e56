"""Figures in the formats that Prometheus reads: the only module that knows its client library.

The library chooses the format by what the client accepts and writes it. Nothing of its global
registry is used: neither its metrics of the process nor anybody else's. There are two formats,
and each is written once a second at most, however many clients ask and whatever they accept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from slurm_dl.daemon.metrics.counters import Distribution
from slurm_dl.daemon.metrics.samples import MetricValue
from slurm_dl.model.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

MISSING = (
    "metrics.listen: prometheus-client is not installed; install slurm-dl[metrics], "
    "or leave metrics.listen empty"
)


FRESH_S: Final = 1.0
"""What was written so recently is given again. Nobody scrapes more often but by mistake."""

_PLAIN: Final = "text/plain;version=0.0.4"
_OPEN: Final = "application/openmetrics-text;version=1.0.0"


class Exposition:
    """Writes figures for whoever scrapes.

    Args:
        figures: Every metric that has a value now; asked when the text is not fresh any more.
        clock: Seconds that only go forward.

    Raises:
        ConfigError: The library is not installed.
    """

    def __init__(
        self,
        figures: Callable[[], Iterable[MetricValue]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(MISSING) from None
        self._figures = figures
        self._clock = clock
        self._written: dict[str, tuple[float, bytes, str]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Family]:
        """The families, for the library."""
        return map(_family, self._figures())

    def text(self, accept: str) -> tuple[bytes, str]:
        """Everything in the format that suits the header ``Accept``, and the name of that format.

        A header that the library does not understand counts as none. For one thread.
        """
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - see above

        try:
            _, wanted = choose_encoder(accept)
        except Exception:  # noqa: BLE001 - the header is anybody's, and the library's own affair
            wanted = _PLAIN
        # Of each format one version: else a client could ask for any number of them.
        name = _OPEN if wanted.startswith("application/openmetrics-text") else _PLAIN
        now_s = self._clock()
        known = self._written.get(name)
        if known is None or now_s - known[0] >= FRESH_S:
            encode, content_type = choose_encoder(name)
            known = self._written[name] = now_s, encode(self._registry), content_type
        return known[1:]


def _family(figure: MetricValue) -> Family:
    from prometheus_client.core import (  # noqa: PLC0415 - see above
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    metric = figure.metric
    labels = [label.name for label in metric.labels]
    match metric.kind:
        case "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
            for key, value in figure.values.items():
                if isinstance(value, Distribution):
                    buckets = _cumulative(value, metric.buckets)
                    histogram.add_metric(key, buckets, value.total)
            return histogram
        case "counter":
            family: CounterMetricFamily | GaugeMetricFamily
            family = CounterMetricFamily(metric.name, metric.help, labels=labels)
        case "gauge" | "info":
            # As a gauge: that is what an info metric is in the older of the two formats.
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for key, value in figure.values.items():
        if not isinstance(value, Distribution):
            family.add_metric(key, float(value))
    return family


def _cumulative(value: Distribution, upper_ends: tuple[float, ...]) -> list[tuple[str, float]]:
    """Buckets as Prometheus counts them: each with all that is below."""
    up_to = 0
    buckets: list[tuple[str, float]] = []
    words = (*(f"{end:g}" for end in upper_ends), "+Inf")
    for word, count in zip(words, value.counts, strict=True):
        up_to += count
        buckets.append((word, float(up_to)))
    return buckets
