/* mistakes.h - the mutants. MISTAKE(pipeline, what is wrong, how it is rejected, what each report of it says).
 *
 * Where the schedule decides what comes of a mistake first, several rules stand there. WRONG_NUMBERS stands where no
 * rule is broken: the kernel does in good order what nobody asked for. */

/* ring.cu: barriers */
MISTAKE(ring, init_not_fenced, PROXY_FENCE, "did not execute fence.mbarrier_init")
MISTAKE(ring, init_not_synced, RACE, "initialised the mbarrier, and no synchronisation")
MISTAKE(ring, full_counts_two, DEADLOCK, "1 of 2 arrivals have come")
MISTAKE(ring, empty_counts_one_group, RACE | MISSING_WAIT | DEADLOCK, "ring.cu")
MISTAKE(ring, full_not_waited, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(ring, queries_not_waited, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(ring, full_parity_not_turned, RACE | MISSING_WAIT | DEADLOCK, "ring.cu")
MISTAKE(ring, empty_not_waited, MISSING_WAIT | BARRIER_COUNT, "ring.cu")
MISTAKE(ring, empty_parity_not_turned, MISSING_WAIT | BARRIER_COUNT, "ring.cu")
MISTAKE(ring, starts_full, DEADLOCK, "0 of 8 arrivals have come")
MISTAKE(ring, stage_off_by_one, MISSING_WAIT, "cp.async.bulk.tensor issued by")

/* ring.cu: loads */
MISTAKE(ring, too_few_bytes, DEADLOCK, "256 bytes more than expected have come")
MISTAKE(ring, too_many_bytes, DEADLOCK, "512 bytes are still to come")
MISTAKE(ring, bytes_not_expected, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(ring, loaded_by_all_lanes, MISSING_WAIT | BARRIER_COUNT, "ring.cu")
MISTAKE(ring, tile_beyond_end, LEFT_PENDING, "no thread has waited for it")

/* ring.cu: releases */
MISTAKE(ring, keys_released_early, RACE | MISSING_WAIT, "wgmma issued by")
MISTAKE(ring, values_released_early, RACE | MISSING_WAIT, "wgmma issued by")
MISTAKE(ring, released_by_one_group, DEADLOCK, "4 of 8 arrivals have come")
MISTAKE(ring, released_by_two_lanes, RACE | MISSING_WAIT | DEADLOCK, "ring.cu")
MISTAKE(ring, last_not_released, LEFT_PENDING, "4 of 8 arrivals have come")

/* ring.cu: registers */
MISTAKE(ring, scores_not_fenced, WGMMA_FENCE, "Accumulators have been written")
MISTAKE(ring, weights_not_fenced, WGMMA_FENCE, "Registers of A have been written")
MISTAKE(ring, scores_read_early, REGISTERS_IN_FLIGHT, "still writes this register")
MISTAKE(ring, weights_overwritten, REGISTERS_IN_FLIGHT, "still reads this register")
MISTAKE(ring, one_group_in_flight, REGISTERS_IN_FLIGHT, "still reads this register")
MISTAKE(ring, values_not_committed, REGISTERS_IN_FLIGHT, "still reads this register")
MISTAKE(ring, registers_not_given, DEADLOCK, "setmaxnreg.inc of 9216 registers")
MISTAKE(ring, registers_over_budget, DEADLOCK, "setmaxnreg.inc of 10240 registers")
MISTAKE(ring, registers_wrong_way, BAD_OPERAND, "cannot make 24 of them")

/* turns.cu: whose turn it is */
MISTAKE(turns, not_begun, DEADLOCK, "bar.sync 2 (128 of 256 threads have come)")
MISTAKE(turns, begun_by_other, MISSING_WAIT | DEADLOCK, "turns.cu")
MISTAKE(turns, begun_by_both, RACE | MISSING_WAIT | BARRIER_COUNT, "turns.cu")
MISTAKE(turns, same_barrier, BARRIER_COUNT, "again before the barrier is complete")
MISTAKE(turns, count_one_group, MISSING_WAIT | DIVERGED | BARRIER_COUNT, "turns.cu")
MISTAKE(turns, not_given, DEADLOCK, "bar.sync 2 (128 of 256 threads have come)")
MISTAKE(turns, last_one_given, LEFT_PENDING, "128 of 256 threads at barrier 1")
MISTAKE(turns, queries_loaded_early, RACE | MISSING_WAIT | BARRIER_COUNT, "turns.cu")
MISTAKE(turns, given_before_wait, RACE | MISSING_WAIT, "wgmma issued by")
MISTAKE(turns, staging_turn_not_taken, RACE, "no synchronisation lies between")
MISTAKE(turns, staging_given_early, RACE | MISSING_WAIT, "cp.async.bulk.tensor issued by")

/* turns.cu: copies */
MISTAKE(turns, keys_not_waited, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(turns, parity_of_round, MISSING_WAIT | DEADLOCK, "turns.cu")
MISTAKE(turns, staging_not_fenced, PROXY_FENCE, "did not execute fence.proxy.async")
MISTAKE(turns, staging_not_synced, UNINITIALISED | RACE, "cp.async.bulk.tensor")
MISTAKE(turns, barrier_of_turn, BARRIER_COUNT, "turns.cu")
MISTAKE(turns, barrier_of_all_threads, DEADLOCK, "bar.sync 0 (128 of 256 threads have come)")
MISTAKE(turns, store_not_committed, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(turns, store_not_waited, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(turns, store_waited_by_other, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(turns, last_store_not_waited, LEFT_PENDING, "reads of shared memory")
MISTAKE(turns, stores_one_tile, MISSING_WAIT, "of global out")

/* turns.cu: registers */
MISTAKE(turns, one_group_in_flight, REGISTERS_IN_FLIGHT, "still writes this register")
MISTAKE(turns, result_not_waited, REGISTERS_IN_FLIGHT, "still writes this register")
MISTAKE(turns, fenced_early, WGMMA_FENCE, "Registers of A have been written")

/* multicast.cu: barriers */
MISTAKE(cast, init_not_fenced, RACE, "initialised the mbarrier, and no synchronisation")
MISTAKE(cast, init_fenced_as_memory, RACE, "initialised the mbarrier, and no synchronisation")
MISTAKE(cast, init_not_waited, UNINITIALISED | RACE, "mbarrier")
MISTAKE(cast, init_synced_in_cta, UNINITIALISED | RACE, "mbarrier")
MISTAKE(cast, full_not_waited, UNINITIALISED | RACE | MISSING_WAIT, "wgmma")
MISTAKE(cast, full_parity_not_turned, RACE | MISSING_WAIT | BARRIER_COUNT | DEADLOCK, "multicast.cu")
MISTAKE(cast, empty_counts_one_cta, RACE | MISSING_WAIT | BARRIER_COUNT | DEADLOCK, "multicast.cu")
MISTAKE(cast, empty_not_waited, BARRIER_COUNT, "mbarrier.arrive.expect_tx")
MISTAKE(cast, empty_parity_not_turned, BARRIER_COUNT, "mbarrier.arrive.expect_tx")
MISTAKE(cast, released_early, RACE | MISSING_WAIT, "wgmma issued by")
MISTAKE(cast, released_in_own_cta, DEADLOCK, "4 of 8 arrivals have come")
MISTAKE(cast, released_to_itself, RACE | MISSING_WAIT | DEADLOCK, "multicast.cu")
MISTAKE(cast, released_by_cta_instruction, BAD_OPERAND, "those of its own CTA only")
MISTAKE(cast, tail_missing, RACE, "no thread of that CTA waits for this access before it ends")
MISTAKE(cast, tail_too_short, RACE, "no thread of that CTA waits for this access before it ends")

/* multicast.cu: loads */
MISTAKE(cast, mask_of_itself, DEADLOCK, "512 bytes are still to come")
MISTAKE(cast, mask_of_other, DEADLOCK, "mbarrier.try_wait parity 0")
MISTAKE(cast, not_multicast, DEADLOCK, "512 bytes are still to come")
MISTAKE(cast, same_half, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(cast, bytes_of_half, MISSING_WAIT | DEADLOCK, "multicast.cu")
MISTAKE(cast, bytes_of_keys, MISSING_WAIT | DEADLOCK, "multicast.cu")
MISTAKE(cast, expected_by_one, DEADLOCK, "0 of 1 arrivals have come")
MISTAKE(cast, sums_not_begun, UNINITIALISED, "accumulators that nobody has written")

/* exchange.cu: read from the other CTA */
MISTAKE(pull, read_early, RACE, "may not have begun")
MISTAKE(pull, synced_in_cta, RACE, "may not have begun")
MISTAKE(pull, synced_by_one_warp, RACE, "may not have begun")
MISTAKE(pull, read_before_wait, RACE, "may not have begun")
MISTAKE(pull, arrived_relaxed, RACE, "no synchronisation lies between")
MISTAKE(pull, written_early, RACE, "no synchronisation lies between")
MISTAKE(pull, left_early, RACE, "no thread of that CTA waits for this access before it ends")
MISTAKE(pull, past_cluster, BAD_OPERAND, "Rank 2 of a cluster of 2 CTAs")
MISTAKE(pull, from_itself, WRONG_NUMBERS, "")

/* exchange.cu: sent to the other CTA */
MISTAKE(push, init_not_fenced, PROXY_FENCE, "did not execute fence.mbarrier_init")
MISTAKE(push, init_synced_in_cta, RACE, "may not have begun")
MISTAKE(push, full_counts_one_warp, UNINITIALISED | RACE | BARRIER_COUNT, "exchange.cu")
MISTAKE(push, full_not_waited, UNINITIALISED | RACE | MISSING_WAIT, "exchange.cu")
MISTAKE(push, empty_not_waited, RACE | MISSING_WAIT, "exchange.cu")
MISTAKE(push, parity_not_turned, RACE | MISSING_WAIT, "exchange.cu")
MISTAKE(push, emptied_early, RACE, "no synchronisation lies between")
MISTAKE(push, left_early, RACE, "no thread of that CTA waits for this access before it ends")
MISTAKE(push, outbox_not_fenced, PROXY_FENCE, "did not execute fence.proxy.async")
MISTAKE(push, outbox_not_synced, UNINITIALISED | RACE, "exchange.cu")
MISTAKE(push, told_before_store, UNINITIALISED | RACE, "exchange.cu")
MISTAKE(push, told_by_one_thread, UNINITIALISED | RACE, "exchange.cu")
MISTAKE(push, told_itself, BAD_OPERAND, "of the CTA that the bytes go to")
MISTAKE(push, too_few_bytes, DEADLOCK, "128 bytes more than expected have come")
MISTAKE(push, to_itself, WRONG_NUMBERS, "")

/* chain.cu: launches */
MISTAKE(chain, prepared_early, MISSING_WAIT, "launches ahead may not have ended")
MISTAKE(chain, loaded_before_wait, MISSING_WAIT, "launches ahead may not have ended")
MISTAKE(chain, not_waited_by_loader, MISSING_WAIT, "launches ahead may not have ended")
MISTAKE(chain, not_waited_by_warp, LEFT_PENDING, "has not waited for the launches ahead")

/* chain.cu: tiles */
MISTAKE(chain, full_not_waited, MISSING_WAIT, "cp.async.bulk.tensor issued by")
MISTAKE(chain, parity_of_tile, MISSING_WAIT | DEADLOCK, "chain.cu")
MISTAKE(chain, parity_not_carried, WRONG_PARITY | DEADLOCK, "mbarrier.try_wait")
MISTAKE(chain, next_into_same_slot, RACE | MISSING_WAIT, "wgmma issued by")
MISTAKE(chain, loaded_by_all_warps, RACE | MISSING_WAIT | BARRIER_COUNT, "chain.cu")
MISTAKE(chain, tile_beyond_end, LEFT_PENDING, "no thread has waited for it")
MISTAKE(chain, tiles_shared, RACE, "blocks of one launch are not ordered")
MISTAKE(chain, product_not_waited, REGISTERS_IN_FLIGHT, "still writes this register")
MISTAKE(chain, sums_kept, WRONG_NUMBERS, "")

/* chain.cu: results */
MISTAKE(chain, last_store_not_waited, MISSING_WAIT, "cp.async.bulk issued by")
MISTAKE(chain, store_wait_not_synced, MISSING_WAIT, "cp.async.bulk issued by")
MISTAKE(chain, staging_not_fenced, PROXY_FENCE, "did not execute fence.proxy.async")
MISTAKE(chain, staging_not_synced, UNINITIALISED | RACE | MISSING_WAIT, "cp.async.bulk")
MISTAKE(chain, store_not_committed, MISSING_WAIT | LEFT_PENDING, "cp.async.bulk")
MISTAKE(chain, store_left, LEFT_PENDING, "reads of shared memory")
