"""The services and their messages, as the client libraries of Triton and KServe have them. Pure.

Messages are in the form that `model_config/declaration.py` describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from atomr_mp.serve.oip.model_config import messages as model_config
from atomr_mp.serve.oip.not_offered import NOT_OFFERED


class Rpc(NamedTuple):
    """A call of a service."""

    name: str
    request: str
    """Name of its message, in the service's package."""
    answer: str
    is_request_stream: bool = False
    is_answer_stream: bool = False


class ProtoFile(NamedTuple):
    """A file of messages and their service."""

    name: str
    package: str
    messages: str
    service: str
    rpcs: tuple[Rpc, ...]
    enums: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    needs: tuple[str, ...] = ()
    """Files whose messages it has."""

    @property
    def service_name(self) -> str:
        """The service's name with its package."""
        return f"{self.package}.{self.service}"


OFFERED: Final = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelStreamInfer",
    "ModelConfig", "ModelStatistics", "RepositoryIndex",
)  # fmt: skip
"""The calls that are answered."""

INFERENCE: Final = ProtoFile(
    "grpc_service.proto",
    "inference",
    """
ServerLiveRequest:
ServerLiveResponse: bool live 1
ServerReadyRequest:
ServerReadyResponse: bool ready 1
ModelReadyRequest: string name 1, string version 2
ModelReadyResponse: bool ready 1
ServerMetadataRequest:
ServerMetadataResponse: string name 1, string version 2, string* extensions 3
ModelMetadataRequest: string name 1, string version 2
ModelMetadataResponse: string name 1, string* versions 2, string platform 3,
    ModelMetadataResponse.TensorMetadata* inputs 4, ModelMetadataResponse.TensorMetadata* outputs 5
ModelMetadataResponse.TensorMetadata: string name 1, string datatype 2, int64* shape 3
InferParameter: bool bool_param 1 |parameter_choice, int64 int64_param 2 |parameter_choice,
    string string_param 3 |parameter_choice, double double_param 4 |parameter_choice,
    uint64 uint64_param 5 |parameter_choice
InferTensorContents: bool* bool_contents 1, int32* int_contents 2, int64* int64_contents 3, uint32* uint_contents 4,
    uint64* uint64_contents 5, float* fp32_contents 6, double* fp64_contents 7, bytes* bytes_contents 8
ModelInferRequest: string model_name 1, string model_version 2, string id 3, {InferParameter} parameters 4,
    ModelInferRequest.InferInputTensor* inputs 5, ModelInferRequest.InferRequestedOutputTensor* outputs 6,
    bytes* raw_input_contents 7
ModelInferRequest.InferInputTensor: string name 1, string datatype 2, int64* shape 3, {InferParameter} parameters 4,
    InferTensorContents contents 5
ModelInferRequest.InferRequestedOutputTensor: string name 1, {InferParameter} parameters 2
ModelInferResponse: string model_name 1, string model_version 2, string id 3, {InferParameter} parameters 4,
    ModelInferResponse.InferOutputTensor* outputs 5, bytes* raw_output_contents 6
ModelInferResponse.InferOutputTensor: string name 1, string datatype 2, int64* shape 3,
    {InferParameter} parameters 4, InferTensorContents contents 5
ModelStreamInferResponse: string error_message 1, ModelInferResponse infer_response 2
ModelConfigRequest: string name 1, string version 2
ModelConfigResponse: ModelConfig config 1
ModelStatisticsRequest: string name 1, string version 2
StatisticDuration: uint64 count 1, uint64 ns 2
InferStatistics: StatisticDuration success 1, StatisticDuration fail 2, StatisticDuration queue 3,
    StatisticDuration compute_input 4, StatisticDuration compute_infer 5, StatisticDuration compute_output 6,
    StatisticDuration cache_hit 7, StatisticDuration cache_miss 8
InferResponseStatistics: StatisticDuration compute_infer 1, StatisticDuration compute_output 2,
    StatisticDuration success 3, StatisticDuration fail 4, StatisticDuration empty_response 5,
    StatisticDuration cancel 6
InferBatchStatistics: uint64 batch_size 1, StatisticDuration compute_input 2, StatisticDuration compute_infer 3,
    StatisticDuration compute_output 4
MemoryUsage: string type 1, int64 id 2, uint64 byte_size 3
ModelStatistics: string name 1, string version 2, uint64 last_inference 3, uint64 inference_count 4,
    uint64 execution_count 5, InferStatistics inference_stats 6, InferBatchStatistics* batch_stats 7,
    MemoryUsage* memory_usage 8, {InferResponseStatistics} response_stats 9
ModelStatisticsResponse: ModelStatistics* model_stats 1
ModelRepositoryParameter: bool bool_param 1 |parameter_choice, int64 int64_param 2 |parameter_choice,
    string string_param 3 |parameter_choice, bytes bytes_param 4 |parameter_choice
RepositoryIndexRequest: string repository_name 1, bool ready 2
RepositoryIndexResponse: RepositoryIndexResponse.ModelIndex* models 1
RepositoryIndexResponse.ModelIndex: string name 1, string version 2, string state 3, string reason 4
RepositoryModelLoadRequest: string repository_name 1, string model_name 2, {ModelRepositoryParameter} parameters 3
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: string repository_name 1, string model_name 2, {ModelRepositoryParameter} parameters 3
RepositoryModelUnloadResponse:
SystemSharedMemoryStatusRequest: string name 1
SystemSharedMemoryStatusResponse: {SystemSharedMemoryStatusResponse.RegionStatus} regions 1
SystemSharedMemoryStatusResponse.RegionStatus: string name 1, string key 2, uint64 offset 3, uint64 byte_size 4
SystemSharedMemoryRegisterRequest: string name 1, string key 2, uint64 offset 3, uint64 byte_size 4
SystemSharedMemoryRegisterResponse:
SystemSharedMemoryUnregisterRequest: string name 1
SystemSharedMemoryUnregisterResponse:
CudaSharedMemoryStatusRequest: string name 1
CudaSharedMemoryStatusResponse: {CudaSharedMemoryStatusResponse.RegionStatus} regions 1
CudaSharedMemoryStatusResponse.RegionStatus: string name 1, uint64 device_id 2, uint64 byte_size 3
CudaSharedMemoryRegisterRequest: string name 1, bytes raw_handle 2, int64 device_id 3, uint64 byte_size 4
CudaSharedMemoryRegisterResponse:
CudaSharedMemoryUnregisterRequest: string name 1
CudaSharedMemoryUnregisterResponse:
TraceSettingRequest: {TraceSettingRequest.SettingValue} settings 1, string model_name 2
TraceSettingRequest.SettingValue: string* value 1
TraceSettingResponse: {TraceSettingResponse.SettingValue} settings 1
TraceSettingResponse.SettingValue: string* value 1
LogSettingsRequest: {LogSettingsRequest.SettingValue} settings 1
LogSettingsRequest.SettingValue: bool bool_param 1 |parameter_choice, uint32 uint32_param 2 |parameter_choice,
    string string_param 3 |parameter_choice
LogSettingsResponse: {LogSettingsResponse.SettingValue} settings 1
LogSettingsResponse.SettingValue: bool bool_param 1 |parameter_choice, uint32 uint32_param 2 |parameter_choice,
    string string_param 3 |parameter_choice
""",
    needs=(model_config.FILE,),
    service="GRPCInferenceService",
    rpcs=tuple(
        Rpc(
            name,
            "ModelInferRequest" if name == "ModelStreamInfer" else f"{name}Request",
            f"{name}Response",
            name == "ModelStreamInfer",
            name == "ModelStreamInfer",
        )
        for name in (*OFFERED, *NOT_OFFERED)
    ),
)

