"""The environment variables that workers get from the controller, which may run on another machine."""

OF_LIBRARIES = (
    *("CORERL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "MODELSCOPE_", "TORCH", "PYTORCH_", "TRITON_", "OMP_", "MKL_"),
    *("KMP_", "CUBLAS_", "CUDNN_", "NVTE_", "FLASHINFER_", "FLASH_ATTENTION_", "DG_", "VLLM_", "SGLANG_", "SGL_"),
    *("MEGATRON_", "LMCACHE_", "MOONCAKE_", "NIXL_"),
)
OF_NETWORKS = (
    *(
        "NCCL_",
        "GLOO_",
        "TP_SOCKET_IFNAME",
        "NVSHMEM_",
        "UCX_",
        "UCC_",
        "FI_",
        "OFI_",
        "EFA_",
        "IBV_",
        "RDMAV_",
        "MLX4_",
    ),
    *("MLX5_", "PSM2_", "SHARP_"),
)
PREFIXES = (*OF_LIBRARIES, *OF_NETWORKS)
"""begins of names"""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy")
CERTIFICATES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("PIP_CERT", "GIT_SSL_CAINFO"),
)
CACHES = ("XDG_CACHE_HOME", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR")
DEVICES = (*("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE"),)
"""without CUDA_VISIBLE_DEVICES, which the runtime sets"""
NAMES = (*PROXIES, *CERTIFICATES, *CACHES, *DEVICES)


def is_carried(name: str) -> bool:
    """Whether workers get a variable of this name."""
    return name.startswith(PREFIXES) or name in NAMES
