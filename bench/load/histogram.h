/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * histogram.h: latencies in microseconds, log-linear as in HdrHistogram: 64 buckets to each power
 * of two, so a percentile is off by 1.6% at most, one increment records a sample, and histograms
 * of several runs or clients add up exactly (percentiles do not).
 */
#ifndef BENCH_LOAD_HISTOGRAM_H
#define BENCH_LOAD_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS (64 * 32) /* up to 2^37 us: a day and a half */

struct histogram {
	uint64_t count, sum, max;
	uint32_t bucket[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_index(uint64_t us)
{
	if (us < 64)
		return (unsigned)us;
	unsigned shift = 57u - (unsigned)__builtin_clzll(us); /* us >> shift lies in 64..127 */
	unsigned index = shift * 64 + (unsigned)(us >> shift);
	return index < HISTOGRAM_BUCKETS ? index : HISTOGRAM_BUCKETS - 1;
}

/* The highest value that lands in a bucket. */
static inline uint64_t histogram_value(unsigned index)
{
	if (index < 128)
		return index;
	unsigned shift = index / 64 - 1;
	return (((uint64_t)(index % 64) + 65) << shift) - 1;
}

static inline void histogram_add(struct histogram *h, uint64_t us)
{
	h->count++;
	h->sum += us;
	if (us > h->max)
		h->max = us;
	h->bucket[histogram_index(us)]++;
}

static inline uint64_t histogram_percentile(const struct histogram *h, double percent)
{
	uint64_t rank = (uint64_t)((double)h->count * percent / 100.0 + 0.5), seen = 0;
	if (rank < 1)
		rank = 1;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen >= rank)
			return histogram_value(i) < h->max ? histogram_value(i) : h->max;
	}
	return h->max;
}

#endif
