"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""

CHAPTERS = {  # of whose exercises the modules here are
    "start_here": ("start_here",),
    "online_softmax": ("online_softmax",),
    "tiling": ("tiling",),
    "two_phases": ("two_phases",),
    "waves": ("waves",),
    "concurrent_execution": ("concurrent_execution",),
    "sm_aware_scheduling": ("sm_aware_scheduling",),
    "pod_kernel": ("swizzle", "binding", "pod_kernel"),
    "attention_results": ("attention_results",),
    "gpu_model": ("gpu_model",),
    "lean_attention": ("lean_attention",),
    "continuous_batching": ("continuous_batching",),
    "chunked_prefill": ("chunked_prefill",),
    "serving_engine": ("serving_engine",),
    "end_to_end": ("end_to_end", "trusting_a_simulator"),
    "profiling_an_engine": ("profiling_an_engine",),
    "pod_on_hopper": ("pod_on_hopper", "hopper_ring", "hopper_parts", "hopper_roofs"),
    "first_kernels": ("first_kernels",),
    "joules": ("joules",),
}
