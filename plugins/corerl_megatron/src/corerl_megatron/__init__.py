"""Training strategy ``megatron``: models spread by tensor, pipeline, context and expert parallelism (megatron-core)."""

import warnings

# said by each rank when it is imported: that packages are missing which CoreRL does not need
warnings.filterwarnings("ignore", r"\s*(Transformer Engine|Apex|The 'megatron|full scope)", module=r"megatron\.core")
