/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The device's measured write bandwidth, and the sizes that follow from it. */
#include "dontcache/bandwidth.h"

#include "util.h"

#define NS_PER_S 1000000000ULL
#define PERIOD_NS NS_PER_S
#define SAMPLE_NS (NS_PER_S / 10) /* shorter samples are mostly the queue's depth, not its speed */
#define MiB (1ULL << 20)

void dc_bw_busy(struct dc_bandwidth *bw, uint64_t now)
{
	if (bw->busy_since == 0)
		bw->busy_since = now;
}

void dc_bw_completed(struct dc_bandwidth *bw, uint64_t now, uint64_t bytes, int still_busy)
{
	uint64_t sample, dt;

	if (bw->busy_since != 0 && now > bw->busy_since)
		bw->busy_ns += now - bw->busy_since;
	bw->busy_since = still_busy ? now : 0;
	bw->bytes += bytes;
	/* The first sample soon: until then a slow device may be given too much. */
	if (bw->busy_ns < (bw->bytes_per_s ? SAMPLE_NS : SAMPLE_NS / 10))
		return;
	sample = (uint64_t)((double)bw->bytes * NS_PER_S / (double)bw->busy_ns);
	dt = dc_min_u64(bw->busy_ns, PERIOD_NS);
	if (bw->bytes_per_s == 0)
		bw->bytes_per_s = sample;
	else
		bw->bytes_per_s = (uint64_t)(((double)sample * dt +
					      (double)bw->bytes_per_s * (PERIOD_NS - dt)) /
					     PERIOD_NS);
	bw->busy_ns = 0;
	bw->bytes = 0;
}

uint64_t dc_bw_window(const struct dc_bandwidth *bw, uint64_t window_ms)
{
	return dc_max_u64(bw->bytes_per_s / 1000 * window_ms, 8 * MiB);
}

uint64_t dc_bw_chunk(const struct dc_bandwidth *bw)
{
	uint64_t chunk = bw->bytes_per_s / 100;

	chunk = chunk / (2 * MiB) * (2 * MiB);
	return dc_min_u64(dc_max_u64(chunk, 4 * MiB), 32 * MiB);
}
