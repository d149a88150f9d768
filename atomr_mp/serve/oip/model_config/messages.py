"""Triton's ModelConfig, as its published protocol has it. Pure, except that the class needs the package protobuf."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from atomr_mp.serve.oip.model_config.declaration import file_of

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

FILE: Final = "model_config.proto"

PACKAGE: Final = "inference"

MESSAGES: Final = """
ModelRateLimiter: ModelRateLimiter.Resource* resources 1, uint32 priority 2
ModelRateLimiter.Resource: string name 1, bool global 2, uint32 count 3
ModelInstanceGroup: string name 1, ModelInstanceGroup.Kind kind 4, int32 count 2, ModelRateLimiter rate_limiter 6,
    int32* gpus 3, ModelInstanceGroup.SecondaryDevice* secondary_devices 8, string* profile 5, bool passive 7,
    string host_policy 9
ModelInstanceGroup.SecondaryDevice: ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind kind 1, int64 device_id 2
ModelTensorReshape: int64* shape 1
ModelInput: string name 1, DataType data_type 2, ModelInput.Format format 3, int64* dims 4,
    ModelTensorReshape reshape 5, bool is_shape_tensor 6, bool allow_ragged_batch 7, bool optional 8,
    bool is_non_linear_format_io 9
ModelOutput: string name 1, DataType data_type 2, int64* dims 3, ModelTensorReshape reshape 5,
    string label_filename 4, bool is_shape_tensor 6, bool is_non_linear_format_io 7
BatchInput: BatchInput.Kind kind 1, string* target_name 2, DataType data_type 3, string* source_input 4
BatchOutput: string* target_name 1, BatchOutput.Kind kind 2, string* source_input 3
ModelVersionPolicy: ModelVersionPolicy.Latest latest 1 |policy_choice, ModelVersionPolicy.All all 2 |policy_choice,
    ModelVersionPolicy.Specific specific 3 |policy_choice
ModelVersionPolicy.Latest: uint32 num_versions 1
ModelVersionPolicy.All:
ModelVersionPolicy.Specific: int64* versions 1
ModelOptimizationPolicy: ModelOptimizationPolicy.Graph graph 1, ModelOptimizationPolicy.ModelPriority priority 2,
    ModelOptimizationPolicy.Cuda cuda 3, ModelOptimizationPolicy.ExecutionAccelerators execution_accelerators 4,
    ModelOptimizationPolicy.PinnedMemoryBuffer input_pinned_memory 5,
    ModelOptimizationPolicy.PinnedMemoryBuffer output_pinned_memory 6, uint32 gather_kernel_buffer_threshold 7,
    bool eager_batching 8
ModelOptimizationPolicy.Graph: int32 level 1
ModelOptimizationPolicy.Cuda: bool graphs 1, bool busy_wait_events 2,
    ModelOptimizationPolicy.Cuda.GraphSpec* graph_spec 3, bool output_copy_stream 4
ModelOptimizationPolicy.Cuda.GraphSpec: int32 batch_size 1, {ModelOptimizationPolicy.Cuda.GraphSpec.Shape} input 2,
    ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound graph_lower_bound 3
ModelOptimizationPolicy.Cuda.GraphSpec.Shape: int64* dim 1
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound: int32 batch_size 1,
    {ModelOptimizationPolicy.Cuda.GraphSpec.Shape} input 2
ModelOptimizationPolicy.ExecutionAccelerators:
    ModelOptimizationPolicy.ExecutionAccelerators.Accelerator* gpu_execution_accelerator 1,
    ModelOptimizationPolicy.ExecutionAccelerators.Accelerator* cpu_execution_accelerator 2
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator: string name 1, {string} parameters 2
ModelOptimizationPolicy.PinnedMemoryBuffer: bool enable 1
ModelQueuePolicy: ModelQueuePolicy.TimeoutAction timeout_action 1, uint64 default_timeout_microseconds 2,
    bool allow_timeout_override 3, uint32 max_queue_size 4
ModelDynamicBatching: int32* preferred_batch_size 1, uint64 max_queue_delay_microseconds 2, bool preserve_ordering 3,
    uint64 priority_levels 4, uint64 default_priority_level 5, ModelQueuePolicy default_queue_policy 6,
    {uint64:ModelQueuePolicy} priority_queue_policy 7
ModelSequenceBatching: ModelSequenceBatching.StrategyDirect direct 3 |strategy_choice,
    ModelSequenceBatching.StrategyOldest oldest 4 |strategy_choice, uint64 max_sequence_idle_microseconds 1,
    ModelSequenceBatching.ControlInput* control_input 2, ModelSequenceBatching.State* state 5,
    bool iterative_sequence 6
ModelSequenceBatching.Control: ModelSequenceBatching.Control.Kind kind 1, int32* int32_false_true 2,
    float* fp32_false_true 3, bool* bool_false_true 5, DataType data_type 4
ModelSequenceBatching.ControlInput: string name 1, ModelSequenceBatching.Control* control 2
ModelSequenceBatching.InitialState: DataType data_type 1, int64* dims 2, bool zero_data 3 |state_data,
    string data_file 4 |state_data, string name 5
