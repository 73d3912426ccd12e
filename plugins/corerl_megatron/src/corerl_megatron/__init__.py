"""Training strategy ``megatron``: models spread by tensor, pipeline, context and expert parallelism (megatron-core)."""

import warnings

# each rank warns on import about missing packages that CoreRL does not need
warnings.filterwarnings("ignore", r"\s*(Transformer Engine|Apex|The 'megatron|full scope)", module=r"megatron\.core")
