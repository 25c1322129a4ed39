"""Passes: each makes one kernel of another, and none changes a bit of its results.

| file | what lives in it |
|---|---|
| `spell` | functions become plain instructions |
| `unfold` | loops over quotients and remainders become nested ones |
| `simplify` | folded indices, no loops of one step, no unused locals |
| `short` | reductions of a few points are written out, so that rows are lanes |
| `collapse` | nested loops that walk memory as one become one |
| `beside` | a few columns are reduced side by side |
| `split` | long reductions of few results become two kernels |
| `tally` | many updates of few integers become two kernels |
| `ranges` | updates of rows become tasks with a range of the rows each |
| `tile` | loops in the order memory likes; tiles where two orders meet |
| `search` | places of extreme elements are found in two runs |
| `parallelize` | the outermost loop, long enough to share between threads |
| `reduce` | reductions become loops; what a reduction is, bit for bit |
| `reduce_lanes` | a reduction whose points are lanes |
| `shown` | steps of a reduction that a mask hides |
| `positions` | masks that compare positions |
| `accumulate` | running values of reductions, and the tree that joins them |
| `chains` | long sums of products in pieces, and their sums added up |
| `contract` | products of matrices in blocks, and the plain form of others |
| `contract_match`, `contract_blocks` | which kernels are products; the sizes of blocks |
| `contract_reads` | how the vectors of a block read the left factor |
| `contract_registers` | the block of sums that registers hold |
| `contract_direct` | small products whose factors are read where they lie |
| `contract_frame`, `contract_pack` | the loops of blocked products; panels packed for them |
| `contract_sums`, `contract_tile` | sums in registers; one tile of a product |
| `contract_later` | what caches fetch meanwhile: next panels, what epilogues read |
| `contract_tasks`, `contract_shared` | tiles of a product; factors packed once for all |
| `contract_parted` | few rows: sums of pieces by one kernel, added up by another |
| `contract_pairs` | dots of vectors and of rows: pieces or rows are lanes |
| `contract_hidden`, `contract_words` | what masks leave out; short integers by the word |
| `tiles`, `tiles_cut`, `tiles_pack` | products by tiles or words; their blocks; panels packed |
| `convolve`, `convolve_blocks` | convolutions in tiles; the sizes of tiles and blocks |
| `convolve_frame` | loops of convolutions; the image under a tile, copied plane by plane |
| `convolve_places` | many places: features and neighbouring places in registers |
| `convolve_window` | few places under a large window, such as gradients of kernels |
| `blocks` | kernels for the blocks and threads of a GPU |
| `blocks_product`, `blocks_tile` | products in tiles, one for a block; what its threads do |
| `blocks_squares`, `blocks_slab` | tiles by small matrices; factors in shared memory |
| `blocks_groups` | tiles by matrices of four warps together |
| `blocks_woven`, `blocks_rows` | narrow attention as one kernel; reductions of rows in registers |
| `blocks_hidden` | slabs that masks hide from blocks |
| `blocks_turned` | elements read along another axis: squares through shared memory |
| `blocks_updates` | updates in order, shared out among threads |
| `cooperate` | one reduction by all threads of a block |
| `items` | runs over elements, shared out among threads; `Limits` |
| `share` | arrays in shared memory, or in scratch buffers |
| `points` | the points of a reduction, and what holds at one of them |
| `sink` | loops of columns move inside loops of rows |
| `vectorize` | steps of loops run as lanes of vectors |
| `pair` | two rows at a time where each is a chain of steps |
| `unroll` | short loops are written out |
| `ahead` | caches fetch what long loops will read |
"""
