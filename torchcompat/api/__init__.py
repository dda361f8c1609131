"""Names of torch, from wherever the installed build has them.

    from torchcompat.api import MixedPrecisionPolicy, fully_shard, is_exporting

Each name of the table in rows.py is the object that this build of torch has, at whichever of
its places it has been; where it has none, a backport; and where there is none of those either,
an error that says since when torch has the name. No torch is edited, and none is imported
before the first name is used. Nothing is kept here either, so a name looked up as
``torchcompat.api.name`` is always what torch has at that moment, shims included.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torch import (
        get_autocast_dtype,
        set_autocast_dtype,
        sym_sum,
    )
    from torch.accelerator import (
        current_accelerator,
    )
    from torch.accelerator import (
        current_stream as accelerator_current_stream,
    )
    from torch.accelerator import (
        device_count as accelerator_device_count,
    )
    from torch.accelerator import (
        empty_cache as accelerator_empty_cache,
    )
    from torch.accelerator import (
        is_available as accelerator_is_available,
    )
    from torch.accelerator import (
        max_memory_allocated as accelerator_max_memory_allocated,
    )
    from torch.accelerator import (
        memory_allocated as accelerator_memory_allocated,
    )
    from torch.accelerator import (
        memory_stats as accelerator_memory_stats,
    )
    from torch.accelerator import (
        set_device_index as accelerator_set_device_index,
    )
    from torch.accelerator import (
        set_stream as accelerator_set_stream,
    )
    from torch.accelerator import (
        synchronize as accelerator_synchronize,
    )
    from torch.amp import (
        GradScaler,
        custom_bwd,
        custom_fwd,
        is_autocast_available,
    )
    from torch.compiler import (
        is_compiling,
        is_dynamo_compiling,
        is_exporting,
        load_cache_artifacts,
        nested_compile_region,
        save_cache_artifacts,
        set_stance,
        substitute_in_graph,
    )
    from torch.distributed import (
        get_node_local_rank,
    )
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )
    from torch.distributed.checkpoint import (  # type: ignore[attr-defined, unused-ignore]
        HuggingFaceStorageReader,
        HuggingFaceStorageWriter,
    )
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )
    from torch.distributed.checkpoint.state_dict_saver import (
        AsyncCheckpointerType,
    )
    from torch.distributed.device_mesh import (
        DeviceMesh,
        init_device_mesh,
    )
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        DataParallelMeshDims,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        UnshardHandle,
        fully_shard,
        register_fsdp_forward_method,
        share_comm_ctx,
    )
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleDualPipeV,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleZBVZeroBubble,
    )
    from torch.distributed.pipelining.schedules import (
        get_schedule_class,
    )
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Placement,
        Replicate,
        Shard,
        distribute_module,
        distribute_tensor,
    )
    from torch.distributed.tensor._dtensor_spec import (
        DTensorSpec,
        TensorMeta,
    )
    from torch.distributed.tensor._op_schema import (
        OpSchema,
        OpSpec,
        OpStrategy,
        RuntimeSchemaInfo,
        TupleStrategy,
    )
    from torch.distributed.tensor._ops.utils import (
        register_op_strategy,
    )
    from torch.distributed.tensor.experimental import (
        context_parallel,
        implicit_replication,
        local_map,
        register_sharding,
    )
    from torch.distributed.tensor.experimental._attention import (
        context_parallel_unshard,
        set_rotate_method,
    )
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        PrepareModuleInputOutput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )
    from torch.export import (
        AdditionalInputs,
        Dim,
        draft_export,
    )
    from torch.fx.experimental.symbolic_shapes import (
        guard_or_false,
        guard_or_true,
        guard_size_oblivious,
        statically_known_true,
        sym_and,
        sym_eq,
        sym_or,
    )
    from torch.fx.traceback import (
        annotate,
    )
    from torch.library import (
        custom_op,
        infer_schema,
        register_autocast,
        register_autograd,
        register_fake,
        register_kernel,
        register_torch_dispatch,
        register_vmap,
        triton_op,
        wrap_triton,
    )
    from torch.nn import (
        Buffer,
        RMSNorm,
    )
    from torch.nn.attention import (
        SDPBackend,
        sdpa_kernel,
    )
    from torch.nn.attention.flex_attention import (
        AuxOutput,
        AuxRequest,
        BlockMask,
        create_block_mask,
        flex_attention,
    )
    from torch.nn.attention.varlen import (
        varlen_attn,
    )
    from torch.nn.functional import (
        grouped_mm,
        linear_cross_entropy,
        rms_norm,
        scaled_mm,
    )
    from torch.nn.utils import (
        clip_grads_with_norm_,
        get_total_norm,
    )
    from torch.optim import (
        Adafactor,
        Muon,
    )
    from torch.serialization import (
        add_safe_globals,
        clear_safe_globals,
        get_safe_globals,
        get_unsafe_globals_in_checkpoint,
        safe_globals,
        skip_data,
    )
    from torch.utils import (
        swap_tensors,
    )
    from torch.utils.checkpoint import (
        SAC_IGNORED_OPS,
        CheckpointPolicy,
        create_selective_checkpoint_contexts,
        set_checkpoint_early_stop,
    )

__all__ = [
    "Adafactor",
    "AdditionalInputs",
    "AsyncCheckpointerType",
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "Buffer",
    "CPUOffloadPolicy",
    "CheckpointImpl",
    "CheckpointPolicy",
    "ColwiseParallel",
    "DTensor",
    "DTensorSpec",
    "DataParallelMeshDims",
    "DeviceMesh",
    "Dim",
    "FSDPModule",
    "GradScaler",
    "HuggingFaceStorageReader",
    "HuggingFaceStorageWriter",
    "MixedPrecisionPolicy",
    "Muon",
    "OffloadPolicy",
    "OpSchema",
    "OpSpec",
    "OpStrategy",
    "ParallelStyle",
    "Partial",
    "PipelineStage",
    "Placement",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RMSNorm",
    "Replicate",
    "RowwiseParallel",
    "RuntimeSchemaInfo",
    "SAC_IGNORED_OPS",
    "SDPBackend",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleZBVZeroBubble",
    "SequenceParallel",
    "Shard",
    "StateDictOptions",
    "TensorMeta",
    "TupleStrategy",
    "UnshardHandle",
    "accelerator_current_stream",
    "accelerator_device_count",
    "accelerator_empty_cache",
    "accelerator_is_available",
    "accelerator_max_memory_allocated",
    "accelerator_memory_allocated",
    "accelerator_memory_stats",
    "accelerator_set_device_index",
    "accelerator_set_stream",
    "accelerator_synchronize",
    "add_safe_globals",
    "annotate",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
    "clear_safe_globals",
    "clip_grads_with_norm_",
    "context_parallel",
    "context_parallel_unshard",
    "create_block_mask",
    "create_selective_checkpoint_contexts",
    "current_accelerator",
    "custom_bwd",
    "custom_fwd",
    "custom_op",
    "distribute_module",
    "distribute_tensor",
    "draft_export",
    "flex_attention",
    "fully_shard",
    "get_autocast_dtype",
    "get_model_state_dict",
    "get_node_local_rank",
    "get_optimizer_state_dict",
    "get_safe_globals",
    "get_schedule_class",
    "get_total_norm",
    "get_unsafe_globals_in_checkpoint",
    "grouped_mm",
    "guard_or_false",
    "guard_or_true",
    "guard_size_oblivious",
    "implicit_replication",
    "infer_schema",
    "init_device_mesh",
    "is_autocast_available",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "linear_cross_entropy",
    "load_cache_artifacts",
    "local_map",
    "loss_parallel",
    "nested_compile_region",
    "parallelize_module",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_fsdp_forward_method",
    "register_kernel",
    "register_op_strategy",
    "register_sharding",
    "register_torch_dispatch",
    "register_vmap",
    "rms_norm",
    "safe_globals",
    "save_cache_artifacts",
    "scaled_mm",
    "sdpa_kernel",
    "set_autocast_dtype",
    "set_checkpoint_early_stop",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_rotate_method",
    "set_stance",
    "share_comm_ctx",
    "skip_data",
    "statically_known_true",
    "substitute_in_graph",
    "swap_tensors",
    "sym_and",
    "sym_eq",
    "sym_or",
    "sym_sum",
    "triton_op",
    "varlen_attn",
    "wrap_triton",
]


def __getattr__(name: str) -> object:
    from .resolve import resolve

    return resolve(name, depth=1)


def __dir__() -> list[str]:
    return sorted(__all__)
