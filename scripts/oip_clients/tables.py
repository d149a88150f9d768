"""Which of Triton's examples and tests have to pass, and why others do not. Each of both has to be there.

Tests that need a server of other options or a build for tests are in no table: those of basic authentication, client
plugins, sizes, chunks, `generate`, timeouts of calls other than inferences, implicit states and schedulers.
"""

from __future__ import annotations

from typing import Final

NOT_OFFERED: Final = "model control, shared memory of GPUs, traces and logs are not offered"
SEQUENCES: Final = "sequences are not offered"
NAME: Final = "asks for a server of the name triton"
WORDS: Final = "asks for the words of Triton's error; the same requests and codes are in tests/cases"
BUILD: Final = "needs Triton's log, delays or options"
NEWER: Final = "asks for a refusal of what Triton 2.51 took, and ours takes"
STRICT: Final = "asks for what is refused here, or for 500 of a client's mistake"
BOUND: Final = "goes beyond a documented bound"
OTHERS: Final = "counts a request that runs as one that waits"
TRIMMED: Final = "asks for a blank at the end of a header, which HTTP drops"

EXAMPLES: Final[dict[str, str]] = {
    **{
        f"simple_{name}.py": ""
        for name in (
            *("grpc_aio_infer_client", "grpc_async_infer_client", "grpc_custom_args_client", "grpc_custom_repeat"),
            *("grpc_infer_client", "grpc_keepalive_client", "grpc_string_infer_client", "http_aio_infer_client"),
            *("http_async_infer_client", "http_infer_client", "http_string_infer_client"),
        )
    },
    **{f"simple_{protocol}_{name}_client.py": "" for protocol in ("grpc", "http") for name in ("shm", "shm_string")},
    "simple_grpc_health_metadata.py": NAME,
    "simple_http_health_metadata.py": NAME,
    **{
        f"simple_{protocol}_{name}.py": NOT_OFFERED
        for protocol in ("grpc", "http")
        for name in ("cudashm_client", "model_control")
    },
    **{
        f"simple_{name}.py": SEQUENCES
        for name in (
            *("grpc_aio_sequence_stream_infer_client", "grpc_sequence_stream_infer_client"),
            *("grpc_sequence_sync_infer_client", "http_sequence_sync_infer_client"),
        )
    },
}
"""The examples of `src/python/examples`, each with the reason why it fails; empty if it has to pass."""

_OF_CALLS: Final = {
    **dict.fromkeys(
        (
            *("is_server_live", "is_server_ready", "is_model_ready", "get_model_metadata", "get_model_config"),
            *("get_inference_statistics", "get_system_shared_memory_status", "unregister_system_shared_memory"),
            *("get_cuda_shared_memory_status", "unregister_cuda_shared_memory"),
        ),
        "",
    ),
    "get_server_metadata": NAME,
    **dict.fromkeys(
        (
            *("get_model_repository_index", "load_model", "unload_model", "update_trace_settings"),
            "get_trace_settings",
        ),
        NOT_OFFERED,
    ),
}

_OF_CLASSES: Final = {
    "test_classificattion": "",
    "test_classificattion_unsupported_data_type": WORDS,
    "test_classification_output_tensor_too_large": NEWER,
}

TESTS: Final[dict[str, dict[str, str]]] = {
    "L0_http/http_test": {
        **dict.fromkeys(
            (
                *("test_raw_binary", "test_raw_binary_longer", "test_byte"),
                *("test_content_encoding_unsupported_client", "test_inference_header_content_length_out_of_range"),
            ),
            "",
        ),
        **dict.fromkeys(
            (
                *("test_byte_too_many_elements", "test_multi_variable_dimensions", "test_multi_inputs"),
                "test_buffer_size_overflow",
            ),
            WORDS,
        ),
        "test_content_encoding_chunked_manually": "sends two lengths of one body, by which requests are smuggled",
        "test_descriptive_status_code": OTHERS,
        "test_negative_dimensions": STRICT,
        "test_json_recursion_depth_limit": STRICT,
        "test_duplicate_output_names": NEWER,
        "test_load_oversized_file_parameter": NOT_OFFERED,
        "test_loading_large_invalid_model": NOT_OFFERED,
        "test_repository_index_deeply_nested_json": NOT_OFFERED,
    },
    "L0_http/python_http_aio_test": {
        f"test_{name}": why
        for name, why in (_OF_CALLS | {"register_system_shared_memory": "", "register_cuda_shared_memory": ""}).items()
    },
    "L0_grpc/python_grpc_aio_test": {
        f"test_{name}": why
        for name, why in (
            _OF_CALLS | {"register_system_shared_memory": NOT_OFFERED, "register_cuda_shared_memory": NOT_OFFERED}
        ).items()
    },
    "L0_grpc/python_unit_test": {
        "test_duplicate_output_names_rejected": NEWER,
        "test_bytes_contents_many_elements_serialization": BOUND,
        "test_sanity": "",
        **{f"test_{name}": BUILD for name in ("model_repository", "health", "infer", "stream_infer")},
    },
    "L0_input_validation/input_validation_test": {
        "test_input_validation_all_optional": "",
        **{
            f"test_input_validation_{name}": ""
            for name in ("required_empty", "optional_empty", "required_missing", "optional")
        },
        "test_input_shape_validation": WORDS,
        "test_input_string_shape_validation": WORDS,
        "test_wrong_input_shape_tensor_size": NOT_OFFERED,
        **{
            f"test_model_name_{name}": NOT_OFFERED
            for name in ("invalid_load", "empty_load", "whitespace_only_load", "valid")
        },
        "test_model_name_invalid_unload": "",
    },
    "L0_parameters/class_count_test CLIENT_TYPE=http": _OF_CLASSES,
    "L0_parameters/class_count_test CLIENT_TYPE=grpc": _OF_CLASSES,
    "L0_parameters/parameters_test": {
        "test_params": "",
        "test_params_reserved_rejected": WORDS,
        "test_headers": TRIMMED,
        "test_grpc_header_forward_pattern_case_sensitive": BUILD,
        "test_headers_reserved_rejected": NEWER,
    },
    "L0_client_timeout/client_infer_timeout_test": {
        f"test_{name}": ""
        for name in ("grpc_infer", "grpc_async_infer", "grpc_stream_infer", "http_infer", "http_async_infer")
    },
    "L0_request_cancellation/grpc_cancellation_test": {
        **{
            f"test_{name}": ""
            for name in ("grpc_async_infer", "grpc_stream_infer", "aio_grpc_async_infer", "aio_grpc_stream_infer")
        },
        **{
            f"test_grpc_async_infer_{name}": BUILD
            for name in (
                *("cancellation_at_step_start", "response_complete_during_cancellation"),
                *("cancellation_before_finish_0", "cancellation_before_finish_1"),
                "cancellation_before_response_complete_and_process_after_final_response",
            )
        },
    },
    "L0_string_io/string_client_test": {"test_unicode_bytes": ""},
}
"""The modules of `qa`, with their environment, and their tests, each with the reason why it fails."""

LARGE: Final[dict[str, dict[str, str]]] = {
    "L0_large_payload/large_payload_test": {
        "test_python": "",
        **{f"test_{name}": "is another backend's" for name in ("onnx", "plan", "libtorch", "custom")},
    },
}
"""Further ones, which take 20 GiB of memory."""

NOT_RUN: Final = frozenset({"test_loading_large_invalid_model"})
"""Tests that take very long or very much, for what is not offered."""