HEALTH: Final = ProtoFile(
    "grpc/health/v1/health.proto",
    "grpc.health.v1",
    """
HealthCheckRequest: string service 1
HealthCheckResponse: HealthCheckResponse.ServingStatus status 1
""",
    enums={"HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
    service="Health",
    rpcs=(
        Rpc("Check", "HealthCheckRequest", "HealthCheckResponse"),
        Rpc("Watch", "HealthCheckRequest", "HealthCheckResponse", is_answer_stream=True),
    ),
)


def _reflection(version: str) -> ProtoFile:
    """Return the service by which clients ask which services and messages there are."""
    return ProtoFile(
        f"grpc/reflection/{version}/reflection.proto",
        f"grpc.reflection.{version}",
        """
ServerReflectionRequest: string host 1, string file_by_filename 3 |message_request,
    string file_containing_symbol 4 |message_request, ExtensionRequest file_containing_extension 5 |message_request,
    string all_extension_numbers_of_type 6 |message_request, string list_services 7 |message_request
ExtensionRequest: string containing_type 1, int32 extension_number 2
ServerReflectionResponse: string valid_host 1, ServerReflectionRequest original_request 2,
    FileDescriptorResponse file_descriptor_response 4 |message_response,
    ExtensionNumberResponse all_extension_numbers_response 5 |message_response,
    ListServiceResponse list_services_response 6 |message_response, ErrorResponse error_response 7 |message_response
FileDescriptorResponse: bytes* file_descriptor_proto 1
ExtensionNumberResponse: string base_type_name 1, int32* extension_number 2
ListServiceResponse: ServiceResponse* service 1
ServiceResponse: string name 1
ErrorResponse: int32 error_code 1, string error_message 2
""",
        service="ServerReflection",
        rpcs=(
            Rpc(
                "ServerReflectionInfo",
                "ServerReflectionRequest",
                "ServerReflectionResponse",
                is_request_stream=True,
                is_answer_stream=True,
            ),
        ),
    )


REFLECTION: Final = _reflection("v1")
OLD_REFLECTION: Final = _reflection("v1alpha")

FILES: Final = (INFERENCE, HEALTH, REFLECTION, OLD_REFLECTION)
