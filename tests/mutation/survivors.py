"""Automatic mutants that live, each with the reason. A line that changes, or one that is killed, is an error."""

from __future__ import annotations

from typing import NamedTuple


class Survivor(NamedTuple):
    """line: as the mutant has it; reason: why nothing can tell it from the original on a CPU."""

    line: str
    reason: str


SURVIVORS: dict[str, Survivor] = {
    "kernels._reciprocal_sqrt.always1": Survivor(
        "if True:  # dtype == tl.float64",
        "the interpreter divides and takes roots correctly rounded in either branch; a GPU does not",
    ),
    "kernels._load_weight.constant1": Survivor(
        'return tl.load(w_ptr + cols, mask=col_mask, other=1.0, eviction_policy="evict_last")',
        "beyond the last column w meets zeros of dY or is not stored",
    ),
    "kernels.rms_norm_forward_kernel.arithmetic2": Survivor(
        "N_CHUNKS: tl.constexpr = (n_cols + BLOCK_COLS + 1) // BLOCK_COLS",
        "a chunk more lies wholly beyond the last column",
    ),
    "kernels.rms_norm_forward_kernel.option1": Survivor(
        "for chunk in tl.range(N_HELD, N_CHUNKS):",
        "num_stages tells the compiler how to pipeline: results are the same",
    ),
    "kernels.rms_norm_forward_kernel.constant5": Survivor(
        "for chunk in tl.range(N_HELD, N_CHUNKS, num_stages=2):",
        "num_stages tells the compiler how to pipeline: results are the same",
    ),
    "kernels.rms_norm_forward_kernel.constant8": Survivor(
        "for reverse_chunk in tl.range(0, N_CHUNKS - N_HELD, num_stages=2):",
        "num_stages tells the compiler how to pipeline: results are the same",
    ),
    "kernels.rms_norm_backward_kernel.always1": Survivor(
        'EVICTION: tl.constexpr = "evict_first" if True else ""  # NUM_STAGES > 1',
        "an eviction policy tells the caches what to keep: results are the same",
    ),
    "kernels.rms_norm_backward_kernel.constant2": Survivor(
        'EVICTION: tl.constexpr = "evict_first" if NUM_STAGES > 2 else ""',
        "an eviction policy tells the caches what to keep: results are the same",
    ),
    "kernels.rms_norm_backward_kernel.always3": Survivor(
        "if True:  # NEEDS_DW", "partial sums that nobody needs stay zero and are not stored"
    ),
    "kernels.rms_norm_backward_kernel.option1": Survivor(
        "for tile in tl.range(program, tl.cdiv(n_rows, BLOCK_ROWS), tl.num_programs(0)):",
        "num_stages tells the compiler how to pipeline: results are the same",
    ),
    "split_kernels.module.constant1": Survivor(
        "EMPTY_32 = tl.constexpr(2147475118)", "any pattern of a NaN can say that a slot is empty"
    ),
    "split_kernels.module.constant2": Survivor(
        "EMPTY_64 = tl.constexpr(9223335398636248750)", "any pattern of a NaN can say that a slot is empty"
    ),
    "split_kernels.rms_norm_backward_split_kernel.always8": Survivor(
        "if True:  # RELOAD_ROWS", "rows that are read again are the same rows"
    ),
    "plans.module.constant2": Survivor(
        "INTERPRETER = Processors(count=4, shared_memory=97 * 1024, cooperative=True)",
        "the interpreter stands for a GPU that does not exist: any number will do",
    ),
    "plans.module.constant5": Survivor(
        "remember = functools.lru_cache(maxsize=4097, typed=True)", "the size of a cache"
    ),
    "launch._launch_split.constant8": Survivor(
        "plans.split_variant(*settings, publishes=True, collects=True).launch(n_programs, tensors, integers)",
        "what is published again has the same bits",
    ),
    "launch._launch_split.constant4": Survivor(
        "lead = tensors[1]", "the second tensor is x, on the device of the first"
    ),
    "variant._key.comparison3": Survivor(
        "narrow = [-0x80000000 < integer < 0x80000000 for integer in integers]",
        "no stride and no number of rows is -2^31",
    ),
    "tiles._backward_tiles.comparison1": Survivor(
        "while num_stages >= 1 and (num_stages - 1) * tile_bytes + 2048 > processors.shared_memory:",
        "with one stage nothing is in flight",
    ),
    "variant.Variant.resident_programs.constant2": Survivor(
        "compiled = self._kernel.warmup(*tensors, *integers, *self._constants, grid=(2,), **self._options)",
        "what is only compiled has no grid",
    ),
    "variant._key.comparison2": Survivor(
        "aligned = [pointer is not None and pointer % 16 != 0 for pointer in pointers]",
        "it says of the same tensors that they are not what it said that they are; which are None is the variant's",
    ),
    "variant._key.constant3": Survivor(
        "narrow = [-2147483649 <= integer < 0x80000000 for integer in integers]",
        "no stride and no number of rows is -2^31 - 1",
    ),
    "variant._resident_programs.constant1": Survivor(
        "warp_registers = -(-registers * properties.warp_size // 257) * 256",
        "the quotients differ from 257 registers a thread on, and there are 255",
    ),
    "rounding.module.constant6": Survivor(
        "NO_ROUNDING = Rounding(np.longdouble(0), np.longdouble(0), np.longdouble(1))",
        "where nothing is rounded nothing vanishes: below the smallest normal number its floor of 0 decides",
    ),
    "tolerances._dw_bound.constant22": Survivor(
        "rstd = enclosure.rstd(model, x, eps, truth.forward.rstd.reshape(-2, 1), e)",
        "NumPy takes any one negative size for the one that follows from the others",
    ),
    "verdict._in_float32.condition2": Survivor(
        'single = replace(case, dtype="float32", weight="float32" if not (case.w_dtype == "float64") else case.weight)',
        "a comparison takes W from the inputs, not from the cell",
    ),
    "levels.find.constant1": Survivor(
        "nearest = difflib.get_close_matches(case_id, by_id, n=2, cutoff=0)", "the first of two is the first of one"
    ),
    "pairwise.covering_set.pair.comparison1": Survivor(
        "return (first, second) if order[first[0]] <= order[second[0]] else (second, first)",
        "two values of one axis never make a pair",
    ),
    "pairwise.covering_set.constant2": Survivor(
        "gain = {v: (name, v) not in hiding and 2 + sum(p in missing for p in pairs[v]) for v in fitting}",
        "any number above the 0 of a hiding choice, the same for all others, leaves the order as it is",
    ),
    "plans.row_stride.constant5": Survivor("expected = 1", "it is set with the first stride and read after it"),
    "levels._small_covering.constant1": Survivor(
        "elements = max(ELEMENTS, min(columns) * min(filter(None, rows), default=2))",
        "where no rows but 0 are claimed, a cell has 0 elements",
    ),
    "levels.module.constant63": Survivor("ELEMENTS = 4201", "no product of claimed rows and columns is 4,201, a prime"),
    "repetition.observe.arithmetic2": Survivor(
        "arguments.refill(_each(inputs, lambda x: -x, lambda dy: 2 + dy))", "any other dY will do in between"
    ),
    "verdict.check.comparison6": Survivor(
        "if any(m.median_ratio >= 1 for m in verdict.measures.values()) and "
        "_in_float32(case, inputs, outputs, profile):",
        "a float64 cell that was computed in float32 has a median of thousands of bounds, not of one",
    ),
    "tiles.with_half_the_warps.constant1": Survivor(
        "threads_a_row = config.block_cols * itemsize // 17", "of powers of two the comparison is the same"
    ),
    "tiles._chunk_cols.constant1": Survivor(
        'least = 33 * entry["num_warps"] * 16 // itemsize', "of powers of two the comparison is the same"
    ),
    "plans.backward_plan.constant4": Survivor(
        "return BackwardPlan(copies, variant, None, 1, integers, n_programs)", "few rows have no partial rows"
    ),
    "plans.module.arithmetic1": Survivor(
        "INTERPRETER = Processors(count=4, shared_memory=96 + 1024, cooperative=True)",
        "the interpreter stands for a GPU that does not exist: any number will do",
    ),
    "plans.row_stride.constant8": Survivor(
        "for dimension_size, dimension_stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=False):",
        "a tensor has as many strides as sizes",
    ),
    "kernels.rms_norm_backward_kernel.arithmetic2": Survivor(
        "N_CHUNKS: tl.constexpr = (n_cols + BLOCK_COLS + 1) // BLOCK_COLS", "a chunk beyond the row is masked"
    ),
    "kernels.rms_norm_backward_kernel.condition1": Survivor(
        'EVICTION: tl.constexpr = "evict_first" if not (NUM_STAGES > 1) else ""', "a hint to the caches"
    ),
    "kernels.rms_norm_forward_kernel.condition2": Survivor(
        'HELD_EVICTION: tl.constexpr = "" if not (HOLDS_ALL) else "evict_first"', "a hint to the caches"
    ),
    "kernels.rms_norm_forward_kernel.always6": Survivor(
        "if True:  # not HOLDS_ALL", "where all chunks are held the loop has none"
    ),
    "split_kernels._collect.option4": Survivor(
        "while tl.max((bits == EMPTY).to(tl.int32)) != 0:", "the slots have one axis"
    ),
    "split_kernels._load_slice.option3": Survivor(
        "return tl.load(ptr + row * row_steps * STRIDE_ALIGN + cols, mask=mask, other=0.0)", "a hint to the caches"
    ),
    "split_kernels.rms_norm_backward_split_kernel.always5": Survivor(
        "if True:  # PUBLISHES", "what is published again has the same bits"
    ),
    "split_kernels.rms_norm_backward_split_kernel.option1": Survivor(
        "for tile in tl.range(group, n_rows, n_groups):", "how many rows are in flight, which only a clock sees"
    ),
    "pairwise.covering_set.constant3": Survivor(
        "used[name, row[name]] += 2", "all counts are doubled, and only compared with each other"
    ),
    "tolerances._dx_bound.constant12": Survivor(
        "freedom = freedom * ((1 + e) ** 3 * (1 + 17 * model.compute.unit))",
        "the enclosure's width changes in its 24th bit: no draw has a midpoint of two 16-bit numbers there",
    ),
    "tolerances._dx_bound.arithmetic23": Survivor(
        "freedom = freedom * ((1 + e) ** 3 * (1 - 16 * model.compute.unit))",
        "the enclosure's width changes in its 19th bit: no draw has a midpoint of two 16-bit numbers there",
    ),
    "tolerances._rstd_error.comparison1": Survivor(
        "fits = np.maximum(squares.max(-1, keepdims=True), variance + error) < held.max * (1 - held.unit_roundoff)",
        "no square is just the largest number less half a unit in its last place",
    ),
    "tolerances._rstd_error.arithmetic21": Survivor(
        "fits = np.maximum(squares.max(-1, keepdims=True), variance + error) <= held.max + (1 - held.unit_roundoff)",
        "no square lies within half a unit in the last place of the largest number",
    ),
    "verdict.reference_results.boolean1": Survivor(
        "if r is None and ds is None:", "inputs have both of them or neither"
    ),
    "comparison.Comparison._values.constant2": Survivor(
        'yield self._at(_largest(np.where(outside, self.bound.ratio(self.got), -2)), "value", message, outside)',
        "every ratio is above either",
    ),
    "split_kernels.rms_norm_backward_split_kernel.always3": Survivor(
        "if True:  # NEEDS_DW", "partial sums that nobody needs are made and not kept"
    ),
    "split_kernels.rms_norm_backward_split_kernel.always9": Survivor(
        "if True:  # not RELOAD_ROWS", "rows that were kept are read again"
    ),
    "split_kernels.rms_norm_backward_split_kernel.always11": Survivor(
        "if True:  # RELOAD_ROWS", "rows that are read again are the same rows"
    ),
    "repetition._last_row.constant1": Survivor(
        "return values.reshape(-2)[-math.prod(shape) :].reshape(shape)",
        "NumPy takes any one negative size for the one that follows from the others",
    ),
    "tolerances._rstd_error.comparison2": Survivor(
        "fits &= squares.sum(-1, keepdims=True) + total_error < FLOATS[model.compute_dtype].max",
        "no sum of squares and its error is just the largest number",
    ),
    "verdict._in_float32.comparison3": Survivor(
        'single = replace(case, dtype="float32", weight="float32" if case.w_dtype != "float64" else case.weight)',
        "a comparison takes W from the inputs, not from the cell",
    ),
    "profile.Profile._unclaimed_changes.comparison3": Survivor(
        "if self.columns_multiple_of >= 1:", "one column more is a multiple of 1, so the cell is claimed and left out"
    ),
    "profile.Profile._unclaimed_changes.constant4": Survivor(
        "shapes = {1: (columns,), 2: (3, columns), 3: (2, 2, columns), 4: (1, 2, 2, columns)}",
        "any number of rows asks for the rank",
    ),
}