ModelSequenceBatching.State: string input_name 1, string output_name 2, DataType data_type 3, int64* dims 4,
    ModelSequenceBatching.InitialState* initial_state 5, bool use_same_buffer_for_input_output 6,
    bool use_growable_memory 7
ModelSequenceBatching.StrategyDirect: uint64 max_queue_delay_microseconds 1, float minimum_slot_utilization 2
ModelSequenceBatching.StrategyOldest: int32 max_candidate_sequences 1, int32* preferred_batch_size 2,
    uint64 max_queue_delay_microseconds 3, bool preserve_ordering 4
ModelEnsembling: ModelEnsembling.Step* step 1, uint32 max_inflight_requests 2
ModelEnsembling.Step: string model_name 1, int64 model_version 2, {string} input_map 3, {string} output_map 4,
    string model_namespace 5
ModelParameter: string string_value 1
ModelWarmup: string name 1, uint32 batch_size 2, {ModelWarmup.Input} inputs 3, uint32 count 4
ModelWarmup.Input: DataType data_type 1, int64* dims 2, bool zero_data 3 |input_data_type,
    bool random_data 4 |input_data_type, string input_data_file 5 |input_data_type
ModelOperations: string* op_library_filename 1
ModelTransactionPolicy: bool decoupled 1
ModelRepositoryAgents: ModelRepositoryAgents.Agent* agents 1
ModelRepositoryAgents.Agent: string name 1, {string} parameters 2
ModelResponseCache: bool enable 1
ModelMetrics: ModelMetrics.MetricControl* metric_control 1
ModelMetrics.MetricControl: ModelMetrics.MetricControl.MetricIdentifier metric_identifier 1,
    ModelMetrics.MetricControl.HistogramOptions histogram_options 2 |metric_options
ModelMetrics.MetricControl.MetricIdentifier: string family 1
ModelMetrics.MetricControl.HistogramOptions: double* buckets 1
ModelConfig: string name 1, string platform 2, string backend 17, string runtime 25,
    ModelVersionPolicy version_policy 3, int32 max_batch_size 4, ModelInput* input 5, ModelOutput* output 6,
    BatchInput* batch_input 20, BatchOutput* batch_output 21, ModelOptimizationPolicy optimization 12,
    ModelDynamicBatching dynamic_batching 11 |scheduling_choice,
    ModelSequenceBatching sequence_batching 13 |scheduling_choice,
    ModelEnsembling ensemble_scheduling 15 |scheduling_choice, ModelInstanceGroup* instance_group 7,
    string default_model_filename 8, {string} cc_model_filenames 9, {string} metric_tags 10,
    {ModelParameter} parameters 14, ModelWarmup* model_warmup 16, ModelOperations model_operations 18,
    ModelTransactionPolicy model_transaction_policy 19, ModelRepositoryAgents model_repository_agents 23,
    ModelResponseCache response_cache 24, ModelMetrics model_metrics 26
"""
"""The messages, as `declaration.py` has them."""

ENUMS: Final[dict[str, tuple[str, ...]]] = {
    "ModelInstanceGroup.Kind": (
        "KIND_AUTO",
        "KIND_GPU",
        "KIND_CPU",
        "KIND_MODEL",
    ),
    "ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind": ("KIND_NVDLA",),
    "ModelInput.Format": (
        "FORMAT_NONE",
        "FORMAT_NHWC",
        "FORMAT_NCHW",
    ),
    "BatchInput.Kind": (
        "BATCH_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "BATCH_ITEM_SHAPE",
        "BATCH_ITEM_SHAPE_FLATTEN",
    ),
    "BatchOutput.Kind": ("BATCH_SCATTER_WITH_INPUT_SHAPE",),
    "ModelOptimizationPolicy.ModelPriority": (
        "PRIORITY_DEFAULT",
        "PRIORITY_MAX",
        "PRIORITY_MIN",
    ),
    "ModelQueuePolicy.TimeoutAction": (
        "REJECT",
        "DELAY",
    ),
    "ModelSequenceBatching.Control.Kind": (
        "CONTROL_SEQUENCE_START",
        "CONTROL_SEQUENCE_READY",
        "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    ),
    "DataType": (
        "TYPE_INVALID",
        "TYPE_BOOL",
        "TYPE_UINT8",
        "TYPE_UINT16",
        "TYPE_UINT32",
        "TYPE_UINT64",
        "TYPE_INT8",
        "TYPE_INT16",
        "TYPE_INT32",
        "TYPE_INT64",
        "TYPE_FP16",
        "TYPE_FP32",
        "TYPE_FP64",
        "TYPE_STRING",
        "TYPE_BF16",
    ),
}
"""The names of the enums' values, which count from 0."""


def file() -> FileDescriptorProto:
    """Return the file's description."""
    return file_of(FILE, PACKAGE, MESSAGES, ENUMS)


@functools.cache
def message_class() -> Any:
    """Return the class ModelConfig, in a pool of its own: a client library may have its namesake in the common one."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ModelConfig"))
