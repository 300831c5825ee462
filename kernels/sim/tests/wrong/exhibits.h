/* exhibits.h - the catalogue. EXHIBIT(name, how many numbers `in` and `out` have, what the mended one computes, first
 * and last thread that may be found guilty, generation on which the wrong one runs, what the finding says besides). */

/* memory.cu */
EXHIBIT(past_end, 64, with_right, 63, 63, SIM_SM_80, "past")
EXHIBIT(gap, 256, copied, 0, 63, SIM_SM_80, "out")
EXHIBIT(input_written, 64, copied, 0, 63, SIM_SM_80, "in")
EXHIBIT(misaligned_load, 256, copied, 5, 5, SIM_SM_80, "16")
EXHIBIT(halo_not_cleared, 64, with_right, 63, 63, SIM_SM_80, "shared")
EXHIBIT(workspace_not_cleared, 64, doubled, 0, 63, SIM_SM_80, "work")
EXHIBIT(past_tile, 64, with_right, 63, 63, SIM_SM_80, "shared")
EXHIBIT(foreign_register, 64, first, 1, 63, SIM_SM_80, "register")
EXHIBIT(tail_not_written, 256, copied, 0, 0, SIM_SM_80, "out")

/* barrier.cu */
EXHIBIT(read_after_write, 64, mirrored_64, 0, 63, SIM_SM_80, "shared")
EXHIBIT(write_after_read, 256, mirrored_64, 0, 63, SIM_SM_80, "shared")
EXHIBIT(write_after_write, 64, even, 0, 63, SIM_SM_80, "shared")
EXHIBIT(race_of_ctas, 256, copied, 0, 63, SIM_SM_80, "work")
EXHIBIT(race_in_global, 64, mirrored_64, 0, 63, SIM_SM_80, "work")
EXHIBIT(race_in_warp, 32, mirrored_32, 0, 31, SIM_SM_80, "shared")
EXHIBIT(shuffle_by_half, 64, mirrored_32, 0, 63, SIM_SM_80, "lane")
EXHIBIT(shuffle_in_branches, 64, mirrored_32, 0, 63, SIM_SM_80, "lane")
EXHIBIT(barrier_by_half, 64, mirrored_64, 0, 63, SIM_SM_80, "")
EXHIBIT(named_barrier_count, 64, mirrored_64, 0, 63, SIM_SM_80, "96")
EXHIBIT(named_barrier_odd, 64, mirrored_64, 0, 63, SIM_SM_80, "48")
EXHIBIT(producer_never_arrives, 32, mirrored_32, 32, 63, SIM_SM_80, "wait")
EXHIBIT(crossed_barriers, 64, mirrored_64, 0, 63, SIM_SM_80, "wait")
EXHIBIT(arrival_left, 64, copied, 0, 63, SIM_SM_80, "barrier 3")

/* copy.cu */
EXHIBIT(copy_no_wait, 256, copied, 0, 63, SIM_SM_80, "cp.async")
EXHIBIT(copy_no_barrier, 256, mirrored_256, 0, 63, SIM_SM_80, "cp.async")
EXHIBIT(copy_wrong_group, 1024, mirrored_256, 0, 63, SIM_SM_80, "cp.async")
EXHIBIT(copy_over_tile, 1024, mirrored_256, 0, 63, SIM_SM_80, "cp.async")
EXHIBIT(copy_misaligned, 256, copied, 5, 5, SIM_SM_80, "16")
EXHIBIT(copy_past_end, 200, copied, 50, 63, SIM_SM_80, "in")

/* bulk.cu */
EXHIBIT(load_read_early, 256, copied, 0, 63, SIM_SM_90, "cp.async.bulk")
EXHIBIT(parity_not_turned, 128, mirrored_64, 0, 63, SIM_SM_90, "parity")
EXHIBIT(barrier_opens_early, 64, mirrored_64, 0, 63, SIM_SM_90, "shared")
EXHIBIT(arrivals_too_many, 64, mirrored_64, 0, 63, SIM_SM_90, "")
EXHIBIT(too_few_bytes_expected, 256, copied, 0, 63, SIM_SM_90, "bytes")
EXHIBIT(too_many_bytes_expected, 256, copied, 0, 63, SIM_SM_90, "wait")
EXHIBIT(ring_starts_full, 128, mirrored_32, 0, 63, SIM_SM_90, "wait")
EXHIBIT(released_too_soon, 128, mirrored_32, 0, 63, SIM_SM_90, "shared")
EXHIBIT(store_without_proxy_fence, 256, copied, 0, 0, SIM_SM_90, "fence")
EXHIBIT(store_overtaken, 512, copied, 0, 63, SIM_SM_90, "cp.async.bulk")
EXHIBIT(store_left, 256, copied, 0, 0, SIM_SM_90, "")
EXHIBIT(copy_of_odd_bytes, 256, copied, 0, 0, SIM_SM_90, "1000")
EXHIBIT(box_misaligned, 192, copied, 0, 0, SIM_SM_90, "128")
EXHIBIT(overhang_not_expected, 160, copied, 0, 63, SIM_SM_90, "bytes")

/* wgmma.cu */
EXHIBIT(wgmma_without_proxy_fence, 1024, product, 0, 127, SIM_SM_90, "fence")
EXHIBIT(wgmma_without_fence, 1024, product, 0, 127, SIM_SM_90, "wgmma.fence")
EXHIBIT(wgmma_read_early, 1024, product, 0, 127, SIM_SM_90, "wgmma")
EXHIBIT(wgmma_registers_overwritten, 1024, product_doubled, 0, 127, SIM_SM_90, "wgmma")
EXHIBIT(wgmma_operand_overwritten, 1024, product_doubled, 0, 127, SIM_SM_90, "wgmma")
EXHIBIT(wgmma_by_three_warps, 1024, product, 0, 127, SIM_SM_90, "warp")
EXHIBIT(wgmma_past_operand, 1024, product, 0, 127, SIM_SM_90, "shared")
EXHIBIT(wgmma_left, 1024, product, 0, 127, SIM_SM_90, "wgmma")
EXHIBIT(registers_not_given, 384, copied, 0, 383, SIM_SM_90, "registers")
EXHIBIT(registers_wrong_way, 512, copied, 0, 511, SIM_SM_90, "128")

/* machine.cu */
EXHIBIT(cluster_read_early, 256, exchanged, 0, 63, SIM_SM_90, "CTA")
EXHIBIT(cluster_left_early, 256, exchanged, 0, 63, SIM_SM_90, "CTA")
EXHIBIT(cluster_of_odd_grid, 128, copied, 0, 0, SIM_SM_90, "cluster")
EXHIBIT(dynamic_shared_too_large, 64, copied, 0, 0, SIM_SM_90, "shared")
EXHIBIT(static_shared_too_large, 64, copied, 0, 63, SIM_SM_90, "shared")
EXHIBIT(block_too_large, 128, copied, 0, 0, SIM_SM_90, "128")
EXHIBIT(bulk_copy_on_sm_80, 256, copied, 0, 63, SIM_SM_80, "sm_90")
