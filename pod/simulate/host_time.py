"""How long a GPU waits for an engine's Python: schedule, prepare, sample, process the outputs, tell the workers.

Two profiles of Vidur (microsoft/vidur, data/profiling/a100/cpu_overheads.csv, MIT), some months of one engine apart, as
straight lines over the batch size, for one GPU and for two or more. They are fitted to Llama-2-7B, but May's for more
GPUs to CodeLlama-34B, as it has no smaller one. May's holds for models that it was not fitted to; January's does not
for CodeLlama-34B, whose batches took a third longer (data/judged.csv). At 90 requests on two GPUs they are 9 ms apart.
"""

LINES = {  # seconds a batch and seconds a request: one GPU, two or more
    "vidur-2024-01": ((1.29e-3, 0.106e-3), (3.80e-3, 0.191e-3)),
    "vidur-2024-05": ((0.99e-3, 0.048e-3), (7.68e-3, 0.044e-3)),
}
HOSTS = (*LINES, "none")


def seconds(host: str, tp: int, requests: int) -> float:
    if host == "none":
        return 0.0
    fixed, each = LINES[host][tp > 1]
    return fixed + each * requests
