"""The built-in shims, one module each, imported only when they are needed."""

from __future__ import annotations

__all__ = ["KEYS"]

#: Keys in the order in which ``apply_all()`` takes them; each names its module here.
KEYS: tuple[str, ...] = (
    "sac_profiler",
    "sac_fsdp_ops",
    "dtensor_alias",
    "dtensor_pointwise_ops",
    "dtensor_dim_ops",
    "dtensor_optimizer_ops",
    "register_op_strategy",
    "fsdp_recompute_cast",
    "fsdp_uniform_reduce_dtype",
    "fsdp_accumulated_grad_guard",
    "fsdp_unused_params",
    "gloo_reduce_scatter_avg",
    "clip_grad_mixed_mesh",
    "dcp_async_process_race",
    "slice_scatter_grad",
    "cumsum_fill_dtype",
    "compiler_is_exporting",
    "ldexp_overflow",
    "layer_norm_double_backward",
    "autocast_no_grad_cache",
    "lr_scheduler_verbose",
    "sampler_data_source",
    "fully_shard_path",
    "symbolic_shapes_names",
    "export_for_training",
    "load_weights_only",
    "load_weights_only_off",
    "onnx_internal_paths",
    "tf32_mixed_api",
    "isin_bf16",
    "is_exporting_missing",
    "profiler_use_cuda",
    "dynamo_removed_config",
    "quantize_pt2e",
    "hub_trust_prompt",
    "fp8_saturate",
    "rms_norm_dtype",
)
