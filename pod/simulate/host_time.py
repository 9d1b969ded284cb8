"""How long a GPU waits for an engine's Python: schedule, prepare, sample, process the outputs, tell the workers.

Two profiles of Vidur (microsoft/vidur, data/profiling/a100/cpu_overheads.csv, MIT), some months of one engine apart, as
straight lines over the batch size, for one GPU and for two or more. They are fitted to Llama-2-7B, but May's for more
GPUs to CodeLlama-34B, as it has no smaller one. In January's a request of CodeLlama-34B's took longer: preparing it
three times as long, and taking its output half as long again (its context is four times Llama-2's, and its tokenizer is
another; the profile does not say which of them it was). How much longer is fitted on one GPU, and holds for more. May's
has no such difference. At 90 requests on two GPUs the two are 9 ms apart.
"""

LINES = {  # seconds a batch and seconds a request: one GPU, two or more
    "vidur-2024-01": ((1.29e-3, 0.106e-3), (3.80e-3, 0.191e-3)),
    "vidur-2024-05": ((0.99e-3, 0.048e-3), (7.68e-3, 0.044e-3)),
}
LONGER = {("vidur-2024-01", "codellama-34b"): 1.56}  # a request of this model over one of all others
HOSTS = (*LINES, "none")


def seconds(host: str, tp: int, requests: int, model: str = "") -> float:
    if host == "none":
        return 0.0
    fixed, each = LINES[host][tp > 1]
    return fixed + each * requests * LONGER.get((host, model), 1.0)
