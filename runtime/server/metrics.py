"""Counts and times of all requests for Prometheus, under vLLM's names, which dashboards and routers know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.server.backend import Backend

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_COUNTERS = {
    "num_preemptions": "Times that a request gave its state back, and was computed again",
    "prompt_tokens": "Tokens of prompts",
    "generation_tokens": "Tokens generated",
    "prefix_cache_queries": "Tokens of prompts that were looked up in the prefix cache",
    "prefix_cache_hits": "Tokens of prompts that were found in the prefix cache",
    "spec_decode_num_drafts": "Drafts verified: rounds that speculated, for each request",
    "spec_decode_num_draft_tokens": "Tokens drafted",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were accepted",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token", _SECONDS),
    "inter_token_latency_seconds": ("From one round of a request to the next", _GAPS),
    "request_time_per_output_token_seconds": ("Mean time for a token after the first", _GAPS),
    "e2e_request_latency_seconds": ("From a request's arrival to its end", _SECONDS),
    "request_queue_time_seconds": ("From a request's arrival to the beginning of its prompt", _SECONDS),
    "request_prefill_time_seconds": ("From the beginning of a prompt to the first token", _SECONDS),
    "request_decode_time_seconds": ("From the first token to the last", _SECONDS),
    "request_inference_time_seconds": ("From the beginning of a prompt to the last token", _SECONDS),
    "request_prompt_tokens": ("Tokens of a request's prompt", _TOKENS),
    "request_generation_tokens": ("Tokens generated for a request", _TOKENS),
}
_GAUGES = {
    "num_requests_running": "Requests that are computed",
    "num_requests_waiting": "Requests that wait for others to end",
    "kv_cache_usage_perc": "Part of the KV pages that running requests hold; 1 is all",
}
_DISK = {
    "disk_cache_files_read": "Checkpoints read from --cache-dir",
    "disk_cache_files_written": "Checkpoints written to --cache-dir",
    "disk_cache_failed": "1 from a checkpoint that could not be written until the next one that could",
}
_FINISHED = {"stop": "stop", "length": "length", "context": "length", "timeout": "length", "cancelled": "abort"}


class Metrics:
    """Counters that requests bring on, from the event loop alone."""

    def __init__(self, engine: Backend, model: str) -> None:
        self._engine = engine
        self._registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}
        made: dict[str, Any] = {"registry": self._registry, "labelnames": [*labels]}
        self._counters = {n: Counter(f"vllm:{n}", text, **made).labels(**labels) for n, text in _COUNTERS.items()}
        self._gauges = {n: Gauge(f"vllm:{n}", text, **made).labels(**labels) for n, text in _GAUGES.items()}
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, buckets=buckets, **made).labels(**labels)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._labels = labels
        finished: dict[str, Any] = {"registry": self._registry, "labelnames": [*labels, "finished_reason"]}
        self._finished = Counter("vllm:request_success", "Requests that have ended", **finished)
        positions: dict[str, Any] = {"registry": self._registry, "labelnames": [*labels, "position"]}
        self._positions = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by their place", **positions
        )
        load = engine.load
        info = {"block_size": str(load.page_size), "num_gpu_blocks": str(load.pages)}
        Gauge("vllm:cache_config_info", "The KV cache", [*labels, *info], registry=self._registry).labels(
            **labels, **info
        ).set(1)
        self._disk = {}
        if engine.disk is not None:
            self._disk = {n: Gauge(f"trigraph:{n}", text, **made).labels(**labels) for n, text in _DISK.items()}

    @property
    def families(self) -> list[Metric]:
        """Everything, by name."""
        self._refresh()
        return [*self._registry.collect()]

    def samples(self) -> list[Sample]:
        """Everything: names, labels and numbers."""
        return [sample for family in self.families for sample in family.samples]

    def _refresh(self) -> None:
        load = self._engine.load
        self._gauges["num_requests_running"].set(load.running)
        self._gauges["num_requests_waiting"].set(load.waiting)
        self._gauges["kv_cache_usage_perc"].set(load.kv_usage)
        if (disk := self._engine.disk) is not None:
            self._disk["disk_cache_files_read"].set(disk.read)
            self._disk["disk_cache_files_written"].set(disk.written)
            self._disk["disk_cache_failed"].set(disk.problem is not None)

    def advanced(self, request: Handle, tokens: range, rounds: range, *, shares_prompt: bool = False) -> None:
        """A request has these tokens and rounds more than before, by their numbers.

        `shares_prompt`: the tokens of its prompt were counted with another one's.
        """
        if not tokens.start:
            self._begun(request, shares_prompt)
        self._counters["generation_tokens"].inc(len(tokens))
        before = request.rounds[rounds.start - 1].ended if rounds.start else None
        for done in request.rounds[rounds.start : rounds.stop]:
            if before is not None:
                self._histograms["inter_token_latency_seconds"].observe(done.ended - before)
            before = done.ended
            if done.drafted:
                self._counters["spec_decode_num_drafts"].inc()
                self._counters["spec_decode_num_draft_tokens"].inc(done.drafted)
                self._counters["spec_decode_num_accepted_tokens"].inc(done.accepted)
                for position in range(done.accepted):
                    self._positions.labels(**self._labels, position=str(position)).inc()

    def ended(self, request: Handle) -> None:
        """A request has ended, with success or not."""
        stats = request.stats
        reason = "error" if request.error is not None else _FINISHED.get(stats.finish_reason, "abort")
        self._finished.labels(**self._labels, finished_reason=reason).inc()
        self._counters["num_preemptions"].inc(stats.preemptions)
        if request.first_token is None:
            return
        inference = stats.prompt_seconds + stats.seconds
        observed = {
            "e2e_request_latency_seconds": stats.waiting_seconds + inference,
            "request_decode_time_seconds": stats.seconds,
            "request_inference_time_seconds": inference,
            "request_generation_tokens": stats.tokens,
        }
        if stats.tokens > 1:
            observed["request_time_per_output_token_seconds"] = stats.seconds / (stats.tokens - 1)
        for name, value in observed.items():
            self._histograms[name].observe(value)

    def _begun(self, request: Handle, shares_prompt: bool) -> None:
        stats, length = request.stats, len(request.prompt)
        if not shares_prompt:
            self._counters["prompt_tokens"].inc(length)
            self._counters["prefix_cache_queries"].inc(length)
            self._counters["prefix_cache_hits"].inc(request.reused)
            self._histograms["request_prompt_tokens"].observe(length)
        self._histograms["request_queue_time_seconds"].observe(stats.waiting_seconds)
        self._histograms["request_prefill_time_seconds"].observe(stats.prompt_seconds)
        self._histograms["time_to_first_token_seconds"].observe(stats.waiting_seconds + stats.prompt_seconds)


def rendered(every: Sequence[Metrics]) -> bytes:
    """The metrics of models, in the text format of Prometheus; each family is there once."""
    families: dict[str, Metric] = {}
    for metrics in every:
        for family in metrics.families:
            if (known := families.setdefault(family.name, family)) is not family:
                known.samples += family.samples
    return generate_latest(_Families([*families.values()]))


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    """What has been collected already, as a collector."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        """The families."""
        return self.families
