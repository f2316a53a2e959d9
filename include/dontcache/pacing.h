/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * How fast writes are let in, as pure functions of (counters, time): the simulator runs them as the
 * server does. docs/budgets.md tells where the formulas come from and how this one was chosen.
 *
 *        0 ---------- background ------- freerun -------- set point ------- limit
 *        |  nothing   |  the flusher     |  the law: fast at  |  slower than   |  nobody
 *        |  is done   |  works           |  freerun, as fast  |  the device    |
 *        |            |                  |  as the device at  |                |
 *        |            |                  |  the set point     |                |
 */
#ifndef DONTCACHE_PACING_H
#define DONTCACHE_PACING_H

#include <stdint.h>

/** Levels of a budget, in pages. Up to three quarters of the way from background to limit nobody waits; half
 * way from there to the limit is where writers are held. Linux (mm/page-writeback.c,
 * domain_dirty_freerun(), dirty_setpoint) begins at one half, because its limits follow what is going
 * on with a delay; ours are exact, and what is let through without waiting costs less. */
static inline uint64_t dc_pace_freerun(uint64_t background, uint64_t limit)
{
	return (background + 3 * limit) / 4;
}

static inline uint64_t dc_pace_setpoint(uint64_t background, uint64_t limit)
{
	return (dc_pace_freerun(background, limit) + limit) / 2;
}

/* What a law sees; pages, and pages per second. */
struct dc_pace_in {
	double dirty; /* and under writeback */
	double freerun, setpoint, limit;
	double completed; /* per second: how fast the export's pages become clean */
};

/** Pages per second that may become dirty; 0: none for now. */
typedef double (*dc_pace_law)(const struct dc_pace_in *in);

/**
 * The law in use: what the device completes, plus what closes the distance to the set point within
 * DC_PACE_TAU_S:
 *
 *     rate = completed + (setpoint - dirty) / tau
 *
 * Since d(dirty)/dt = rate - completed, the distance shrinks as exp(-t / tau), whatever the device's
 * speed, and the set point is reached exactly; an error in `completed` of p per cent moves it by
 * p% * completed * tau only. No gain has to be tuned to a device. Below an eighth of `completed` it
 * does not fall before the limit, so that a set point that moved down is no standstill.
 */
double dc_pace_linear(const struct dc_pace_in *in);

#define DC_PACE_TAU_S 0.25

/* How fast pages complete. Measured from completion to completion, so that completions that come
 * evenly give the same figure each time, however large each is. */
struct dc_rate {
	double per_s;
	/* of the sample being taken */
	double pages;	 /* completed in it */
	uint64_t before; /* ns, without what follows */
	uint64_t since;	 /* ns; 0: nothing is expected to complete */
};

/** From `now` (ns) on there is something to be completed. */
void dc_rate_begin(struct dc_rate *r, uint64_t now);
/** There is not: the time until the next dc_rate_begin() counts for nothing. */
void dc_rate_end(struct dc_rate *r, uint64_t now);
/** So many pages completed. An exponential mean over DC_RATE_PERIOD_S; samples of 10 ms at least. */
void dc_rate_add(struct dc_rate *r, uint64_t now, uint64_t pages);
/** The rate as it must be seen at `now`: completions that stay away lower it. */
double dc_rate_now(const struct dc_rate *r, uint64_t now);

#define DC_RATE_PERIOD_S 0.3

#endif
