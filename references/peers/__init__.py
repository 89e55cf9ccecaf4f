"""Other people's RMSNorms behind the judge's door: `rmsnorm-verify check references.peers:hf_llama`.

Each is a small function with the usual argument names in `torch_peers.py` or `jax_peers.py`; `registry.py` says what
each claims. A library is imported when one of its adapters is asked for, and nothing here needs any of them.
"""

from __future__ import annotations

from typing import Any

from references.peers import registry


def __getattr__(name: str) -> Any:
    """The adapter of that name. Raises ImportError where its library is absent, AttributeError for a typo."""
    peer = registry.PEERS.get(name)
    if peer is None:
        raise AttributeError(f"no peer {name!r}; there are {', '.join(registry.PEERS)}")
    return peer.load()
