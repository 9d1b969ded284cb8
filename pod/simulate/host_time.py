"""How long a GPU waits for an engine's Python: schedule, prepare, sample, process the outputs, tell the workers.

Two profiles of Vidur (microsoft/vidur, data/profiling/a100/cpu_overheads.csv, MIT), some months of one engine apart, as
straight lines over the batch size, for one GPU and for two or more. They are fitted to Llama-2-7B, but May's for more
GPUs to CodeLlama-34B, as it has no smaller one. In January's a request of CodeLlama-34B's took longer: preparing it
three times as long, and taking its output half as long again (its context is four times Llama-2's, and its tokenizer is
another; the profile does not say which of them it was). How much longer is fitted on one GPU, and holds for more. May's
has no such difference. Nor has it the other one: in January's a request takes longer for each GPU more, as if the
engine told its workers one by one (a guess), fitted to Llama-2-7B on two and four. Nobody profiled more than four, so
more are as four. At 90 requests on two GPUs the two profiles are 8 ms apart.
"""

LINES = {  # seconds a batch and seconds a request: one GPU, two or more
    "vidur-2024-01": ((1.29e-3, 0.106e-3), (3.74e-3, 0.178e-3)),
    "vidur-2024-05": ((0.99e-3, 0.048e-3), (7.68e-3, 0.044e-3)),
}
WORKER, PROFILED = {"vidur-2024-01": 19.4e-6}, 4  # seconds a request for each GPU beyond two, up to so many GPUs
LONGER = {("vidur-2024-01", "codellama-34b"): 1.56}  # a request of this model over one of all others
HOSTS = (*LINES, "none")


def seconds(host: str, tp: int, requests: int, model: str = "") -> float:
    if host == "none":
        return 0.0
    fixed, each = LINES[host][tp > 1]
    each += WORKER.get(host, 0.0) * max(0, min(tp, PROFILED) - 2)
    return fixed + each * requests * LONGER.get((host, model), 1.0)
