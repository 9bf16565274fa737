"""What every key of a kernel file means, and what holds where a file leaves it out: the comments of a new file.

`iosim.kernel.libraries.catalog_file` says which values each may have.
"""

from __future__ import annotations

WHAT = {
    "schema": "version of this format",
    "name": "your kernel's name in results; none of the catalog's",
    "title": "what it is, in a line",
    "algorithm": "what its launches move and compute (iosim kernels list)",
    "source": "where this was taken from",
    "inferred": "what nobody published: every prediction repeats it",
    "assumed": "what is taken without a source: every prediction repeats it",
    "rules": "what the library decides at launch: splits, packing, sections",
    "any_tile": "whether tiles by hand are its purpose",
}
"""Of the file."""
REQUIRES = {
    "takes": "biases, masks, pages, packed sequences it has a place for",
    "one_score_tensor": "whether a bias and a mask share one tensor",
    "min_cc": "first compute capability",
    "max_cc": "last compute capability",
    "dtypes": "types of Q, K and V",
    "dtype_min_cc": "first compute capability of a type",
    "head_dims": "widths it is compiled for; others run on the next one",
    "max_head_dim": "any width up to this",
    "widths": "the widths of Q, K and of V, where they differ",
    "rows_need_keys": "whether every query must have a key",
    "dropout": "whether it has dropout (true without this)",
    "passes": "fwd, bwd, fwd+bwd",
    "latent_only": "whether K and V are one latent cache",
    "page_multiple": "pages of a cache are multiples of so many rows",
    "page_sizes": "rows of a page",
}
"""Of [requires]: what the kernel runs, and where."""
KERNEL = {
    "matrix_unit": "fma, mma.sync, wgmma or tcgen05",
    "specialisation": "none; producer: some warps only load; ping-pong: and the others take turns",
    "producer_warps": "warps that load, of a ping-pong kernel",
    "loads_ahead": "whether a step's K and V are fetched during the step before",
    "q_in": "shared or registers: where products take Q from",
    "p_in": "registers or shared: where P waits for the second product",
    "rereads_q": "whether Q is fetched again at every key block",
    "score_operations": "instructions a score beside those of every softmax",
    "order": "query: blocks fastest, then heads; head: heads fastest; batch: blocks, batch, heads",
    "start": "light-first, heavy-first or fold: which blocks start first",
    "section_heads": "heads of a section of the grid; 0: none",
    "direction": "of the key loop",
    "scheduler": "static: a CTA a tile; persistent: tiles in turn; dynamic: tiles from a counter",
    "persistent_ctas_per_sm": "CTAs an SM of a persistent or dynamic grid",
    "claims_ahead": "whether a CTA claims its next tile as it begins one",
    "overlaps_tiles": "whether a CTA begins its next tile while it ends one",
    "cluster": "CTAs that fetch K and V once for all of them (multicast)",
    "writes_lse": "whether the log-sum-exp of every row is written",
    "edge_q": "rows moved of a ragged block of queries: exact, whole, needed",
    "edge_k": "the same of keys",
    "packs_group": "whether query heads that share keys share a tile, when decoding",
    "threads": "threads a CTA, where not 32 x warps",
    "registers": "registers a thread (cuobjdump -res-usage); estimated without",
    "shared_memory_bytes": "bytes a CTA; from the tile without",
    "stages": "key/value buffers",
    "sm_spread": "share by which SMs differ in speed",
    "cta_shares": "name in the table of measured shares of CTAs on one SM",
    "tile_rule": "which tiles by hand are refused",
    "options": "of the algorithm",
}
"""Of [kernel]: how the forward runs."""
UNSAID = {
    "specialisation": '"none"', "loads_ahead": "true", "q_in": '"shared"', "p_in": '"registers"', "rereads_q": "false",
    "score_operations": "0", "order": '"query"', "start": '"light-first"', "section_heads": "0",
    "direction": '"ascending"', "scheduler": '"static"', "cluster": "1", "stages": "1", "claims_ahead": "false",
    "overlaps_tiles": "false",
}  # fmt: skip
"""Of [kernel], what holds where a file does not say it; of other keys it follows from the rest."""
ROW = {
    "head_dim": "up to this width",
    "cc": "on these compute capabilities",
    "cc_below": "below this one",
    "causal": "with a mask, or without",
    "window": "with a window, or without",
    "dropout": "with dropout, or without",
    "dtype": "of these types",
    "paged": "with a paged cache, or without",
    "max_rows": "up to so many query rows of a group",
    "min_shared_memory_per_block_bytes": "where a CTA may have so much",
    "split": "of a kernel that splits the keys",
    "whole_tiles": "where lengths are whole tiles",
    "block_q": "query rows",
    "block_k": "key rows",
    "warps": "warps a CTA, producers with them",
    "stages": "key/value buffers",
    "threads": "threads a CTA",
    "registers": "registers a thread",
    "shared_memory_bytes": "bytes a CTA",
    "edge_k": "rows moved of a ragged block of keys",
    "write_per_tile": "bytes of spilled registers a thread writes a work tile",
    "write_per_pair": "and a visited key block",
    "read_per_tile": "bytes it reads that miss L1, a work tile",
    "read_per_pair": "and a visited key block",
    "accesses_per_pair": "loads and stores of them a visited key block",
    "accesses_per_tile": "the same a work tile, outside its loop",
    "frame": "bytes of a thread's stack frame",
    "source": "where it was counted",
    "name": "of what is moved beside the tensors",
    "mode": "load, store or reduce",
    "per_cta": "bytes a CTA",
    "per_tile": "bytes a work tile",
    "per_pair": "bytes a visited key block",
    "per_tile_fetch": "bytes a tile fetched from a queue",
}
"""Of a row of tiles, spills or further bytes."""
CONFIGURATIONS = {
    "block_q": "query rows",
    "block_k": "key rows",
    "stages": "buffers",
    "warps": "warps",
    "eight_warps_from": "scores of a tile from which eight warps are tried",
}
TABLES = {
    "requires": "What it runs, and where.",
    "kernel": "How the forward runs.",
    "backward": "How the backward runs, where it has one.",
    "tile": "Tiles: the first row whose conditions hold is taken.",
    "split_tile": "Tiles of the kernel that splits the keys.",
    "backward_tile": "Tiles of the backward.",
    "spill": "Spilled registers, by the same conditions.",
    "backward_spill": "Those of the backward.",
    "overhead": "What it moves beside its tensors.",
    "backward_overhead": "The same of the backward.",
    "configurations": "What is tuned over.",
}
