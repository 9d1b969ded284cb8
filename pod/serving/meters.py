"""What the server tells a monitor about itself, in Prometheus' text form."""

FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)  # seconds
BETWEEN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)


class Meters:
    """Gauges say what is, counters what has been; a histogram counts how often it took up to so long."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        here = {"registry": self.registry}
        self.running = Gauge("pod_requests_running", "Requests in the batch", **here)
        self.waiting = Gauge("pod_requests_waiting", "Requests that wait for a place or for pages", **here)
        self.pages = Gauge("pod_pages", "Pages of the cache", **here)
        self.used = Gauge("pod_pages_used", "Pages that requests hold", **here)
        self.requests = Counter("pod_requests", "Requests that ended, by reason", ["reason"], **here)
        self.read = Counter("pod_prompt_tokens", "Tokens of prompts computed, once more after a preemption", **here)
        self.made = Counter("pod_generated_tokens", "Tokens of answers", **here)
        self.preempted = Counter("pod_preemptions", "Requests sent back to wait, as pages ran out", **here)
        self.first = Histogram("pod_first_token_seconds", "From request to first token", buckets=FIRST, **here)
        self.between = Histogram("pod_between_tokens_seconds", "From token to token", buckets=BETWEEN, **here)

    def look(self, scheduler) -> None:
        pool = scheduler.pool
        self.running.set(len(scheduler.running))
        self.waiting.set(len(scheduler.waiting))
        self.pages.set(pool.num_blocks)
        self.used.set(pool.num_blocks - len(pool.free))

    def text(self) -> str:
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()
