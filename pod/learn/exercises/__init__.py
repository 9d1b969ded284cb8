"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""

CHAPTERS = (  # the modules here
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
    "first_kernels",
)
