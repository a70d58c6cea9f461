"""Types of the compiled module (csrc/bindings.cpp). Addresses are integers; 0 is null."""

from collections.abc import Sequence

class ThreadPool:
    def __init__(self, count: int, cpus: Sequence[int]) -> None: ...
    @property
    def size(self) -> int: ...

class Matrix:
    rows: int
    cols: int
    nbytes: int
    any_quantised: bool
    @property
    def address(self) -> int: ...

class Program:
    @property
    def num_calls(self) -> int: ...
    def run(self) -> None: ...
    def profile(self) -> list[tuple[str, int]]: ...

class Cache:
    def __init__(
        self, pool: int, block_bytes: int, offset: int, block_table: int, max_blocks: int, dtype: str
    ) -> None: ...

class ExpertTables:
    def __init__(
        self,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        gate_up_bias: Sequence[int],
        down_bias: Sequence[int],
    ) -> None: ...

class Executor:
    def __init__(self, pool: ThreadPool, kernels: str) -> None: ...
    @property
    def kernels(self) -> str: ...
    def begin_recording(self) -> None: ...
    def end_recording(self) -> Program: ...
    def embed(
        self, rows: int, ids: int, weight: Matrix, out: int, scale: float, accumulate: bool
    ) -> None: ...
    def linear(
        self,
        rows: int,
        x: int,
        row_index: int,
        weight: Matrix,
        norm: int,
        bias: int,
        out: int,
        eps: float,
        softcap: float,
        act: str,
        accumulate: bool,
        capacity: int,
        name: str,
        norm_bias: int,
        centre: bool,
        gated: bool,
        scale: float,
        variants: Sequence[str],
    ) -> None: ...
    def rms_norm(
        self,
        rows: int,
        x: int,
        weight: int,
        out: int,
        width: int,
        eps: float,
        accumulate: bool,
        bias: int,
        centre: bool,
    ) -> None: ...
    def rope_table(
        self, rows: int, positions: int, inv_freq: int, out: int, rotary_dim: int, scale: float
    ) -> None: ...
    def rope_store(
        self,
        rows: int,
        positions: int,
        token_req: int,
        rope: int,
        qkv: int,
        q_norm: int,
        k_norm: int,
        cache: Cache,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        eps: float,
        whole_norm: bool,
    ) -> None: ...
    def attention(
        self,
        rows: int,
        num_reqs: int,
        positions: int,
        query_start: int,
        qkv: int,
        out: int,
        cache: Cache,
        qkv_width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
        scale: float,
        softcap: float,
        sinks: int,
        slopes: int,
    ) -> None: ...
    def route(
        self,
        rows: int,
        logits: int,
        bias: int,
        ids: int,
        weights: int,
        num_experts: int,
        top_k: int,
        shared: int,
        num_groups: int,
        top_groups: int,
        scoring: str,
        group_sum: bool,
        renormalise: bool,
        shared_gate: bool,
        scale: float,
    ) -> None: ...
    def experts(
        self,
        rows: int,
        x: int,
        ids: int,
        weights: int,
        tables: ExpertTables,
        out: int,
        per_token: int,
        hidden: int,
        act: str,
        weigh_input: bool,
        capacity: int,
    ) -> None: ...
    def dense(self, weight: Matrix, out: int) -> None: ...

def pack(
    pool: ThreadPool, formats: Sequence[str], rows: Sequence[int], cols: int, data: Sequence[int]
) -> Matrix: ...
def view_tiles(
    formats: Sequence[str], rows: Sequence[int], cols: int, tiles: int, bytes: int, owner: object
) -> Matrix: ...
def formats() -> list[tuple[str, int]]: ...
def available_kernels() -> list[str]: ...
def self_check(kernels: str) -> str: ...
def measure_read_bandwidth(pool: ThreadPool, kernels: str, bytes: int) -> float: ...
def measure_fp32(pool: ThreadPool, kernels: str) -> float: ...
def measure_int8(pool: ThreadPool, kernels: str) -> float: ...
def argmax(x: int, rows: int, n: int, stride: int, out: int) -> None: ...
