"""Which peers there are, what each claims, and whether it is installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import Any

from references.candidates.profile import Profile
from references.cells.cell import Case

SINGLE = ("float16", "bfloat16", "float32")  # float64 input would be computed in float32
ALL = (*SINGLE, "float64")


@dataclass(frozen=True)
class Peer:
    """One implementation of somebody else's.

    What is claimed is what its documentation or its source says of itself; where neither says anything of rounding,
    `casting_modes` is empty and the peer is judged in the mode that its bits are nearest to.
    """

    name: str
    title: str  # the name that its users know
    adapters: str  # the module of this package that has the adapter
    library: str  # what must be importable
    distributions: tuple[str, ...]  # whose versions matter
    casting_modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = SINGLE
    weights: tuple[str, ...] = ("same", "none")
    offsets: tuple[float, ...] | None = (0.0,)  # None: any
    needs_gpu: bool = False
    compiles: bool = False  # anew for every shape, which takes seconds: judged on the large cells alone
    residual: bool = False  # (y, s) of x and r

    def load(self) -> Any:
        """The adapter. Raises ImportError, in one line, where the library or a part of it is absent."""
        try:
            adapters = importlib.import_module(f"references.peers.{self.adapters}")
            importlib.import_module(self.library)
        except Exception as error:  # a broken installation raises what it likes
            reason = " ".join(str(error).split())
            raise ImportError(f"{self.distributions[0]} is not installed here ({reason})") from error
        return getattr(adapters, self.name)

    def missing(self, device: str) -> str | None:
        """Why the peer cannot run here, or None."""
        if self.needs_gpu and device != "cuda":
            return "needs a GPU"
        try:
            self.load()
        except ImportError as error:
            return str(error)
        return None

    @property
    def versions(self) -> dict[str, str]:
        """Of the installed ones among its distributions."""
        found = {}
        for name in self.distributions:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    @property
    def claims(self) -> str:
        """One line for people."""
        modes = " and ".join(self.casting_modes) or "no rounding points documented"
        residual = "; with a residual" if self.residual else ""
        offsets = "any offset" if self.offsets is None else f"offset {', '.join(f'{o:g}' for o in self.offsets)}"
        return f"{modes}; {', '.join(self.dtypes)}; {offsets}; weight {', '.join(self.weights)}{residual}"

    def admits(self, case: Case) -> bool:
        """Whether the case lies within the claims; the casting mode is the caller's business."""
        claims: dict[str, Any] = {"dtypes": self.dtypes, "weights": self.weights, "residual": [self.residual]}
        if self.offsets is not None and case.w_dtype is not None:
            claims["offsets"] = self.offsets
        return Profile().with_claims(claims).unclaimed(case) is None


TORCH, TRITON, HF = "torch", "triton", "transformers"
EVERY_WEIGHT = ("same", "float32", "none")

_PEERS = (
    Peer("torch_functional", "torch F.rms_norm", "torch_peers", "torch", (TORCH,), dtypes=ALL),
    Peer("torch_module", "torch.nn.RMSNorm", "torch_peers", "torch", (TORCH,), dtypes=ALL),
    Peer(
        "hf_llama",
        "transformers LlamaRMSNorm",
        "torch_peers",
        "transformers.models.llama.modeling_llama",
        (HF, TORCH),
        ("llama",),
        weights=("same",),
    ),
    Peer(
        "hf_llama_compiled",
        "torch.compile of LlamaRMSNorm",
        "torch_peers",
        "transformers.models.llama.modeling_llama",
        (TORCH, TRITON, HF),
        ("llama",),
        weights=("same",),
        compiles=True,
    ),
    Peer(
        "hf_gemma",
        "transformers GemmaRMSNorm",
        "torch_peers",
        "transformers.models.gemma.modeling_gemma",
        (HF, TORCH),
        ("gemma",),
        weights=("same",),
        offsets=(1.0,),
    ),
    Peer(
        "hf_gemma4",
        "transformers Gemma4RMSNorm",
        "torch_peers",
        "transformers.models.gemma4.modeling_gemma4",
        (HF, TORCH),
        ("gemma",),
    ),
    Peer(
        "hf_llama4_l2",
        "transformers Llama4TextL2Norm",
        "torch_peers",
        "transformers.models.llama4.modeling_llama4",
        (HF, TORCH),
        ("gemma",),
        weights=("none",),
    ),
    Peer(
        "liger_kernel",
        "liger-kernel",
        "torch_peers",
        "liger_kernel.ops",
        ("liger-kernel", TRITON, TORCH),
        ("llama", "gemma", "none"),
        weights=EVERY_WEIGHT,
        offsets=None,
        needs_gpu=True,  # the interpreter hands its kernel plain floats, which have no `.to`
    ),
    Peer(
        "fla",
        "flash-linear-attention RMSNorm",
        "torch_peers",
        "fla.modules",
        ("fla-core", TRITON, TORCH),
        needs_gpu=True,
    ),
    Peer(
        "quack",
        "quack rmsnorm",
        "torch_peers",
        "quack.rmsnorm",
        ("quack-kernels", "nvidia-cutlass-dsl", TORCH),
        weights=("same", "float32"),
        offsets=None,
        needs_gpu=True,
        compiles=True,
    ),
    Peer("torch_add", "x + r, then torch F.rms_norm", "torch_peers", "torch", (TORCH,), dtypes=ALL, residual=True),
    Peer(
        "torch_add_compiled",
        "torch.compile of x + r, then F.rms_norm",
        "torch_peers",
        "torch",
        (TORCH, TRITON),
        dtypes=ALL,
        compiles=True,
        residual=True,
    ),
    Peer(
        "liger_kernel_add",
        "liger-kernel LigerFusedAddRMSNorm",
        "torch_peers",
        "liger_kernel.ops.fused_add_rms_norm",
        ("liger-kernel", TRITON, TORCH),
        ("llama", "gemma", "none"),
        weights=("same", "float32"),
        offsets=None,
        needs_gpu=True,
        residual=True,
    ),
    Peer(
        "quack_add",
        "quack rmsnorm with a residual",
        "torch_peers",
        "quack.rmsnorm",
        ("quack-kernels", "nvidia-cutlass-dsl", TORCH),
        weights=("same", "float32"),
        offsets=None,
        needs_gpu=True,
        compiles=True,
        residual=True,
    ),
    Peer(
        "flax_linen",
        "flax.linen.RMSNorm",
        "jax_peers",
        "flax.linen",
        ("flax", "jax"),
        dtypes=ALL,
        weights=EVERY_WEIGHT,
    ),
    Peer("flax_nnx", "flax.nnx.RMSNorm", "jax_peers", "flax.nnx", ("flax", "jax"), dtypes=ALL, weights=EVERY_WEIGHT),
    Peer("haiku", "haiku.RMSNorm", "jax_peers", "haiku", ("dm-haiku", "jax"), dtypes=ALL),
    Peer("equinox", "equinox.nn.RMSNorm", "jax_peers", "equinox", ("equinox", "jax"), dtypes=ALL, weights=EVERY_WEIGHT),
    Peer(
        "keras",
        "keras.layers.RMSNormalization",
        "jax_peers",
        "keras",
        ("keras", "jax"),
        dtypes=ALL,
        weights=("same",),
    ),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _PEERS}
