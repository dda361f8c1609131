"""The table behind ``torchcompat.api``: each name, and where torch has had it.

It says what was measured on every release from 2.4.0 on; tests/shims/test_api.py holds each
torch of the matrix against it, in both directions. Resolving a name does not ask for the
version: the first of its homes that the build has is taken, so alphas and nightlies are fine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "TABLE", "Home", "Row"]


@dataclass(frozen=True, slots=True)
class Home:
    """One place that a name has, or had.

    Attributes:
        path: ``"module:attribute"``.
        since: the first release that has it, or ``""`` for every tested one.
        gone: the first later release that does not, or ``""``.
    """

    path: str
    since: str = ""
    gone: str = ""

    @property
    def module(self) -> str:
        """The module to import."""
        return self.path.partition(":")[0]

    @property
    def attribute(self) -> str:
        """The name in that module."""
        return self.path.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class Row:
    """One name of ``torchcompat.api``.

    Attributes:
        name: the name there.
        homes: where torch has it, the preferred place first.
        backport: whether torchcompat.api.backports has it for builds with none of the homes.
        instead: what to use on builds that have none, as the end of a sentence.
    """

    name: str
    homes: tuple[Home, ...]
    backport: bool = False
    instead: str = ""


def _same(names: str, *homes: tuple[str, str, str], instead: str = "") -> list[Row]:
    """Rows for names that moved together; each home is (module, since, gone)."""
    return [
        Row(
            name,
            tuple(Home(f"{module}:{name}", since, gone) for module, since, gone in homes),
            instead=instead,
        )
        for name in names.split()
    ]


def _one(
    name: str, path: str, since: str = "", *more: Home, backport: bool = False, instead: str = ""
) -> Row:
    return Row(name, (Home(path, since), *more), backport, instead)


_COMPOSABLE = "torch.distributed._composable.fsdp"
_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_TENSOR, _OLD_TENSOR = "torch.distributed.tensor", "torch.distributed._tensor"
_CHECKPOINT, _PIPELINING = "torch.distributed.checkpoint", "torch.distributed.pipelining"
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_FLEX = "torch.nn.attention.flex_attention"

ROWS: tuple[Row, ...] = (
    # FSDP2
    *_same(
        "CPUOffloadPolicy FSDPModule MixedPrecisionPolicy OffloadPolicy fully_shard "
        "register_fsdp_forward_method",
        ("torch.distributed.fsdp", "2.6.0", ""),
        (_COMPOSABLE, "", ""),
    ),
    _one("share_comm_ctx", "torch.distributed.fsdp:share_comm_ctx", "2.10.0"),
    _one(
        "UnshardHandle",
        "torch.distributed.fsdp:UnshardHandle",
        "2.6.0",
        Home(f"{_COMPOSABLE}.fully_shard:UnshardHandle"),
    ),
    _one("DataParallelMeshDims", "torch.distributed.fsdp:DataParallelMeshDims", "2.12.0"),
    # DTensor
    *_same(
        "DTensor Partial Placement Replicate Shard distribute_module distribute_tensor",
        (_TENSOR, "2.5.0", ""),
        (_OLD_TENSOR, "", ""),
    ),
    *_same(
        "implicit_replication local_map",
        (f"{_TENSOR}.experimental", "2.5.0", ""),
        (f"{_OLD_TENSOR}.experimental", "", ""),
    ),
    _one(
        "context_parallel",
        f"{_TENSOR}.experimental:context_parallel",
        "2.6.0",
        Home(f"{_TENSOR}.experimental._attention:context_parallel", "2.5.0"),
    ),
    *_same(
        "context_parallel_unshard set_rotate_method",
        (f"{_TENSOR}.experimental._attention", "2.6.0", ""),
    ),
    _one("register_sharding", f"{_TENSOR}.experimental:register_sharding", "2.5.0"),
    Row(
        "register_op_strategy",
        (
            Home(f"{_TENSOR}._ops.utils:register_op_strategy", "2.11.0"),
            Home(f"{_TENSOR}._ops.registration:register_op_strategy", "2.10.0", "2.11.0"),
            Home(f"{_TENSOR}._ops.utils:register_op_strategy", "2.5.0", "2.10.0"),
            Home(f"{_OLD_TENSOR}.ops.utils:register_op_strategy", "", "2.5.0"),
        ),
    ),
    *_same(
        "OpSchema OpStrategy RuntimeSchemaInfo TupleStrategy",
        (f"{_TENSOR}._op_schema", "2.5.0", ""),
        (f"{_OLD_TENSOR}._op_schema", "", "2.5.0"),
    ),
    Row(
        "OpSpec",
        (
            Home(f"{_TENSOR}._op_schema:OpSpec", "2.8.0"),
            Home(f"{_TENSOR}._op_schema:PlacementStrategy", "2.5.0", "2.8.0"),
            Home(f"{_OLD_TENSOR}._op_schema:PlacementStrategy", "", "2.5.0"),
        ),
    ),
    *_same(
        "DTensorSpec TensorMeta",
        (f"{_TENSOR}._dtensor_spec", "2.5.0", ""),
        (f"{_OLD_TENSOR}.placement_types", "", ""),
    ),
    *_same("DeviceMesh init_device_mesh", ("torch.distributed.device_mesh", "", "")),
    *_same(
        "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleOutput RowwiseParallel "
        "SequenceParallel loss_parallel parallelize_module",
        (f"{_TENSOR}.parallel", "", ""),
    ),
    _one(
        "PrepareModuleInputOutput",
        f"{_TENSOR}.parallel:PrepareModuleInputOutput",
        "2.8.0",
        instead="use PrepareModuleInput and PrepareModuleOutput",
    ),
    _one("get_node_local_rank", "torch.distributed:get_node_local_rank"),
    # Activation checkpointing
    *_same(
        "CheckpointPolicy SAC_IGNORED_OPS create_selective_checkpoint_contexts",
        ("torch.utils.checkpoint", "2.5.0", ""),
        instead="checkpoint whole modules",
    ),
    _one("set_checkpoint_early_stop", "torch.utils.checkpoint:set_checkpoint_early_stop"),
    *_same(
        "CheckpointImpl apply_activation_checkpointing checkpoint_wrapper",
        (_WRAPPER, "", ""),
    ),
    # Distributed checkpoints and pipelines
    *_same(
        "StateDictOptions get_model_state_dict get_optimizer_state_dict set_model_state_dict "
        "set_optimizer_state_dict",
        (f"{_CHECKPOINT}.state_dict", "", ""),
    ),
    *_same(
        "HuggingFaceStorageReader HuggingFaceStorageWriter",
        (_CHECKPOINT, "2.8.0", ""),
        instead="write safetensors files yourself",
    ),
    _one("AsyncCheckpointerType", f"{_CHECKPOINT}.state_dict_saver:AsyncCheckpointerType", "2.7.0"),
    *_same("PipelineStage Schedule1F1B ScheduleGPipe ScheduleInterleaved1F1B", (_PIPELINING, "", "")),
    _one("ScheduleZBVZeroBubble", f"{_PIPELINING}:ScheduleZBVZeroBubble", "2.6.0"),
    _one("ScheduleDualPipeV", f"{_PIPELINING}:ScheduleDualPipeV", "2.9.0"),
    _one("get_schedule_class", f"{_PIPELINING}.schedules:get_schedule_class", "2.5.0"),
    # Custom operators
    *_same("custom_op register_autograd register_fake register_kernel", ("torch.library", "", "")),
    *_same("infer_schema register_torch_dispatch register_vmap", ("torch.library", "2.5.0", "")),
    _one("register_autocast", "torch.library:register_autocast", "2.7.0"),
    _one("triton_op", "torch.library:triton_op", "2.6.0", Home("torch._library:triton_op", "2.5.0")),
    _one(
        "wrap_triton",
        "torch.library:wrap_triton",
        "2.6.0",
        Home("torch._library:capture_triton", "2.5.0"),
    ),
    # Saving and loading
    *_same("add_safe_globals clear_safe_globals get_safe_globals", ("torch.serialization", "", "")),
    _one("safe_globals", "torch.serialization:safe_globals", "2.5.0", backport=True),
    _one("skip_data", "torch.serialization:skip_data", "2.5.0"),
    _one(
        "get_unsafe_globals_in_checkpoint",
        "torch.serialization:get_unsafe_globals_in_checkpoint",
        "2.6.0",
    ),
    # Mixed precision
    *_same("GradScaler custom_bwd custom_fwd is_autocast_available", ("torch.amp", "", "")),
    *_same("get_autocast_dtype set_autocast_dtype", ("torch", "", "")),
    # Attention, layers, functions, optimizers
    *_same("SDPBackend sdpa_kernel", ("torch.nn.attention", "", "")),
    *_same(
        "BlockMask create_block_mask flex_attention",
        (_FLEX, "2.5.0", ""),
        instead="use torch.nn.functional.scaled_dot_product_attention with a mask",
    ),
    *_same("AuxOutput AuxRequest", (_FLEX, "2.9.0", ""), instead="pass return_lse=True"),
    _one("varlen_attn", "torch.nn.attention.varlen:varlen_attn", "2.10.0"),
    *_same("RMSNorm", ("torch.nn", "", "")),
    _one("Buffer", "torch.nn:Buffer", "2.5.0", instead="use Module.register_buffer"),
    *_same("rms_norm", ("torch.nn.functional", "", "")),
    *_same("grouped_mm scaled_mm", ("torch.nn.functional", "2.10.0", "")),
    _one("linear_cross_entropy", "torch.nn.functional:linear_cross_entropy", "2.13.0"),
    _one("Muon", "torch.optim:Muon", "2.9.0"),
    _one("Adafactor", "torch.optim:Adafactor", "2.5.0"),
    _one("get_total_norm", "torch.nn.utils:get_total_norm", "2.6.0", backport=True),
    _one("clip_grads_with_norm_", "torch.nn.utils:clip_grads_with_norm_", "2.6.0", backport=True),
    *_same("swap_tensors", ("torch.utils", "", "")),
    # torch.compile and torch.export
    *_same("is_compiling is_dynamo_compiling", ("torch.compiler", "", "")),
    _one("is_exporting", "torch.compiler:is_exporting", "2.7.0", backport=True),
    _one("set_stance", "torch.compiler:set_stance", "2.6.0", instead="use torch.compiler.disable"),
    _one("nested_compile_region", "torch.compiler:nested_compile_region", "2.8.0"),
    *_same("load_cache_artifacts save_cache_artifacts", ("torch.compiler", "2.7.0", "")),
    _one("substitute_in_graph", "torch.compiler:substitute_in_graph", "2.5.0"),
    _one("Dim", "torch.export:Dim"),
    _one(
        "draft_export",
        "torch.export:draft_export",
        "2.8.0",
        Home("torch.export._draft_export:draft_export", "2.6.0"),
    ),
    _one("AdditionalInputs", "torch.export:AdditionalInputs", "2.8.0"),
    _one("annotate", "torch.fx.traceback:annotate", "2.10.0"),
    *_same("guard_size_oblivious statically_known_true sym_eq", (_SHAPES, "", "")),
    *_same("guard_or_false guard_or_true", (_SHAPES, "2.8.0", ""), instead="use guard_size_oblivious"),
    _one("sym_and", f"{_SHAPES}:sym_and", "2.8.0", backport=True),
    _one("sym_or", f"{_SHAPES}:sym_or", "2.8.0", backport=True),
    _one("sym_sum", "torch:sym_sum", "2.6.0", backport=True),
    # Accelerators
    _one(
        "current_accelerator",
        "torch.accelerator:current_accelerator",
        "2.6.0",
        instead="ask torch.cuda, torch.xpu or torch.mps",
    ),
    *(
        Row(
            f"accelerator_{name}",
            (Home(f"torch.accelerator:{name}", since),),
            instead="ask torch.cuda, torch.xpu or torch.mps",
        )
        for since, names in (
            (
                "2.6.0",
                "current_stream device_count is_available set_device_index set_stream synchronize",
            ),
            ("2.9.0", "empty_cache max_memory_allocated memory_allocated memory_stats"),
        )
        for name in names.split()
    ),
)

TABLE: dict[str, Row] = {row.name: row for row in ROWS}
