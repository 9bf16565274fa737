"""What iosim does not model, by the names under which it is asked for: a refusal names the page that says more.

The page is docs/scope.md; a test holds its headings to these titles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PAGE = "docs/scope.md"


@dataclass(frozen=True)
class Topic:
    """One thing out of scope, with patterns of the names that ask for it, in lower case and without punctuation."""

    title: str
    GPU: str = ""
    kernel: str = ""
    dtype: str = ""
    option: str = ""


TOPICS = (
    Topic("GPUs of other vendors, and other accelerators",
          GPU=r"(amd|instinct|radeon|intel|gaudi|hpu|xpu|apple|tpu|trn|trainium|inferentia|ascend|mlu|cerebras|groq|ipu).*"
          r"|mi\d{2,3}[a-z]*|rx\d+.*|gfx\d+.*|arc[ab]?\d+.*|m[1-5](pro|max|ultra)?|v[2-7][ep]|cpu"),
    Topic("GPUs before Volta", GPU=r"[kpm]\d{1,3}|(nvidia|tesla)[kpm]\d{1,3}.*|(geforce)?gtx.*|titan(x|xp)?"),
    Topic("Sparse attention that picks its keys",
          kernel=r"(nsa|dsa|moba|quest|seer|minference|flexprefill|xattention|sparge|nativesparse|lightningindexer).*"
          "|sparseattention|indexer|topk",
          option=r"(index)?topk|indexer|nsa|dsa|sparsity"),
    Topic("Linear attention and state spaces",
          kernel=r"(mamba|ssm|ssd|rwkv|retnet|gla|gateddelta|delta|kda|linear|lightningattention|hyena).*"),
    Topic("Attention sinks and caps on scores",
          option=r"(num|attention|learned)?sinks?(tokens|size)?|(attn)?(logits?)?softcap(ping)?|logitcap"),
    Topic("Positions and norms of queries and keys", option=r"rope\w*|rotary\w*|qknorm|positions?|relativebias"),
    Topic("Types below 8 bits, integers and caches of a type of their own",
          kernel=r"sage.*|.*(int8|int4|fp4).*", dtype=r"(nv|mx)?fp[46]\w*|mxfp8|u?int\d+|nf4",
          option=r"(kv|cache|kvcache)(dtype|bits|type)|quanti[sz](e|ation)"),
    Topic("Kernels that nobody has described",
          kernel=r"(trtllm|tensorrt|aiter|composablekernel|thunderkittens|pallas|mosaic|leanattention|nki).*|ck|tk"),
    Topic("Prefixes that sequences share, and trees of tokens",
          kernel=r"(cascade|tree|hydragen|medusa|eagle).*",
          option=r"(shared|common|cached)prefix|cascade|tree(mask|size|width)?|draft\w*|speculat\w*|numdrafttokens"),
    Topic("Other parallelism and what GPUs exchange beside attention",
          option=r"(pipeline|expert|data|sequence)parallel(size)?|[ped]p(size)?|allreduce|nccl"),
    Topic("Memory outside the GPU, and sharing a GPU",
          option=r"(cpu|kv)?offload\w*|swap\w*|mig|mps|streams?|unifiedmemory"),
    Topic("The host, and all that is not attention",
          option=r"host\w*|python\w*|mlp|ffn|projections?|embeddings?|price|costs?"),
)  # fmt: skip


def out_of_scope(kind: str, name: str) -> str:
    """A clause on why iosim has no `name`; empty where that is not known.

    Args:
        kind: "GPU", "kernel", "dtype" or "option".
    """
    plain = re.sub(r"[\W_]", "", name.lower())
    for topic in TOPICS:
        pattern = getattr(topic, kind, "")
        if pattern and re.fullmatch(pattern, plain):
            title = topic.title if topic.title[1].isupper() else topic.title[0].lower() + topic.title[1:]
            return f"out of scope: {title} ({PAGE})"
    return ""
