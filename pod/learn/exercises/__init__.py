"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""

CHAPTERS = (  # the modules here
    "start_here",
    "online_softmax",
    "tiling",
    "two_phases",
    "waves",
    "concurrent_execution",
    "sm_aware_scheduling",
    "pod_kernel",
    "attention_results",
    "gpu_model",
    "lean_attention",
    "continuous_batching",
    "chunked_prefill",
    "serving_engine",
    "end_to_end",
    "profiling_an_engine",
    "pod_on_hopper",
    "first_kernels",
    "joules",
)
