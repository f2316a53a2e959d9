/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * How fast a device writes: measured from completions, never configured. Pure functions of
 * (counters, time), so that the simulator runs them as the server does.
 */
#ifndef DONTCACHE_BANDWIDTH_H
#define DONTCACHE_BANDWIDTH_H

#include <stdint.h>

struct dc_bandwidth {
	uint64_t bytes_per_s; /* the estimate; 0: nothing measured yet */
	uint64_t busy_ns;     /* of the sample being taken: time with something under writeback */
	uint64_t bytes;	      /* and what completed in it */
	uint64_t busy_since;  /* 0: idle */
};

/** Something was submitted at `now` (ns). Idle time is never part of a sample. */
void dc_bw_busy(struct dc_bandwidth *bw, uint64_t now);

/**
 * `bytes` completed at `now`; `still_busy` when more is under writeback.
 *
 * The estimate is the one of Linux's wb_update_write_bandwidth(), with its period T of 3 s
 * shortened to 1 s because a turn is a larger sample than a page:
 *     estimate = (sample * dt + estimate * (T - dt)) / T,   dt capped at T.
 */
void dc_bw_completed(struct dc_bandwidth *bw, uint64_t now, uint64_t bytes, int still_busy);

/** Bytes that may be under writeback at once: what the device does in window_ms, 8 MiB at least
 * (two turns, or the device idles between them). */
uint64_t dc_bw_window(const struct dc_bandwidth *bw, uint64_t window_ms);

/** Bytes of one turn: 10 ms of the device, between 4 MiB and 32 MiB, whole 2 MiB windows. */
uint64_t dc_bw_chunk(const struct dc_bandwidth *bw);

#endif
